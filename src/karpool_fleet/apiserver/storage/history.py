"""The recent changes of one resource, in order, so that a watch can start in the past.

A watch holds only a position in this history: live delivery and resuming are the same loop. Memory is bounded
by events, bytes and age, whatever watchers do. For a watch that is too slow, `since` returns None and the
client must list again.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from karpool_fleet.apiserver.storage.record import StoredObject

MAX_EVENTS = 16_384  # 16 s at 1,000 events/s for a stalled client to catch up
MAX_BYTES = 96 * 1024 * 1024
LOOK_SECONDS = 300.0  # as etcd is compacted: every five minutes, up to the state of the previous check
_TRIM_EVERY = 512  # trimming moves the whole list, so do it in blocks

_version = attrgetter("version")


class StoredEvent:
    """`record` is the state after the change; for DELETED, the last state at the version of the deletion."""

    __slots__ = ("previous", "record", "type", "version")

    def __init__(self, event_type: str, record: StoredObject, previous: StoredObject | None) -> None:
        self.type = event_type
        self.record = record
        self.previous = previous
        self.version = record.version


class WatchHistory:
    def __init__(
        self,
        *,
        floor: int,
        now: Callable[[], float],
        max_events: int = MAX_EVENTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.floor = floor  # the oldest resourceVersion after which every change is still held
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: list[StoredEvent] = []
        self._first = 0  # position of _events[0]; positions only grow
        self._bytes = 0
        self._now = now  # monotonic
        self._looked = float("-inf")  # a loop, which tells the time, may not be running yet
        self._old = 0  # the end position at the last check
        self._waiting: list[asyncio.Future[None]] = []
        self.closed = False

    def close(self) -> None:
        """Close the history: watches end once they have read everything."""
        self.closed = True
        self.wake()

    def append(self, event: StoredEvent) -> None:
        if (now := self._now()) - self._looked >= LOOK_SECONDS:
            self._forget_old(now)
        self._events.append(event)
        self._bytes += len(event.record.data)
        if len(self._events) >= self._max_events + _TRIM_EVERY or self._bytes > self._max_bytes:
            self._trim()
        if self._waiting:
            self.wake()

    def _trim(self) -> None:
        drop = max(0, len(self._events) - self._max_events)
        spare = self._bytes - sum(len(event.record.data) for event in self._events[:drop])
        while spare > self._max_bytes * 3 // 4 and drop < len(self._events) - 1:
            spare -= len(self._events[drop].record.data)
            drop += 1
        self._drop(drop)

    def _forget_old(self, now: float) -> None:
        # No writes for two rounds: all of it is old, not only what the last check saw.
        old = self._old if now - self._looked < 2 * LOOK_SECONDS else self.end
        self._drop(max(0, old - self._first))
        self._old, self._looked = self.end, now

    def _drop(self, count: int) -> None:
        if count:
            self.floor = self._events[count - 1].version
            self._bytes -= sum(len(event.record.data) for event in self._events[:count])
            del self._events[:count]
            self._first += count

    @property
    def end(self) -> int:
        """The position after the newest event."""
        return self._first + len(self._events)

    def after(self, version: int) -> int | None:
        """Return the position of the first event newer than `version`; None if some were dropped."""
        if version < self.floor:
            return None
        return self._first + bisect_right(self._events, version, key=_version)

    def since(self, position: int, limit: int) -> Sequence[StoredEvent] | None:
        """At most `limit` events from `position` on; None when that position is no longer held."""
        offset = position - self._first
        if offset < 0:
            return None
        return self._events[offset : offset + limit]

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Return at the next event, or after `timeout` seconds of the loop's time; spuriously too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout, _release, future)
        self._waiting.append(future)
        try:
            await future
        finally:
            timer.cancel()
            if future in self._waiting:
                self._waiting.remove(future)


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
