"""Searches the moves of a plan: tries every candidate, and better combinations than one ranking gives.

Empty nodes are removed first. Then the search tries several ways through the candidates and keeps the best:
each node alone, deleted or else replaced by cheaper nodes, in several orders; or groups that waste little in
new nodes first (`methods/repacking`). If budgets or scores limit the disruption, single nodes save more per
disruption; otherwise groups save more. Every way ends with the remaining groups and with nodes that received
pods (`methods/receivers`). A few nodes together are solved exactly (`methods/multi_node`): all of them in a
small cluster; in a larger one group by group, where a group's moves are undone if it saves more together.
Counts bound the work, not time, so that the same cluster gives the same plan. A deadline ends the search
early, and the result names what was not considered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np

from karpool.consolidation.methods.acceptance import accept_all
from karpool.consolidation.methods.deletion import Deletion, delete
from karpool.consolidation.methods.emptiness import Emptiness
from karpool.consolidation.methods.method import Method, PlanDeadline, SearchResult
from karpool.consolidation.methods.multi_node import GROUP, MultiNode, is_unrestricted
from karpool.consolidation.methods.receivers import Receivers
from karpool.consolidation.methods.repacking import Repacking
from karpool.consolidation.methods.replacement import Replacement, split
from karpool.consolidation.policy.reasons import DisruptionReason
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    UnplacedShapes,
)
from karpool.consolidation.state.move_objections import objections_to
from karpool.consolidation.state.planning_state import (
    PlanningMark,
    PlanningState,
)
from karpool.packing.tables.columns import Int64s

UNDERUTILIZED = DisruptionReason.UNDERUTILIZED
# Up to this many candidates every way is improved by undoing moves, not only the first. Bounds work; not
# tuned: scenarios run clusters of 8 to 19 nodes, all of which are below.
TINY = 24
# Up to this many candidates moves are undone at all; above, stuck groups are combined once. Bounds work: each
# of the GROUPS_SMALL groups rewinds and replays the whole plan.
SMALL = 150
# Up to this many candidates more than one order is tried: each costs a full pass over all of them.
SEVERAL_WAYS_MAX = 300
# Packings tried while one way is improved; about 2 s of CPU time.
IMPROVING_PACKINGS = 1000
# Minimum improvement, as a share of the plan's saving.
LEAST_IMPROVEMENT = 0.001
GROUPS_SMALL = 60  # neighbourhoods that are improved in one round; bounds work
# Share of the waste-free gain that a group must reach to go before single nodes.
LITTLE_WASTE = 0.75
# If moves are scored, another order that saves more in total must save at least this share of the best result
# at every level of disruption. On 50 roomy nodes one saved a fifth more in total, and 0.6 on the way; those
# that are worth it on packed and mixed clusters are at 0.71 and above (docs/benchmarks.md).
ON_THE_WAY = 0.7
ROUNDS = 2  # of improvement; the second sees the changes of the first, and mostly changes nothing


def search(state: PlanningState, deadline: PlanDeadline) -> SearchResult:
    return search_with(Search(state, deadline), state, deadline)


def search_with(candidates: "Search", state: PlanningState, deadline: PlanDeadline) -> SearchResult:
    """Remove empty nodes first, then search the others."""
    empty = SearchResult()
    empty_rows = sorted(
        (row for row in state.judged.empty.tolist() if row not in state.buffered),
        key=lambda row: (-float(state.ranks[row]), state.by_name(row)),
    )
    Emptiness(state).compute_moves(empty_rows, deadline, empty)
    result = candidates.best()
    result.drafts[:0] = empty.drafts
    result.refused = {**empty.refused, **result.refused}
    return result


class Search:
    """Searches moves of candidates that are not empty."""

    def __init__(self, state: PlanningState, deadline: PlanDeadline) -> None:
        self._state, self._deadline = state, deadline
        self._replacement, self._multi_node = Replacement(state), MultiNode(state)
        self._repacking, self._receivers = Repacking(state), Receivers(state)
        self._packings_before = 0
        self._alone: tuple[Method, ...] = (Deletion(state),)
        if state.settings.replace:
            self._alone += (self._replacement,)

    def best(self) -> SearchResult:
        state = self._state
        rows = state.open_candidates()
        if len(rows) <= state.settings.exhaustive_up_to:
            unrestricted = [row for row in rows.tolist() if is_unrestricted(state, row)]
            together: list[CandidateMove] = []
            if not self._deadline.is_over:
                together = accept_all(state, self._multi_node.best_combination(unrestricted, self._deadline))
            result = self._each_alone(_by_rank(state, state.open_candidates()))
            result.drafts[:0] = together
            return result
        result = self._best_way(state.save())
        if len(rows) > SMALL and state.settings.replace:
            stuck = [
                row
                for row in state.open_candidates().tolist()
                if row in result.stuck and is_unrestricted(state, row)
            ]
            self._multi_node.compute_moves(stuck, self._deadline, result)
        return result

    def _each_alone(self, order: Sequence[int]) -> SearchResult:
        """Try each node alone; each method takes the nodes that the methods before it could not."""
        state, result = self._state, SearchResult()
        rows = order
        for method in self._alone:
            method.compute_moves(rows, self._deadline, result)
            if result.not_looked_at:
                break
            rows = [
                row
                for row in order
                if row in result.stuck or (row in result.refused and not state.may_delete((row,)))
            ]
        return result

    def _look_again(self, result: SearchResult) -> None:
        """Try every remaining candidate again after the moves: it may go now, or gets its current reason."""
        again = self._each_alone(_by_rank(self._state, self._state.open_candidates()))
        result.drafts += again.drafts
        result.refused, result.stuck = again.refused, again.stuck
        result.not_looked_at = again.not_looked_at

    # Several ways through the candidates

    def _best_way(self, start: PlanningMark) -> SearchResult:
        """Return the best of several ways through the candidates, applied to the state."""
        state = self._state
        rows = state.open_candidates()
        best: SearchResult | None = None
        nothing_alone = False
        self._packings_before = self._multi_node.packings
        for number, (way, is_grouped) in enumerate(self._ways(rows)):
            if number:
                if self._deadline.is_over:
                    break
                state.rewind(start)
            result = way(nothing_alone)
            if result is None:
                continue
            if number == 0:
                # If no node can go alone, none can in another order: each is tried on the same cluster.
                nothing_alone = state.remembers and not result.drafts and state.tries_left > 0
            if len(rows) <= TINY or (number == 0 and len(rows) <= SMALL):
                self._improve(start, result)
                self._look_again(result)
            # If moves are scored, the saving at every level of disruption counts.
            least = 1.0 if is_grouped else ON_THE_WAY
            if best is None or (
                result.is_better_than(best) and (not self._is_scored or result.dominates(best, least))
            ):
                best = result
        assert best is not None
        if len(rows) <= SEVERAL_WAYS_MAX:
            state.rewind(start)
            best.drafts = accept_all(state, best.drafts)
        return self._through_receivers(_by_rank(state, rows), best)

    @cached_property
    def _is_scored(self) -> bool:
        state = self._state
        return any(
            state.policies[pool].is_scored for pool in {state.pool_of[row] for row in state.candidates}
        )

    @property
    def begins_with_groups(self) -> bool:
        return not self._is_scored and not self._is_scarce(self._state.open_candidates())

    def _ways(self, rows: Int64s) -> Iterator["_Way"]:
        state = self._state
        order_by_rank = _by_rank(state, rows)
        several = len(rows) <= SEVERAL_WAYS_MAX
        groups_first = self.begins_with_groups
        if several or not groups_first:
            yield lambda nothing_alone: self._each_alone(order_by_rank), False
        if several:
            yield lambda nothing_alone: self._batch_first(order_by_rank, nothing_alone), False
            for order in (_by_savings_for_room, _by_price):
                yield partial(self._in_order, order), False
        if several or groups_first:
            yield lambda nothing_alone: self._repacked(order_by_rank, LITTLE_WASTE), True
        if several and groups_first:
            yield lambda nothing_alone: self._repacked(order_by_rank, 0.0), True
        if groups_first and TINY < len(rows) <= SMALL:
            # The order decides which nodes share a group: up to 6 % of the possible saving at 50 nodes.
            for order in (_by_price, _by_savings_for_room):
                yield partial(self._repacked_in_order, order), True

    def _in_order(
        self, order: Callable[[PlanningState, Int64s], list[int]], nothing_alone: bool
    ) -> SearchResult | None:
        state = self._state
        return None if nothing_alone else self._each_alone(order(state, state.open_candidates()))

    def _is_scarce(self, rows: Int64s) -> bool:
        """Whether budgets allow fewer than half of the candidates: then each should save much by itself."""
        state = self._state
        counts = Counter(state.pool_of[row] for row in rows.tolist())
        allowed = sum(
            min(number, max(state.permission.pools[pool].left[UNDERUTILIZED], 0))
            for pool, number in counts.items()
        )
        return 2 * allowed < len(rows)

    def _repacked(self, order: Sequence[int], least: float) -> SearchResult:
        """First groups that reach the share `least` of their gain without waste, then each node alone."""
        first = SearchResult()
        self._repacking.compute_moves(order, self._deadline, first, least=least)
        result = self._each_alone([row for row in order if not self._state.gone[row]])
        result.drafts[:0] = first.drafts
        return result

    def _repacked_in_order(
        self, order: Callable[[PlanningState, Int64s], list[int]], nothing_alone: bool
    ) -> SearchResult:
        state = self._state
        return self._repacked(order(state, state.open_candidates()), LITTLE_WASTE)

    def _through_receivers(self, order: Sequence[int], result: SearchResult) -> SearchResult:
        self._repacking.compute_moves(order, self._deadline, result)
        self._receivers.compute_moves(order, self._deadline, result)
        return result

    def _batch_first(self, order: list[int], nothing_alone: bool) -> SearchResult | None:
        """First the largest prefix of the ranking that can go at once, by bisection, then the others."""
        low, high, size = 2, len(order), 0
        while low <= high:
            middle = (low + high) // 2
            if self._prefix(order[:middle], keep=False):
                size, low = middle, middle + 1
            else:
                high = middle - 1
        batch = self._prefix(order[:size], keep=True) if size else []
        if nothing_alone and not batch:
            return None
        result = self._each_alone([row for row in order if not self._state.gone[row]])
        result.drafts[:0] = batch
        return result

    def _prefix(self, rows: list[int], *, keep: bool) -> list[CandidateMove]:
        """The moves that remove these nodes, applied if `keep`; empty if there are none."""
        state = self._state
        nodes = Counter(state.pool_of[row] for row in rows)
        refused = bool(state.permission.refusal(UNDERUTILIZED, nodes))
        if (refused and state.is_simple) or state.view.bill is not None:
            return []  # on a bill, the saving of one node depends on the others: they are taken one by one
        with state.trial():
            draft = self._replacement.replace(rows) if state.settings.replace else delete(state, rows)
            if isinstance(draft, UnplacedShapes):
                return []
            parts = split(state, draft)
            if refused or any(self._is_bad(part) for part in parts):
                return []
            for part in parts if keep else ():
                state.accept(part)
        return parts

    def _is_bad(self, draft: CandidateMove) -> bool:
        state = self._state
        return len(draft.rows) > state.settings.most_sources or bool(
            objections_to(state, draft, UNDERUTILIZED)
        )

    # Groups that save more together

    def _improve(self, start: PlanningMark, result: SearchResult) -> None:
        """Undo the moves of a group of nodes, and keep a better combination if there is one."""
        state = self._state
        unrestricted = sorted(
            (row for row in state.candidates.tolist() if is_unrestricted(state, row)), key=state.by_name
        )
        for _ in range(ROUNDS):
            improved = False
            for group in _neighbourhoods(state, result, unrestricted):
                if self._is_spent():
                    return
                improved |= self._improve_group(start, result, group)
            if not improved:
                return

    def _is_spent(self) -> bool:
        tried = self._multi_node.packings - self._packings_before
        return self._deadline.is_over or tried >= IMPROVING_PACKINGS

    def _improve_group(self, start: PlanningMark, result: SearchResult, group: tuple[int, ...]) -> bool:
        state = self._state
        inside = frozenset(group)
        touched = [
            draft for draft in result.drafts if inside & {*draft.rows, *(row for _, row, _ in draft.placed)}
        ]
        members = sorted(inside | {row for draft in touched for row in draft.rows}, key=state.by_name)
        if len(members) > GROUP + 2 or not all(is_unrestricted(state, row) for row in members):
            return False
        others = [draft for draft in result.drafts if draft not in touched]
        gained = sum(draft.savings for draft in touched)
        state.rewind(start)
        whole = len(accept_all(state, others)) == len(others)
        better: list[CandidateMove] = []
        if whole:
            left = IMPROVING_PACKINGS - (self._multi_node.packings - self._packings_before)
            # A smaller improvement is not worth the time of the search.
            above = gained + LEAST_IMPROVEMENT * result.savings
            better = self._multi_node.best_combination(members, self._deadline, above=above, packings=left)
        if better and len(accept_all(state, better)) == len(better):
            result.drafts = others + better
            return True
        state.rewind(start)
        accept_all(state, result.drafts)
        return False


# The argument says that no candidate can go alone; the flag says that the way begins with groups.
_Way = tuple[Callable[[bool], SearchResult | None], bool]


def _by_rank(state: PlanningState, rows: Int64s) -> list[int]:
    order: list[int] = rows[np.lexsort((state.turn[rows], -state.ranks[rows]))].tolist()
    return order


def _by_savings_for_room(state: PlanningState, rows: Int64s) -> list[int]:
    """By saving per requested capacity of the node's pods."""
    sizes = np.array([_size(state, row) for row in rows.tolist()])
    order: list[int] = rows[
        np.lexsort((state.turn[rows], -state.prices[rows] / np.maximum(sizes, 1e-9)))
    ].tolist()
    return order


