"""The moment that the Karpenter provider answers from: what is coming up, and what may still be launched.

In order: claims without a usable node become rows of a small snapshot; pods that wait,
and pods of nodes that are going, take those rows first and then limits, as Karpenter
would give them; what is left is what a new request can have. A node that the cluster
already shows is named as a `twin`, so that its room is never counted twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.market.failures import LaunchFailure, LaunchFailures
from karpool.cluster.market.stock_outs import listed_values
from karpool.cluster.nodes.expected import DaemonOverhead, expected_row, row_name
from karpool.cluster.nodes.node_facts import facts_of
from karpool.estimator.karpenter_objects import KarpenterObjects
from karpool.estimator.waiting import PendingDemand, is_tied
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import CompiledPool, NodeClaim
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import canonical_key
from karpool.model.resources import NODES, PODS, Resources, add
from karpool.packing.counting.first_fit import NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity, PoolCapacity, Usage
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of


@dataclass(frozen=True, slots=True)
class IncomingNode:
    """One row. `twin` is the node that the cluster shows already, if any.

    One that is not `launched` may still fail: it serves pods that wait for it, and is promised to
    nobody else.
    """

    row: NodeRow
    pool: str
    twin: str = ""
    launched: bool = True


@dataclass(frozen=True)
class ProviderState:
    """`rows` and `usage` are what those who wait have left. `failed` are pools that do not count."""

    new: NewNodeCapacity
    coming: Sequence[IncomingNode]
    rows: Room
    usage: Usage
    failed: Mapping[str, LaunchFailure]


# What is coming up


def coming_rows(objects: KarpenterObjects, snapshot: Room) -> list[IncomingNode]:
    found: list[IncomingNode] = []
    for claim, node in objects.machines.coming():
        try:
            row = _row(objects, claim, node)
        except Invalid:
            continue  # no room that anybody could promise
        # A name of its own, so that the rows can stand next to the cluster's nodes.
        row = replace(row, name=row_name(claim, None))
        twin = node.name if node is not None else ""
        at = snapshot.find(twin) if twin else None
        if at is not None:
            row = replace(row, allocatable=_left(row.allocatable, snapshot, at))
        present = _present(objects.pods.daemons, snapshot, at) if at is not None else ()
        launched = bool(claim.provider_id) or node is not None
        found.append(IncomingNode(objects.pods.daemons.less(row, present), claim.pool_name, twin, launched))
    return found


def _row(objects: KarpenterObjects, claim: NodeClaim, node: Node | None) -> NodeRow:
    if claim.provider_id or node is not None:
        return expected_row(*facts_of(claim, node))
    least, _ = objects.machines.unlaunched(claim)
    keys = {canonical_key(requirement.key) for requirement in claim.spec.requirements or ()}
    decided = {key: listed_values(claim.spec, key) for key in keys}
    labels = {key: values[0] for key, values in decided.items() if len(values) == 1}
    return NodeRow("", {**labels, **claim.labels}, tuple(claim.taints), least)


def _left(promised: Mapping[str, int], snapshot: Room, at: int) -> Resources:
    """What pods on the node do not hold already."""
    left = {
        name: max(0, units - int(snapshot.allocatable(name)[at] - snapshot.free(name)[at]))
        for name, units in promised.items()
        if name != PODS
    }
    if PODS in promised:
        left[PODS] = max(0, promised[PODS] - len(snapshot.pods_on(at)))
    return left


def _present(daemons: DaemonOverhead, snapshot: Room, at: int) -> set[ObjectKey]:
    """Daemons that run there already: their pods are tied to the node by its name."""
    shapes = [snapshot.shapes[number] for number in snapshot.pods_on(at).values()]
    tied = {(pod_shape.namespace, pod_shape.requests) for pod_shape in shapes if is_tied(pod_shape)}
    return {key for key, shape in daemons.shapes.items() if (shape.namespace, shape.requests) in tied}


class IncomingAllocation:
    """Room and limits being taken by those who come first."""

    def __init__(
        self, new: NewNodeCapacity, rows: Room, usage: Usage, catalogue: Catalogue, *, nodes_max: int
    ) -> None:
        self._new = new
        self._filling = NodeFilling(rows, topology=False)
        self._usage: dict[str, Resources] = {pool: dict(used) for pool, used in usage.items()}
        self._catalogue = catalogue
        self._nodes_max = nodes_max
        self._spare: dict[str, Resources] = {}  # by pool: what the last node launched has left

    @property
    def rows(self) -> Room:
        return self._filling.snapshot()

    @property
    def usage(self) -> Usage:
        return self._usage

    def from_rows(self, shape: PodShape, pods: int) -> int:
        """How many found room on what is coming up."""
        return self._filling.place(Group(shape, pods))

    def launch(self, shape: PodShape, pods: int, skip: Mapping[str, LaunchFailure]) -> int:
        """How many new nodes take: limits are charged for the machines that would be bought."""
        placed = self._share(shape, pods, skip)
        if placed < pods:
            for potential in self._new.potential(
                shape, self._usage, nodes_max=self._nodes_max, wanted=pods - placed, skip=skip
            ):
                placed += potential.replicas
                self._charge(potential, shape)
        return placed

    def takes(self, shape: PodShape, pool: CompiledPool) -> bool:
        return self._new.launches(shape, pool, self._usage.get(pool.name, {}))

    def _share(self, shape: PodShape, pods: int, skip: Mapping[str, LaunchFailure]) -> int:
        """Pods of others may be on the same new node."""
        asked = {**dict(shape.requests), PODS: 1}
        placed = 0
        for pool in self._new.pools:
            spare = self._spare.get(pool.name)
            if spare is None or pool.name in skip or placed == pods:
                continue
            fit = min(spare.get(name, 0) // units for name, units in asked.items())
            fit = min(fit, pods - placed)
            if fit > 0 and self._new.launches(shape, pool, {}):
                for name, units in asked.items():
                    spare[name] -= units * fit
                placed += fit
        return placed

    def _charge(self, potential: PoolCapacity, shape: PodShape) -> None:
        if not potential.runs:
            return
        used = self._usage.setdefault(potential.pool, {})
        for run in potential.runs:
            type_ = self._catalogue.types[run.choice.instance_type]
            add(used, {name: units * run.nodes for name, units in type_.capacity.items()})
            add(used, {NODES: run.nodes})
        last = potential.runs[-1]
        room = dict(self._catalogue.types[last.choice.instance_type].allocatable)
        for name, units in (*shape.requests, (PODS, 1)):
            room[name] = room.get(name, 0) - units * last.pods
        self._spare[potential.pool] = room


def serve_pending(
    taking: IncomingAllocation,
    pools: Iterable[CompiledPool],
    wanted: Sequence[PendingDemand],
    failures: LaunchFailures,
    now: float,
) -> dict[str, LaunchFailure]:
    """Give those who wait what they wait for, and find the pools that leave them waiting.

    The first pool that could serve a pod should; one that fails passes the pod on to the next, which
    has been asked since then.
    """
    in_order = list(pools)
    waiting: dict[str, float] = {}
    left: list[tuple[PendingDemand, int]] = []
    failures.waiting({})
    for demand in wanted:
        rest = demand.pods - taking.from_rows(demand.shape, demand.pods)
        if rest:
            left.append((demand, rest))
            since = demand.since
            for pool in in_order:
                if not taking.takes(demand.shape, pool):
                    continue
                waiting[pool.name] = min(waiting.get(pool.name, since), since)
                failure = failures.of_pool(pool.name, now, waiting_since=waiting[pool.name])
                if failure is None:
                    break
                since = max(since, failure.since)
    failures.waiting(waiting)
    found = {pool.name: failures.of_pool(pool.name, now) for pool in in_order}
    failed = {name: failure for name, failure in found.items() if failure is not None}
    for demand, rest in left:
        taking.launch(demand.shape, rest, failed)
    return failed


def rows_snapshot(coming: Sequence[IncomingNode]) -> Room:
    return snapshot_of([node.row for node in coming])
