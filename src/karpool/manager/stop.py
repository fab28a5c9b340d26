"""Stop requests, and waits that a stop request ends."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Literal, TypeVar

from karpool.kube.first_done import first_done

T = TypeVar("T")

GRACE_SECONDS = 10.0  # a kubelet kills after 30 s; a write takes one or two


class _Stopped(Enum):
    STOPPED = "stopped"


STOPPED: Final = _Stopped.STOPPED


class Stop(asyncio.Event):
    """A stop request, set once by a signal, a test or the manager; seconds are those of the event loop."""

    async def sleep(self, seconds: float) -> bool:
        """Sleep; return True if the stop request came first."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return False
        return True

    async def until(self, awaitable: Awaitable[T]) -> T | Literal[_Stopped.STOPPED]:
        """Return the result; if the stop request comes first, cancel the awaitable and return STOPPED."""
        async with first_done(awaitable, self.wait()) as (working, _):
            return await working if working.done() else STOPPED

    async def finish(
        self, work: Awaitable[None], close: Callable[[], None], *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """Run `work`.

        On a stop request, `close` its queue and let current work finish within the grace period.
        """
        async with first_done(work, self.wait()) as (working, _):
            close()
            await asyncio.wait((working,), timeout=grace_seconds)
            if working.done():
                await working
