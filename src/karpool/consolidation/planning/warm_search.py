"""Searches again after a few pods changed, and skips what cannot change the moves.

The warm search tries candidates in the same order and in the same way as a full search, as long as the
budgets of their pool allow one more. If they allow none, an unchanged node keeps the reason of the last
search, and a changed one gets the budget as reason. If the search begins with groups of nodes, nothing can be
skipped and the answer is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from karpool.consolidation.methods.method import Method, PlanDeadline, SearchResult
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.planning.search import SEVERAL_WAYS_MAX, Search, search_with
from karpool.consolidation.policy.reasons import DisruptionReason
from karpool.consolidation.state.candidate_move import CandidateMove, UnplacedShapes
from karpool.consolidation.state.planning_state import PlanningState
from karpool.consolidation.view import ClusterView
from karpool.packing.relocation.single_node import SingleNodePacker
from karpool.packing.tables.columns import Bools, Int64s

T = TypeVar("T")
# Maximum share of changed nodes: one percent of the pods touches a tenth to a fifth of the nodes.
CHANGED_MAX = 0.3


@dataclass(frozen=True, slots=True, eq=False)
class LastSearch:
    """The result of a search and the cluster at that time. Rows are those of its view."""

    view: ClusterView
    contents: Int64s
    candidates: Int64s
    result: SearchResult
    one_node: SingleNodePacker
    moves: dict[CandidateMove, Move] = field(default_factory=dict)  # refused moves, in full


def contents_of(view: ClusterView) -> Int64s:
    """By row: a number that changes with the capacity of the node or any of its pods."""
    pods, snapshot = view.pods, view.snapshot
    own: Int64s = np.fromiter(map(hash, pods.keys), dtype=np.int64, count=len(pods.keys))
    for column in (pods.shapes, pods.flags, pods.costs.view(np.int64), pods.budget):
        own = own * 31 + column
    whole: Int64s = np.zeros(snapshot.n, dtype=np.int64)
    np.add.at(whole, pods.rows, own)
    for resource in sorted(snapshot.resources):
        whole = whole * 31 + snapshot.free(resource)
    return whole * 31 + snapshot.slots


def search_again(state: PlanningState, deadline: PlanDeadline, last: LastSearch) -> SearchResult | None:
    """Return the result of a full search; None, and no change, if the last search cannot be reused."""
    if len(state.candidates) <= SEVERAL_WAYS_MAX or state.view.bill is not None:
        return None  # several ways are compared there; on a bill, the saving of a move depends on all others
    search = _WarmSearch(state, deadline, last)
    if search.begins_with_groups or search.has_changed_too_much:
        return None
    return search_with(search, state, deadline)


class _WarmSearch(Search):
    def __init__(self, state: PlanningState, deadline: PlanDeadline, last: LastSearch) -> None:
        super().__init__(state, deadline)
        now = _rows_now(state.view, last.view)
        changed = _changed_rows(state, last, now)
        self.has_changed_too_much = int(changed.sum()) > CHANGED_MAX * len(changed)
        known = _Known(state, last.result, now, changed)
        self._alone = tuple(_Remembered(state, method, known) for method in self._alone)


def _rows_now(view: ClusterView, before: ClusterView) -> list[int]:
    """Map rows of the earlier view to current rows; -1: the node is gone."""
    names = before.snapshot.names
    if list(names) == list(view.snapshot.names):
        return list(range(len(names)))
    rows = map(view.snapshot.find, names)
    return [-1 if row is None else row for row in rows]


def _changed_rows(state: PlanningState, last: LastSearch, now: Sequence[int]) -> Bools:
    """By row: whether the node, its capacity or its pods have changed."""
    view = state.view
    is_candidate: Bools = np.zeros(view.snapshot.n, dtype=np.bool_)
    is_candidate[state.candidates] = True
    was_candidate: Bools = np.zeros(last.view.snapshot.n, dtype=np.bool_)
    was_candidate[last.candidates] = True
    changed: Bools = np.ones(view.snapshot.n, dtype=np.bool_)
    contents = contents_of(view).tolist()
    for before, (row, content) in enumerate(zip(now, last.contents.tolist(), strict=True)):
        if row >= 0 and contents[row] == content:
            machine, then = view.machines[row], last.view.machines[before]
            alike = machine is then or machine == then
            changed[row] = not alike or was_candidate[before] != is_candidate[row]
    return changed


class _Known:
    """The results of the last search for unchanged nodes, by current row."""

    def __init__(self, state: PlanningState, last: SearchResult, now: Sequence[int], changed: Bools) -> None:
        self._state, self._now = state, now
        self._changed = changed.tolist()
        self._is_renumbered = now != list(range(len(now)))
        alone = {draft.rows[0]: draft for draft in last.drafts if len(draft.rows) == 1}
        self._taken = self._of_now(alone)
        self._refused = self._of_now(last.refused)
        self._stuck = self._of_now(last.stuck)

    def _of_now(self, by_row: Mapping[int, T]) -> dict[int, T]:
        rows = ((self._now[before], known) for before, known in by_row.items())
        return {row: known for row, known in rows if row >= 0 and not self._changed[row]}

    def say(self, row: int, result: SearchResult) -> None:
        """Record why a node cannot go now: its last result, and the budget that closes its pool."""
        state = self._state
        closed = state.permission.refusal(DisruptionReason.UNDERUTILIZED, {state.pool_of[row]: 1})
        draft = self._taken.get(row)
        if row in self._refused:
            draft = self._refused[row][0]
        draft = self._renumbered(draft) if draft is not None else None
        if draft is not None and len(draft.rows) == 1:
            others = self._refused[row][1] if row in self._refused else ()
            kept = (why for why in others if why.reason not in {closure.reason for closure in closed})
            result.refused[row] = draft, (*kept, *closed)
        else:
            result.stuck[row] = self._stuck.get(row) or UnplacedShapes(closed[0])

    def _renumbered(self, draft: CandidateMove) -> CandidateMove | None:
        """The draft with current rows; None if some of its pods went to a node that is gone."""
        if not self._is_renumbered:
            return None if any(self._state.gone[row] for _, row, _ in draft.placed) else draft
        placed = tuple((shape, self._now[row], pods) for shape, row, pods in draft.placed)
        if any(row < 0 or self._state.gone[row] for _, row, _ in placed):
            return None
        return replace(draft, rows=tuple(self._now[row] for row in draft.rows), placed=placed)


class _Remembered:
    """A method that is called only for nodes that the budgets allow."""

    def __init__(self, state: PlanningState, method: Method, known: _Known) -> None:
        self._state, self._method, self._known = state, method, known
        self.reason = method.reason

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        state = self._state
        for number, row in enumerate(rows):
            if state.receives[row] or state.gone[row]:
                continue
            if state.permission.refusal(self.reason, {state.pool_of[row]: 1}):
                if row not in result.refused:
                    result.stuck.pop(row, None)
                    self._known.say(row, result)
            else:
                self._method.compute_moves([row], deadline, result)
                if result.not_looked_at:
                    result.not_looked_at += rows[number + 1 :]
                    return
