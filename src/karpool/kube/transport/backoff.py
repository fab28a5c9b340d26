"""How long to wait after the n-th failure in a row: doubling, capped, jittered.

The jitter keeps the lower half of the delay, so that a retry never comes at
once, and spreads the rest, so that a fleet of clients does not come together.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

Chance = Callable[[], float]  # a draw from [0, 1)

chance: Chance = random.random


@dataclass(frozen=True, slots=True)
class Backoff:
    first: float = 0.5
    factor: float = 2.0
    limit: float = 30.0

    def delay(self, failures: int, draw: float) -> float:
        """Seconds to wait after `failures` failures in a row (0 waits as 1 does)."""
        # The exponent is capped because factor ** 2000 overflows a float.
        whole = min(self.limit, self.first * self.factor ** min(max(failures, 1) - 1, 60))
        return whole * (0.5 + 0.5 * draw)
