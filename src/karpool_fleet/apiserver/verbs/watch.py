"""watch: a stream of changes from a resourceVersion on, without gaps.

A stream starts at a resourceVersion, or with the current state as ADDED events, and ends after its timeout.
It holds no queue: it reads the history at its own pace. When the history has dropped its position, the stream
ends with a 410 so that the client lists again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence

import msgspec

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.serve.response_bodies import Form, Renderer
from karpool_fleet.apiserver.serve.routes import Query
from karpool_fleet.apiserver.serve.status import JSON, ApiStatusError, bad_request, expired
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.selectors import StoredSelection

DEFAULT_SECONDS = 2700.0  # kube-apiserver ends a watch after 30 to 60 minutes
_BATCH_EVENTS = 256  # events joined into one write
_BATCH_RECORDS = 256

BeforeSend = Callable[[], Awaitable[None]]


class WatchStream:
    """A `StreamResponse`; `chunks` may be iterated once."""

    def __init__(
        self,
        cluster: ServedCluster,
        renderer: Renderer,
        selection: StoredSelection,
        query: Query,
        before_send: BeforeSend | None,
    ) -> None:
        self.status = 200
        self.headers: Mapping[str, str] = JSON
        self._cluster = cluster
        self._history = cluster.collection(renderer.resource).history
        self._renderer = renderer
        self._selection = selection
        self._before_send = before_send
        self._everything = selection.namespace is None and not selection.filtered
        self._bookmarks = query.flag("allowWatchBookmarks")
        seconds = query.number("timeoutSeconds")
        self._seconds = float(seconds) if seconds else DEFAULT_SECONDS
        self._initial: Sequence[StoredObject] = ()
        self._initial_version = cluster.store.version
        self._mark_initial_end = False
        self._position = self._start(query)

    def _start(self, query: Query) -> int:
        version = query.number("resourceVersion")
        current = self._cluster.store.version
        if version and version > current:
            # Only a recreated server is behind its clients: they come from another history.
            raise expired(f"resource version {version} is newer than the newest, {current}; list again")
        if _wants_initial_events(query, version):
            self._initial = self._selection.candidates(self._cluster.collection(self._renderer.resource))
            self._mark_initial_end = query.flag("sendInitialEvents") and self._bookmarks
            return self._history.end
        if not version:
            return self._history.end
        position = self._history.after(version)
        if position is None:
            raise expired(
                f"too old resource version: {version} ({self._history.floor} is the oldest kept); list again"
            )
        return position

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        bookmark_at = loop.time() + self._cluster.bookmark_seconds
        for chunk in self._initial_chunks():
            await self._durable()
            yield chunk
        while True:
            events = self._history.since(self._position, _BATCH_EVENTS)
            if events is None:
                yield _error_line(expired("this watch fell too far behind; list again"))
                return
            if events:
                self._position += len(events)
                if chunk := self._join(events):
                    await self._durable()
                    yield chunk
            now = loop.time()
            if now >= deadline or (self._history.closed and not events):
                if self._bookmarks and self._position == self._history.end:
                    yield self._renderer.bookmark(self._cluster.store.version)
                return
            if events:
                continue
            if self._bookmarks and now >= bookmark_at:
                bookmark_at = now + self._cluster.bookmark_seconds
                await self._durable()
                if self._position == self._history.end:
                    yield self._renderer.bookmark(self._cluster.store.version)
                continue
            await self._history.wait(min(deadline, bookmark_at) - now)

    async def _durable(self) -> None:
        if self._before_send is not None:
            await self._before_send()

    def _initial_chunks(self) -> Iterator[bytes]:
        """Yield the current state in bounded chunks: 50,000 objects at once would block the loop."""
        records = [record for record in self._initial if self._selection.matches(record)]
        self._initial = ()
        for start in range(0, len(records), _BATCH_RECORDS):
            pieces: list[bytes] = []
            for record in records[start : start + _BATCH_RECORDS]:
                pieces += self._renderer.event("ADDED", record)
            yield b"".join(pieces)
        if self._mark_initial_end:
            yield self._renderer.bookmark(self._initial_version, initial_end=True)

    def _join(self, events: Sequence[StoredEvent]) -> bytes:
        pieces: list[bytes] = []
        render = self._renderer.event
        if self._everything and self._renderer.form is Form.OBJECT:
            for event in events:
                pieces += render(event.type, event.record)
        else:
            for event in events:
                if event_type := self._seen_as(event):
                    pieces += render(event_type, event.record)
        return b"".join(pieces)

    def _seen_as(self, event: StoredEvent) -> str:
        """Return the event type for a client that sees only selected objects; "" if it sees no change."""
        matches = self._selection.matches
        before = event.previous is not None and matches(event.previous)
        after = event.type != "DELETED" and matches(event.record)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else ""


def _wants_initial_events(query: Query, version: int | None) -> bool:
    match = query.choice("resourceVersionMatch", "Exact", "NotOlderThan")
    asked = query.text("sendInitialEvents")
    if not asked:
        if match:
            raise bad_request("resourceVersionMatch is for watches with sendInitialEvents only")
        return not version
    if match != "NotOlderThan":
        raise bad_request("sendInitialEvents needs resourceVersionMatch=NotOlderThan")
    return query.flag("sendInitialEvents")


def _error_line(error: ApiStatusError) -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"
