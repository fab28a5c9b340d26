"""A simulated Karpenter for embedded clusters: provisioning, node life cycle, termination, disruption."""

from collections.abc import Mapping

from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.karpenter.controller import Karpenter
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.runtime.supervisor import Build

__all__ = ["Karpenter", "KarpenterSettings", "karpenter_components"]


def karpenter_components(cloud: Cloud, settings: KarpenterSettings | None = None) -> Mapping[str, Build]:
    """Return the components to add to a cluster. The catalogue is the cloud's."""
    chosen = settings or KarpenterSettings()
    return {"karpenter": lambda context: Karpenter(context, cloud, chosen)}
