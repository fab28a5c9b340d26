"""cluster-autoscaler as a capacity provider: its node groups, up to their maximum size.

Sizes and back-off come from the status ConfigMap, the shape of a new node from the nodes that a group has or
had (`node_group_template`). A group in back-off, unhealthy, at its maximum, or of unknown shape adds nothing
and says so. Requested machines without a node count as coming. Pending pods take both before other requests.
A group that leaves pods pending without growing does not count for a while.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.aspects import Aspect
from karpool.cluster.market.failures import LaunchFailure, LaunchFailures, OnFailures
from karpool.cluster.market.fleet_bill import LaunchBilling
from karpool.cluster.market.market import Market
from karpool.cluster.pools.node_group_status import NodeGroupStatus
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.pending_demand import (
    PendingDemand,
    demands,
    expected_room,
    largest_first,
    without_topology,
)
from karpool.estimator.plugins.interface import UNLIMITED, CapacityPart, Estimate, EstimateCode, no_opinion
from karpool.estimator.providers.packed_capacity import in_flight
from karpool.estimator.question import EstimateQuestion
from karpool.kube.clock import Clock
from karpool.model.catalogue.catalogue import Catalogue, capacity_type_of
from karpool.model.karpenter.objects import ON_DEMAND
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import Resources, add, maximum
from karpool.packing.claim_room import asks_drivers, claim_room
from karpool.packing.counting.count import fits
from karpool.packing.counting.first_fit import NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.dra.driver_templates import DriverTemplates
from karpool.packing.fit_reasons import CLAIMS_UNKNOWN, explain_nodes
from karpool.packing.new_nodes.component_sets import complete_sets
from karpool.packing.new_nodes.offerings import Offerings
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room
from karpool.provisioning.device_shapes import DeviceShapes
from karpool.wire.requests import ComponentSetsRequest

NAME = "cluster-autoscaler"
NODES_MAX = 1000
_NO_PLAN = NewNodeCapacity((), Offerings(Catalogue("", "", ()))).plan({}, nodes_max=0)


@dataclass(frozen=True, slots=True)
class NodeGroupRoom:
    """What one group could add: nodes that are coming, and nodes that may be requested."""

    status: NodeGroupStatus
    rows: tuple[NodeRow, ...]  # a new node, by zone, less its daemons
    room: Room  # the same as a Room
    instance_type: str
    coming: int
    new: int
    refusal: str = ""


class ClusterAutoscalerProvider:
    name = NAME
    aspects = Aspect.NODE_GROUPS | Aspect.DAEMONS | Aspect.WAITING | Aspect.BUFFERS | Aspect.DRA

    def __init__(
        self,
        clock: Clock,
        failures: LaunchFailures | None = None,
        *,
        nodes_max: int = NODES_MAX,
        shapes: DeviceShapes | None = None,
    ) -> None:
        """`failures` are those of the groups of the `Cluster` whose snapshots are used."""
        self.failures = failures if failures is not None else LaunchFailures()
        self.on_failures: list[OnFailures] = []
        self._told: dict[str, LaunchFailure] = {}
        self._clock = clock
        self._nodes_max = nodes_max
        self._templates = DriverTemplates(shapes)  # also of removed nodes

    # Answers

    def estimate(self, question: EstimateQuestion) -> Estimate:
        return self._unless_unknown(question, self.plan(question, None))

    def plan(self, question: EstimateQuestion, wanted: int | None) -> Estimate:
        """Like `estimate`; with `wanted`, no more than needed for that number besides existing nodes."""
        node_groups = question.snapshot.node_groups
        if not node_groups.groups:
            return no_opinion(node_groups.problem or "cluster-autoscaler reports no node groups")
        shape = without_topology(getattr(question.request, "shape", PodShape()))
        left = None if wanted is None else max(0, wanted - question.existing)
        parts: list[CapacityPart] = []
        market = question.snapshot.market
        billing = market.launch_billing()
        rooms = self._rooms(question.snapshot)
        amounts = _least(nodes.replicas(shape) for nodes in self._after_others(question, rooms, asked=shape))
        for room, amount in zip(rooms, amounts, strict=True):
            per_node = _per_node(room, shape)
            coming, new = amount
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
        rooms, before = self._rooms(question.snapshot), question.existing_sets
        rest, begun = before.unfinished(groups)
        sets = min(
            complete_sets(groups, _NO_PLAN, [*rest, *nodes.fillings], begun)
            for nodes in self._after_others(question, rooms, whole=True)
        )
        return self._unless_unknown(question, Estimate(sets, parts=(CapacityPart(self.name, sets),)))

    def _unless_unknown(self, question: EstimateQuestion, estimate: Estimate) -> Estimate:
        """If the devices of some groups are unknown, the answer is unknown instead of none."""
        shapes = [shape for shape in question.shapes if asks_drivers(question.room, shape)]
        if estimate.value or estimate.code is not EstimateCode.SUCCESS or not shapes or question.existing:
            return estimate
        rooms = [room.room for room in self._rooms(question.snapshot)]
        if all(any(claim_room(room, shape).any() for room in rooms) for shape in shapes):
            return estimate
        return replace(estimate, code=EstimateCode.UNKNOWN, reasons=(f"{NAME}: {CLAIMS_UNKNOWN}",))

    def ceiling(self, snapshot: Snapshot) -> Resources:
        """Of every resource, the upper bound for requested machines and machines below the maximum sizes."""
        total: Resources = {}
        for room in self._rooms(snapshot):
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

    # Remaining capacity

    def _after_others(
        self,
        question: EstimateQuestion,
        rooms: Sequence[NodeGroupRoom],
        *,
        asked: PodShape | None = None,
        whole: bool = False,
    ) -> list["_GroupNodes"]:
        """Future nodes after pending pods, assumed workloads and buffers, the largest first, for every
        possible zone.

        Pods of the `asked` shape come last. `whole`: include all nodes, also unused ones.
        """
        snapshot = question.snapshot
        promised = dict(question.promised)
        alike = {asked: promised.pop(asked)} if asked in promised else {}
        others = [Group(demand.shape, demand.pods) for demand in demands(snapshot)]
        for pods in (promised, question.displaced_buffers, alike):
            others += (Group(shape, pods[shape]) for shape in sorted(pods, key=largest_first))
        most = None if whole else sum(group.replicas for group in others)
        zones = max((len(room.rows) for room in rooms), default=0) or 1
        variants = []
        for zone in range(zones):
            nodes = _GroupNodes(
                rooms, zone, most, lambda rows: expected_room(snapshot, rows, self._templates)
            )
            for group in others:
                nodes.place(group)
            variants.append(nodes)
        return variants

    def _rooms(self, snapshot: Snapshot) -> list[NodeGroupRoom]:
        """The groups; those that leave pods pending do not count for a while."""
        now = self._clock.now()
        rooms = [self._room(snapshot, group) for group in snapshot.node_groups.groups.values()]
        waiting: dict[str, float] = {}
        self.failures.waiting({})
        left = {room.status.name: room.coming + room.new for room in rooms}
        for demand in demands(snapshot):
            since = demand.since
            for room in rooms:
                name = room.status.name
                if left[name] <= room.coming or room.coming or not _per_node(room, demand.shape):
                    continue
                waiting[name] = min(waiting.get(name, since), since)
                failure = self.failures.of_pool(name, now, waiting_since=waiting[name])
                if failure is None:
                    break
                since = max(since, failure.since)
            _take(left, rooms, demand)
        self.failures.waiting(waiting)
        failed = {room.status.name: self.failures.of_pool(room.status.name, now) for room in rooms}
        self._tell({name: failure for name, failure in failed.items() if failure is not None})
        probed = self.failures.probed_pools(now)
        return [
            replace(room, new=0, refusal=f"does not count at the moment: {failure}")
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
        room = expected_room(snapshot, rows, self._templates)
        return NodeGroupRoom(
            group,
            rows,
            room,
            template.instance_type if template else "",
            group.coming if rows else 0,
            new,
            refusal,
        )


def _per_node(room: NodeGroupRoom, shape: PodShape) -> int:
    """Replicas on one new node, in any zone."""
    if not room.rows:
        return 0
    return int(fits(room.room, shape).min())


def _why_not(room: NodeGroupRoom, shape: PodShape) -> str:
    refusals = explain_nodes(room.room, shape)
    return refusals[0].detail if refusals else "a new node of it takes none"


def _take(left: dict[str, int], rooms: Sequence[NodeGroupRoom], demand: PendingDemand) -> None:
    """Subtract the nodes of pending pods, each shape separately: a rough check for failing groups."""
    rest = demand.pods
    for room in rooms:
        per_node = _per_node(room, demand.shape)
        if per_node and rest:
            nodes = min(-(-rest // per_node), left[room.status.name])
            left[room.status.name] -= nodes
            rest -= min(rest, nodes * per_node)


class _GroupNodes:
    """The nodes that groups may still get in one zone, coming ones first.

    Only as many as other pods may need are represented by rows; the rest is computed.
    """

    def __init__(
        self,
        rooms: Sequence[NodeGroupRoom],
        zone: int,
        most: int | None,
        room_of: Callable[[Sequence[NodeRow]], Room],
    ) -> None:
        self._rooms, self._zone = rooms, zone
        self.fillings: list[NodeFilling] = []
        for room in rooms:
            nodes = room.coming + room.new if room.rows else 0
            row = room.rows[zone % len(room.rows)] if room.rows else None
            shown = nodes if most is None else min(nodes, most)
            rows = [replace(row, name=f"{room.status.name}#{number}") for number in range(shown) if row]
            self.fillings.append(NodeFilling(room_of(rows), topology=False))

    def place(self, group: Group) -> None:
        rest = group.replicas
        for filling in self.fillings:
            rest -= filling.place(Group(group.shape, rest)) if rest else 0

    def replicas(self, shape: PodShape) -> list[tuple[int, int]]:
        """By group: on coming nodes, and on nodes that may be requested."""
        amounts = []
        for room, filling in zip(self._rooms, self.fillings, strict=True):
            on_rows = fits(filling.snapshot(), shape).tolist()
            fresh = _per_node(room, shape)
            untouched = room.coming + room.new - len(on_rows) if room.rows else 0
            coming = sum(on_rows[: room.coming]) + fresh * max(0, min(room.coming - len(on_rows), untouched))
            total = sum(on_rows) + fresh * untouched
            amounts.append((coming, total - coming))
        return amounts


def _least(variants: Iterable[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """The minimum over all zones."""
    return [
        (min(coming), min(new))
        for coming, new in (zip(*group, strict=True) for group in zip(*variants, strict=True))
    ]
