"""Being asked to stop, and waiting that ends when one is."""

import asyncio
from collections.abc import Awaitable
from enum import Enum
from typing import Final, Literal, TypeVar

T = TypeVar("T")


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
        working, stopping = asyncio.ensure_future(awaitable), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else STOPPED
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
