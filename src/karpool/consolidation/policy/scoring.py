"""Is a move worth what it disturbs? Totals of pools, the Balanced score, decision, pre-filter and order.

    score = (savings / pool cost) / (disruption / pool disruption), approved when >= 1/k

in IEEE doubles and in this order, so that scores agree bit for bit with Karpenter's.
The decision has a tolerance of 1e-9 (`TOLERANCE`): replacing a node by one of half its
price scores exactly 0.5 on paper, and rounding must not decide it. With tolerance 0
decisions are Karpenter's, too.

Every Balanced pool that gives up a node must approve. A move's net saving is split
among its pools by their share of the price of what goes.

A node costs 1 for itself and what the eviction of each of its pods costs, where that
is positive. Pods that do not move (daemons, static pods, finished ones) do not count.
Pool totals are over all nodes of the pool, candidates or not, taken once per cycle.
An unknown price adds nothing and is counted, so that it never poisons a total.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from karpool.cluster.market.prices import usable_price
from karpool.consolidation.policy.policy import ConsolidationPolicy
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_reschedulable, pod_cost

TOLERANCE = 1e-9
# Cordon, drain, API calls, and the wait for another node.
NODE_COST = 1.0
Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
T = TypeVar("T")


# Costs of nodes and pools


def node_cost(pods: Iterable[Pod]) -> float:
    """The disruption cost of a node with these pods, movable or not."""
    return NODE_COST + sum(pod_cost(pod) for pod in pods if is_reschedulable(pod))


def is_empty(cost: float) -> bool:
    """Whether no pod on the node has a disruption cost. Pods without cost may be there."""
    return cost <= NODE_COST


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Totals over all nodes of a pool. `unpriced` is how many of them have no known price."""

    cost_per_hour: float
    disruption: float
    nodes: int = 0
    unpriced: int = 0


@dataclass(frozen=True, slots=True)
class PoolMember:
    """One node as an input of its pool's totals."""

    pool: str
    disruption: float
    price_per_hour: float | None


def pool_totals(nodes: Iterable[PoolMember]) -> dict[str, PoolTotals]:
    """Sum by pool; the result does not depend on the order of the nodes."""
    members: dict[str, list[PoolMember]] = defaultdict(list)
    for node in nodes:
        members[node.pool].append(node)
    return {pool: _totals_of(nodes) for pool, nodes in sorted(members.items())}


def _totals_of(nodes: list[PoolMember]) -> PoolTotals:
    prices = [usable_price(node.price_per_hour) for node in nodes]
    priced = [price for price in prices if price is not None]
    return PoolTotals(
        cost_per_hour=math.fsum(priced),
        disruption=math.fsum(node.disruption for node in nodes),
        nodes=len(nodes),
        unpriced=len(nodes) - len(priced),
    )


def estimated_savings(sources: Iterable[float | None], destinations: Iterable[float | None]) -> float:
    """The removed price minus the new price, per hour.

    As in Karpenter, a destination without a price counts as zero; the price filter (`cheaper_types`) refuses
    such a replacement before.
    """
    return sum(usable_price(price) or 0.0 for price in sources) - sum(
        usable_price(price) or 0.0 for price in destinations
    )


# Scores


@dataclass(frozen=True, slots=True)
class MoveScore:
    """The numbers behind a decision. `score` may be infinite: nothing is disturbed."""

    savings_fraction: float
    disruption_fraction: float
    score: float
    threshold: float
    approved: bool


def score_move(
    savings_per_hour: float,
    disruption: float,
    totals: PoolTotals | None,
    k: float,
    *,
    tolerance: float = TOLERANCE,
) -> MoveScore:
    """Score one move against one pool. Without totals, or with none above zero, it is rejected."""
    threshold = 1.0 / k
    if totals is None or not (totals.cost_per_hour > 0 and totals.disruption > 0):
        return MoveScore(0.0, 0.0, 0.0, threshold, approved=False)
    savings_fraction = _finite(savings_per_hour) / totals.cost_per_hour
    disruption_fraction = _finite(disruption) / totals.disruption
    score = _ratio(savings_fraction, disruption_fraction)
    return MoveScore(
        savings_fraction,
        disruption_fraction,
        score,
        threshold,
        approved=score > 0 and score >= threshold - tolerance,
    )


def _ratio(savings_fraction: float, disruption_fraction: float) -> float:
    if savings_fraction <= 0:
        return 0.0
    if disruption_fraction <= 0:
        return math.inf
    ratio = savings_fraction / disruption_fraction
    return 0.0 if math.isnan(ratio) else ratio  # both overflowed


