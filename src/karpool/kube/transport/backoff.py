"""Back-off delays: doubled after each failure, capped, and jittered.

The jitter varies only the upper half of the delay: a retry never comes at once, and many clients do not retry
at the same moment.
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
        """Return the delay in seconds after `failures` failures in a row (0 counts as 1)."""
        # The exponent is capped because factor ** 2000 overflows a float.
        whole = min(self.limit, self.first * self.factor ** min(max(failures, 1) - 1, 60))
        return whole * (0.5 + 0.5 * draw)
