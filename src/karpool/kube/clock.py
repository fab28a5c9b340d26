"""The clock that is passed to code instead of the operating system's.

`now` is the wall clock, which is written into objects; `monotonic` is for durations and never goes back. Code
above `kube` takes a `Clock` argument and never asks the operating system. Sleeping and timing out go through
asyncio, whose loop may run on virtual time in a test or a simulation.
"""

import asyncio
import sys
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never decrease; only differences have a meaning."""

    async def sleep(self, seconds: float) -> None: ...


if sys.platform == "linux":

    def _read_monotonic() -> float:
        # Unlike CLOCK_MONOTONIC it keeps counting while the machine is suspended: a lease that
        # expired during a suspension must count as expired.
        return time.clock_gettime(time.CLOCK_BOOTTIME)
else:
    _read_monotonic = time.monotonic


class RealClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return _read_monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
