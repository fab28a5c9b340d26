"""The condition `NodeRegistrationHealthy` of pools, from their last launches.

Four launches are remembered; a pool is unhealthy when at least half of them failed. Only the condition
depends on this. A new generation of the pool resets it, and so does a restart, apart from what the condition
says.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from karpool_fleet.karpenter.lifecycle.conditions import (
    FALSE,
    REGISTRATION_HEALTHY,
    TRUE,
    UNKNOWN,
    Conditions,
)

_REMEMBERED = 4
_FAILURES = 2


@dataclass
class _Record:
    generation: int = -1
    launches: deque[bool] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    message: str = ""


class RegistrationHealth:
    def __init__(self) -> None:
        self.on_change: list[Callable[[str], None]] = []  # called with the name of the pool
        self._pools: dict[str, _Record] = {}

    def record(self, pool: str, *, succeeded: bool, message: str = "") -> None:
        record = self._pools.setdefault(pool, _Record())
        record.launches.append(succeeded)
        if not succeeded:
            record.message = message
        for tell in self.on_change:
            tell(pool)

    def forget(self, pool: str) -> None:
        self._pools.pop(pool, None)

    def apply(self, pool: str, generation: int, conditions: Conditions) -> None:
        """Set the condition of the pool."""
        record = self._pools.setdefault(pool, _Record())
        if record.generation != generation:
            if record.generation >= 0:
                record.launches.clear()
            record.generation = generation
            healthy = conditions.get(REGISTRATION_HEALTHY)
            if healthy is not None and healthy.observed_generation == generation and not record.launches:
                record.launches.extend({TRUE: [True], FALSE: [False, False]}.get(healthy.status, []))
        failures = sum(not launch for launch in record.launches)
        if failures == len(record.launches) < _FAILURES:
            conditions.set(
                REGISTRATION_HEALTHY, UNKNOWN, "AwaitingReconciliation", "object is awaiting reconciliation"
            )
        elif failures >= _FAILURES:
            conditions.set(REGISTRATION_HEALTHY, FALSE, "RegistrationFailed", record.message)
        else:
            conditions.set(REGISTRATION_HEALTHY, TRUE)
