"""Node groups: equal machines under one name, and templates of their new nodes.

The cloud chooses the zone, as an auto scaling group does: the zone with the fewest machines of the group.
Nodes have the labels of a managed node group of EKS, because the machines of the catalogue come from there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpool.model.catalogue.catalogue import Catalogue, InstanceType
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import ON_DEMAND, SPOT
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import PODS
from karpool.model.taints import Taint
from karpool.packing.feasibility import admitted
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool_fleet.cloud.cloud import Cloud, CloudOffer, Instance, offer_labels

GROUP_LABEL = "eks.amazonaws.com/nodegroup"
CAPACITY_LABEL = "eks.amazonaws.com/capacityType"
CLUSTER_TAG = "cluster"
GROUP_TAG = "k8s.io/cluster-autoscaler/node-group"
_CAPACITY_TYPES = {ON_DEMAND: "ON_DEMAND", SPOT: "SPOT"}


@dataclass(frozen=True)
class NodeGroup:
    """A node group. Without zones, it uses all zones that sell its type."""

    name: str
    instance_type: str
    zones: tuple[str, ...] = ()
    min_size: int = 0
    max_size: int = 10
    capacity_type: str = ON_DEMAND
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True)
class AutoscalerSettings:
    """Named after the flags of cluster-autoscaler, with their defaults."""

    scan_interval_seconds: float = 10.0
    max_node_provision_seconds: float = 900.0
    max_node_startup_seconds: float = 900.0
    initial_backoff_seconds: float = 300.0
    max_backoff_seconds: float = 1800.0
    backoff_reset_seconds: float = 10800.0
    ok_total_unready_count: int = 3
    max_total_unready_percentage: float = 45.0
    expendable_pods_priority_cutoff: int = -10
    utilization_threshold: float = 0.5
    unneeded_seconds: float = 600.0
    delay_after_add_seconds: float = 600.0
    delay_after_failure_seconds: float = 180.0
    unremovable_recheck_seconds: float = 300.0
    non_empty_candidates_count: int = 30
    max_empty_bulk_delete: int = 10
    max_drain_parallelism: int = 1
    max_bulk_soft_taint_count: int = 10
    node_delete_delay_seconds: float = 5.0
    max_graceful_termination_seconds: int = 600
    pod_eviction_seconds: float = 120.0
    pod_eviction_retry_seconds: float = 10.0


def checked(groups: Sequence[NodeGroup], catalogue: Catalogue) -> list[NodeGroup]:
    """The groups with their zones filled in; raises Invalid naming the group and the field."""
    by_name: dict[str, NodeGroup] = {}
    for group in groups:
        if not group.name or group.name in by_name:
            raise Invalid("name", group.name, "must be there, and the name of one node group only")
        try:
            by_name[group.name] = _checked(group, catalogue)
        except Invalid as error:
            raise error.at(f"node group {group.name}") from None
    return list(by_name.values())


def _checked(group: NodeGroup, catalogue: Catalogue) -> NodeGroup:
    instance_type = catalogue.types.get(group.instance_type)
    if instance_type is None:
        raise Invalid("instanceType", group.instance_type, "is not in the catalogue")
    if not 0 <= group.min_size <= group.max_size:
        raise Invalid("minSize", group.min_size, f"must be from 0 to maxSize, which is {group.max_size}")
    sold = [
        offering.zone for offering in instance_type.offerings if offering.capacity_type == group.capacity_type
    ]
    for zone in group.zones:
        if zone not in sold:
            raise Invalid("zones", zone, f"{group.instance_type} {group.capacity_type} is not sold there")
    if not sold:
        raise Invalid("capacityType", group.capacity_type, f"{group.instance_type} is not sold as that")
    return replace(group, zones=group.zones or tuple(dict.fromkeys(sold)))


def node_labels(group: NodeGroup) -> dict[str, str]:
    """Return the labels that the group adds to those of the machine."""
    billed = _CAPACITY_TYPES.get(group.capacity_type, group.capacity_type.upper())
    return {GROUP_LABEL: group.name, CAPACITY_LABEL: billed, **group.labels}


def instances_of(cloud: Cloud, cluster: str) -> dict[str, list[Instance]]:
    """Return the machines of this cluster by group."""
    instances: dict[str, list[Instance]] = {}
    for instance in cloud.instances.values():
        name = instance.tags.get(GROUP_TAG)
        if name is not None and instance.tags.get(CLUSTER_TAG) == cluster:
            instances.setdefault(name, []).append(instance)
    return instances


def offers(group: NodeGroup, zone: str) -> list[CloudOffer]:
    """Return the offer in the given zone, then those of the other zones in case it has no stock."""
    others = [other for other in group.zones if other != zone]
    return [
        CloudOffer(group.instance_type, offered_zone, group.capacity_type) for offered_zone in (zone, *others)
    ]


def next_zones(group: NodeGroup, present: Sequence[str], count: int) -> list[str]:
    """Return the zones of the next machines: always the one with the fewest, the first listed of several."""
    sizes = dict.fromkeys(group.zones, 0)
    for zone in present:
        if zone in sizes:
            sizes[zone] += 1
    chosen: list[str] = []
    for _ in range(count):
        zone = min(sizes, key=sizes.__getitem__)
        sizes[zone] += 1
        chosen.append(zone)
    return chosen


class NodeTemplates:
    """Rows for nodes that do not exist yet; the room of their daemons is already deducted."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def type_of(self, group: NodeGroup) -> InstanceType:
        return self._catalogue.types[group.instance_type]

    def row(self, group: NodeGroup, zone: str, name: str, daemons: Sequence[PodShape]) -> NodeRow:
        instance_type = self.type_of(group)
        offer = CloudOffer(group.instance_type, zone, group.capacity_type)
        labels = {**offer_labels(instance_type, offer), **node_labels(group), HOSTNAME: name}
        row = NodeRow(name, labels, group.taints, dict(instance_type.allocatable))
        nodes = snapshot_of([row]).nodes
        room: Mapping[str, int] = row.allocatable
        for shape in daemons:
            if bool(admitted(nodes, shape)[0]):
                taken = {**dict(shape.requests), PODS: 1}
                room = {key: max(0, units - taken.get(key, 0)) for key, units in room.items()}
        return replace(row, allocatable=room)

    @staticmethod
    def named(row: NodeRow, name: str) -> NodeRow:
        """Return a copy of the row with another name."""
        return replace(row, name=name, labels={**row.labels, HOSTNAME: name})
