"""Deletes events an hour after their last write, as in every cluster.

Writes arrive in order of time, so the oldest are at the front of a queue and expiring costs nothing until
something is due.
"""

from collections import deque

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject

LIFETIME_SECONDS = 3600.0
_EXPIRING = frozenset({"events"})
_AT_ONCE = 64


class Expiry:
    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._queue: deque[tuple[float, StoredObject]] = deque()
        cluster.store.listeners.append(self._on_change)

    def resume(self) -> None:
        """Start the hour of restored events now."""
        for kind in sorted(_EXPIRING):
            for record in self._cluster.store.collection(kind).records():
                self._queue.append((self._cluster.clock.monotonic() + LIFETIME_SECONDS, record))

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource not in _EXPIRING or event.type == "DELETED":
            return
        now = self._cluster.clock.monotonic()
        self._queue.append((now + LIFETIME_SECONDS, event.record))
        if self._queue[0][0] <= now:
            self._cluster.background.schedule(("expire",), self._expire)

    def _expire(self) -> None:
        now = self._cluster.clock.monotonic()
        for _ in range(_AT_ONCE):
            if not self._queue or self._queue[0][0] > now:
                return
            _, record = self._queue.popleft()
            if record.collection.get(*record.key) is record:  # not written again
                self._cluster.store.remove(record)
        self._cluster.background.schedule(("expire",), self._expire)
