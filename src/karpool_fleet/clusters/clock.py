"""Clocks for embedded clusters: real, scaled or manual, all through the event loop.

Every wait in a cluster ends up in the loop, so replacing the time of the loop replaces it everywhere:
asyncio's sleeps and timeouts, back-off, leases and delays all follow. A manual loop never waits: when nothing
is ready, its time jumps to the next timer. A scaled loop waits a fraction of the time, and works as fast as
it can.

With in-process transports nothing outside the loop takes part, and a manual run can be repeated exactly.
"""

import asyncio
import contextvars
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# A fixed start keeps the bytes of a simulation the same: 2026-01-01T00:00:00Z.
EPOCH = 1_767_225_600.0
# Ticks per second of a manual clock. A power of two keeps sums and differences exact.
_TICKS = 2**20


class LoopClock:
    """The clock of the running loop; wall time is `epoch` at loop time zero."""

    def __init__(self, epoch: float = EPOCH) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def jump(self, seconds: float) -> None:
        """Move the wall clock, as an operator or NTP would; durations are not affected."""
        self._epoch += seconds


class Stalled(RuntimeError):
    """Nothing is ready and no timer is set: every task waits for ever."""


class _ManualSelector(selectors.DefaultSelector):
    """A selector that jumps to the next timer instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stalled("no task can run and no timer is set; a task waits for an event nobody will send")
        self.now += timeout
        return []


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose time moves only when nothing is ready, and then jumps."""

    def __init__(self) -> None:
        self._timer = _ManualSelector()
        super().__init__(self._timer)

    def time(self) -> float:
        return self._timer.now

    def call_at(  # type: ignore[override]  # the stubs bind the arguments to the callback
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Round the time up to a grid of about a microsecond.

        asyncio fires timers up to a nanosecond early. Two tasks whose timers are so close would wake each
        other for ever while this clock stands still; the grid prevents that.
        """
        return super().call_at(math.ceil(when * _TICKS) / _TICKS, callback, *args, context=context)


class _ScaledSelector(selectors.DefaultSelector):
    """A selector that waits a fraction of the time, and counts the full time."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self.speed = speed
        self.gained = 0.0  # how far scaled time is ahead of real time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        began = time.monotonic()
        ready = super().select(None if timeout is None else timeout / self.speed)
        waited = time.monotonic() - began
        # On a busy machine a wait takes longer than asked for: never past the next timer.
        scaled = waited * self.speed if timeout is None else min(waited * self.speed, max(timeout, waited))
        self.gained += scaled - waited
        return ready


class ScaledLoop(asyncio.SelectorEventLoop):
    """A loop that waits `speed` times as fast as real time.

    Work takes its real time: on a slow or busy machine scaled time slows down, so that timeouts of other
    tasks do not expire.
    """

    def __init__(self, speed: float) -> None:
        self._waits = _ScaledSelector(speed)
        super().__init__(self._waits)
        self._start = super().time()

    def time(self) -> float:
        started: float | None = getattr(self, "_start", None)
        return 0.0 if started is None else super().time() - started + self._waits.gained

    @property
    def speed(self) -> float:
        return self._waits.speed

    @speed.setter
    def speed(self, speed: float) -> None:
        """Set the speed from the next wait on."""
        self._waits.speed = speed


def run_manual(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on manual time, as `asyncio.run` does on real time."""
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        return runner.run(main)


def run_scaled(main: Coroutine[Any, Any, T], speed: float) -> T:
    with asyncio.Runner(loop_factory=lambda: ScaledLoop(speed)) as runner:
        return runner.run(main)


def loop_at(speed: float) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory for a fleet at `speed`; None for an ordinary loop."""
    return None if speed == 1.0 else lambda: ScaledLoop(speed)
