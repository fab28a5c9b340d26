"""The moment that the Karpenter provider answers from: what is coming up, and what may still be launched.

In order: claims without a usable node become rows of a small snapshot; pods that wait,
and pods of nodes that are going, take those rows first and then limits, as Karpenter
would give them; what is left is what a new request can have. A node that the cluster
already shows is named as a `twin`, so that its room is never counted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.market.failures import LaunchFailure, LaunchFailures
from karpool.cluster.market.stock_outs import listed_values
from karpool.cluster.nodes.expected import DaemonOverhead, expected_row, row_name
from karpool.cluster.nodes.node_facts import facts_of
from karpool.estimator.karpenter_objects import KarpenterObjects
from karpool.estimator.question import AssumedDeduction
from karpool.estimator.waiting import PendingDemand, is_tied, largest_first, without_topology
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import canonical_key
from karpool.model.resources import PODS, Resources
from karpool.packing.counting.first_fit import FirstFitResult, NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.new_nodes.node_plan import NodePlan, Usage
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, Room, snapshot_of


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
    """`rows` are what those who wait have left; `plan` has new nodes for those who found no room there.

    `failed` are pools that do not count. `ahead` is what is promised to others of the shape that is asked
    about, and comes first on new nodes.
    """

    new: NewNodeCapacity
    coming: Sequence[IncomingNode]
    rows: Room
    plan: NodePlan
    failed: Mapping[str, LaunchFailure]
    ahead: int = 0


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


def serve_pending(
    new: NewNodeCapacity,
    filling: NodeFilling,
    usage: Usage,
    wanted: Sequence[PendingDemand],
    failures: LaunchFailures,
    *,
    now: float,
    nodes_max: int,
) -> tuple[NodePlan, dict[str, LaunchFailure]]:
    """Give those who wait what they wait for, and find the pools that leave them waiting.

    The first pool that could serve a pod should; one that fails passes the pod on to the next, which
    has been asked since then.
    """
    waiting: dict[str, float] = {}
    left: list[tuple[PendingDemand, int]] = []
    failures.waiting({})
    for demand in wanted:
        rest = demand.pods - filling.place(Group(demand.shape, demand.pods))
        if rest:
            left.append((demand, rest))
            since = demand.since
            for pool in new.pools:
                if not new.launches(demand.shape, pool, usage.get(pool.name, {})):
                    continue
                waiting[pool.name] = min(waiting.get(pool.name, since), since)
                failure = failures.of_pool(pool.name, now, waiting_since=waiting[pool.name])
                if failure is None:
                    break
                since = max(since, failure.since)
    failures.waiting(waiting)
    judged = {pool.name: failures.of_pool(pool.name, now) for pool in new.pools}
    failed = {name: failure for name, failure in judged.items() if failure is not None}
    plan = new.plan(usage, nodes_max=nodes_max, skip=failed)
    for demand, rest in left:
        plan.place(demand.shape, rest)
    return plan, failed


def after_assumed(state: ProviderState, deduction: AssumedDeduction, asked: PodShape | None) -> ProviderState:
    """What is left when assumed workloads that found no existing node have theirs.

    The largest first, as Karpenter places them; those of the shape that is `asked` about last, next to the
    question, so that each of them costs exactly one replica of it.
    """
    rows = state.rows.minus(on_twins(state.coming, deduction.room, deduction))
    filling = NodeFilling(rows, topology=False)
    plan = state.plan.copy()
    promised: dict[PodShape, int] = {}
    for workload in deduction.left:
        for group in workload:
            shape = without_topology(group.shape)
            promised[shape] = promised.get(shape, 0) + group.replicas
    alike = promised.pop(asked, 0) if asked is not None else 0
    for shape in sorted(promised, key=largest_first):
        on_rows = filling.place(Group(shape, promised[shape])) if rows.n else 0
        plan.place(shape, promised[shape] - on_rows)
    if asked is not None and alike and rows.n:
        alike -= filling.place(Group(asked, alike))
    return replace(state, rows=filling.snapshot(), plan=plan, ahead=alike)


def on_twins(
    coming: Sequence[IncomingNode], room: Room, placed: AssumedDeduction | FirstFitResult
) -> list[PodPlacement]:
    """What was placed on nodes that the cluster shows already is on their rows, too."""
    rows = {room.find(node.twin): row for row, node in enumerate(coming) if node.twin}
    placements = placed.placements if rows else ()
    return [
        replace(placement, node=rows[placement.node]) for placement in placements if placement.node in rows
    ]


def rows_snapshot(coming: Sequence[IncomingNode]) -> Room:
    return snapshot_of([node.row for node in coming])
