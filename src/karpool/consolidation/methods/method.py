"""The interface of a consolidation method: one way to remove nodes.

A method belongs to one `PlanningState`, because its memo tables are only valid there. Whether a node is
eligible for a method is decided before, from its facts (`policy/eligibility`).
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

# Prices per hour that differ by less are equal; keeps rounding from deciding between equal moves.
CENT = 1e-9


@dataclass(slots=True)
class SearchProgress:
    """The progress of a search, for readers in another thread.

    A search passes over the candidates several times, in other orders or by other methods: `passes` counts
    them.
    """

    passes: int = 0
    looked_at: int = 0
    candidates: int = 0  # of this pass
    saved_before: float = 0.0  # per hour, by the best earlier pass
    _result: "SearchResult | None" = None

    def looks_at(self, number: int, candidates: int, result: "SearchResult") -> None:
        """Report that the candidate with this number, from 0 on, is being evaluated."""
        if not number:
            self.saved_before = self.savings_per_hour
            self.passes += 1
        self.looked_at, self.candidates, self._result = number + 1, candidates, result

    @property
    def savings_per_hour(self) -> float:
        """The saving of the best pass so far."""
        saved = self._result.savings if self._result is not None else 0.0
        return max(self.saved_before, saved)


class PlanDeadline:
    """Tells when the search must stop; never without a deadline. `progress` records the search's progress."""

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
    """The result of a search. `refused`: possible moves with the objections to them."""

    drafts: list[CandidateMove] = field(default_factory=list)
    # By the first row of the move.
    refused: dict[int, tuple[CandidateMove, tuple[Infeasible[ConsolidationReason], ...]]] = field(
        default_factory=dict
    )
    stuck: dict[int, UnplacedShapes] = field(default_factory=dict)
    not_looked_at: list[int] = field(default_factory=list)
    not_combined: list[int] = field(default_factory=list)  # tried alone, but not together with others

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
        """Whether this result saves at least the share `least` of the other's saving at every level of
        disruption.

        Both results make their moves in order of saving per disruption.
        """
        disruption, savings = other._frontier()
        return bool(np.all(np.interp(disruption, *self._frontier()) >= least * savings - CENT))

    def _frontier(self) -> tuple[Floats, Floats]:
        """Cumulated disruption and savings, from zero, in order of saving per disruption."""
        moves = np.array([(0.0, 0.0), *((draft.verdict.disruption, draft.savings) for draft in self.drafts)])
        order = np.argsort(-moves[1:, 1] / np.maximum(moves[1:, 0], CENT), kind="stable")
        disruption, savings = np.cumsum(moves[[0, *(1 + order)]], axis=0).T
        return disruption, savings


class Method(Protocol):
    """One way to remove nodes. It accepts each move before it looks for the next, which depends on it."""

    @property
    def reason(self) -> DisruptionReason:
        """The disruption reason whose budget is used."""
        ...

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        """Add the outcome of each row to the result, in the order of the rows."""
        ...


def accept_or_refuse(
    state: PlanningState, draft: CandidateMove, reason: DisruptionReason, result: SearchResult
) -> None:
    """Accept the applied move, or record the objections to it. The enclosing trial undoes a refused move."""
    objections = objections_to(state, draft, reason)
    if objections:
        result.refused[draft.rows[0]] = draft, objections
        return
    state.accept(draft)
    result.drafts.append(draft)
    for row in draft.rows:
        result.stuck.pop(row, None)
        result.refused.pop(row, None)
