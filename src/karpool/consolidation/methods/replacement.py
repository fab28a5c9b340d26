"""Replacement: removes nodes and requests cheaper ones (`methods/purchase`) for pods without a place."""

from collections.abc import Iterable, Sequence

import numpy as np

from karpool.consolidation.methods.method import CENT, PlanDeadline, SearchResult, accept_or_refuse
from karpool.consolidation.methods.purchase import buy_for_bound_pods, cheapest_node, purchase_several
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import can_pass, score_move
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    PurchasedNode,
    UnplacedShapes,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.infeasible import Infeasible

# Sizes tried for the first of two new nodes. Not tuned: limits the priced pairs per node, and few families
# have more sizes that are not dominated.
FIRST_OF_TWO_MAX = 12

_Bin = tuple[list[int], float]  # capacity of a size, and its price


class Replacement:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state
        # By requests: the shapes of the first query, and its new nodes.
        self._purchases: dict[
            tuple[object, ...], tuple[tuple[int, ...], list[PurchasedNode] | UnplacedShapes]
        ] = {}
        self._first_of_two: dict[tuple[object, ...], list[_Bin]] = {}
        self._hopeless: dict[tuple[str, float, float], Infeasible[ConsolidationReason] | None] = {}

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        state = self._state
        for number, row in enumerate(rows):
            if deadline.is_over:
                result.not_looked_at.append(row)
                continue
            deadline.progress.looks_at(number, len(rows), result)
            if state.receives[row] or state.gone[row]:
                continue
            if infeasible := self._why_hopeless(row):
                result.stuck[row] = UnplacedShapes(infeasible)
                continue
            with state.trial():
                draft = self.replace((row,))
                if not isinstance(draft, UnplacedShapes):
                    result.stuck.pop(row, None)
                    accept_or_refuse(state, draft, self.reason, result)
                elif row not in result.refused:  # a refusal says more: the node could go
                    result.stuck[row] = draft

    def _why_hopeless(self, row: int) -> Infeasible[ConsolidationReason] | None:
        """Why no replacement of the node alone could be approved: not even deleting it would be."""
        state = self._state
        key = state.pool_of[row], float(state.prices[row]), float(state.costs[row])
        if key not in self._hopeless:
            self._hopeless[key] = _never_worth_it(state, *key)
        return self._hopeless[key]

    def replace(self, rows: Sequence[int]) -> CandidateMove | UnplacedShapes:
        """Place pods that fit on no other node on new ones, as cheaply as possible.

        Stays applied until it is accepted or the trial ends.
        """
        state, relocation = self._state, self._state.relocation
        mark = relocation.mark()
        attempt = state.tried(rows)
        placed, left = attempt or state.relocate(rows)
        if not left and state.may_delete(rows):
            if attempt is not None:
                state.relocate(rows)
            return CandidateMove(tuple(rows), tuple(placed), (), state.verdict(rows, None))
        if not left:  # deletion is disabled: all pods go to new nodes
            relocation.undo(mark)
            state.remove(rows)
            attempt, placed, left = None, [], dict(state.demand(rows))
        bound = any(relocation.is_restricted(shape) for shape in left)
        if bound and attempt is not None:  # zones are counted with all pods that leave and arrive
            state.relocate(rows)
            attempt = None
        purchase = buy_for_bound_pods(state, rows, placed, left) if bound else self.purchase(rows, left)
        if isinstance(purchase, UnplacedShapes):
            return purchase
        if attempt is not None:
            state.relocate(rows)
        new_nodes: Sequence[PurchasedNode] = purchase
        if placed and not bound and not any(relocation.is_restricted(shape) for shape, _, _ in placed):
            # If a new node for all pods costs the same, the capacity of existing nodes is kept for other
            # pods.
            whole = self.purchase(rows, dict(state.demand(rows)), most=1)
            if (
                not isinstance(whole, UnplacedShapes)
                and whole[0].price <= sum(node.price for node in new_nodes) + CENT
            ):
                relocation.undo(mark)
                state.remove(rows)
                placed, new_nodes = [], whole
        price = sum(node.price for node in new_nodes)
        new = tuple((node.fitting, node.pods) for node in new_nodes)
        return CandidateMove(tuple(rows), tuple(placed), new, state.verdict(rows, price))

    def purchase(
        self, rows: Sequence[int], pods: Pods, *, most: int | None = None
    ) -> list[PurchasedNode] | UnplacedShapes:
        """New nodes for the pods, cheaper than the nodes to remove: one, or two if that is cheaper.

        The answer depends on the kinds of nodes and pods only, so it is computed once for equals.
        """
        state = self._state
        limit = state.settings.most_new_nodes if most is None else most
        if not state.remembers:
            return self._cheapest_purchase(rows, pods, limit)
        asked = tuple((state.one_node.sort(shape), number) for shape, number in pods.items())
        key = asked, limit, tuple(map(state.kind, rows)), state.one_node.limits_left(), state.bill_key(rows)
        remembered = self._purchases.get(key)
        if remembered is None:
            purchase = self._cheapest_purchase(rows, pods, limit)
            remembered = self._purchases[key] = tuple(pods), purchase
        return _for_others(*remembered, pods)

    def _cheapest_purchase(
        self, rows: Sequence[int], pods: Pods, limit: int
    ) -> list[PurchasedNode] | UnplacedShapes:
        state = self._state
        ceiling = state.worth(rows)
        one = cheapest_node(state, rows, pods, ceiling)
        best = [] if isinstance(one, UnplacedShapes) else [one]
        if limit >= 2:
            price = best[0].price if best else ceiling
            best = self._two_nodes(rows, pods, price) or best
        if best:
            return best
        assert isinstance(one, UnplacedShapes)
        return one

    def _two_nodes(self, rows: Sequence[int], pods: Pods, ceiling: float) -> list[PurchasedNode] | None:
        """Two new nodes that together cost less than `ceiling`: a cheap one filled with the largest pods that
        it holds, and the cheapest for the rest.
        """
        state = self._state
        if sum(pods.values()) < 2:
            return None
        best: list[PurchasedNode] | None = None
        for room, _ in self._sizes_of_first(pods, ceiling):
            held = _filled(state, room, pods)
            rest = {shape: number - held.get(shape, 0) for shape, number in pods.items()}
            rest = {shape: number for shape, number in rest.items() if number}
            if not held or not rest:
                continue
            pair = purchase_several(state, rows, (held, rest), ceiling - CENT)
            if pair is not None:
                best, ceiling = pair, sum(node.price for node in pair)
        return best

    def _sizes_of_first(self, pods: Pods, ceiling: float) -> list[_Bin]:
        """Sizes to try for the first of two nodes: those that no cheaper one dominates, costliest first."""
        state, largest = self._state, next(iter(pods))
        if not state.remembers:
            return _bins(state, largest, ceiling)
        key = state.one_node.sort(largest), ceiling, state.one_node.limits_left()
        sizes = self._first_of_two.get(key)
        if sizes is None:
            sizes = self._first_of_two[key] = _bins(state, largest, ceiling)
        return sizes