def _by_price(state: PlanningState, rows: Int64s) -> list[int]:
    order: list[int] = rows[np.lexsort((state.turn[rows], -state.prices[rows]))].tolist()
    return order


def _size(state: PlanningState, row: int) -> float:
    """The requests of a node's pods, as a share of the largest node."""
    snapshot = state.view.snapshot
    shares = []
    for name in ("cpu", "memory"):
        most = max(int(snapshot.allocatable(name).max(initial=1)), 1)
        asked = sum(
            number * dict(snapshot.shapes[shape].requests).get(name, 0)
            for shape, number in state.demand((row,))
        )
        shares.append(asked / most)
    return max(shares)


def _neighbourhoods(
    state: PlanningState, result: SearchResult, unrestricted: list[int]
) -> list[tuple[int, ...]]:
    """Groups of neighbours by score and by load, and the nodes of each move together with remaining nodes."""
    groups: dict[tuple[int, ...], None] = {}
    by_rank = sorted(unrestricted, key=lambda row: (-float(state.ranks[row]), state.by_name(row)))
    by_load = sorted(unrestricted, key=lambda row: (float(state.costs[row]), state.by_name(row)))
    for order in (by_rank, by_load):
        for begin in range(0, max(len(order) - GROUP + 1, 1), 2):
            groups[tuple(sorted(order[begin : begin + GROUP], key=state.by_name))] = None
    among = frozenset(unrestricted)
    stays = [row for row in by_rank if not state.gone[row]]
    for draft in result.drafts:
        near = {*draft.rows, *(row for _, row, _ in draft.placed)} & among
        for row in stays:
            if len(near) >= GROUP:
                break
            near.add(row)
        groups[tuple(sorted(near, key=state.by_name)[: GROUP + 1])] = None
    return list(groups)[:GROUPS_SMALL]
