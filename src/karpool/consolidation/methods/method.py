"""What a consolidation method is: one way to make nodes go.

A method is made for one `PlanningState`, since what it remembers holds only there. Whether a node may
go by it at all is decided before, from its facts (`policy/eligibility`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    UnplacedShapes,
)
from karpool.consolidation.state.move_objections import objections_to
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.infeasible import Infeasible

# Prices per hour that are this close are the same; keeps rounding from deciding between equal moves.
CENT = 1e-9


@dataclass(slots=True)
class SearchProgress:
    """How far a search is, for whoever looks on from another thread. Candidates are gone through several
    times, in another order or by another method: `passes` counts that."""

    passes: int = 0
    looked_at: int = 0
    candidates: int = 0  # of this pass
    saved_before: float = 0.0  # per hour, by the best of the passes before
    _result: "SearchResult | None" = None

    def looks_at(self, number: int, candidates: int, result: "SearchResult") -> None:
        """At the candidate of this number, from 0 on."""
        if not number:
            self.saved_before = self.savings_per_hour
            self.passes += 1
        self.looked_at, self.candidates, self._result = number + 1, candidates, result

    @property
    def savings_per_hour(self) -> float:
        """What the best of the passes saves so far."""
        saved = self._result.savings if self._result is not None else 0.0
        return max(self.saved_before, saved)


class PlanDeadline:
    """Says when it is time to stop; never without a deadline. `progress` is told what is looked at."""

    def __init__(
        self,
        elapsed: Callable[[], float] | None,
        deadline_seconds: float | None,
        progress: SearchProgress | None = None,
    ) -> None:
        self._elapsed, self._deadline_seconds = elapsed, deadline_seconds
        self.progress = progress or SearchProgress()

    @property
    def is_over(self) -> bool:
        if self._elapsed is None or self._deadline_seconds is None:
            return False
        return self._elapsed() >= self._deadline_seconds


@dataclass(slots=True)
class SearchResult:
    """What a search came to. `refused`: moves that could be made, and what speaks against them."""

    drafts: list[CandidateMove] = field(default_factory=list)
    # By the first row of the move.
    refused: dict[int, tuple[CandidateMove, tuple[Infeasible[ConsolidationReason], ...]]] = field(
        default_factory=dict
    )
    stuck: dict[int, UnplacedShapes] = field(default_factory=dict)
    not_looked_at: list[int] = field(default_factory=list)
    not_combined: list[int] = field(default_factory=list)  # looked at alone, but not together with others

    @property
    def savings(self) -> float:
        return sum(draft.savings for draft in self.drafts)

    @property
    def disruption(self) -> float:
        return sum(draft.verdict.disruption for draft in self.drafts)

    def is_better_than(self, other: "SearchResult") -> bool:
        if abs(self.savings - other.savings) > CENT:
            return self.savings > other.savings
        return self.disruption < other.disruption

    def dominates(self, other: "SearchResult", least: float = 1.0) -> bool:
        """Whether it saves as much, or this share of it, wherever one stops, the moves that give the most
        for it first."""
        disruption, savings = other._frontier()
        return bool(np.all(np.interp(disruption, *self._frontier()) >= least * savings - CENT))

    def _frontier(self) -> tuple[Floats, Floats]:
        """Disruption and savings so far, from nothing on."""
        moves = np.array([(0.0, 0.0), *((draft.verdict.disruption, draft.savings) for draft in self.drafts)])
        order = np.argsort(-moves[1:, 1] / np.maximum(moves[1:, 0], CENT), kind="stable")
        disruption, savings = np.cumsum(moves[[0, *(1 + order)]], axis=0).T
        return disruption, savings


class Method(Protocol):
    """Each move that it finds is accepted before the next is looked for: the next depends on it."""

    @property
    def reason(self) -> DisruptionReason:
        """Whose budget pays."""
        ...

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        """Add to the result, in the order of the rows, what becomes of each of them."""
        ...


def accept_or_refuse(
    state: PlanningState, draft: CandidateMove, reason: DisruptionReason, result: SearchResult
) -> None:
    """A move that is in place; the trial that it was made in takes it back if it is refused."""
    objections = objections_to(state, draft, reason)
    if objections:
        result.refused[draft.rows[0]] = draft, objections
        return
    state.accept(draft)
    result.drafts.append(draft)
    for row in draft.rows:
        result.stuck.pop(row, None)
        result.refused.pop(row, None)
