"""Time, as something that is handed in.

Two readings: `now` is the wall clock, written into objects; `monotonic` is for
durations and never goes back. Code above `kube` takes a `Clock` argument and
never asks the operating system. Sleeping and timing out go through asyncio, whose
loop a test or a simulation may run on virtual time.
"""

import asyncio
import sys
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that only ever grow; the origin means nothing."""

    async def sleep(self, seconds: float) -> None: ...


if sys.platform == "linux":

    def _read_monotonic() -> float:
        # Unlike CLOCK_MONOTONIC it goes on while the machine is suspended: a lease that
        # ran out during a suspension must be seen as run out.
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
