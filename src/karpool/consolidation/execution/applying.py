"""Whether a saved plan may still be carried out, and which of its moves.

A plan is stale when it is too old, or when one of its moves would not be decided again
today: its nodes, their claims and pods, every rule, budget, the room and the score are
looked at once more. Whatever the plan was made with, budgets count now.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.consolidation.execution.validation import is_stale, validate_all
from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ClusterView
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.infeasible import Infeasible


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """`refused` says of each move that does not hold any more why; `too_old` of the whole plan."""

    moves: tuple[Move, ...]
    refused: Mapping[str, tuple[Infeasible[ConsolidationReason], ...]]
    unchanged: bool  # nothing at all that decided the plan has changed
    too_old: Infeasible[ConsolidationReason] | None = None

    @property
    def good(self) -> tuple[Move, ...]:
        """The moves that may be made, in the order of the plan."""
        return () if self.too_old else tuple(move for move in self.moves if move.id not in self.refused)

    @property
    def is_stale(self) -> bool:
        return self.too_old is not None or bool(self.refused)


def check_plan(
    plan: ConsolidationPlan,
    view: ClusterView,
    settings: PlanSettings,
    now: float,
    *,
    max_age_seconds: float | None,
) -> PlanCheck:
    """`max_age_seconds`: None for any age. Raises Invalid for a plan that contradicts itself."""
    now_settings = replace(settings, heed_budgets=True, deadline_seconds=None)
    moves = _distinct(plan.moves)
    found = validate_all(moves, view, now_settings, now)
    return PlanCheck(
        moves,
        {name: why for name, why in found.items() if why},
        unchanged=not is_stale(plan, view),
        too_old=_too_old(plan, now, max_age_seconds),
    )


def _distinct(moves: Sequence[Move]) -> tuple[Move, ...]:
    """Each once, though a file may say it twice. Raises Invalid when two of them share a node."""
    found: list[Move] = []
    for move in moves:
        if move not in found:
            found.append(move)
    named = Counter(name for move in found for name in (f"move {move.id}", *set(move.names)))
    twice = [name for name, times in named.items() if times > 1]
    if twice:
        raise Invalid("moves", twice[0], "is there twice; make a new plan")
    return tuple(found)


def _too_old(
    plan: ConsolidationPlan, now: float, limit: float | None
) -> Infeasible[ConsolidationReason] | None:
    age = float(int(now - plan.made_at))
    if limit is None or 0 <= age <= limit:
        return None
    shown = durations.show(limit)
    if age < 0:
        return Infeasible(
            ConsolidationReason.AGE, f"the plan was made {durations.show(-age)} after now; check the clocks"
        )
    return Infeasible(
        ConsolidationReason.AGE,
        f"the plan was made {durations.show(age)} ago, and may be {shown} old; make a new one",
    )
