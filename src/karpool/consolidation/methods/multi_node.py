"""Multi-node: the best result for a few nodes together, over every subset and every mix of new nodes.

The search is exact up to three limits, which tests can read: the number of new node sizes, the number of
receiving nodes, and the steps of a packing. Pods with topology constraints are left to other methods.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from karpool.consolidation.methods.acceptance import accept_all
from karpool.consolidation.methods.method import CENT, PlanDeadline, SearchResult
from karpool.consolidation.methods.new_node_sizes import (
    HELD_MAX,
    NodeMixes,
    NodeSize,
    held_by,
    mixes_of,
    smallest_sizes,
)
from karpool.consolidation.methods.purchase import cheapest_node, purchase_several
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    UnplacedShapes,
)
from karpool.consolidation.state.move_objections import objections_to
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.packing.relocation.exact import Room, exact_fit
from karpool.packing.tables.columns import Bools, Int64s

# `tests.consolidation.optimality` measures the quality of these limits together against an exact solver
# (docs/benchmarks.md); none was tuned alone. Work grows with 2 ** GROUP subsets, times mixes, times pods.
GROUP = 6  # nodes that are combined: 63 subsets
GROUPS_MAX = 400  # groups in one search; bounds clusters beyond 2,400 stuck nodes
BINS_MAX = 24  # existing nodes that may receive pods: those with the most room
MIXES_MAX = 24  # mixes of new nodes packed for one subset, the cheapest first
# Packings tried for one group: 127 subsets of seven nodes with MIXES_MAX mixes each. One takes up to 2 ms.
PACKINGS_MAX = 3048
PODS_MAX = HELD_MAX - 1  # pods of one subset; beyond, packing exactly takes more steps than it may


_SizesByAsk = dict[tuple[object, ...], tuple[list[NodeSize], NodeMixes]]


class MultiNode:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state
        # By stage, nodes and the saving to exceed: with the same accepted moves the answer is the same.
        self._combinations: dict[tuple[int, tuple[int, ...], float], list[CandidateMove]] = {}
        self._known_sizes: _SizesByAsk = {}
        self.packings = 0  # number of packings tried

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        """Combine nodes that could not go alone in groups of similar pool and load, most promising first."""
        state = self._state
        chosen = sorted(
            rows, key=lambda row: (state.pool_of[row], float(state.costs[row]), state.by_name(row))
        )
        groups = [chosen[start : start + GROUP] for start in range(0, len(chosen), GROUP)]
        promises = [(_promise(state, group), number) for number, group in enumerate(groups)]
        promising = sorted((-promise, number) for promise, number in promises if promise > CENT)
        for turn, (_, number) in enumerate(promising):
            members = [row for row in groups[number] if not state.receives[row] and not state.gone[row]]
            if deadline.is_over or turn >= GROUPS_MAX:
                result.not_combined += members
                continue
            for draft in accept_all(state, self.best_combination(members, deadline)):
                result.drafts.append(draft)
                for row in draft.rows:
                    result.stuck.pop(row, None)

    def best_combination(
        self, rows: Sequence[int], deadline: PlanDeadline, *, above: float = 0.0, packings: int = PACKINGS_MAX
    ) -> list[CandidateMove]:
        """Return the drafts with the largest total saving above `above`; empty if there are none.

        At the deadline, or after `packings` packings, the best result so far is returned. Nothing stays
        applied.
        """
        state = self._state
        if not len(rows) or packings <= 0:
            return []
        sizes = self._known_sizes if state.remembers else {}
        key = state.stage, tuple(rows), above
        drafts = self._combinations.get(key) if state.remembers else None
        if drafts is None:
            problem = _Problem(state, rows, sizes, deadline, packings)
            drafts = problem.solve(above)
            self.packings += packings - problem.packings_left
            if not deadline.is_over and problem.packings_left > 0:
                self._combinations[key] = drafts
        return drafts


def is_unrestricted(state: PlanningState, row: int) -> bool:
    """Whether topology and host ports restrict none of the node's pods, so that it can be combined."""
    table = state.view.snapshot.shapes
    return not any(
        state.relocation.is_restricted(shape) or table[shape].host_ports for shape, _ in state.demand((row,))
    )


