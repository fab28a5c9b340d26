"""Interrupts a wait from outside, without a task or a timer for every single wait.

A stream waits some hundred times a minute and is interrupted perhaps once. What `asyncio.wait` and
`asyncio.timeout` set up for each wait is set up here once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The wait was ended by `interrupt`."""


class Interruption:
    def __init__(self) -> None:
        self._asked = False
        self._waiting: asyncio.Task[object] | None = None

    def is_asked(self) -> bool:
        return self._asked

    def interrupt(self) -> None:
        """End the current wait and every later one."""
        if not self._asked:
            self._asked = True
            if self._waiting is not None:
                self._waiting.cancel()

    async def wait(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `start`. Raises Interrupted; other cancellations pass through."""
        if self.is_asked():
            raise Interrupted
        task = asyncio.current_task()
        assert task is not None
        before, self._waiting = task.cancelling(), task
        try:
            return await start()
        except asyncio.CancelledError:
            if self.is_asked() and task.uncancel() <= before:
                raise Interrupted from None
            raise
        finally:
            self._waiting = None


class SilenceTimeout:
    """Interrupts a wait that takes longer than `seconds`. Call `wait` repeatedly and `close` at the end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._interruption = Interruption()
        self._until: float | None = None  # end of the current wait
        self._timer = self._loop.call_later(seconds, self._look)

    async def wait(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `start`. Raises TimeoutError."""
        self._until = self._loop.time() + self._seconds
        try:
            return await self._interruption.wait(start)
        except Interrupted:
            raise TimeoutError from None
        finally:
            self._until = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        """Check the deadline; a timer that fires too early, as most do, is set again."""
        now = self._loop.time()
        if self._until is not None and now >= self._until:
            self._interruption.interrupt()
        else:
            self._timer = self._loop.call_at(self._until or now + self._seconds, self._look)
