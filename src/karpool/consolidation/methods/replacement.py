"""The ways in which nodes may go: without a replacement, or with new nodes that cost less.

A replacement is strictly cheaper than what it replaces, whatever is launched. Spot is
replaced by spot only where that is switched on, one node only with enough cheaper types;
what may be spot or on-demand is asked for as spot, so that a shortage fails the launch
instead of buying something dearer.
"""

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from karpool.consolidation.methods.cheaper_types import SPOT_TYPES_MIN, same_type_ceiling, spot_to_spot
from karpool.consolidation.planning.planning_state import (
    CandidateMove,
    PlanningState,
    Pods,
    PurchasedNode,
    UnplacedShapes,
)
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT
from karpool.packing.new_nodes.pack_result import PlannedNode
from karpool.packing.relocation.single_node import FittingTypes

# Karpenter launches from at most so many types.
TYPES_MAX = 60
# Prices this close are the same; keeps rounding from deciding between equal moves.
CENT = 1e-9


def delete(world: PlanningState, rows: Sequence[int]) -> CandidateMove | UnplacedShapes:
    """Pods of the nodes onto the others. A draft stays in place until it is accepted or undone."""
    tried = world.tried(rows)
    if tried is not None and tried.left:
        return no_room(world, tried.left)
    mark = world.relocation.mark()
    placed, left = world.relocate(rows)
    if left:
        world.relocation.undo(mark)
        return no_room(world, left)
    return CandidateMove(tuple(rows), tuple(placed), (), world.verdict(rows, None))


def replace(world: PlanningState, rows: Sequence[int]) -> CandidateMove | UnplacedShapes:
    """Pods that find no place on other nodes onto new ones, as cheap as can be found.

    A draft stays in place until it is accepted or undone.
    """
    relocation = world.relocation
    mark = relocation.mark()
    tried = world.tried(rows)
    placed, left = tried or world.relocate(rows)
    if not left:
        if tried is not None:
            world.relocate(rows)
        return CandidateMove(tuple(rows), tuple(placed), (), world.verdict(rows, None))
    bound = any(relocation.is_restricted(shape) for shape in left)
    found = buy_for_bound_pods(world, rows, placed, left) if bound else purchase_nodes(world, rows, left)
    if isinstance(found, UnplacedShapes):
        relocation.undo(mark)
        return found
    if tried is not None:
        world.relocate(rows)
    bought: Sequence[PurchasedNode] = found
    if placed and not bound and not any(relocation.is_restricted(shape) for shape, _, _ in placed):
        # When a new node for everything costs the same, the room elsewhere is kept for others.
        whole = purchase_nodes(world, rows, dict(world.demand(rows)), most=1)
        if (
            not isinstance(whole, UnplacedShapes)
            and whole[0].price <= sum(each.price for each in bought) + CENT
        ):
            relocation.undo(mark)
            for row in rows:
                relocation.remove(row)
            placed, bought = [], whole
    price = sum(purchased_node.price for purchased_node in bought)
    new = tuple((node.fitting, node.pods) for node in bought)
    return CandidateMove(tuple(rows), tuple(placed), new, world.verdict(rows, price))


def split(world: PlanningState, draft: CandidateMove) -> list[CandidateMove]:
    """The same as moves that can be made one by one: only nodes whose pods share a new node go together."""
    coming = [dict(pods) for _, pods in draft.new]
    homes: dict[int, list[tuple[int, int]]] = {}
    for shape, row, pods in draft.placed:
        homes.setdefault(shape, []).append((row, pods))
    together: list[int] = []
    parts: dict[int, list[tuple[int, int, int]]] = {}
    for row in draft.rows:
        parts[row] = []
        for shape, pods in world.demand((row,)):
            left = pods
            for wanted in coming:
                taken = min(wanted.get(shape, 0), left)
                if taken:
                    wanted[shape] -= taken
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
        CandidateMove((row,), tuple(parts[row]), (), world.verdict((row,), None))
        for row in draft.rows
        if row not in together
    ]
    if together:
        placed = tuple(part for row in together for part in parts[row])
        price = sum(fitting.price_per_hour for fitting, _ in draft.new)
        found.append(CandidateMove(tuple(together), placed, draft.new, world.verdict(together, price)))
    return found


def no_room(world: PlanningState, left: Pods) -> UnplacedShapes:
    asked = world.asked(next(iter(left)))
    message = f"{sum(left.values())} of its pods find no place on other nodes, the first asks for {asked}"
    return UnplacedShapes(Infeasible(ConsolidationReason.NO_ROOM, message), tuple(left))


