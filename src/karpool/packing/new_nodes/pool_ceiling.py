"""An upper bound of every resource that a pool could launch, for any pods.

Each resource is bounded on its own, by the number of nodes and by every limit in turn. The bounds of several
resources are not reached at the same time.
"""

from collections.abc import Collection, Mapping

import numpy as np

from karpool.model.resources import NODES, Resources
from karpool.packing.new_nodes.offerings import MOST, PoolOfferings, StockOut, remaining
from karpool.packing.tables.columns import Bools


def pool_ceiling(
    offer: PoolOfferings, used: Mapping[str, int], nodes_max: int, unavailable: Collection[StockOut] = ()
) -> Resources:
    """Return the upper bound by resource. `used` is the capacity in use, as charged to the limits."""
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
    """Return the most of one resource: by nodes of the best type, or by the best ratio to a limit."""
    allocatable = [int(offer.allocatable(name)[row]) for row in rows]
    most = nodes * max(allocatable)
    for limit, units in left.items():
        charged = [int(offer.capacity(limit)[row]) for row in rows]
        if min(charged) > 0:  # a limit does not bound a type that it does not charge
            shares = zip(allocatable, charged, strict=True)
            most = min(most, max(units * room // charge for room, charge in shares))
    return min(most, MOST)
