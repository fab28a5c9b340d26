"""A simulated cluster-autoscaler: `cluster_autoscaler(cloud, groups, settings)` is the component."""

from karpool_fleet.cluster_autoscaler.controller import cluster_autoscaler
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings, NodeGroup

__all__ = ["AutoscalerSettings", "NodeGroup", "cluster_autoscaler"]
