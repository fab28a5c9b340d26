"""Deletion: removes nodes without a replacement, because their pods fit on the remaining nodes."""

from collections.abc import Sequence

from karpool.consolidation.methods.method import PlanDeadline, SearchResult, accept_or_refuse
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    UnplacedShapes,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.infeasible import Infeasible


class Deletion:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        state = self._state
        for number, row in enumerate(rows):
            if deadline.is_over:
                result.not_looked_at += (rest for rest in rows[number:] if not state.receives[rest])
                return
            deadline.progress.looks_at(number, len(rows), result)
            if state.receives[row]:
                continue
            with state.trial():
                draft = delete(state, (row,))
                if isinstance(draft, UnplacedShapes):
                    result.stuck[row] = draft
                else:
                    accept_or_refuse(state, draft, self.reason, result)


def delete(state: PlanningState, rows: Sequence[int]) -> CandidateMove | UnplacedShapes:
    """Move the pods of the nodes to other nodes. Stays applied until it is accepted or the trial ends."""
    attempt = state.tried(rows)
    if attempt is not None and attempt.left:
        return no_room(state, attempt.left)
    placed, left = state.relocate(rows)
    if left:
        return no_room(state, left)
    return CandidateMove(tuple(rows), tuple(placed), (), state.verdict(rows, None))


def no_room(state: PlanningState, left: Pods) -> UnplacedShapes:
    asked = state.asked(next(iter(left)))
    detail = f"{sum(left.values())} of its pods do not fit on other nodes; the first requests {asked}"
    return UnplacedShapes(Infeasible(ConsolidationReason.NO_ROOM, detail), tuple(left))
