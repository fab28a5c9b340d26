"""In which order nodes and moves are looked at: what is saved per disturbance, most first.

Ties go to the lower price of what is disturbed, then to the name, so that the same
cluster always gives the same order.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from karpool.consolidation.totals import Codes, Floats, usable_price


def saving_ratio(price_per_hour: float | None, disruption: float) -> float:
    """Best-case saving per disturbance; every node disturbs at least 1."""
    return (usable_price(price_per_hour) or 0.0) / disruption


def order(names: Sequence[str], prices: Floats, disruption: Floats) -> Codes:
    """Positions, the best first. NaN prices count as 0."""
    ratios = np.where(np.isfinite(prices), prices, 0.0) / disruption
    by_name = np.argsort(np.array(names, dtype=np.str_), kind="stable") if names else np.zeros(0, np.int64)
    rank = np.empty(len(names), dtype=np.int64)
    rank[by_name] = np.arange(len(names))
    result: Codes = np.lexsort((rank, disruption, -ratios)).astype(np.int64)
    return result


def interleaved(groups: Mapping[str, Sequence[str]], first: Collection[str] = ()) -> list[str]:
    """One of each pool in turn. Pools in `first` were not reached the last time and come before others."""
    pools = [*(pool for pool in first if pool in groups), *(pool for pool in groups if pool not in first)]
    rounds = zip_longest(*(groups[pool] for pool in pools))
    return [name for turn in rounds for name in turn if name is not None]
