"""Karpenter's own search for consolidation, on the clusters of `bench.plans`, until it finds nothing more.

Prefixes of one ranking (price for disruption) are halved for the largest that can go together for at most
one new node, then nodes are tried one by one. Pods go to the first node by name with room, the largest
first; a new node is the cheapest type that holds what is left, strictly cheaper than all that goes, and
not of the type of a node that would do as well. Spot is not replaced by spot. Topology is left out, which
favours this search. Budgets are open, as in the plans that it is compared with.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from karpool.consolidation.planning.planner import Planner
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.consolidation.view import ClusterView
from karpool.model.karpenter.objects import SPOT
from karpool.packing.tables.columns import Int64s

BATCH_MAX = 100  # Karpenter's own
_NOTHING = 1e-9


@dataclass
class SearchedNode:
    pool: str
    type: str
    price: float
    spot: bool
    free: Int64s
    pods: Counter[int] = field(default_factory=Counter)

    @property
    def disruption(self) -> float:
        return 1.0 + sum(self.pods.values())


@dataclass
class KarpenterSearch:
    """What it came to: USD per hour saved, and pods moved, those that move twice counted twice."""

    savings: float = 0.0
    moved: int = 0
    commands: int = 0


def search(view: ClusterView, settings: PlanSettings, now: float) -> KarpenterSearch:
    state = Planner(view, settings, now).world
    nodes = _nodes(state)
    result = KarpenterSearch()
    while (command := _command(state, nodes)) is not None:
        gone, homes, new, savings = command
        result.savings += savings
        result.moved += sum(sum(nodes[index].pods.values()) for index in gone)
        result.commands += 1
        for index, shape, number in homes:
            nodes[index].pods[shape] += number
            nodes[index].free = nodes[index].free - state.one_node.requests(shape) * number
        nodes = [node for index, node in enumerate(nodes) if index not in gone]
        if new is not None:
            nodes.append(new)
    return result


_Command = tuple[set[int], list[tuple[int, int, int]], SearchedNode | None, float]


def _nodes(state: PlanningState) -> list[SearchedNode]:
    relocation, resources = state.relocation, state.one_node.resources
    found = []
    for row in np.argsort(state.turn).tolist():
        position = int(relocation.position_of[row])
        free = np.array([int(relocation.free(name)[position]) for name in resources], dtype=np.int64)
        kind = state.kind(row)
        pods = Counter(dict(state.demand((row,))))
        found.append(
            SearchedNode(
                state.pool_of[row], kind.instance_type, kind.price, kind.capacity_type == SPOT, free, pods
            )
        )
    return found


def _command(state: PlanningState, nodes: list[SearchedNode]) -> _Command | None:
    ranked = sorted(range(len(nodes)), key=lambda index: -nodes[index].price / nodes[index].disruption)
    best: _Command | None = None
    low, high = 1, min(len(ranked) - 1, BATCH_MAX)
    while low <= high:
        middle = (low + high) // 2
        command = _simulated(state, nodes, ranked[: middle + 1])
        if command is not None:
            best, low = command, middle + 1
        else:
            high = middle - 1
    if best is not None:
        return best
    return next((found for index in ranked if (found := _simulated(state, nodes, [index])) is not None), None)


def _simulated(state: PlanningState, nodes: list[SearchedNode], gone: list[int]) -> _Command | None:
    chosen = set(gone)
    stays = [index for index in range(len(nodes)) if index not in chosen]
    free = np.array([nodes[index].free for index in stays]) if stays else np.zeros((0, 3), dtype=np.int64)
    pools = np.array([nodes[index].pool for index in stays], dtype=np.str_)
    pods: Counter[tuple[str, int]] = Counter()
    for index in gone:
        for shape, number in nodes[index].pods.items():
            pods[nodes[index].pool, shape] += number
    homes: list[tuple[int, int, int]] = []
    left: Counter[int] = Counter()
    for (pool, shape), number in sorted(pods.items(), key=lambda item: int(state.demands.rank[item[0][1]])):
        need = state.one_node.requests(shape)
        asked = need > 0
        waiting = number
        fits = np.min(free[:, asked] // need[asked], axis=1, initial=2**30) if stays else np.zeros(0)
        fits = np.where(pools == pool, fits, 0)
        for place in np.flatnonzero(fits > 0).tolist():
            taken = min(waiting, int(fits[place]))
            homes.append((stays[place], shape, taken))
            free[place] -= need * taken
            waiting -= taken
            if not waiting:
                break
        if waiting:
            left[shape] += waiting
    price = sum(nodes[index].price for index in gone)
    if not left:
        return (chosen, homes, None, price) if price > _NOTHING else None
    new = _new_node(state, [nodes[index] for index in gone], left, price)
    return None if new is None else (chosen, homes, new, price - new.price)


def _new_node(
    state: PlanningState, gone: list[SearchedNode], left: Counter[int], price: float
) -> SearchedNode | None:
    on_spot = all(node.spot for node in gone)
    best: SearchedNode | None = None
    for fitting in state.one_node.fitting(left):
        if on_spot and fitting.may_be(SPOT):
            continue
        names = fitting.state.offer.names
        types = [index for index in np.flatnonzero(fitting.types).tolist() if fitting.worst[index] < price]
        if len(gone) > 1:
            same = [node.price for node in gone for index in types if names[index] == node.type]
            types = [index for index in types if not same or fitting.cheapest[index] < min(same)]
        for index in types:
            cost = float(fitting.cheapest[index])
            if best is None or cost < best.price:
                used = sum(
                    (state.one_node.requests(shape) * number for shape, number in left.items()),
                    np.zeros(len(state.one_node.resources), dtype=np.int64),
                )
                free = fitting.launch.room[:, index] - used
                best = SearchedNode(fitting.pool, names[index], cost, fitting.may_be(SPOT), free, left)
    return best
