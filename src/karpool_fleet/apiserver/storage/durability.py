"""Writes every change to a journal before clients see it, and reads it back at the start.

A response, to a write or to a read, is sent only when all changes that it could reflect are on disk. The
journal is rewritten as a snapshot when it has grown to a multiple of its state.
"""

import asyncio
from collections.abc import Iterator

import msgspec
import structlog

from karpool_fleet.apiserver.serve.status import internal
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.journal import Journal
from karpool_fleet.apiserver.storage.journal_file import JournalError
from karpool_fleet.apiserver.storage.store import ObjectStore

COMPACT_MIN_BYTES = 64 * 1024 * 1024
COMPACT_FACTOR = 3

log = structlog.get_logger(__name__)


class _Header(msgspec.Struct, omit_defaults=True):
    """First line of a record; a PUT is followed by the object."""

    op: str  # PUT, DELETE or VERSION
    version: int
    resource: str = ""
    namespace: str = ""
    name: str = ""


class Durability:
    def __init__(self, journal: Journal, store: ObjectStore) -> None:
        self._journal = journal
        self._store = store
        self._last = 0
        # No more answers after a failure: memory is ahead of the disk.
        self._failure: JournalError | None = None
        self._compacting: asyncio.Task[None] | None = None
        self._compact_at = COMPACT_MIN_BYTES
        self._restore()
        store.listeners.insert(0, self._on_change)

    @property
    def pending(self) -> bool:
        return self._journal.durable < self._last or self._failure is not None

    async def settle(self) -> None:
        """Wait until every change so far is on disk; raises StatusError on failure."""
        try:
            if self._failure is not None:
                raise self._failure
            await self._journal.flush_to(self._last)
        except JournalError as error:
            self._failure = error
            raise internal(f"the change could not be written to disk: {error}") from error
        if self._journal.size_bytes > self._compact_at and self._compacting is None:
            self._compacting = asyncio.get_running_loop().create_task(self._compact())

    async def close(self) -> None:
        if self._compacting is not None:
            await asyncio.wait([self._compacting])
        self._journal.close()

    def _on_change(self, event: StoredEvent) -> None:
        if self._failure is not None:
            return  # a journal with a gap would be worse than one that ends
        record = event.record
        resource = record.collection.group_resource
        if event.type == "DELETED":
            header = _Header("DELETE", event.version, resource, record.namespace, record.name)
            entry = msgspec.json.encode(header)
        else:
            entry = _put(resource, event.version, record.data)
        try:
            self._last = self._journal.append(entry)
        except JournalError as error:
            self._failure = error

    def _restore(self) -> None:
        version = 0
        for raw in self._journal.replay():
            line, _, data = raw.partition(b"\n")
            header = msgspec.json.decode(line, type=_Header)
            version = max(version, header.version)
            if header.op == "PUT":
                self._store.restore(header.resource, msgspec.json.decode(data), data)
            elif header.op == "DELETE":
                self._store.restore_removal(header.resource, header.namespace, header.name)
        if version:
            self._store.restored(version)

    async def _compact(self) -> None:
        try:
            await self._journal.compact(self._snapshot())
            self._compact_at = max(COMPACT_MIN_BYTES, COMPACT_FACTOR * self._journal.size_bytes)
        except JournalError:
            log.exception("journal not compacted; the old file stays in use")
        finally:
            self._compacting = None

    def _snapshot(self) -> Iterator[bytes]:
        yield msgspec.json.encode(_Header("VERSION", self._store.version))
        for collection in self._store.collections():
            for record in collection.records():
                yield _put(collection.group_resource, record.version, record.data)


def _put(resource: str, version: int, data: bytes) -> bytes:
    return msgspec.json.encode(_Header("PUT", version, resource)) + b"\n" + data
