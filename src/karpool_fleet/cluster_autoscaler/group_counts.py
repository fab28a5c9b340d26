"""Current, target and pending nodes of a group. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from karpool.model import resources
from karpool.model.kubernetes.node import Node, allocatable
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.taints import NO_SCHEDULE, PREFER_NO_SCHEDULE, Taint
from karpool_fleet.cloud.cloud import Instance
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings, NodeGroup

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
CANDIDATE = "DeletionCandidateOfClusterAutoscaler"


@dataclass(frozen=True)
class NodeCounts:
    """Node counts of the status. `resource_unready` nodes are part of `unready` or `not_started`."""

    registered: int = 0
    ready: int = 0
    not_started: int = 0
    being_deleted: int = 0
    unready: int = 0
    resource_unready: int = 0
    long_unregistered: int = 0
    unregistered: int = 0

    def is_healthy(self, settings: AutoscalerSettings) -> bool:
        limit = settings.max_total_unready_percentage / 100 * self.registered
        return self.unready <= settings.ok_total_unready_count or self.unready <= limit


@dataclass
class GroupView:
    group: NodeGroup
    instances: Sequence[Instance]
    launching: Sequence[str] = ()  # zones of machines that are being launched
    ready: list[Node] = field(default_factory=list)
    starting: list[Instance] = field(default_factory=list)  # machines whose nodes will become ready
    long_unregistered: list[Instance] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)  # names of nodes that are being deleted
    counts: NodeCounts = NodeCounts()

    @property
    def target(self) -> int:
        """Return the target size: machines in deletion do not count."""
        return len(self.instances) + len(self.launching) - len(self.leaving)

    @property
    def zones(self) -> list[str]:
        return [instance.offer.zone for instance in self.instances] + list(self.launching)


def observe(
    group: NodeGroup,
    instances: Sequence[Instance],
    launching: Sequence[str],
    node_of: Callable[[str], Node | None],
    *,
    going: Collection[str],
    now: float,
    tick: float,
    settings: AutoscalerSettings,
) -> GroupView:
    """Return the state of a group.

    `going` are nodes in removal, which may not show it yet. `tick` is the monotonic time.
    """
    view = GroupView(group, instances, launching)
    registered = not_started = unready = resource_unready = unregistered = 0
    for instance in instances:
        node = node_of(instance.id)
        if node is None:
            unregistered += 1
            late = tick - instance.launched_at > settings.max_node_provision_seconds
            (view.long_unregistered if late else view.starting).append(instance)
            continue
        registered += 1
        lacks_devices = not has_devices(node, instance)
        if node.name in going or has_taint(node, TO_BE_DELETED):
            view.leaving.append(node.name)
        elif node.is_ready and not lacks_devices:
            view.ready.append(node)
        else:
            resource_unready += node.is_ready
            if _is_young(node, now, settings):
                not_started += 1
                view.starting.append(instance)
            else:
                unready += 1
    late_ones = len(view.long_unregistered)
    view.counts = NodeCounts(
        registered=registered,
        ready=len(view.ready),
        not_started=not_started,
        being_deleted=len(view.leaving),
        unready=unready,
        resource_unready=resource_unready,
        long_unregistered=late_ones,
        unregistered=unregistered - late_ones,
    )
    return view


def has_devices(node: Node, instance: Instance) -> bool:
    """Whether a node has the devices of its machine; without them it is not ready."""
    return all(
        allocatable(node).get(name, 0) > 0
        for name, units in instance.type.allocatable.items()
        if units and resources.is_extended(name)
    )


def _is_young(node: Node, now: float, settings: AutoscalerSettings) -> bool:
    created = node.metadata.creation_timestamp
    return not created or now - parse_rfc3339(created) < settings.max_node_startup_seconds


def others(nodes: Iterable[Node], now: float, settings: AutoscalerSettings) -> NodeCounts:
    """Return the counts of nodes that belong to no group."""
    members = list(nodes)
    unready = [node for node in members if not node.is_ready]
    young = sum(_is_young(node, now, settings) for node in unready)
    return NodeCounts(
        registered=len(members),
        ready=len(members) - len(unready),
        not_started=young,
        unready=len(unready) - young,
    )


def total(counts: Iterable[NodeCounts]) -> NodeCounts:
    every = list(counts)
    return NodeCounts(
        **{name: sum(getattr(status, name) for status in every) for name in NodeCounts.__annotations__}
    )


def has_taint(node: Node, key: str) -> bool:
    return any(taint.key == key for taint in node.spec.taints or ())


def deletion_taint(now: float) -> Taint:
    return Taint(key=TO_BE_DELETED, value=str(int(now)), effect=NO_SCHEDULE)


def candidate_taint(now: float) -> Taint:
    return Taint(key=CANDIDATE, value=str(int(now)), effect=PREFER_NO_SCHEDULE)