def pods_shown(world: PlanningState, rows: Iterable[int], shapes: Iterable[int], limit: int = 3) -> list[str]:
    """Names of some of the pods that have these shapes."""
    pods, wanted, found = world.view.pods, frozenset(shapes), []
    for row in rows:
        for pod in pods.on(row):
            if int(pods.shapes[pod]) in wanted:
                found.append(pods.keys[pod])
                if len(found) == limit:
                    return found
    return found


# Buying


def purchase_nodes(
    world: PlanningState, rows: Sequence[int], pods: Pods, *, most: int | None = None
) -> list[PurchasedNode] | UnplacedShapes:
    """New nodes for pods that are cheaper than the nodes that go: one, or two where that costs less.

    Depends on what nodes and pods are, not on which they are: among equals the answer is found once.
    """
    limit = world.settings.most_new_nodes if most is None else most
    if not world.remembers:
        return _bought(world, rows, pods, limit)
    asked = tuple((world.one_node.sort(shape), number) for shape, number in pods.items())
    key = asked, limit, tuple(map(world.kind, rows)), world.one_node.limits_left()
    known = world.bought.get(key)
    if known is None:
        known = world.bought[key] = tuple(pods), _bought(world, rows, pods, limit)
    return _for_others(*known, pods)


def _for_others(
    shapes: tuple[int, ...], known: list[PurchasedNode] | UnplacedShapes, pods: Pods
) -> list[PurchasedNode] | UnplacedShapes:
    """What was found for pods of some shapes, for those of others that ask for the same in the same order."""
    if tuple(pods) == shapes:
        return known
    if isinstance(known, UnplacedShapes):
        return UnplacedShapes(known.why, tuple(pods)) if known.shapes == shapes else known
    now = dict(zip(shapes, pods, strict=True))
    return [
        PurchasedNode(node.fitting, {now[shape]: number for shape, number in node.pods.items()})
        for node in known
    ]


def _bought(
    world: PlanningState, rows: Sequence[int], pods: Pods, limit: int
) -> list[PurchasedNode] | UnplacedShapes:
    ceiling = sum(float(world.prices[row]) for row in rows)
    one = cheapest_node(world, rows, pods, ceiling)
    best = [] if isinstance(one, UnplacedShapes) else [one]
    if limit >= 2:
        price = best[0].price if best else ceiling
        two = _two_nodes(world, rows, pods, price)
        if two is not None:
            best = two
    if best:
        return best
    assert isinstance(one, UnplacedShapes)
    return one


def cheapest_node(
    world: PlanningState, rows: Sequence[int], pods: Pods, ceiling: float, *, alone: bool = True
) -> PurchasedNode | UnplacedShapes:
    """One new node that holds the pods, below the ceiling by every rule of replacing.

    `alone`: it is the only one that comes. Then it may not be what one of the sources is already.
    """
    on_spot = all(_capacity_type(world, row) == SPOT for row in rows)
    best: FittingTypes | None = None
    reason = Infeasible(
        ConsolidationReason.NO_TYPE,
        "no instance type that its pools may launch holds the pods that need a new node",
    )
    for fitting in world.one_node.fitting(pods):
        found = _allowed(world, rows, fitting, ceiling, on_spot=on_spot)
        if alone and len(rows) > 1 and not isinstance(found, Infeasible):
            found = _unlike_sources(world, rows, found)
        if isinstance(found, Infeasible):
            reason = found
        elif best is None or found.price_per_hour < best.price_per_hour - CENT:
            best = found
    return UnplacedShapes(reason, tuple(pods)) if best is None else PurchasedNode(best, pods)


