"""Shows a consolidation plan as a board: every move as a point of savings against disruption.

A point has the fractions of the pool with the worst score, because that pool decides: under Balanced a move
is approved when it lies on or above the line savings = disruption / k. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from karpool.consolidation.planning.plan import (
    ConsolidationPlan,
    Move,
    MovedPod,
    PoolSummary,
)
from karpool.consolidation.policy.scoring import MoveScore
from karpool.dashboard.api.views import (
    ConsolidationBoard,
    KeptNodeRow,
    MoveDetail,
    MovePoint,
    PodDestination,
    PoolBoard,
)
from karpool.dashboard.pages.move_sentences import NAMES_MAX, counted, new_node, scores

POINTS_MAX = 1000
FATES_MAX = 500
HELD_MAX = 500


def board(cluster: str, plan: ConsolidationPlan) -> ConsolidationBoard:
    pools = {pool.name: pool for pool in plan.pools}
    # Many approved moves must not displace the refused ones, whose reasons people need.
    refused = plan.rejected[: max(POINTS_MAX // 2, POINTS_MAX - len(plan.moves))]
    points = [_point(move, pools, approved=True) for move in plan.moves[: POINTS_MAX - len(refused)]]
    points += [
        _point(
            rejected_move.move,
            pools,
            approved=False,
            why=[infeasible.sentence() for infeasible in rejected_move.why],
        )
        for rejected_move in refused
    ]
    held = [
        KeptNodeRow(
            node=kept_node.node,
            pool=kept_node.pool,
            price_per_hour=kept_node.price_per_hour,
            why=[infeasible.sentence() for infeasible in kept_node.why],
        )
        for kept_node in plan.held[:HELD_MAX]
    ]
    return ConsolidationBoard(
        cluster=cluster,
        made_at=plan.made_at,
        points=points,
        points_left_out=len(plan.moves) + len(plan.rejected) - len(points),
        approved=len(plan.moves),
        refused=len(plan.rejected),
        held=held,
        held_left_out=max(0, len(plan.held) - HELD_MAX),
        pools=[_pool(summary) for summary in plan.pools],
        nodes_before=plan.before.nodes,
        nodes_after=plan.after.nodes,
        price_before=plan.before.price_per_hour,
        price_after=plan.after.price_per_hour,
        list_price_before=plan.before.list_price_per_hour,
        list_price_after=plan.after.list_price_per_hour,
        pods_disturbed=plan.disturbed,
        stopped=plan.stopped.detail if plan.stopped is not None else "",
        notes=_notes(plan),
    )


def in_order(boards: Iterable[ConsolidationBoard]) -> list[ConsolidationBoard]:
    """Return boards with moves first, then boards with refused moves or kept nodes, then the others."""
    return sorted(boards, key=lambda board: (not board.approved, not board.refused, not board.held))


def move_detail(cluster: str, plan: ConsolidationPlan, id_: str) -> MoveDetail | None:
    """Return one move; None if the plan does not have it."""
    pools = {pool.name: pool for pool in plan.pools}
    for move in plan.moves:
        if move.id == id_:
            return _detail(cluster, move, _point(move, pools, approved=True))
    for rejected_move in plan.rejected:
        if rejected_move.move.id == id_:
            point = _point(
                rejected_move.move,
                pools,
                approved=False,
                why=[infeasible.sentence() for infeasible in rejected_move.why],
            )
            return _detail(cluster, rejected_move.move, point)
    return None


def _detail(cluster: str, move: Move, point: MovePoint) -> MoveDetail:
    fates = [
        PodDestination(pod=pod.pod, source=pod.source, to=_destination(pod, move), cost=pod.cost)
        for pod in move.pods[:FATES_MAX]
    ]
    left = max(0, len(move.pods) - FATES_MAX)
    return MoveDetail(cluster=cluster, move=point, pods=fates, pods_left_out=left)


def _destination(pod: MovedPod, move: Move) -> str:
    if pod.node:
        return pod.node
    if pod.new_node is None:
        return "waits for a place"
    return f"new node {pod.new_node + 1}: {new_node(move.new_nodes[pod.new_node])}"


def _point(
    move: Move, pools: Mapping[str, PoolSummary], *, approved: bool, why: Sequence[str] = ()
) -> MovePoint:
    score = _deciding(move)
    savings, disruption = _fractions(move, score, pools)
    return MovePoint(
        id=move.id,
        kind=str(move.kind),
        nodes=list(move.names[:NAMES_MAX]),
        nodes_left_out=max(0, len(move.names) - NAMES_MAX),
        pools=list(move.pools),
        into=[new_node(node) for node in move.new_nodes],
        approved=approved,
        savings_per_hour=move.savings_per_hour,
        disruption=move.disruption,
        pods=move.disturbed,
        savings_fraction=savings,
        disruption_fraction=disruption,
        # JSON has no infinity: a move without disruption has no finite score.
        score=score.score if score is not None and math.isfinite(score.score) else None,
        threshold=score.threshold if score is not None else None,
        why=[*why, *scores(move.verdict), *move.notes],
    )


def _fractions(
    move: Move, score: MoveScore | None, pools: Mapping[str, PoolSummary]
) -> tuple[float | None, float | None]:
    """Return the fractions of the score; without a score, those of the pool of the first node."""
    if score is not None:
        return score.savings_fraction, score.disruption_fraction
    pool = pools.get(move.pools[0])
    if pool is None or not (pool.cost_per_hour > 0 and pool.disruption > 0):
        return None, None
    return move.savings_per_hour / pool.cost_per_hour, move.disruption / pool.disruption


def _deciding(move: Move) -> MoveScore | None:
    """Return the score of the strictest pool."""
    scores = [pool.score for pool in move.verdict.pools if pool.score is not None]
    return min(scores, key=lambda score: score.score - score.threshold, default=None)


def _pool(state: PoolSummary) -> PoolBoard:
    return PoolBoard(
        name=state.name,
        policy=state.policy,
        k=state.k,
        nodes=state.nodes,
        cost_per_hour=state.cost_per_hour,
        allowed=dict(state.allowed),
        why=[infeasible.sentence() for infeasible in state.why],
    )


def _notes(plan: ConsolidationPlan) -> list[str]:
    notes = [
        f"not considered: {counted(len(considered.nodes), 'node')}, because {considered.why}"
        for considered in plan.not_looked_at
    ]
    if plan.still_possible is not None:
        notes.append(f"at most {plan.still_possible:.1%} cheaper is possible")
    elif plan.certificate is not None:
        notes.append(f"how much cheaper is possible is unknown: {plan.certificate.problem}")
    if plan.before.unpriced:
        notes.append(f"without a known price, which counts as 0: {counted(plan.before.unpriced, 'node')}")
    if plan.problems:
        notes.append(f"left out, because invalid: {counted(len(plan.problems), 'object')}")
    return notes
