"""A queue of keys to reconcile: each key once, one worker per key at a time.

Adding a queued key does nothing; adding a key in progress queues it again after that work is done. Failed
keys return after their own back-off, and higher priorities come first. The reconciler decides what to do with
a key.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

import structlog

from karpool.kube.clock import Clock
from karpool.kube.errors import Conflict
from karpool.kube.transport import backoff
from karpool.kube.transport.backoff import Backoff, Chance

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger(__name__)

KEY_BACKOFF = Backoff(first=0.05, limit=60.0)
# Event loops fire timers early by up to their resolution. Workers that insisted on the last
# nanosecond would wake each other for ever on a clock that moves only when all of them sleep.
EARLY_SECONDS = 1e-6
LONGEST_SECONDS = 86_400.0  # longest requeue delay of a reconciler
_VOID_ENTRIES = 64  # void delayed entries that are tolerated, in addition to the number of valid ones


class QueueShutDown(Exception):
    """The queue is shut down and empty."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Returned by a reconciler to run again after some seconds."""

    after: float


Reconcile = Callable[[K], Awaitable[Requeue | None]]


class QueueObserver(Protocol):
    """Observes a queue (see `QueueMetrics`). A key that is added while in progress counts as queued, too."""

    def added(self, key: Hashable) -> None: ...

    def taken(self, key: Hashable) -> None: ...

    def done(self, key: Hashable) -> None: ...

    def retried(self) -> None: ...


class WorkQueue(Generic[K]):
    def __init__(
        self,
        clock: Clock,
        *,
        delays: Backoff = KEY_BACKOFF,
        chance: Chance = backoff.chance,
        tell: QueueObserver | None = None,
    ) -> None:
        self.tell = tell
        self._clock = clock
        self._backoff = delays
        self._chance = chance
        self._order = count()
        self._ready: list[tuple[int, int, K]] = []  # a heap; entries whose key left `_queued` are void
        self._queued: dict[K, tuple[int, int]] = {}  # key -> (-priority, order) of its valid entry
        self._later: list[tuple[float, int, K, int]] = []  # a heap of (due, order, key, priority)
        self._due: dict[K, float] = {}  # key -> its earliest valid entry in `_later`
        self._working: set[K] = set()
        self._again: dict[K, int] = {}  # added while in progress -> priority
        self._failures: dict[K, int] = {}
        self._closed = False
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that are ready now."""
        self._promote()
        return len(self._queued)

    def add(self, key: K, *, priority: int = 0) -> None:
        if self._closed:
            return
        if self.tell is not None and key not in (self._again if key in self._working else self._queued):
            self.tell.added(key)
        if key in self._working:
            self._again[key] = max(priority, self._again.get(key, priority))
            return
        self._put(key, priority)

    def _put(self, key: K, priority: int) -> None:
        waiting = self._queued.get(key)
        if waiting is not None and waiting[0] <= -priority:
            return
        entry = (-priority, next(self._order))
        self._queued[key] = entry
        heapq.heappush(self._ready, (*entry, key))
        self._wake.set()

    def add_after(self, key: K, seconds: float, *, priority: int = 0) -> None:
        """Add a key after a delay. Of several delays for a key, the earliest counts."""
        if self._closed:
            return
        if self.tell is not None:
            self.tell.retried()
        if seconds <= 0:
            self.add(key, priority=priority)
            return
        due = self._clock.monotonic() + seconds
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._drop_void()
        heapq.heappush(self._later, (due, next(self._order), key, priority))
        self._wake.set()

    def _drop_void(self) -> None:
        """Drop entries that an earlier one replaced; they would stay until they are due."""
        if len(self._later) > 2 * len(self._due) + _VOID_ENTRIES:
            self._later = [entry for entry in self._later if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._later)

    def add_failed(self, key: K, *, priority: int = 0) -> float:
        """Requeue the key after its back-off, which grows until `forget`; return the delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(self._failures[key], self._chance())
        self.add_after(key, delay, priority=priority)
        return delay

    def forget(self, key: K) -> None:
        """Reset the back-off of the key."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Return the next key; `done` must follow.

        Raises QueueShutDown when the queue is shut down and empty.
        """
        while True:
            self._promote()
            if (key := self._pop()) is not None:
                self._working.add(key[0])
                if self.tell is not None:
                    self.tell.taken(key[0])
                if self._queued:
                    self._wake.set()  # another worker may take the next one
                return key[0]
            if self._closed:
                self._wake.set()
                raise QueueShutDown
            self._wake.clear()
            delay = self._later[0][0] - self._clock.monotonic() if self._later else None
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        self._working.discard(key)
        if self.tell is not None:
            self.tell.done(key)
        priority = self._again.pop(key, None)
        if priority is not None and not self._closed:
            self._put(key, priority)

    def shut_down(self) -> None:
        """Accept no more keys; ready keys are still returned, delayed keys are dropped."""
        self._closed = True
        self._again.clear()
        self._later.clear()
        self._due.clear()
        self._wake.set()

    async def run(self, reconcile: Reconcile[K], *, workers: int = 1) -> None:
        """Reconcile keys until shut down. After an error the key is retried with back-off."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work(reconcile))

    async def _work(self, reconcile: Reconcile[K]) -> None:
        while True:
            try:
                key = await self.get()
            except QueueShutDown:
                return
            try:
                again_in = await reconcile(key)
            except Exception as error:
                delay = self.add_failed(key)
                # A conflict shows that another client wrote; reading again is enough.
                say = log.debug if isinstance(error, Conflict) else log.warning
                say("reconcile failed", key=str(key), reason=str(error), retry_in=round(delay, 2))
            else:
                self.forget(key)
                if again_in is not None:
                    # The delay is bounded: a late key is reconciled early once more, and a deleted one is not
                    # kept long.
                    self.add_after(key, min(again_in.after, LONGEST_SECONDS))
            finally:
                self.done(key)

    def _promote(self) -> None:
        """Move due keys to the ready keys."""
        now = self._clock.monotonic() + EARLY_SECONDS
        while self._later and self._later[0][0] <= now:
            due, _, key, priority = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key, priority=priority)

    def _pop(self) -> tuple[K] | None:
        while self._ready:
            rank, order, key = heapq.heappop(self._ready)
            if self._queued.get(key) == (rank, order):
                del self._queued[key]
                return (key,)
        return None