def _allowed(
    world: PlanningState, rows: Sequence[int], fitting: FittingTypes, ceiling: float, *, on_spot: bool
) -> FittingTypes | Infeasible[ConsolidationReason]:
    to_spot = on_spot and fitting.may_be(SPOT)
    if to_spot and not world.settings.spot_to_spot:
        return Infeasible(ConsolidationReason.SPOT_TO_SPOT, spot_to_spot(len(rows), 0, enabled=False).reason)
    if to_spot:
        pinned = world.one_node.pinned_to_spot(fitting)
        if pinned is None:
            return Infeasible(ConsolidationReason.SPOT_TO_SPOT, "minValues cannot be met with spot alone")
        fitting = pinned
    cheaper = fitting.cheaper_than(ceiling)
    if cheaper is None:
        return Infeasible(
            ConsolidationReason.NOT_CHEAPER,
            f"no new node for its pods costs less than ${ceiling:.4f} per hour",
        )
    if not to_spot and cheaper.may_be(SPOT) and (cheaper.may_be(ON_DEMAND) or cheaper.may_be(RESERVED)):
        pinned = world.one_node.pinned_to_spot(cheaper)
        on_spot_only = pinned.cheaper_than(ceiling) if pinned is not None else None
        cheaper = on_spot_only or cheaper
    if to_spot:
        answer = spot_to_spot(len(rows), cheaper.count, enabled=True)
        if not answer.allowed:
            return Infeasible(ConsolidationReason.SPOT_TO_SPOT, answer.reason)
    return cheaper


def _unlike_sources(
    world: PlanningState, rows: Sequence[int], fitting: FittingTypes
) -> FittingTypes | Infeasible[ConsolidationReason]:
    """Where a source has one of the types, keeping that source would do as well."""
    names = fitting.state.offer.names
    options = [(names[index], float(fitting.cheapest[index])) for index in fitting.types.nonzero()[0]]
    sources = [(_instance_type(world, row), float(world.prices[row])) for row in rows]
    ceiling = same_type_ceiling(sources, options)
    if ceiling is None:
        return fitting
    below = fitting.cheaper_than(ceiling)
    return below or Infeasible(
        ConsolidationReason.SAME_TYPE, "keeping one of the nodes and deleting the others would do as well"
    )


def buy_for_bound_pods(
    world: PlanningState, rows: Sequence[int], placed: Iterable[tuple[int, int, int]], left: Pods
) -> list[PurchasedNode] | UnplacedShapes:
    """New nodes for pods of which some may only run where certain others do, or do not."""
    ceiling = sum(float(world.prices[row]) for row in rows)
    # Each pod by itself is the least there is to buy; when even that is too dear, nothing has to be packed.
    dearest = max(left, key=lambda shape: int(world.one_node.requests(shape)[0]))
    least = cheapest_node(world, rows, {dearest: 1}, ceiling)
    if isinstance(least, UnplacedShapes):
        return least
    if world.tries_left <= 0:
        message = (
            "pods that depend on others find no place, and too many nodes have such pods to try new ones"
        )
        return UnplacedShapes(Infeasible(ConsolidationReason.TOPOLOGY, message), tuple(left))
    world.tries_left -= 1
    planned = world.packed_on_new_nodes(rows, placed, left)
    if isinstance(planned, UnplacedShapes):
        return planned
    if len(planned) > world.settings.most_new_nodes:
        return UnplacedShapes(
            Infeasible(ConsolidationReason.TOPOLOGY, f"its pods would need {len(planned)} new nodes"),
            tuple(left),
        )
    if len(planned) == 1 and (one := _like(world, rows, planned[0], ceiling)) is not None:
        return [one]
    found: list[PurchasedNode] = []
    for each in planned if len(planned) > 1 else ():
        bought = _like(world, rows, each, ceiling)
        narrow = bought.fitting.cheaper_than(_worst(bought.fitting) + CENT) if bought is not None else None
        if bought is None or narrow is None or (ceiling := ceiling - _worst(narrow)) <= 0:
            break
        found.append(PurchasedNode(narrow, bought.pods))
    else:
        if found:
            return found
    return UnplacedShapes(
        Infeasible(ConsolidationReason.NOT_CHEAPER, "no new nodes for its pods cost less than it does"),
        tuple(left),
    )


def _like(
    world: PlanningState, rows: Sequence[int], planned: tuple[Pods, PlannedNode], ceiling: float
) -> PurchasedNode | None:
    """A node as it was planned, by every rule of replacing."""
    pods, node = planned
    on_spot = all(_capacity_type(world, row) == SPOT for row in rows)
    for fitting in world.one_node.fitting(pods, within=node.requirements):
        if fitting.pool == node.pool:
            found = _allowed(world, rows, fitting, ceiling, on_spot=on_spot)
            return None if isinstance(found, Infeasible) else PurchasedNode(found, pods)
    return None


def launch_types(world: PlanningState, rows: Sequence[int], fitting: FittingTypes) -> int:
    """How many types to ask for."""
    if len(rows) == 1 and _capacity_type(world, rows[0]) == SPOT and fitting.may_be(SPOT):
        return SPOT_TYPES_MIN
    return TYPES_MAX