def _never_worth_it(
    state: PlanningState, pool: str, price: float, cost: float
) -> Infeasible[ConsolidationReason] | None:
    policy, totals = state.policies[pool], state.totals.get(pool)
    if can_pass(policy, price, cost, totals, tolerance=state.settings.tolerance):
        return None
    best = score_move(price, cost, totals, policy.k).score
    message = (
        f"its pods do not fit on the nodes that stay, and no replacement is worth moving them: "
        f"even for nothing it would score {best:.2f} < threshold {policy.threshold:.2f} of nodepool {pool}"
    )
    return Infeasible(ConsolidationReason.SCORE, message, f"nodepool {pool}")


def split(state: PlanningState, draft: CandidateMove) -> list[CandidateMove]:
    """Split the draft into separate moves: nodes whose pods share a new node stay together."""
    coming = [dict(pods) for _, pods in draft.new]
    homes: dict[int, list[tuple[int, int]]] = {}
    for shape, row, pods in draft.placed:
        homes.setdefault(shape, []).append((row, pods))
    together: list[int] = []
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for row in draft.rows:
        parts[row] = []
        for shape, pods in state.demand((row,)):
            left = pods
            for new_pods in coming:
                taken = min(new_pods.get(shape, 0), left)
                if taken:
                    new_pods[shape] -= taken
                    left -= taken
                    if row not in together:
                        together.append(row)
            while left:
                target, room = homes[shape].pop()
                taken = min(room, left)
                if room > taken:
                    homes[shape].append((target, room - taken))
                parts[row].append((shape, target, taken))
                left -= taken
    found = [
        CandidateMove((row,), tuple(parts[row]), (), state.verdict((row,), None))
        for row in draft.rows
        if row not in together
    ]
    if together:
        placed = tuple(part for row in together for part in parts[row])
        price = sum(fitting.price_per_hour for fitting, _ in draft.new)
        found.append(CandidateMove(tuple(together), placed, draft.new, state.verdict(together, price)))
    return found


