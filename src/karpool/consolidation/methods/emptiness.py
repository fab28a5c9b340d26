"""Emptiness: removes empty nodes, as far as budgets allow."""

from collections.abc import Sequence

from karpool.cluster.market.prices import usable_price
from karpool.consolidation.methods.method import PlanDeadline, SearchResult
from karpool.consolidation.policy.reasons import DisruptionReason
from karpool.consolidation.policy.scoring import MoveVerdict, PoolScore
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)


class Emptiness:
    reason = DisruptionReason.EMPTY

    def __init__(self, state: PlanningState) -> None:
        self._state = state

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        """Remove the empty nodes. Their zero-cost pods are placed if possible; the move reports the others.

        The deadline does not apply: each node is checked once, and an empty node only costs money.
        """
        state = self._state
        for row in rows:
            with state.trial():
                placed, left = state.relocate((row,))
                draft = CandidateMove(
                    (row,), tuple(placed), (), self._unscored(row), self.reason, sum(left.values())
                )
                refusal = state.permission.refusal(self.reason, {state.pool_of[row]: 1})
                if refusal:
                    result.refused[row] = draft, refusal
                else:
                    state.accept(draft)
                    result.drafts.append(draft)

    def _unscored(self, row: int) -> MoveVerdict:
        state = self._state
        price, cost = state.view.machines[row].price_per_hour, float(state.costs[row])
        savings, pool = usable_price(price) or 0.0, state.pool_of[row]
        score = PoolScore(pool, state.policies[pool], savings, cost, None)
        return MoveVerdict(True, savings, cost, (score,), int(price is None))
