"""Which moves to make: every candidate is looked at, and better combinations than one ranking gives.

First each candidate alone: away without a replacement, else with cheaper new nodes, in
several orders of which the best is kept. Then few nodes together, exactly (`combining`):
all of them in a small cluster; in a larger one group by group, what a group gave so far
taken back if together it gives more. The work is bounded by counts, not by time, so that
the same cluster gives the same plan; a deadline ends it early and what was not looked at
is named.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from karpool.consolidation.methods import replacement
from karpool.consolidation.methods.multi_node import best_combination, is_unrestricted, put_in_place
from karpool.consolidation.methods.replacement import CENT
from karpool.consolidation.planning.plan import DisruptionReason
from karpool.consolidation.planning.planning_state import (
    CandidateMove,
    PlanningMark,
    PlanningState,
    UnplacedShapes,
)
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.scoring import can_pass, score_move
from karpool.model.infeasible import Infeasible
from karpool.packing.tables.columns import Int64s

UNDERUTILIZED = DisruptionReason.UNDERUTILIZED
GROUP = 6  # nodes that are looked at together
# Beyond so many candidates moves are not taken back again, and beyond these, one order is as good as four.
TINY = 24
SMALL = 150
SEVERAL_WAYS_MAX = 300
GROUPS_MAX = 400  # groups looked at in one search
GROUPS_SMALL = 60
ROUNDS = 2


@dataclass(slots=True)
class SearchResult:
    """What a search came to. `refused`: moves that could be made, and what speaks against them."""

    drafts: list[CandidateMove] = field(default_factory=list)
    refused: dict[int, tuple[CandidateMove, tuple[Infeasible[ConsolidationReason], ...]]] = field(
        default_factory=dict
    )  # by first row
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


class PlanDeadline:
    """Says when it is time to stop; never without a deadline."""

    def __init__(self, elapsed: Callable[[], float] | None, deadline_seconds: float | None) -> None:
        self._elapsed, self._deadline = elapsed, deadline_seconds

    @property
    def is_over(self) -> bool:
        if self._elapsed is None or self._deadline is None:
            return False
        return self._elapsed() >= self._deadline


def search(world: PlanningState, timer: PlanDeadline) -> SearchResult:
    rows = world.open_candidates()
    plain = [row for row in rows.tolist() if is_unrestricted(world, row)]
    if len(plain) <= world.settings.exhaustive_up_to:
        together = _accept_all(world, best_combination(world, plain)) if not timer.is_over else []
        found = _each_alone(world, _by_rank(world, world.open_candidates()), timer)
        found.drafts[:0] = together
        return found
    start = world.save()
    found = _best_way(world, start, timer)
    if len(rows) > SMALL:
        _combine(world, found, timer)
    return found


def _by_rank(world: PlanningState, rows: Int64s) -> list[int]:
    found: list[int] = rows[np.lexsort((world.turn[rows], -world.ranks[rows]))].tolist()
    return found


def _see_what_is_left(world: PlanningState, found: SearchResult, timer: PlanDeadline) -> None:
    """Every candidate that is still there once more, now that others went: it may go, or says why not."""
    again = _each_alone(world, _by_rank(world, world.open_candidates()), timer)
    found.drafts += again.drafts
    found.refused, found.stuck = again.refused, again.stuck
    found.not_looked_at = again.not_looked_at


def _best_way(world: PlanningState, start: PlanningMark, timer: PlanDeadline) -> SearchResult:
    """The best of several ways to go through the candidates, and it is in place."""
    rows = world.open_candidates()
    improves = len(rows) <= SMALL
    best: SearchResult | None = None
    nothing_alone = False
    for number, way in enumerate(_ways(world, rows, timer)):
        if number:
            if timer.is_over:
                break
            world.rewind(start)
        found = way(nothing_alone)
        if found is None:
            continue
        if number == 0:
            # Where none can go alone, none can in another order: each is tried on the cluster as it is.
            nothing_alone = world.remembers and not found.drafts and world.tries_left > 0
        if improves and (number == 0 or len(rows) <= TINY):
            _improve(world, start, found, timer)
            _see_what_is_left(world, found, timer)
        if best is None or found.is_better_than(best):
            best = found
    assert best is not None
    world.rewind(start)
    best.drafts = _accept_all(world, best.drafts)
    return best


_Way = Callable[[bool], SearchResult | None]  # told that no candidate can go alone; None: as the first way


def _ways(world: PlanningState, rows: Int64s, timer: PlanDeadline) -> Iterator[_Way]:
    by_rank = _by_rank(world, rows)
    yield lambda nothing_alone: _each_alone(world, by_rank, timer)
    if len(rows) > SEVERAL_WAYS_MAX:
        return
    yield lambda nothing_alone: _batch_first(world, by_rank, timer, nothing_alone)
    for order in (_by_savings_for_room, _by_price):
        yield partial(_in_order, world, order, rows, timer)


_Order = Callable[[PlanningState, Int64s], list[int]]


def _in_order(
    world: PlanningState, order: _Order, rows: Int64s, timer: PlanDeadline, nothing_alone: bool
) -> SearchResult | None:
    return None if nothing_alone else _each_alone(world, order(world, rows), timer)


def _batch_first(
    world: PlanningState, order: list[int], timer: PlanDeadline, nothing_alone: bool
) -> SearchResult | None:
    """The largest prefix of the ranking that can go at once, found by halving, and then the others."""
    low, high, size = 2, len(order), 0
    while low <= high:
        middle = (low + high) // 2
        if _prefix(world, order[:middle], keep=False):
            size, low = middle, middle + 1
        else:
            high = middle - 1
    batch = _prefix(world, order[:size], keep=True) if size else []
    if nothing_alone and not batch:
        return None
    found = _each_alone(world, [row for row in order if not world.gone[row]], timer)
    found.drafts[:0] = batch
    return found


def _prefix(world: PlanningState, rows: list[int], *, keep: bool) -> list[CandidateMove]:
    """The moves that take these nodes, in place if they are kept; none when there are no such moves."""
    mark = world.relocation.mark()
    nodes = Counter(world.pool_of[row] for row in rows)
    refused = bool(world.permission.refusal(UNDERUTILIZED, nodes))
    if refused and world.is_simple:
        return []
    draft = replacement.replace(world, rows) if world.settings.replace else replacement.delete(world, rows)
    if isinstance(draft, UnplacedShapes):
        return []
    parts = replacement.split(world, draft)
    if refused or any(_is_bad(world, part) for part in parts):
        parts = []
    if parts and keep:
        for part in parts:
            world.accept(part)
    else:
        world.relocation.undo(mark)
    return parts


def _is_bad(world: PlanningState, draft: CandidateMove) -> bool:
    return len(draft.rows) > world.settings.most_sources or bool(world.objections(draft, UNDERUTILIZED))


def _by_savings_for_room(world: PlanningState, rows: Int64s) -> list[int]:
    """By what each saves for the room that its pods take."""
    sizes = np.array([_size(world, row) for row in rows.tolist()])
    found: list[int] = rows[
        np.lexsort((world.turn[rows], -world.prices[rows] / np.maximum(sizes, 1e-9)))
    ].tolist()
    return found


def _by_price(world: PlanningState, rows: Int64s) -> list[int]:
    found: list[int] = rows[np.lexsort((world.turn[rows], -world.prices[rows]))].tolist()
    return found


def _size(world: PlanningState, row: int) -> float:
    """What the pods of a node ask for, as a share of the largest node."""
    snapshot = world.view.snapshot
    shares = []
    for name in ("cpu", "memory"):
        most = max(int(snapshot.allocatable(name).max(initial=1)), 1)
        asked = sum(
            number * dict(snapshot.shapes[shape].requests).get(name, 0)
            for shape, number in world.demand((row,))
        )
        shares.append(asked / most)
    return max(shares)


# One by one


def _each_alone(world: PlanningState, order: Sequence[int], timer: PlanDeadline) -> SearchResult:
    found = SearchResult()
    for number, row in enumerate(order):
        if timer.is_over:
            found.not_looked_at += (each for each in order[number:] if not world.receives[each])
            return found
        if not world.receives[row]:
            _try_delete(world, row, found)
    if world.settings.replace:
        _replace_each(world, [row for row in order if row in found.stuck], found, timer)
    return found


def _try_delete(world: PlanningState, row: int, found: SearchResult) -> None:
    mark = world.relocation.mark()
    draft = replacement.delete(world, (row,))
    if isinstance(draft, UnplacedShapes):
        found.stuck[row] = draft
        return
    _take_or_leave(world, draft, mark, found)


def _take_or_leave(world: PlanningState, draft: CandidateMove, mark: int, found: SearchResult) -> bool:
    objections = world.objections(draft, UNDERUTILIZED)
    if objections:
        world.relocation.undo(mark)
        found.refused[draft.rows[0]] = draft, objections
        return False
    world.accept(draft)
    found.drafts.append(draft)
    for row in draft.rows:
        found.stuck.pop(row, None)
        found.refused.pop(row, None)
    return True


def _replace_each(
    world: PlanningState, rows: Iterable[int], found: SearchResult, timer: PlanDeadline
) -> None:
    for row in rows:
        if timer.is_over:
            found.not_looked_at.append(row)
            continue
        if world.receives[row] or world.gone[row]:
            continue
        if why := _hopeless(world, row):
            found.stuck[row] = UnplacedShapes(why)
            continue
        mark = world.relocation.mark()
        draft = replacement.replace(world, (row,))
        if isinstance(draft, UnplacedShapes):
            found.stuck[row] = draft
        else:
            found.stuck.pop(row, None)
            _take_or_leave(world, draft, mark, found)


def _hopeless(world: PlanningState, row: int) -> Infeasible[ConsolidationReason] | None:
    """Why no replacement of the node alone could be approved: not even taking it away for nothing would."""
    key = world.pool_of[row], float(world.prices[row]), float(world.costs[row])
    if key not in world.hopeless:
        world.hopeless[key] = _never_worth_it(world, *key)
    return world.hopeless[key]


def _never_worth_it(
    world: PlanningState, pool: str, price: float, cost: float
) -> Infeasible[ConsolidationReason] | None:
    policy, totals = world.policies[pool], world.totals.get(pool)
    if can_pass(policy, price, cost, totals, tolerance=world.settings.tolerance):
        return None
    best = score_move(price, cost, totals, policy.k).score
    message = (
        f"its pods find no place on the nodes that stay, and no replacement is worth moving them: "
        f"even for nothing it would score {best:.2f} < threshold {policy.threshold:.2f} of nodepool {pool}"
    )
    return Infeasible(ConsolidationReason.SCORE, message, f"nodepool {pool}")


# Several together


def _accept_all(world: PlanningState, drafts: Iterable[CandidateMove]) -> list[CandidateMove]:
    accepted = []
    for draft in drafts:
        if put_in_place(world, draft):
            world.accept(draft)
            accepted.append(draft)
    return accepted


def _combine(world: PlanningState, found: SearchResult, timer: PlanDeadline) -> None:
    """Groups of nodes that could not go alone, neighbours in pool and load, the most promising first."""
    if not world.settings.replace:
        return
    rows = [
        row for row in world.open_candidates().tolist() if row in found.stuck and is_unrestricted(world, row)
    ]
    rows.sort(key=lambda row: (world.pool_of[row], float(world.costs[row]), world.by_name(row)))
    groups = [rows[start : start + GROUP] for start in range(0, len(rows), GROUP)]
    promises = [(_promise(world, group), number) for number, group in enumerate(groups)]
    chosen = sorted(((-promise, number) for promise, number in promises if promise > CENT))
    for turn, (_, number) in enumerate(chosen):
        members = [row for row in groups[number] if not world.receives[row] and not world.gone[row]]
        if timer.is_over or turn >= GROUPS_MAX:
            found.not_combined += members
            continue
        for draft in _accept_all(world, best_combination(world, members)):
            found.drafts.append(draft)
            for row in draft.rows:
                found.stuck.pop(row, None)


def _promise(world: PlanningState, rows: Sequence[int]) -> float:
    """What one new node for the first few of them would save at most, if any type may hold them."""
    best = 0.0
    for count in range(2, len(rows) + 1):
        some = rows[:count]
        if world.permission.refusal(UNDERUTILIZED, Counter(world.pool_of[row] for row in some)):
            break
        price = sum(float(world.prices[row]) for row in some)
        bought = replacement.cheapest_node(world, some, dict(world.demand(some)), price)
        if isinstance(bought, UnplacedShapes):
            if bought.why.reason is ConsolidationReason.NO_TYPE:
                break
            continue
        best = max(best, price - bought.price)
    return best


def _improve(world: PlanningState, start: PlanningMark, found: SearchResult, timer: PlanDeadline) -> None:
    """Take back what a group of nodes gave, and see whether together they give more."""
    plain = sorted(
        (row for row in world.candidates.tolist() if is_unrestricted(world, row)), key=world.by_name
    )
    for _ in range(ROUNDS):
        improved = False
        for group in _neighbourhoods(world, found, plain):
            if timer.is_over:
                return
            improved |= _improve_group(world, start, found, group)
        if not improved:
            return


def _neighbourhoods(world: PlanningState, found: SearchResult, plain: list[int]) -> list[tuple[int, ...]]:
    """Neighbours by score and by load, and what each move touches with nodes that did not go."""
    groups: dict[tuple[int, ...], None] = {}
    by_rank = sorted(plain, key=lambda row: (-float(world.ranks[row]), world.by_name(row)))
    by_load = sorted(plain, key=lambda row: (float(world.costs[row]), world.by_name(row)))
    for order in (by_rank, by_load):
        for begin in range(0, max(len(order) - GROUP + 1, 1), 2):
            groups[tuple(sorted(order[begin : begin + GROUP], key=world.by_name))] = None
    among = frozenset(plain)
    stays = [row for row in by_rank if not world.gone[row]]
    for draft in found.drafts:
        near = {*draft.rows, *(row for _, row, _ in draft.placed)} & among
        for row in stays:
            if len(near) >= GROUP:
                break
            near.add(row)
        groups[tuple(sorted(near, key=world.by_name)[: GROUP + 1])] = None
    return list(groups)[:GROUPS_SMALL]


def _improve_group(
    world: PlanningState, start: PlanningMark, found: SearchResult, group: tuple[int, ...]
) -> bool:
    inside = frozenset(group)
    touched = [
        draft for draft in found.drafts if inside & {*draft.rows, *(row for _, row, _ in draft.placed)}
    ]
    members = sorted(inside | {row for draft in touched for row in draft.rows}, key=world.by_name)
    if len(members) > GROUP + 2 or not all(is_unrestricted(world, row) for row in members):
        return False
    others = [draft for draft in found.drafts if draft not in touched]
    gained = sum(draft.savings for draft in touched)
    world.rewind(start)
    whole = len(_accept_all(world, others)) == len(others)
    better = best_combination(world, members, above=gained) if whole else []
    if better and len(_accept_all(world, better)) == len(better):
        found.drafts = others + better
        return True
    world.rewind(start)
    _accept_all(world, found.drafts)
    return False
