"""Waits for the first of several awaitables."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def first_done(*awaitables: Awaitable[Any]) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Enter when at least one awaitable is done; on exit, cancel the others and wait for them."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
