"""Sizes of new nodes that no cheaper size dominates, and mixes of a few of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np

from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.state.planning_state import PlanningState
from karpool.packing.relocation.exact import Room
from karpool.packing.relocation.single_node import FittingTypes
from karpool.packing.tables.columns import Bools, Int64s

SIZES_MAX = 14  # sizes of new nodes; with up to three new nodes these give 680 mixes
HELD_MAX = 121  # counted pods of one shape on one node: one more than are ever packed exactly


@dataclass(slots=True, eq=False)
class NodeSize:
    """A size of new node: its capacity for pods, the shapes that it admits, and its price."""

    room: Room
    admits: list[bool]  # by shape number of the problem
    price: float


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Types of new nodes: capacity for pods, admitted shapes, prices, and the order in which they were found
    (shape, pool, type).
    """

    room: Int64s
    admits: Bools
    price: Floats
    found: Int64s


@dataclass(slots=True)
class NodeMixes:
    """Every mix of up to a given number of sizes, by price."""

    members: list[tuple[int, ...]] = field(default_factory=list)
    prices: Floats = field(default_factory=lambda: np.zeros(0))
    rooms: Int64s = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    holds: Int64s = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))  # pods of each shape


def smallest_sizes(state: PlanningState, shapes: Sequence[int], most: float) -> list[NodeSize]:
    """Sizes of the types that hold a pod of one of these shapes and cost less than `most` at worst."""
    columns = _launchable(state, shapes, most)
    kept = list(_not_outdone(columns))
    if len(kept) > SIZES_MAX:
        kept = sorted(kept, key=lambda size: size.price / max(size.room[0], 1))[: SIZES_MAX - 4] + kept[:4]
    return kept


def _launchable(state: PlanningState, chosen_shapes: Sequence[int], most: float) -> _Columns:
    """Every type of every pool that holds one of the pods for less than `most`, as columns.

    The order of shapes, pools and types decides between equals.
    """
    shapes, one_node = range(len(chosen_shapes)), state.one_node
    by_pool: dict[str, list[tuple[int, FittingTypes]]] = {}
    for number, shape in enumerate(chosen_shapes):
        for fitting in one_node.fitting({shape: 1}):
            by_pool.setdefault(fitting.pool, []).append((number, fitting))
    parts: list[_Columns] = []
    for turn, launch in enumerate(one_node.launch):
        count = launch.room.shape[1]
        admits: Bools = np.zeros((len(shapes), count), dtype=np.bool_)
        price: Floats = np.full(count, -np.inf)
        for number, fitting in by_pool.get(launch.offer.pool.name, ()):
            admits[number] = cheap = fitting.types & (fitting.worst < most)
            price = np.where(cheap, np.maximum(price, fitting.cheapest), price)
        chosen = np.flatnonzero(admits.any(axis=0))
        first = admits[:, chosen].argmax(axis=0)
        found = np.lexsort((chosen, first))
        chosen, first = chosen[found], first[found]
        room = np.minimum(launch.room[:, chosen], 2**60)
        order = np.stack((first, np.full(len(chosen), turn), chosen))
        parts.append(_Columns(room, admits[:, chosen], price[chosen], order))
    return _joined(parts, len(one_node.resources), len(shapes))


def mixes_of(sizes: Sequence[NodeSize], needs: Int64s, most: int) -> NodeMixes:
    """All mixes of up to `most` new nodes. `needs`: shapes by resources."""
    members: list[tuple[int, ...]] = [()]
    for count in range(1, most + 1 if sizes else 1):
        members += combinations_with_replacement(range(len(sizes)), count)
    prices = np.array([sum(sizes[size].price for size in mix) for mix in members])
    rooms = np.zeros((len(members), needs.shape[1]), dtype=np.int64)
    holds = np.zeros((len(members), len(needs)), dtype=np.int64)
    of_sizes = np.array([size.room for size in sizes], dtype=np.int64).reshape(-1, needs.shape[1])
    held_by_sizes = held_by(of_sizes, needs)
    for number, mix in enumerate(members):
        for size in mix:
            rooms[number] += of_sizes[size]
            holds[number] += held_by_sizes[size]
    order = np.argsort(prices, kind="stable")
    chosen = [members[index] for index in order.tolist()]
    return NodeMixes(chosen, prices[order], rooms[order], holds[order])


def held_by(rooms: Int64s, needs: Int64s) -> Int64s:
    """By node and shape: how many pods of the shape fit, ignoring labels."""
    fits = np.where(needs > 0, np.maximum(rooms, 0)[:, None, :] // np.maximum(needs, 1)[None], HELD_MAX)
    held: Int64s = np.minimum(fits.min(axis=2, initial=HELD_MAX), HELD_MAX)
    return held


def _joined(parts: Sequence[_Columns], resources: int, shapes: int) -> _Columns:
    """Sort by price, then by capacity; equals keep their order."""
    if not parts:
        nothing = np.zeros((resources, 0), dtype=np.int64)
        return _Columns(nothing, np.zeros((shapes, 0), dtype=np.bool_), np.zeros(0), nothing)
    room = np.concatenate([part.room for part in parts], axis=1)
    admits = np.concatenate([part.admits for part in parts], axis=1)
    price = np.concatenate([part.price for part in parts])
    found = np.concatenate([part.found for part in parts], axis=1)
    order = np.lexsort((*found[::-1], *(-room)[::-1], price))
    return _Columns(room[:, order], admits[:, order], price[order], found[:, order])


def _not_outdone(columns: _Columns) -> Iterator[NodeSize]:
    """Yield the sizes that no earlier, cheaper or equal size dominates in capacity and admitted shapes."""
    room, admits = columns.room, columns.admits
    left: Bools = np.ones(len(columns.price), dtype=np.bool_)
    while left.any():
        first = int(left.argmax())
        yield NodeSize(room[:, first].tolist(), admits[:, first].tolist(), float(columns.price[first]))
        smaller = (room <= room[:, first, None]).all(axis=0)
        left &= ~(smaller & (admits[:, first, None] | ~admits).all(axis=0))
