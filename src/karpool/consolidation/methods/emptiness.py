"""Empty nodes go, as far as budgets allow; nothing on them would be missed."""

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
        """What costs nothing to move is placed if it can be; if not, it waits, and the move says so.

        No deadline ends this: it takes one look at each node, and what is empty only costs money.
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
