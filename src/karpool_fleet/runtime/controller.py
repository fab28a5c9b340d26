"""What controllers have in common: a queue of keys, and looking again after a conflict.

A write says which version of an object it was decided on. That another writer came first is
ordinary, and worth neither a warning nor a growing back-off.
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
    """The same reconciler, for which a conflict is a reason to look again."""

    async def patient(key: K) -> Requeue | None:
        try:
            return await reconcile(key)
        except Conflict:
            return SOON

    return patient


class QueueController(Generic[K]):
    """Looks at one key after another; what runs beside that belongs to the same task group."""

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
