"""What a node's removal disturbs, and what a whole pool costs and could be disturbed.

A node costs 1 for itself and what the eviction of each of its pods costs, where that
is positive. Pods that do not move (daemons, static pods, finished ones) do not count.
Pool totals are over all nodes of the pool, candidates or not, taken once per cycle.
An unknown price adds nothing and is counted, so that it never poisons a total.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from karpool.cluster.market.prices import usable_price
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_reschedulable, pod_cost

# Cordon, drain, API calls, and the wait for another node.
NODE_COST = 1.0
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def node_cost(pods: Iterable[Pod]) -> float:
    """Of a node with these pods, whether they move or not."""
    return NODE_COST + sum(pod_cost(pod) for pod in pods if is_reschedulable(pod))


def is_empty(cost: float) -> bool:
    """Whether nothing on the node would be missed. Pods that cost nothing may be there."""
    return cost <= NODE_COST


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Of all nodes of a pool. `unpriced` is how many of them have no known price."""

    cost_per_hour: float
    disruption: float
    nodes: int = 0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class PoolMember:
    """One node as its pool's totals see it."""

    pool: str
    disruption: float
    price_per_hour: float | None


def pool_totals(nodes: Iterable[PoolMember]) -> dict[str, PoolTotals]:
    """The same whatever the order of the nodes."""
    members: dict[str, list[PoolMember]] = defaultdict(list)
    for node in nodes:
        members[node.pool].append(node)
    return {pool: _totals_of(found) for pool, found in sorted(members.items())}


def _totals_of(nodes: list[PoolMember]) -> PoolTotals:
    prices = [usable_price(node.price_per_hour) for node in nodes]
    known = [price for price in prices if price is not None]
    return PoolTotals(
        cost_per_hour=math.fsum(known),
        disruption=math.fsum(node.disruption for node in nodes),
        nodes=len(nodes),
        unpriced=len(nodes) - len(known),
    )
