"""cluster-autoscaler as a capacity provider: its node groups, up to their maximum size.

Sizes and back-off come from the status ConfigMap, what a new node holds from the nodes
that a group has or had (`node_group_template`). A group in back-off, unhealthy, at its
maximum, or of unknown shape adds nothing and says so. Machines that were asked for and
are no nodes yet count as coming. Pods that wait take both before anybody else. A group
that leaves pods waiting without growing stops counting for a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpool.cluster.aspects import Aspect
from karpool.cluster.market.failures import LaunchFailure, LaunchFailures, OnFailures
from karpool.cluster.market.fleet_bill import LaunchBilling
from karpool.cluster.market.market import Market
from karpool.cluster.pools.node_group_status import NodeGroupStatus
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.pending_demand import demands, without_topology
from karpool.estimator.plugins.interface import UNLIMITED, CapacityPart, Estimate, no_opinion
from karpool.estimator.providers.packed_capacity import in_flight
from karpool.estimator.question import EstimateQuestion
from karpool.kube.clock import Clock
from karpool.model.catalogue.catalogue import capacity_type_of
from karpool.model.karpenter.objects import ON_DEMAND
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import Resources, add, maximum
from karpool.packing.counting.count import fits
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.fit_reasons import explain_nodes
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.wire.requests import ComponentSetsRequest

NAME = "cluster-autoscaler"
NODES_MAX = 1000
_SETS_MAX = 1000


@dataclass(frozen=True, slots=True)
class NodeGroupRoom:
    """What one group could add: nodes that are coming, and nodes that may be asked for."""

    status: NodeGroupStatus
    rows: tuple[NodeRow, ...]  # a new node, by zone, less its daemons
    instance_type: str
    coming: int
    new: int
    refusal: str = ""


class ClusterAutoscalerProvider:
    name = NAME
    aspects = Aspect.NODE_GROUPS | Aspect.DAEMONS | Aspect.WAITING

    def __init__(
        self, clock: Clock, failures: LaunchFailures | None = None, *, nodes_max: int = NODES_MAX
    ) -> None:
        """`failures` are those of groups of the `Cluster` whose snapshots are asked about."""
        self.failures = failures if failures is not None else LaunchFailures()
        self.on_failures: list[OnFailures] = []
        self._told: dict[str, LaunchFailure] = {}
        self._clock = clock
        self._nodes_max = nodes_max

    # Answering

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self.plan(question, None)

    def plan(self, question: EstimateQuestion, wanted: int | None) -> Estimate:
        """As `estimate`; with `wanted`, no more than it takes to hold so many next to existing nodes."""
        node_groups = question.snapshot.node_groups
        if not node_groups.groups:
            return no_opinion(node_groups.problem or "cluster-autoscaler reports no node groups")
        shape = without_topology(getattr(question.request, "shape", PodShape()))
        left = None if wanted is None else max(0, wanted - question.existing)
        parts: list[CapacityPart] = []
        market = question.snapshot.market
        billing = market.launch_billing()
        for room in self._after_others(question):
            per_node = _per_node(room, shape)
            coming, new = per_node * room.coming, per_node * room.new
            if left is not None:
                coming = min(coming, left)
                new = min(new, left - coming)
                left -= coming + new
            if coming:
                parts.append(CapacityPart(in_flight(self.name, room.status.name), min(coming, UNLIMITED)))
            parts.append(self._part(room, new, per_node, shape, billing=billing, market=market))
        return Estimate(min(sum(part.amount for part in parts), UNLIMITED), parts=tuple(parts))

    def estimate_components(self, question: EstimateQuestion) -> Estimate:
        if not question.snapshot.node_groups.groups or not isinstance(question.request, ComponentSetsRequest):
            return no_opinion("cluster-autoscaler reports no node groups")
        groups = [
            Group(without_topology(component.shape), component.replicas)
            for component in question.request.components
        ]
        groups = [pod_group for pod_group in groups if pod_group.replicas]
        if not groups:
            return no_opinion("no component has replicas")
        rooms = self._after_others(question)
        low, high = 0, _SETS_MAX
        while low < high:
            middle = (low + high + 1) // 2
            fit = _take(rooms, [replace(group, replicas=group.replicas * middle) for group in groups])
            low, high = (middle, high) if fit is not None else (low, middle - 1)
        return Estimate(low, parts=(CapacityPart(self.name, low),))

    def ceiling(self, snapshot: Snapshot) -> Resources:
        """Of every resource, what machines asked for and machines below the maximum sizes hold at most."""
        rooms = [self._room(snapshot, group) for group in snapshot.node_groups.groups.values()]
        total: Resources = {}
        for room in self._after_waiting(rooms, snapshot, self._clock.now()):
            largest: Resources = {}
            for row in room.rows:
                maximum(largest, row.allocatable)
            add(total, {name: units * (room.coming + room.new) for name, units in largest.items()})
        return total

    def failing(self) -> list[LaunchFailure]:
        return self.failures.current(self._clock.now())

    def _part(
        self,
        room: NodeGroupRoom,
        amount: int,
        per_node: int,
        shape: PodShape,
        *,
        billing: LaunchBilling,
        market: Market,
    ) -> CapacityPart:
        reasons: tuple[str, ...] = ()
        if not amount:
            why = room.refusal or ("" if room.new else f"maxSize {room.status.max_size} reached")
            reasons = (why or _why_not(room, shape),) if why or not per_node else ()
        nodes = -(-amount // per_node) if per_node else 0
        labels = room.rows[0].labels if nodes else {}
        zone, capacity_type = labels.get(ZONE, ""), capacity_type_of(labels) or ON_DEMAND
        price = market.list_price({**labels, INSTANCE_TYPE: room.instance_type}) if nodes else None
        option = LaunchOption(room.instance_type, zone, capacity_type, price)
        cost = billing.cost("", [(nodes, option)] if nodes else [])
        return CapacityPart(
            f"{self.name}/{room.status.name}",
            min(amount, UNLIMITED),
            nodes=nodes,
            instance_types=(room.instance_type,) if nodes and room.instance_type else (),
            price_per_hour=cost.per_hour,
            list_price_per_hour=cost.list_per_hour,
            reasons=reasons,
            may_pass=bool(reasons) and bool(per_node),
        )

    # What is left

    def _after_others(self, question: EstimateQuestion) -> list[NodeGroupRoom]:
        """Groups as they are once pods that wait and assumed workloads have their nodes."""
        now = self._clock.now()
        snapshot = question.snapshot
        rooms = [self._room(snapshot, group) for group in snapshot.node_groups.groups.values()]
        rooms = self._after_waiting(rooms, snapshot, now)
        for shape, replicas in question.promised.items():
            rooms = _take(rooms, [Group(shape, replicas)], partly=True) or rooms
        return rooms

    def _after_waiting(
        self, rooms: list[NodeGroupRoom], snapshot: Snapshot, now: float
    ) -> list[NodeGroupRoom]:
        waiting: dict[str, float] = {}
        self.failures.waiting({})
        for demand in demands(snapshot):
            since = demand.since
            for room in rooms:
                if not room.new or not _per_node(room, demand.shape) or room.coming:
                    continue
                name = room.status.name
                waiting[name] = min(waiting.get(name, since), since)
                failure = self.failures.of_pool(name, now, waiting_since=waiting[name])
                if failure is None:
                    break
                since = max(since, failure.since)
            rooms = _take(rooms, [Group(demand.shape, demand.pods)], partly=True) or rooms
        self.failures.waiting(waiting)
        failed = {room.status.name: self.failures.of_pool(room.status.name, now) for room in rooms}
        self._tell({name: failure for name, failure in failed.items() if failure is not None})
        probed = self.failures.probed_pools(now)
        return [
            replace(room, new=0, refusal=f"does not count at present: {failure}")
            if (failure := failed[room.status.name])
            else replace(room, new=min(room.new, 1))
            if room.status.name in probed
            else room
            for room in rooms
        ]

    def _tell(self, current: dict[str, LaunchFailure]) -> None:
        begun = [failure for name, failure in current.items() if name not in self._told]
        ended = [failure for name, failure in self._told.items() if name not in current]
        self._told = current
        for tell in self.on_failures if begun or ended else ():
            tell(begun, ended)

    def _room(self, snapshot: Snapshot, group: NodeGroupStatus) -> NodeGroupRoom:
        template, why = snapshot.node_groups.template(group.name, snapshot.catalogue)
        rows = tuple(snapshot.daemon_overhead.less(row, ()) for row in template.rows) if template else ()
        refusal = why
        if group.backoff:
            refusal = f"in back-off: {group.backoff}"
        elif not group.healthy:
            refusal = "the group is unhealthy, so it is not grown"
        new = 0 if refusal else min(group.room, self._nodes_max)
        return NodeGroupRoom(
            group, rows, template.instance_type if template else "", group.coming if rows else 0, new, refusal
        )


def _per_node(room: NodeGroupRoom, shape: PodShape) -> int:
    """Replicas on one new node, in whatever zone it comes up."""
    if not room.rows:
        return 0
    return int(fits(snapshot_of(room.rows), shape).min())


def _why_not(room: NodeGroupRoom, shape: PodShape) -> str:
    refusals = explain_nodes(snapshot_of(room.rows), shape)
    return refusals[0].detail if refusals else "a new node of it takes none"


def _take(
    rooms: Sequence[NodeGroupRoom], wanted: Sequence[Group], *, partly: bool = False
) -> list[NodeGroupRoom] | None:
    """The groups after these pods have taken their nodes; None when some found none, unless `partly`.

    Every component gets nodes of its own: which pods share a node is for the scheduler to decide.
    """
    left = list(rooms)
    for group in wanted:
        rest = group.replicas
        for index, room in enumerate(left):
            per_node = _per_node(room, group.shape)
            if not per_node or not rest:
                continue
            nodes = min(-(-rest // per_node), room.coming + room.new)
            rest -= min(rest, nodes * per_node)
            coming = min(nodes, room.coming)
            left[index] = replace(room, coming=room.coming - coming, new=room.new - (nodes - coming))
        if rest and not partly:
            return None
    return left
