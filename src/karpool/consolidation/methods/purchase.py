"""Chooses new nodes that replace others: the cheapest that hold given pods, below a price ceiling.

A replacement is strictly cheaper than what it replaces, whichever of its types is launched. Spot nodes are
replaced by spot only if that is enabled, and a single one only with enough cheaper types. A node that may be
spot or on-demand is requested as spot, so that a shortage fails the launch instead of launching a costlier
node.
"""

from collections.abc import Iterable, Sequence
from math import inf

import numpy as np

from karpool.consolidation.methods.method import CENT
from karpool.consolidation.methods.replacement_rules import SPOT_TYPES_MIN, same_type_ceiling, spot_to_spot
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.state.candidate_move import Pods, PurchasedNode, UnplacedShapes
from karpool.consolidation.state.move_objections import TYPES_MAX
from karpool.consolidation.state.planning_state import PlanningState
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import ON_DEMAND, RESERVED, SPOT
from karpool.model.kubernetes.node import ZONE
from karpool.model.requirements import Requirements, ValueSet
from karpool.packing.new_nodes.pack_result import PlannedNode
from karpool.packing.relocation.single_node import FittingTypes


def cheapest_node(
    state: PlanningState,
    rows: Sequence[int],
    pods: Pods,
    ceiling: float,
    *,
    alone: bool = True,
    within: Requirements | None = None,
) -> PurchasedNode | UnplacedShapes:
    """Return one new node that holds the pods below the ceiling, by all replacement rules.

    `alone`: it is the only new node, so it must not be of the same type as one of the sources. `within`:
    requirements that the new node must satisfy.
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
            "its price is unknown, so no cheaper new node is known"
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
    """Limit the types to those cheaper than a source of the same type, which could be kept instead."""
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
    """New nodes for pods with affinity or topology constraints."""
    ceiling = state.worth(rows)
    # A node for the largest pod alone is a lower bound; if that is too expensive, nothing has to be packed.
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
    """One new node for all pods, if that can be decided without packing the whole cluster."""
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
    """The planned node, if all replacement rules allow it."""
    pods, node = planned
    on_spot = all(_capacity_type(state, row) == SPOT for row in rows)
    for fitting in state.one_node.fitting(pods, within=node.requirements):
        if fitting.pool == node.pool:
            allowed = _allowed(state, rows, fitting, ceiling, on_spot=on_spot)
            return None if isinstance(allowed, Infeasible) else PurchasedNode(allowed, pods)
    return None


def launch_types(state: PlanningState, rows: Sequence[int], fitting: FittingTypes) -> int:
    """The number of types to request."""
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
    """One node for each part, together below the ceiling whatever is launched; None if there are none.

    Limits of pools count over all parts. `within`: by part, the requirements of its node.
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
        # Dearer types would break the bound on the sum, so only types at the cheapest price are requested.
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
    """The highest price of the cheapest type."""
    cheapest = np.where(fitting.types, fitting.cheapest, inf)
    return float(fitting.worst[int(cheapest.argmin())])


def _capacity_type(state: PlanningState, row: int) -> str:
    return state.kind(row).capacity_type


def _instance_type(state: PlanningState, row: int) -> str:
    return state.kind(row).instance_type
