"""The market is shared with consolidation; see `karpool.provisioning.market`."""

from karpool.cluster.market.market import Market, region_of

__all__ = ["Market", "region_of"]
