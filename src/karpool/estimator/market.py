"""The market is shared with consolidation; see `karpool.provisioning.market`."""

from karpool.provisioning.market import Market, region_of

__all__ = ["Market", "region_of"]