def _finite(amount: float) -> float:
    """Replace a value that is not finite by zero; it must not make every comparison false."""
    return amount if math.isfinite(amount) else 0.0


@dataclass(frozen=True, slots=True)
class ScoredNode:
    """A node that a move removes."""

    pool: str
    price_per_hour: float | None  # None: unknown, counts as 0
    disruption: float


@dataclass(frozen=True, slots=True)
class PoolScore:
    """The decision of one pool about a move. `score` is None if the policy does not score."""

    pool: str
    policy: ConsolidationPolicy
    savings_per_hour: float
    disruption: float
    score: MoveScore | None

    @property
    def approved(self) -> bool:
        return self.score is None or self.score.approved


@dataclass(frozen=True, slots=True)
class MoveVerdict:
    """The decision of all pools together. `unpriced`: how many of the nodes have no known price."""

    approved: bool
    savings_per_hour: float
    disruption: float
    pools: tuple[PoolScore, ...]
    unpriced: int = 0

    @property
    def score(self) -> float | None:
        """The lowest score of the pools that score; None if none does."""
        return min((pool.score.score for pool in self.pools if pool.score is not None), default=None)


def score_sources(
    sources: Sequence[ScoredNode],
    destination_per_hour: float | None,
    policies: Mapping[str, ConsolidationPolicy],
    totals: Mapping[str, PoolTotals],
    *,
    tolerance: float = TOLERANCE,
    worth_per_hour: float | None = None,
) -> MoveVerdict:
    """Score the removal of `sources` for a new node at `destination_per_hour` (None: a delete).

    `worth_per_hour` is the fall of the bill without them, if that is not the sum of their prices. Pools are
    in the order of their first source. A move without sources is rejected.
    """
    prices = [usable_price(source.price_per_hour) for source in sources]
    total = sum(price or 0.0 for price in prices)
    worth = prices if worth_per_hour is None else (worth_per_hour,)
    savings = estimated_savings(worth, (destination_per_hour,))
    by_pool: dict[str, list[tuple[float, float]]] = {}
    for source, price in zip(sources, prices, strict=True):
        by_pool.setdefault(source.pool, []).append((price or 0.0, source.disruption))
    verdicts = []
    for pool, members in by_pool.items():
        share = savings
        if len(by_pool) > 1 and total > 0:
            share = savings * (sum(price for price, _ in members) / total)
        disruption = sum(cost for _, cost in members)
        policy = policies[pool]
        score = (
            score_move(share, disruption, totals.get(pool), policy.k, tolerance=tolerance)
            if policy.is_scored
            else None
        )
        verdicts.append(PoolScore(pool, policy, share, disruption, score))
    return MoveVerdict(
        approved=bool(verdicts) and all(verdict.approved for verdict in verdicts),
        savings_per_hour=savings,
        disruption=sum(source.disruption for source in sources),
        pools=tuple(verdicts),
        unpriced=prices.count(None),
    )


def can_pass(
    policy: ConsolidationPolicy,
    price_per_hour: float | None,
    disruption: float,
    totals: PoolTotals | None,
    *,
    tolerance: float = TOLERANCE,
) -> bool:
    """Whether the best case, deleting the node without a replacement, would be approved.

    Without totals the answer is yes, and the score rejects the move later.
    """
    if not policy.is_scored or totals is None or totals.cost_per_hour <= 0:
        return True
    best = usable_price(price_per_hour) or 0.0
    return score_move(best, disruption, totals, policy.k, tolerance=tolerance).approved


# The order of candidates: best-case saving per disruption, largest first


def ratios(prices: Floats, disruption: Floats) -> Floats:
    """Best-case saving per disruption of each node. An unknown price (NaN) counts as 0.

    Every node has a disruption of at least 1.
    """
    best: Floats = np.where(np.isfinite(prices), prices, 0.0) / disruption
    return best


def interleaved(groups: Mapping[str, Sequence[T]], first: Collection[str] = ()) -> list[T]:
    """Take one of each pool in turn. Pools in `first` were not reached the last time and come first."""
    pools = [*(pool for pool in first if pool in groups), *(pool for pool in groups if pool not in first)]
    rounds = zip_longest(*(((group,) for group in groups[pool]) for pool in pools), fillvalue=())
    return [member for turn in rounds for member in chain.from_iterable(turn)]
