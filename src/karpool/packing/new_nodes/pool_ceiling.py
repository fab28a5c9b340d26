"""How much of every resource a pool could launch at the very most, whatever pods ask for.

No packing gives more: each resource is bounded on its own, by the nodes that may be launched and by
every limit in turn. What is bounded so is not there all at once.
"""

from collections.abc import Collection, Mapping

import numpy as np

from karpool.model.resources import NODES, Resources
from karpool.packing.new_nodes.offerings import MOST, PoolOfferings, StockOut, remaining
from karpool.packing.tables.columns import Bools


def pool_ceiling(
    offer: PoolOfferings, used: Mapping[str, int], nodes_max: int, unavailable: Collection[StockOut] = ()
) -> Resources:
    """`used` is capacity in use, as it is charged to the limits."""
    left = remaining(offer.pool.limits, used)
    nodes = min(left.pop(NODES, nodes_max), nodes_max)
    types: Bools = np.asarray(offer.stock(unavailable).any(axis=(1, 2)))
    for name, units in left.items():
        types &= offer.capacity(name) <= units
    rows = np.flatnonzero(types).tolist()
    if nodes <= 0 or not rows:
        return {}
    names = {name for row in rows for name in offer.types[row].allocatable}
    return {name: most for name in sorted(names) if (most := _most(offer, rows, name, nodes, left))}


def _most(offer: PoolOfferings, rows: list[int], name: str, nodes: int, left: Mapping[str, int]) -> int:
    """The best type in plenty, unless a limit ends sooner: the best share of it that any type gives."""
    allocatable = [int(offer.allocatable(name)[row]) for row in rows]
    most = nodes * max(allocatable)
    for limit, units in left.items():
        charged = [int(offer.capacity(limit)[row]) for row in rows]
        if min(charged) > 0:  # a type that the limit does not charge comes in any number
            shares = zip(allocatable, charged, strict=True)
            most = min(most, max(units * room // charge for room, charge in shares))
    return min(most, MOST)