class _Problem:
    def __init__(
        self,
        state: PlanningState,
        rows: Sequence[int],
        known_sizes: _SizesByAsk,
        deadline: PlanDeadline,
        packings: int,
    ) -> None:
        self._state, self._known = state, known_sizes
        self._deadline, self.packings_left = deadline, packings
        self._rows = list(rows)
        self._demands = [state.demand((row,)) for row in rows]
        self._shapes = sorted(
            {shape for demand in self._demands for shape, _ in demand},
            key=lambda shape: int(state.demands.rank[shape]),
        )
        self._number = {shape: index for index, shape in enumerate(self._shapes)}
        self._resources = state.one_node.resources
        self._needs: list[Room] = [state.one_node.requests(shape).tolist() for shape in self._shapes]
        self._need_rows: Int64s = np.array(self._needs, dtype=np.int64).reshape(
            len(self._shapes), len(self._resources)
        )
        self._amounts = [
            [(index, units) for index, units in enumerate(need) if units] for need in self._needs
        ]
        self._prices = [float(state.prices[row]) for row in rows]
        self._costs = [float(state.costs[row]) for row in rows]
        self._read_bins()
        self._read_sizes()
        self._bin_holds = held_by(self._bin_free, self._need_rows)
        needs = self._need_rows
        self._as_large: Bools = np.all(needs[:, None, :] >= needs[None, :, :], axis=2)  # by shape pair
        self._asked: Int64s = np.array(
            [self._sum(demand) for demand in self._demands], dtype=np.int64
        ).reshape(len(rows), len(self._resources))

    def _sum(self, demand: Sequence[tuple[int, int]]) -> Int64s:
        total: Int64s = np.zeros(len(self._resources), dtype=np.int64)
        for shape, number in demand:
            total += np.array(self._needs[self._number[shape]], dtype=np.int64) * number
        return total

    def _read_bins(self) -> None:
        """Collect the nodes that can take a pod: the group itself, and the others with the most capacity."""
        relocation = self._state.relocation
        counted = [name in relocation.resources for name in self._resources]
        free = np.array(
            [
                relocation.free(name) if there else np.zeros(len(relocation.order), dtype=np.int64)
                for name, there in zip(self._resources, counted, strict=True)
            ]
        )
        takes: Bools = np.zeros(free.shape[1], dtype=np.bool_)
        admits: list[Bools] = []
        for shape, need in zip(self._shapes, self._needs, strict=True):
            mask = relocation.admits(shape)
            admits.append(mask)
            takes |= mask & (free >= np.array(need, dtype=np.int64)[:, None]).all(axis=0)
        inside, turn = set(self._rows), self._state.by_name
        positions = np.flatnonzero(takes)
        if len(positions) > BINS_MAX:
            share = sum(free[index, positions] / max(int(free[index].max(initial=1)), 1) for index in (0, 1))
            positions = positions[np.argsort(-share, kind="stable")][:BINS_MAX]
        chosen = {int(relocation.order[position]): int(position) for position in positions}
        for row in self._rows:
            position = int(relocation.position_of[row])
            if takes[position]:
                chosen[row] = position
        ordered = sorted(
            chosen.items(), key=lambda item: (item[0] in inside, free[0, item[1]], turn(item[0]))
        )
        self._bin_rows = [row for row, _ in ordered]
        self._bin_room: list[Room] = [free[:, position].tolist() for _, position in ordered]
        self._bin_admits = [[bool(mask[position]) for mask in admits] for _, position in ordered]
        self._bin_free: Int64s = np.array(self._bin_room, dtype=np.int64).reshape(len(ordered), free.shape[0])
        self._inside = {row: index for index, row in enumerate(self._rows)}

    def _read_sizes(self) -> None:
        """Collect the sizes of new nodes that no cheaper size dominates. They depend on the requests only."""
        state = self._state
        most = sum(self._prices) if state.settings.replace else 0.0
        if most <= 0:
            nothing: list[NodeSize] = []
            self._sizes, self._mixes = (
                nothing,
                mixes_of(nothing, self._need_rows, state.settings.most_new_nodes),
            )
            return
        one_node = state.one_node
        key = tuple(map(one_node.sort, self._shapes)), most, one_node.limits_left()
        remembered = self._known.get(key)
        if remembered is None:
            sizes = smallest_sizes(state, self._shapes, most)
            mixes = mixes_of(sizes, self._need_rows, state.settings.most_new_nodes)
            remembered = self._known[key] = sizes, mixes
        self._sizes, self._mixes = remembered

    # Solving

    def solve(self, above: float) -> list[CandidateMove]:
        best, chosen, spent = above, [], np.inf
        for bound, cost, subset in self._subsets():
            if self._deadline.is_over or self.packings_left <= 0:
                break
            if bound < best - CENT or (bound <= best + CENT and cost >= spent):
                continue
            drafts = self._of(subset, best, spent)
            if drafts:
                savings = sum(draft.savings for draft in drafts)
                if savings > best + CENT or (savings > best - CENT and cost < spent):
                    best, chosen, spent = max(savings, best), drafts, cost
        return chosen

    def _subsets(self) -> list[tuple[float, float, tuple[int, ...]]]:
        """Upper bound of the saving, disruption and members of each subset, the most promising first.

        Only subsets that the budgets allow are included.
        """
        count = len(self._rows)
        cheapest = np.full(len(self._resources), np.inf)
        for size in self._sizes:
            room = np.maximum(np.array(size.room, dtype=np.float64), 1e-9)
            cheapest = np.minimum(cheapest, size.price / room)
        chosen: Int64s = (np.arange(1, 1 << count)[:, None] >> np.arange(count)) & 1
        chosen = chosen[self._is_within_budgets(chosen)]
        missing = np.maximum(self._all_missing(chosen), 0).astype(np.float64)
        # A resource that no size offers has an infinite price, unless none of it is missing.
        least = np.multiply(missing, cheapest, out=np.zeros_like(missing), where=missing > 0)
        saved = _sums(chosen, self._prices) - least.max(axis=1, initial=0.0)
        costs = _sums(chosen, self._costs)
        order = np.lexsort((costs, -saved))
        order = order[saved[order] > CENT]
        members = [tuple(np.flatnonzero(subset).tolist()) for subset in chosen[order]]
        return list(zip(saved[order].tolist(), costs[order].tolist(), members, strict=True))

    def _is_within_budgets(self, chosen: Int64s) -> Bools:
        """By subset: whether the budgets allow its nodes of each pool."""
        pools = sorted({self._state.pool_of[row] for row in self._rows})
        belongs = np.array([[self._state.pool_of[row] == pool for pool in pools] for row in self._rows])
        kinds, kind_of = np.unique(chosen @ belongs.astype(np.int64), axis=0, return_inverse=True)
        allowed = [
            not self._state.permission.refusal(
                DisruptionReason.UNDERUTILIZED,
                {pool: number for pool, number in zip(pools, numbers, strict=True) if number},
            )
            for numbers in kinds.tolist()
        ]
        found: Bools = np.array(allowed, dtype=np.bool_)[kind_of.reshape(-1)]
        return found

    def _all_missing(self, chosen: Int64s) -> Int64s:
        """`_missing` of every subset."""
        gone: Int64s = np.zeros_like(self._asked)
        for index, row in enumerate(self._bin_rows):
            if row in self._inside:
                gone[self._inside[row]] = self._bin_free[index]
        found: Int64s = chosen @ (self._asked + gone) - self._bin_free.sum(axis=0)
        return found

    def _missing(self, members: Sequence[int]) -> Int64s:
        """The requests of a subset's pods beyond the free capacity of the remaining nodes."""
        stays = [index for index, row in enumerate(self._bin_rows) if self._inside.get(row) not in members]
        missing: Int64s = self._asked[list(members)].sum(axis=0) - self._bin_free[stays].sum(axis=0)
        return missing

    def _of(self, members: tuple[int, ...], best: float, spent: float) -> list[CandidateMove]:
        price = sum(self._prices[index] for index in members)
        missing = self._missing(members)
        mixes = self._mixes
        cheap = mixes.prices < price - best + (CENT if spent < np.inf else -CENT)
        enough = np.flatnonzero(cheap & (mixes.rooms >= missing).all(axis=1))
        items = self._items(members)
        if len(items) > PODS_MAX or not len(enough):
            return []
        stays = [index for index, row in enumerate(self._bin_rows) if self._inside.get(row) not in members]
        # Necessary condition per shape: all pods that are at least as large must fit if nothing else is
        # placed.
        counts = np.bincount(items, minlength=len(self._shapes))
        short = np.where(counts > 0, counts @ self._as_large - self._bin_holds[stays].sum(axis=0), 0)
        enough = enough[(mixes.holds[enough] >= short).all(axis=1)]
        for number in enough[:MIXES_MAX].tolist():
            if not self._is_worth_it(members, float(mixes.prices[number])):
                break  # costlier mixes are not approved either
            if self._deadline.is_over or self.packings_left <= 0:
                break
            self.packings_left -= 1
            mix = mixes.members[number]
            places = exact_fit(
                items,
                self._amounts,
                [self._bin_room[index] for index in stays] + [self._sizes[size].room for size in mix],
                [self._bin_admits[index] for index in stays] + [self._sizes[size].admits for size in mix],
            )
            if places is not None:
                drafts = self._drafts(members, items, places, stays)
                if drafts:
                    return drafts
        return []

    def _is_worth_it(self, members: Sequence[int], price: float) -> bool:
        """Whether replacing these nodes of one pool at this price can be approved, as one move or several.

        If each move of a split scores high enough, so does the whole. A size has the price of its costliest
        shape, here and in the bound on savings.
        """
        rows = [self._rows[index] for index in members]
        if len({self._state.pool_of[row] for row in rows}) > 1:
            return True
        return self._state.verdict(rows, price or None).approved

    def _items(self, members: Sequence[int]) -> list[int]:
        """The pods as shape numbers, the largest first."""
        counts = np.zeros(len(self._shapes), dtype=np.int64)
        for index in members:
            for shape, number in self._demands[index]:
                counts[self._number[shape]] += number
        return np.repeat(np.arange(len(self._shapes)), counts).tolist()

    def _drafts(
        self, members: Sequence[int], items: list[int], places: list[int], stays: list[int]
    ) -> list[CandidateMove]:
        """Convert the packing to moves: nodes whose pods share a new node form one move."""
        homes: dict[int, list[int]] = {}  # shape number to places, new nodes last
        for item, place in sorted(zip(items, places, strict=True)):
            homes.setdefault(item, []).append(place)
        parent = {index: index for index in members}

        def root(index: int) -> int:
            while parent[index] != index:
                index = parent[index]
            return index

        owner: dict[int, int] = {}  # new node to one of its sources
        moved: list[tuple[int, int, int]] = []  # source, shape, place
        for index in members:
            for shape, number in self._demands[index]:
                for _ in range(number):
                    place = homes[self._number[shape]].pop()
                    moved.append((index, shape, place))
                    if place >= len(stays):
                        parent[root(index)] = root(owner.setdefault(place, index))
        groups: dict[int, list[int]] = {}
        for index in members:
            groups.setdefault(root(index), []).append(index)
        one_node = self._state.one_node
        limits = one_node.limits()
        known: list[CandidateMove] = []
        for group in groups.values():
            draft = self._draft(group, moved, stays)
            if draft is None:
                break
            known.append(draft)
            for fitting, _ in draft.new:
                one_node.reserve(fitting)
        one_node.restore(limits)
        return known if len(known) == len(groups) and self._is_allowed(known) else []

    def _draft(
        self, group: list[int], moved: list[tuple[int, int, int]], stays: list[int]
    ) -> CandidateMove | None:
        state = self._state
        rows = [self._rows[index] for index in group]
        placed: dict[tuple[int, int], int] = {}
        new: dict[int, Pods] = {}
        for index, shape, place in moved:
            if index not in group:
                continue
            if place < len(stays):
                key = shape, self._bin_rows[stays[place]]
                placed[key] = placed.get(key, 0) + 1
            else:
                pods = new.setdefault(place, {})
                pods[shape] = pods.get(shape, 0) + 1
        ceiling = state.worth(rows)
        bought = purchase_several(state, rows, new.values(), ceiling)
        if bought is None:
            return None
        price = sum(purchased_node.price for purchased_node in bought) if bought else None
        verdict = state.verdict(rows, price)
        flat = tuple((shape, row, pods) for (shape, row), pods in placed.items())
        return CandidateMove(tuple(rows), flat, tuple((node.fitting, node.pods) for node in bought), verdict)

    def _is_allowed(self, drafts: Sequence[CandidateMove]) -> bool:
        return not any(objections_to(self._state, draft, DisruptionReason.UNDERUTILIZED) for draft in drafts)


def _promise(state: PlanningState, rows: Sequence[int]) -> float:
    """Upper bound of the saving of one new node for the first rows."""
    best = 0.0
    for count in range(2, len(rows) + 1):
        some = rows[:count]
        if state.permission.refusal(
            DisruptionReason.UNDERUTILIZED, Counter(state.pool_of[row] for row in some)
        ):
            break
        price = state.worth(some)
        bought = cheapest_node(state, some, dict(state.demand(some)), price)
        if isinstance(bought, UnplacedShapes):
            if bought.why.reason is ConsolidationReason.NO_TYPE:
                break
            continue
        best = max(best, price - bought.price)
    return best


def _sums(chosen: Int64s, values: Sequence[float]) -> Floats:
    """The sum per subset, added in order, so that rounding equals that of adding one by one."""
    sums: Floats = np.zeros(len(chosen))
    for index, value in enumerate(values):
        sums = np.where(chosen[:, index] == 1, sums + value, sums)
    return sums
