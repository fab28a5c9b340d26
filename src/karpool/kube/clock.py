"""Time, as something that is handed in.

Two readings: `now` is the wall clock, written into objects; `monotonic` is for
durations and never goes back. Code above `kube` takes a `Clock` argument and
never asks the operating system. Sleeping and timing out go through asyncio, whose
loop a test or a simulation may run on virtual time.
"""

import asyncio
import sys
import time
from datetime import UTC, datetime
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


def rfc3339(seconds: float) -> str:
    """The form of `metadata.creationTimestamp`: UTC, whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(seconds: float) -> str:
    """The form of MicroTime fields (Lease, events.k8s.io)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def moment(text: str | None) -> float | None:
    """Seconds since the epoch of a time in an object; None when it is not there or cannot be read."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None
