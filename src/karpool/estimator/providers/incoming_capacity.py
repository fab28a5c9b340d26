"""The state that the Karpenter provider answers from: coming nodes, and what may still be launched.

In order: expected nodes of the snapshot become rows of a small room; pending pods, and pods of leaving nodes,
take those rows first and then limits, as Karpenter would give them; a new request can have the rest. A coming
node that the cluster already shows is named as a `twin`, so that its capacity is never counted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.cluster.market.failures import LaunchFailure, LaunchFailures
from karpool.cluster.nodes.expected import ExpectedNode
from karpool.estimator.pending_demand import PendingDemand, largest_first
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.assumed import AssumedDeduction
from karpool.packing.counting.first_fit import FirstFitResult, NodeFilling
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.new_nodes.node_plan import NodePlan, Usage
from karpool.packing.new_nodes.pool_capacity import NewNodeCapacity
from karpool.packing.tables.room import PodPlacement, Room


@dataclass(frozen=True)
class ProviderState:
    """`rows` are coming nodes after the pending pods; `plan` has new nodes for pods without a place there.

    `hoped` are machines that are not launched yet, after the pending pods: they are not promised to requests,
    but may hold buffers. `failed` are pools that do not count. `ahead` are promises to others of the
    requested shape, which come first on new nodes.
    """

    new: NewNodeCapacity
    coming: Sequence[ExpectedNode]
    rows: Room
    hoped: Room
    plan: NodePlan
    failed: Mapping[str, LaunchFailure]
    ahead: int = 0
    probe: NodePlan | None = None  # one node of failed pools and offerings that may be tried again


def serve_pending(
    new: NewNodeCapacity,
    filling: NodeFilling,
    usage: Usage,
    pending: Sequence[PendingDemand],
    failures: LaunchFailures,
    *,
    now: float,
    nodes_max: int,
) -> tuple[NodePlan, dict[str, LaunchFailure], frozenset[str]]:
    """Serve the pending pods; return the plan, the pools that leave pods pending, and those limited to a
    probe.

    The first pool that could serve a pod should; if it fails, the next pool counts as asked since then.
    """
    waiting: dict[str, float] = {}
    left: list[tuple[PendingDemand, int]] = []
    failures.waiting({})
    for demand in pending:
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
    probed = failures.probed_pools(now)
    plan = new.plan(usage, nodes_max=nodes_max, skip={*failed, *probed})
    for demand, rest in left:
        plan.place(demand.shape, rest)
    return plan, failed, probed


def after_others(
    state: ProviderState,
    deduction: AssumedDeduction,
    unserved: Mapping[PodShape, int],
    buffers: Mapping[PodShape, int],
    asked: PodShape | None,
) -> ProviderState:
    """The rest after promised pods without an existing node (`EstimateQuestion.promised`) and buffers.

    The largest come first, as in Karpenter; those of the `asked` shape last, next to the question, so that
    each of them costs exactly one replica of it.
    """
    rows = state.rows.minus(on_twins(state.coming, deduction.room, deduction))
    filling = NodeFilling(rows, topology=False)
    plan = state.plan.copy()
    probe = state.probe.copy() if state.probe is not None else None
    promised = dict(unserved)
    alike = promised.pop(asked, 0) if asked is not None else 0
    hoped = NodeFilling(state.hoped, topology=False)
    for others, fillings in ((promised, [filling]), (buffers, [hoped, filling])):
        for shape in sorted(others, key=largest_first):
            rest = others[shape]
            for nodes in fillings:
                rest -= nodes.place(Group(shape, rest)) if rest else 0
            rest -= plan.place(shape, rest)
            if probe is not None and rest:
                probe.place(shape, rest)
    if asked is not None and alike and rows.n:
        alike -= filling.place(Group(asked, alike))
    return replace(state, rows=filling.snapshot(), plan=plan, ahead=alike, probe=probe)


def on_twins(
    coming: Sequence[ExpectedNode], room: Room, placed: AssumedDeduction | FirstFitResult
) -> list[PodPlacement]:
    """Placements on coming nodes that the cluster already shows, as placements on their rows."""
    rows = {room.find(node.twin): row for row, node in enumerate(coming) if node.twin}
    placements = placed.placements if rows else ()
    return [
        replace(placement, node=rows[placement.node]) for placement in placements if placement.node in rows
    ]
