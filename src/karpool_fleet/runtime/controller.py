"""The base of controllers: a queue of keys, and retries after a conflict.

A write names the version of the object that it was decided on. A conflict with another writer is normal: it
causes neither a warning nor a growing back-off.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from karpool.kube.errors import Conflict
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool_fleet.runtime.supervisor import Context

K = TypeVar("K")

SOON = Requeue(0.05)


def looking_again(
    reconcile: Callable[[K], Awaitable[Requeue | None]],
) -> Callable[[K], Awaitable[Requeue | None]]:
    """Return the reconciler with a retry after a conflict."""

    async def patient(key: K) -> Requeue | None:
        try:
            return await reconcile(key)
        except Conflict:
            return SOON

    return patient


class QueueController(Generic[K]):
    """Reconciles one key after another; its other tasks belong to the same task group."""

    workers = 1

    def __init__(self, context: Context) -> None:
        self._context, self._client, self._clock = context, context.client, context.clock
        self._queue: WorkQueue[K] = WorkQueue(context.clock, chance=context.random.random)

    async def run(self) -> None:
        await self._context.informers.synced()
        async with asyncio.TaskGroup() as group:
            await self._work(group)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        await self._queue.run(looking_again(self._reconcile), workers=self.workers)

    async def _reconcile(self, key: K) -> Requeue | None:
        raise NotImplementedError
