"""Being asked to stop, and waiting that ends when one is."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, Literal, TypeVar

from karpool.kube.first_done import first_done

T = TypeVar("T")

GRACE_SECONDS = 10.0  # a kubelet kills after thirty; a write takes one or two


class _Stopped(Enum):
    STOPPED = "stopped"


STOPPED: Final = _Stopped.STOPPED


class Stop(asyncio.Event):
    """Set once, by a signal, a test or whoever runs the controller; seconds are those of the event loop."""

    async def sleep(self, seconds: float) -> bool:
        """Whether asked to stop before the time was over."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return False
        return True

    async def until(self, awaitable: Awaitable[T]) -> T | Literal[_Stopped.STOPPED]:
        """What it gives; or STOPPED when asked to stop before it ended; then it is cancelled."""
        async with first_done(awaitable, self.wait()) as (working, _):
            return await working if working.done() else STOPPED

    async def finish(
        self, work: Awaitable[None], close: Callable[[], None], *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """Work; when asked to stop, `close` its queue and let what is under way finish within the grace."""
        async with first_done(work, self.wait()) as (working, _):
            close()
            await asyncio.wait((working,), timeout=grace_seconds)
            if working.done():
                await working