def pods_shown(state: PlanningState, rows: Iterable[int], shapes: Iterable[int], limit: int = 3) -> list[str]:
    """Names of up to `limit` pods with these shapes."""
    pods, chosen, names = state.view.pods, frozenset(shapes), []
    for row in rows:
        for pod in pods.on(row):
            if int(pods.shapes[pod]) in chosen:
                names.append(pods.keys[pod])
                if len(names) == limit:
                    return names
    return names


def _for_others(
    shapes: tuple[int, ...], purchase: list[PurchasedNode] | UnplacedShapes, pods: Pods
) -> list[PurchasedNode] | UnplacedShapes:
    """Convert a purchase for some shapes to other shapes with the same requests in the same order."""
    if tuple(pods) == shapes:
        return purchase
    if isinstance(purchase, UnplacedShapes):
        return UnplacedShapes(purchase.why, tuple(pods)) if purchase.shapes == shapes else purchase
    now = dict(zip(shapes, pods, strict=True))
    return [
        PurchasedNode(node.fitting, {now[shape]: number for shape, number in node.pods.items()})
        for node in purchase
    ]


def _bins(state: PlanningState, shape: int, ceiling: float) -> list[_Bin]:
    bins: list[_Bin] = []
    for fitting in state.one_node.fitting({shape: 1}):
        types = np.flatnonzero(fitting.types & (fitting.worst < ceiling))
        types = types[np.argsort(fitting.cheapest[types], kind="stable")]
        rooms = fitting.launch.room[:, types].T
        left = np.ones(len(types), dtype=np.bool_)
        for outdone_by, _ in bins:
            left &= (rooms > outdone_by).any(axis=1)
        while left.any():
            cheapest = int(left.argmax())
            room = rooms[cheapest]
            bins.append((room.tolist(), float(fitting.cheapest[types[cheapest]])))
            left &= (rooms > room).any(axis=1)
    return sorted(bins, key=lambda size: -size[1])[:FIRST_OF_TWO_MAX]


def _filled(state: PlanningState, size: list[int], pods: Pods) -> Pods:
    """The largest pods that fit into a node of this size, in order."""
    room, held = list(size), {}
    for shape, number in pods.items():
        asked = state.one_node.requests(shape).tolist()
        fits = min((have // need for have, need in zip(room, asked, strict=True) if need), default=number)
        taken = min(number, fits)
        if taken > 0:
            held[shape] = taken
            room = [have - need * taken for have, need in zip(room, asked, strict=True)]
    return held