def _two_nodes(
    world: PlanningState, rows: Sequence[int], pods: Pods, ceiling: float
) -> list[PurchasedNode] | None:
    """Two new nodes that together cost less than `ceiling`: a cheap one filled with the largest pods
    that it holds, and the cheapest for the rest."""
    if sum(pods.values()) < 2:
        return None
    best: list[PurchasedNode] | None = None
    for first in _cheap_bins(world, pods, ceiling):
        held = _filled(world, first, pods)
        rest = {shape: number - held.get(shape, 0) for shape, number in pods.items()}
        rest = {shape: number for shape, number in rest.items() if number}
        if not held or not rest:
            continue
        bought = purchase_several(world, rows, (held, rest), ceiling - CENT)
        if bought is not None:
            best, ceiling = bought, sum(node.price for node in bought)
    return best


def purchase_several(
    world: PlanningState, rows: Sequence[int], parts: Iterable[Pods], ceiling: float
) -> list[PurchasedNode] | None:
    """A node for each part, together below the ceiling whatever is launched; None: there are none.

    Limits of pools are counted over all of them.
    """
    one_node, wanted = world.one_node, list(parts)
    if len(wanted) == 1:
        one = cheapest_node(world, rows, wanted[0], ceiling)
        return None if isinstance(one, UnplacedShapes) else [one]
    most = ceiling
    limits = one_node.limits()
    found: list[PurchasedNode] = []
    for part in wanted:
        bought = cheapest_node(world, rows, part, most, alone=False)
        if isinstance(bought, UnplacedShapes):
            break
        # Dearer types would break the bound on the sum, so only those like the cheapest are asked for.
        narrow = bought.fitting.cheaper_than(_worst(bought.fitting) + CENT)
        if narrow is None or (ceiling := ceiling - _worst(narrow)) <= 0:
            break
        one_node.reserve(narrow)
        found.append(PurchasedNode(narrow, part))
    else:
        one_node.restore(limits)
        return found
    one_node.restore(limits)
    return None


def _worst(fitting: FittingTypes) -> float:
    """What the cheapest type costs at worst."""
    cheapest = np.where(fitting.types, fitting.cheapest, inf)
    return float(fitting.worst[int(cheapest.argmin())])


_BINS = 12


def _cheap_bins(world: PlanningState, pods: Pods, ceiling: float) -> list[tuple[list[int], float]]:
    """Sizes of nodes to try for the first of two: those that no cheaper one outdoes, dearest first."""
    largest = next(iter(pods))
    if not world.remembers:
        return _bins(world, largest, ceiling)
    key = world.one_node.sort(largest), ceiling, world.one_node.limits_left()
    known = world.bins.get(key)
    if known is None:
        known = world.bins[key] = _bins(world, largest, ceiling)
    return known


def _bins(world: PlanningState, shape: int, ceiling: float) -> list[tuple[list[int], float]]:
    found: list[tuple[list[int], float]] = []
    for fitting in world.one_node.fitting({shape: 1}):
        types = np.flatnonzero(fitting.types & (fitting.worst < ceiling))
        types = types[np.argsort(fitting.cheapest[types], kind="stable")]
        rooms = fitting.launch.room[:, types].T
        left = np.ones(len(types), dtype=np.bool_)
        for known, _ in found:
            left &= (rooms > known).any(axis=1)
        while left.any():
            cheapest = int(left.argmax())
            room = rooms[cheapest]
            found.append((room.tolist(), float(fitting.cheapest[types[cheapest]])))
            left &= (rooms > room).any(axis=1)
    return sorted(found, key=lambda each: -each[1])[:_BINS]


def _filled(world: PlanningState, bin_: tuple[list[int], float], pods: Pods) -> Pods:
    """The largest pods that fit into a node of this room, in order."""
    room, held = list(bin_[0]), {}
    for shape, number in pods.items():
        asked = world.one_node.requests(shape).tolist()
        fits = min((have // need for have, need in zip(room, asked, strict=True) if need), default=number)
        taken = min(number, fits)
        if taken > 0:
            held[shape] = taken
            room = [have - need * taken for have, need in zip(room, asked, strict=True)]
    return held


def _capacity_type(world: PlanningState, row: int) -> str:
    return world.kind(row).capacity_type


def _instance_type(world: PlanningState, row: int) -> str:
    return world.kind(row).instance_type
