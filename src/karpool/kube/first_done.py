"""Waiting for the first of several things."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def first_done(*awaitables: Awaitable[Any]) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Inside, one of them is done at least; afterwards the others are cancelled and over."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
