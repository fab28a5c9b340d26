"""Work that follows from a write and need not delay it: collecting, finalizing, recounting.

Jobs run in the order in which they were scheduled, each at most once at a time; scheduling a queued job again
changes nothing. A task exists only while there is work, so an idle server has nothing to stop.
"""

import asyncio
from collections.abc import Callable, Hashable

import structlog

_BATCH = 32  # jobs between two turns of the event loop, so that requests are not starved

log = structlog.get_logger(__name__)


class Background:
    def __init__(self) -> None:
        self._jobs: dict[Hashable, Callable[[], None]] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, key: Hashable, job: Callable[[], None]) -> None:
        self._jobs.setdefault(key, job)

    @property
    def idle(self) -> bool:
        return not self._jobs

    def kick(self) -> None:
        """Start working if there is work; needs a running loop."""
        if self._jobs and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="apiserver-background")

    async def settle(self) -> None:
        """Return when nothing is left to do."""
        self.kick()
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)
            self.kick()

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._jobs.clear()

    async def _work(self) -> None:
        while self._jobs:
            await asyncio.sleep(0)
            for _ in range(min(_BATCH, len(self._jobs))):
                key = next(iter(self._jobs))
                job = self._jobs.pop(key)
                try:
                    job()
                except Exception:  # one bad object never stops the others
                    log.exception("background job of the API server failed", job=str(key))
