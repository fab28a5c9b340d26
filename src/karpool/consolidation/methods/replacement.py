"""Nodes go, and new nodes that cost less come for the pods that find no place on others.

A replacement is strictly cheaper than what it replaces, whatever is launched. Spot is
replaced by spot only where that is switched on, one node only with enough cheaper types;
what may be spot or on-demand is asked for as spot, so that a shortage fails the launch
instead of buying something dearer.
"""

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from karpool.consolidation.methods.method import CENT, PlanDeadline, SearchResult, accept_or_refuse
from karpool.consolidation.methods.replacement_rules import SPOT_TYPES_MIN, same_type_ceiling, spot_to_spot
from karpool.consolidation.policy.reasons import ConsolidationReason, DisruptionReason
from karpool.consolidation.policy.scoring import can_pass, score_move
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    PurchasedNode,
    UnplacedShapes,
)
from karpool.consolidation.state.move_objections import (
    TYPES_MAX,
)
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT
from karpool.model.kubernetes.node import ZONE
from karpool.model.requirements import Requirements, ValueSet
from karpool.packing.new_nodes.pack_result import PlannedNode
from karpool.packing.relocation.single_node import FittingTypes

# Sizes tried for the first of two new nodes. Not tuned: bounds the pairs that are priced for one node, and
# few families have more sizes of which none outdoes another.
FIRST_OF_TWO_MAX = 12

_Bin = tuple[list[int], float]  # the room of a size, and its price


