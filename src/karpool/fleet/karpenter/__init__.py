"""A simulated Karpenter for embedded clusters: provisioning, node life cycle, termination, disruption."""

from collections.abc import Mapping

from karpool.fleet.cloud import Cloud
from karpool.fleet.karpenter.controller import Karpenter
from karpool.fleet.karpenter.settings import KarpenterSettings
from karpool.fleet.runtime import Build

__all__ = ["Karpenter", "KarpenterSettings", "karpenter_components"]


def karpenter_components(cloud: Cloud, settings: KarpenterSettings | None = None) -> Mapping[str, Build]:
    """What to add to a cluster. The catalogue is the cloud's."""
    chosen = settings or KarpenterSettings()
    return {"karpenter": lambda context: Karpenter(context, cloud, chosen)}
