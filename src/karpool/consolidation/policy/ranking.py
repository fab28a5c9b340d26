"""In which order nodes are looked at: what each would save at best for what it disturbs, most first."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

import numpy as np

from karpool.consolidation.policy.totals import Floats

T = TypeVar("T")


def ratios(prices: Floats, disruption: Floats) -> Floats:
    """Best-case saving per disturbance of each node. A price that is not known (NaN) counts as 0.

    Every node disturbs at least 1.
    """
    found: Floats = np.where(np.isfinite(prices), prices, 0.0) / disruption
    return found


def interleaved(groups: Mapping[str, Sequence[T]], first: Collection[str] = ()) -> list[T]:
    """One of each pool in turn. Pools in `first` were not reached the last time and come before others."""
    pools = [*(pool for pool in first if pool in groups), *(pool for pool in groups if pool not in first)]
    rounds = zip_longest(*(((group,) for group in groups[pool]) for pool in pools), fillvalue=())
    return [each for turn in rounds for each in chain.from_iterable(turn)]