class Replacement:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state
        # By what is asked for: for which shapes that was, and the new nodes.
        self._purchases: dict[
            tuple[object, ...], tuple[tuple[int, ...], list[PurchasedNode] | UnplacedShapes]
        ] = {}
        self._first_of_two: dict[tuple[object, ...], list[_Bin]] = {}
        self._hopeless: dict[tuple[str, float, float], Infeasible[ConsolidationReason] | None] = {}

    def compute_moves(self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult) -> None:
        state = self._state
        for row in rows:
            if deadline.is_over:
                result.not_looked_at.append(row)
                continue
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
                elif row not in result.refused:  # what was refused says more: it could go
                    result.stuck[row] = draft

    def _why_hopeless(self, row: int) -> Infeasible[ConsolidationReason] | None:
        """Why no replacement of the node alone could be approved: not even deleting it for nothing would."""
        state = self._state
        key = state.pool_of[row], float(state.prices[row]), float(state.costs[row])
        if key not in self._hopeless:
            self._hopeless[key] = _never_worth_it(state, *key)
        return self._hopeless[key]

    def replace(self, rows: Sequence[int]) -> CandidateMove | UnplacedShapes:
        """Pods that find no place on other nodes onto new ones, as cheap as can be found.

        Stays in place until it is accepted or the trial ends.
        """
        state, relocation = self._state, self._state.relocation
        mark = relocation.mark()
        attempt = state.tried(rows)
        placed, left = attempt or state.relocate(rows)
        if not left and state.may_delete(rows):
            if attempt is not None:
                state.relocate(rows)
            return CandidateMove(tuple(rows), tuple(placed), (), state.verdict(rows, None))
        if not left:  # deleting is switched off: all of the pods go to new nodes
            relocation.undo(mark)
            state.remove(rows)
            attempt, placed, left = None, [], dict(state.demand(rows))
        bound = any(relocation.is_restricted(shape) for shape in left)
        if bound and attempt is not None:  # zones are counted with all that goes and comes
            state.relocate(rows)
            attempt = None
        purchase = buy_for_bound_pods(state, rows, placed, left) if bound else self.purchase(rows, left)
        if isinstance(purchase, UnplacedShapes):
            return purchase
        if attempt is not None:
            state.relocate(rows)
        new_nodes: Sequence[PurchasedNode] = purchase
        if placed and not bound and not any(relocation.is_restricted(shape) for shape, _, _ in placed):
            # When a new node for everything costs the same, the room elsewhere is kept for others.
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
        """New nodes for pods that are cheaper than the nodes that go: one, or two where that costs less.

        Depends on what nodes and pods are, not on which they are: among equals the answer is found once.
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
        """Two new nodes that together cost less than `ceiling`: a cheap one filled with the largest pods
        that it holds, and the cheapest for the rest."""
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
        """Sizes of nodes to try for the first of two: those that no cheaper one outdoes, dearest first."""
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
    """The same as moves that can be made one by one: only nodes whose pods share a new node go together."""
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
    """Names of some of the pods that have these shapes."""
    pods, chosen, names = state.view.pods, frozenset(shapes), []
    for row in rows:
        for pod in pods.on(row):
            if int(pods.shapes[pod]) in chosen:
                names.append(pods.keys[pod])
                if len(names) == limit:
                    return names
    return names


# Buying


def _for_others(
    shapes: tuple[int, ...], purchase: list[PurchasedNode] | UnplacedShapes, pods: Pods
) -> list[PurchasedNode] | UnplacedShapes:
    """What was found for pods of some shapes, for those of others that ask for the same in the same order."""
    if tuple(pods) == shapes:
        return purchase
    if isinstance(purchase, UnplacedShapes):
        return UnplacedShapes(purchase.why, tuple(pods)) if purchase.shapes == shapes else purchase
    now = dict(zip(shapes, pods, strict=True))
    return [
        PurchasedNode(node.fitting, {now[shape]: number for shape, number in node.pods.items()})
        for node in purchase
    ]


def cheapest_node(
    state: PlanningState,
    rows: Sequence[int],
    pods: Pods,
    ceiling: float,
    *,
    alone: bool = True,
    within: Requirements | None = None,
) -> PurchasedNode | UnplacedShapes:
    """One new node that holds the pods, below the ceiling by every rule of replacing.

    `alone`: it is the only one that comes. Then it may not be what one of the sources is already.
    `within`: only where these requirements allow it.
    """
    on_spot = all(_capacity_type(state, row) == SPOT for row in rows)
    best: FittingTypes | None = None
    reason = Infeasible(
        ConsolidationReason.NO_TYPE,
        "no instance type that its pools may launch holds the pods that need a new node",
    )
    for fitting in state.one_node.fitting(pods, within=within):
        allowed = _allowed(state, rows, fitting, ceiling, on_spot=on_spot)
        if alone and len(rows) > 1 and not isinstance(allowed, Infeasible):
            allowed = _unlike_sources(state, rows, allowed)
        if isinstance(allowed, Infeasible):
            reason = allowed
        elif best is None or allowed.price_per_hour < best.price_per_hour - CENT:
            best = allowed
    return UnplacedShapes(reason, tuple(pods)) if best is None else PurchasedNode(best, pods)


def _allowed(
    state: PlanningState, rows: Sequence[int], fitting: FittingTypes, ceiling: float, *, on_spot: bool
) -> FittingTypes | Infeasible[ConsolidationReason]:
    to_spot = on_spot and fitting.may_be(SPOT)
    if to_spot and not state.settings.spot_to_spot:
        return Infeasible(ConsolidationReason.SPOT_TO_SPOT, spot_to_spot(len(rows), 0, enabled=False).reason)
    if to_spot:
        pinned = state.one_node.pinned_to_spot(fitting)
        if pinned is None:
            return Infeasible(ConsolidationReason.SPOT_TO_SPOT, "minValues cannot be met with spot alone")
        fitting = pinned
    cheaper = fitting.cheaper_than(ceiling)
    if cheaper is None:
        unpriced = any(state.view.machines[row].price_per_hour is None for row in rows)
        return Infeasible(
            ConsolidationReason.NOT_CHEAPER,
            "its price is not known, so no new node for its pods is known to cost less"
            if unpriced and len(rows) == 1
            else f"no new node for its pods costs less than ${ceiling:.4f} per hour",
        )
    if not to_spot and cheaper.may_be(SPOT) and (cheaper.may_be(ON_DEMAND) or cheaper.may_be(RESERVED)):
        pinned = state.one_node.pinned_to_spot(cheaper)
        on_spot_only = pinned.cheaper_than(ceiling) if pinned is not None else None
        cheaper = on_spot_only or cheaper
    if to_spot:
        answer = spot_to_spot(len(rows), cheaper.count, enabled=True)
        if not answer.allowed:
            return Infeasible(ConsolidationReason.SPOT_TO_SPOT, answer.reason)
    return cheaper


def _unlike_sources(
    state: PlanningState, rows: Sequence[int], fitting: FittingTypes
) -> FittingTypes | Infeasible[ConsolidationReason]:
    """Where a source has one of the types, keeping that source would do as well."""
    names = fitting.state.offer.names
    options = [(names[index], float(fitting.cheapest[index])) for index in fitting.types.nonzero()[0]]
    sources = [(_instance_type(state, row), float(state.prices[row])) for row in rows]
    ceiling = same_type_ceiling(sources, options)
    if ceiling is None:
        return fitting
    below = fitting.cheaper_than(ceiling)
    return below or Infeasible(
        ConsolidationReason.SAME_TYPE, "the replacement is no better than keeping one of these nodes"
    )


def buy_for_bound_pods(
    state: PlanningState, rows: Sequence[int], placed: Iterable[tuple[int, int, int]], left: Pods
) -> list[PurchasedNode] | UnplacedShapes:
    """New nodes for pods of which some may only run where certain others do, or do not."""
    ceiling = state.worth(rows)
    # Each pod by itself is the least there is to buy; when even that is too dear, nothing has to be packed.
    dearest = max(left, key=lambda shape: int(state.one_node.requests(shape)[0]))
    least = cheapest_node(state, rows, {dearest: 1}, ceiling)
    if isinstance(least, UnplacedShapes):
        return least
    alike = _on_one_new_node(state, rows, left, ceiling)
    if alike is not None:
        return alike
    if state.tries_left <= 0:
        message = "pods that depend on others do not fit, and too many nodes have such pods to try new ones"
        return UnplacedShapes(Infeasible(ConsolidationReason.TOPOLOGY, message), tuple(left))
    state.tries_left -= 1
    planned = state.packed_on_new_nodes(rows, placed, left)
    if isinstance(planned, UnplacedShapes):
        return planned
    if len(planned) > state.settings.most_new_nodes:
        return UnplacedShapes(
            Infeasible(ConsolidationReason.TOPOLOGY, f"its pods would need {len(planned)} new nodes"),
            tuple(left),
        )
    if len(planned) == 1 and (one := _like(state, rows, planned[0], ceiling)) is not None:
        return [one]
    bought_nodes: list[PurchasedNode] = []
    for node in planned if len(planned) > 1 else ():
        bought = _like(state, rows, node, ceiling)
        narrow = bought.fitting.cheaper_than(_worst(bought.fitting) + CENT) if bought is not None else None
        if bought is None or narrow is None or (ceiling := ceiling - _worst(narrow)) <= 0:
            break
        bought_nodes.append(PurchasedNode(narrow, bought.pods))
    else:
        if bought_nodes:
            return bought_nodes
    return UnplacedShapes(
        Infeasible(ConsolidationReason.NOT_CHEAPER, "no new nodes for its pods cost less than it does"),
        tuple(left),
    )


def _on_one_new_node(
    state: PlanningState, rows: Sequence[int], pods: Pods, ceiling: float
) -> list[PurchasedNode] | None:
    """One new node for all of them, where that can be told without packing the whole cluster."""
    relocation = state.relocation
    if not relocation.new_node_takes(pods):
        return None
    zones = relocation.open_zones(pods)
    within: Requirements | None = None
    if zones is not None:
        if not zones:
            return None
        within = {ZONE: ValueSet(frozenset((min(zones),)))}
    bought = cheapest_node(state, rows, pods, ceiling, within=within)
    return None if isinstance(bought, UnplacedShapes) else [bought]


def _like(
    state: PlanningState, rows: Sequence[int], planned: tuple[Pods, PlannedNode], ceiling: float
) -> PurchasedNode | None:
    """A node as it was planned, by every rule of replacing."""
    pods, node = planned
    on_spot = all(_capacity_type(state, row) == SPOT for row in rows)
    for fitting in state.one_node.fitting(pods, within=node.requirements):
        if fitting.pool == node.pool:
            allowed = _allowed(state, rows, fitting, ceiling, on_spot=on_spot)
            return None if isinstance(allowed, Infeasible) else PurchasedNode(allowed, pods)
    return None


def launch_types(state: PlanningState, rows: Sequence[int], fitting: FittingTypes) -> int:
    """How many types to ask for."""
    if len(rows) == 1 and _capacity_type(state, rows[0]) == SPOT and fitting.may_be(SPOT):
        return SPOT_TYPES_MIN
    return TYPES_MAX


def purchase_several(
    state: PlanningState,
    rows: Sequence[int],
    parts: Iterable[Pods],
    ceiling: float,
    *,
    within: Sequence[Requirements | None] = (),
) -> list[PurchasedNode] | None:
    """A node for each part, together below the ceiling whatever is launched; None: there are none.

    Limits of pools are counted over all of them. `within`: by part, where alone its node may be.
    """
    one_node, pods_of = state.one_node, list(parts)
    places = within or [None] * len(pods_of)
    if len(pods_of) == 1:
        one = cheapest_node(state, rows, pods_of[0], ceiling, within=places[0])
        return None if isinstance(one, UnplacedShapes) else [one]
    most = ceiling
    limits = one_node.limits()
    bought_nodes: list[PurchasedNode] = []
    for part, place in zip(pods_of, places, strict=True):
        bought = cheapest_node(state, rows, part, most, alone=False, within=place)
        if isinstance(bought, UnplacedShapes):
            break
        # Dearer types would break the bound on the sum, so only those like the cheapest are asked for.
        narrow = bought.fitting.cheaper_than(_worst(bought.fitting) + CENT)
        if narrow is None or (ceiling := ceiling - _worst(narrow)) <= 0:
            break
        one_node.reserve(narrow)
        bought_nodes.append(PurchasedNode(narrow, part))
    else:
        one_node.restore(limits)
        return bought_nodes
    one_node.restore(limits)
    return None


def _worst(fitting: FittingTypes) -> float:
    """What the cheapest type costs at worst."""
    cheapest = np.where(fitting.types, fitting.cheapest, inf)
    return float(fitting.worst[int(cheapest.argmin())])


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
    """The largest pods that fit into a node of this room, in order."""
    room, held = list(size), {}
    for shape, number in pods.items():
        asked = state.one_node.requests(shape).tolist()
        fits = min((have // need for have, need in zip(room, asked, strict=True) if need), default=number)
        taken = min(number, fits)
        if taken > 0:
            held[shape] = taken
            room = [have - need * taken for have, need in zip(room, asked, strict=True)]
    return held


def _capacity_type(state: PlanningState, row: int) -> str:
    return state.kind(row).capacity_type


def _instance_type(state: PlanningState, row: int) -> str:
    return state.kind(row).instance_type
