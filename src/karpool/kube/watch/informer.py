"""Keeps a local copy of one resource kind, current within the delay of the watch.

Sinks see every object at least once and never see an older version after a newer one. Intermediate versions
may be skipped; deletions missed while disconnected are delivered after the next list. With `keep=False` only
keys and versions are kept, and objects are passed to the sinks page by page. Errors never end an informer: it
backs off, logs the error, and `staleness` grows. An object that cannot be decoded still counts as seen, in a
list and in a watch; sinks that handle such objects receive `UNREADABLE`.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import structlog

from karpool.cluster.changes import DELETED, UNREADABLE, WHOLE_KIND, ChangeSink, ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import SkippedObject, identity_of
from karpool.kube.api.reader import PAGE_SIZE
from karpool.kube.errors import Denied, Gone, KubeError, NotFound, ServerFault
from karpool.kube.transport.backoff import Backoff
from karpool.kube.watch.watch import STEADY_SECONDS, Watch, WatchEvent
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions, ObjectKey

T = TypeVar("T")

log = structlog.get_logger(__name__)

STALE_LIST_LIMIT = 3  # after so many lists with an older state, the server has lost its history
EXPIRED_LIST_LIMIT = 2  # expired lists before the informer asks for a single page


class _Entry(NamedTuple):
    uid: str
    version: str
    object: Any


class Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        resource: ApiResource,
        *,
        into: type[T],
        selection: ListOptions = ALL,
        keep: bool = True,
        page_size: int = PAGE_SIZE,
        optional: bool = False,
        look_out_seconds: float | None = None,
    ) -> None:
        """Create an informer; `run` starts it.

        `optional`: a missing kind is not logged as a warning. `look_out_seconds`: longest interval between
        checks for a missing kind; by default that of other errors.
        """
        self.resource = resource
        self.synced = asyncio.Event()
        self.relists = 0
        self.last_error: KubeError | None = None
        self._client = client
        self._into = into
        self._selection = selection
        self._keep = keep
        self._page_size = page_size
        self._optional = optional
        self._look_out_seconds = look_out_seconds
        # Objects that exist and cannot be decoded, with the reason.
        self.unreadable: dict[ObjectKey, str] = {}
        self._closed = False  # whether sinks were told that the kind may not be listed
        self._entries: dict[ObjectKey, _Entry] = {}
        self._version = ""
        self._sinks: list[ChangeSink[T]] = []
        self._last_contact: float | None = None
        self._stale_lists = 0
        self._expired_lists = 0

    # Reading

    def get(self, key: ObjectKey) -> T | None:
        """The kept object; None when there is none, or with `keep=False`."""
        entry = self._entries.get(key)
        return None if entry is None else entry.object

    def objects(self) -> Iterator[T]:
        return (entry.object for entry in self._entries.values() if entry.object is not None)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._entries

    def staleness(self) -> float:
        """Seconds since the last message of the server; infinite before the first."""
        if self._last_contact is None:
            return float("inf")
        return self._client.clock.monotonic() - self._last_contact

    # Listening

    @property
    def sinks(self) -> Sequence[ChangeSink[T]]:
        return self._sinks

    def add_sink(self, sink: ChangeSink[T]) -> None:
        """Add a sink. A late sink first receives the objects kept so far (none with `keep=False`)."""
        self._sinks.append(sink)
        held = [
            ObjectChange("ADDED", key, e.object) for key, e in self._entries.items() if e.object is not None
        ]
        if held:
            self._tell(sink, held)

    # Running

    async def run(self) -> NoReturn:
        """List, watch, and start again when the server requires it, until cancelled."""
        failures = 0
        while True:
            followed_at: float | None = None
            try:
                await self._relist()
                followed_at = self._client.clock.monotonic()
                await self._follow()
            except Gone as error:
                log.debug("listing again", resource=str(self.resource), reason=str(error))
            except KubeError as error:
                self._interrupted(error)
            # The end of a long watch is normal; short ones must back off more and more.
            failures = 1 if self._followed_for(followed_at) >= STEADY_SECONDS else failures + 1
            backoff = Backoff(first=0.5, limit=self._client.rest.pace.retry_seconds)
            pause = backoff.delay(failures, self._client.chance())
            if self._look_out_seconds is not None and isinstance(self.last_error, NotFound):
                pause = min(pause, self._look_out_seconds)
            await self._client.clock.sleep(pause)

    def _interrupted(self, error: KubeError) -> None:
        """Log an error once, and again when it changes: a kind may be missing for ever."""
        again = self.last_error is not None and str(self.last_error) == str(error)
        self.last_error = error
        if isinstance(error, Denied) and not self.synced.is_set() and not self._closed:
            self._tell_of_kind(ObjectChange(UNREADABLE, WHOLE_KIND, None, reason=f"not read: {error}"))
        expected = self._optional and isinstance(error, NotFound)
        if isinstance(error, NotFound) and not self._entries:
            # Counts as contact only if there are no objects; known objects of a vanished kind become stale.
            self._heard()
        if expected:
            (log.debug if again else log.info)(
                "kind not served yet, waiting for it", resource=str(self.resource)
            )
            return
        say = log.debug if again else log.warning
        say("informer interrupted", resource=str(self.resource), reason=str(error))

    def _followed_for(self, since: float | None) -> float:
        return 0.0 if since is None else self._client.clock.monotonic() - since

    async def _relist(self) -> None:
        """Update the copy from a list; `_version` is where the watch starts."""
        self.relists += 1
        seen: set[ObjectKey] = set()
        version, nameless = "", False
        size = self._page_size if self._expired_lists < EXPIRED_LIST_LIMIT else 0
        pages = self._client.pages(self.resource, self._selection, page_size=size, into=self._into)
        try:
            async with aclosing(pages) as listed:
                async for page in listed:
                    self._heard()
                    if not version:
                        version = page.resource_version
                        self._refuse_older_state(version)
                    changes = self._changes_of_page(page.items, seen)
                    nameless |= any(skipped.identity is None for skipped in page.bad)
                    self._deliver([*changes, *self._unreadable_of_page(page.bad, seen)])
        except Gone:
            self._expired_lists += 1
            raise
        self._expired_lists = self._stale_lists = 0
        # An object without a readable name may be any of the known ones, so none of them counts as deleted.
        self._deliver(self._deletions({*seen, *self._entries} if nameless else seen))
        if self._closed:
            self._tell_of_kind(ObjectChange(DELETED, WHOLE_KIND, None))
        self._version = version
        self.last_error = None
        self.synced.set()

    def _refuse_older_state(self, version: str) -> None:
        if not _is_older(version, self._version):
            return
        self._stale_lists += 1
        if self._stale_lists < STALE_LIST_LIMIT:
            message = f"the list is of version {version}, but {self._version} was seen"
            raise ServerFault(f"GET {self.resource}", 500, reason="Stale", message=message)
        log.warning("server history restarted", resource=str(self.resource), version=version)
        # Known versions belong to another history; only uids are still valid.
        self._entries = {key: entry._replace(version="") for key, entry in self._entries.items()}

    def _changes_of_page(self, objects: Sequence[T], seen: set[ObjectKey]) -> list[ObjectChange[T]]:
        changes: list[ObjectChange[T]] = []
        for obj in objects:
            key, uid, version = identity_of(obj)
            seen.add(key)
            entry = self._entries.get(key)
            same = entry is not None and entry.uid == uid and entry.version == version
            if same and key not in self.unreadable:
                continue
            changes.extend(self._put(key, uid, version, obj))
        return changes

    def _unreadable_of_page(
        self, skipped: Sequence[SkippedObject], seen: set[ObjectKey]
    ) -> list[ObjectChange[T]]:
        changes: list[ObjectChange[T]] = []
        for bad in skipped:
            key, uid, version = bad.identity or (ObjectKey("", bad.name), "", "")
            seen.add(key)
            entry = self._entries.get(key)
            again = entry is not None and entry.uid == uid and entry.version == version
            if not again or key not in self.unreadable:
                changes += self._cannot_read(key, uid, version, bad.raw, bad.reason)
        return changes

    def _cannot_read(
        self, key: ObjectKey, uid: str, version: str, raw: bytes, reason: str
    ) -> list[ObjectChange[T]]:
        entry = self._entries.get(key)
        self._entries[key] = _Entry(uid, version, entry.object if entry is not None else None)
        self.unreadable[key] = reason
        change: ObjectChange[T] = ObjectChange(UNREADABLE, key, None, raw=raw, reason=reason)
        if entry is not None and entry.uid != uid:  # deleted and created again while disconnected
            return [ObjectChange("DELETED", key, entry.object), change]
        return [change]

    def _deletions(self, seen: set[ObjectKey]) -> list[ObjectChange[T]]:
        missing = [key for key in self._entries if key not in seen]
        for key in missing:
            self.unreadable.pop(key, None)
        return [ObjectChange("DELETED", key, self._entries.pop(key).object) for key in missing]

    async def _follow(self) -> None:
        watch = Watch(
            self._client.rest,
            self.resource,
            self._version,
            self._into,
            selection=self._selection,
            report=self._client.report,
            on_contact=self._followed,
            on_failure=self._lost,
        )
        async with aclosing(watch.batches()) as batches:
            async for batch in batches:
                self._deliver([change for event in batch for change in self._changes_of(event)])

    def _changes_of(self, event: WatchEvent[T]) -> list[ObjectChange[T]]:
        # Versions of one kind only grow along a watch, so an event whose version does
        # not grow is a repetition.
        if event.version == self._version or _is_older(event.version, self._version):
            return []
        self._version = event.version or self._version
        if event.type == "DELETED":
            entry = self._entries.pop(event.key, None)
            self.unreadable.pop(event.key, None)
            if entry is None:
                return []
            return [
                ObjectChange("DELETED", event.key, event.object if event.object is not None else entry.object)
            ]
        if event.reason:
            return self._cannot_read(event.key, event.uid, event.version, event.raw, event.reason)
        if event.object is None:  # a bookmark
            return []
        return self._put(event.key, event.uid, event.version, event.object)

    def _put(self, key: ObjectKey, uid: str, version: str, obj: T) -> list[ObjectChange[T]]:
        entry = self._entries.get(key)
        if self.unreadable and self.unreadable.pop(key, None) is not None:
            # New for sinks, because it was unreadable before.
            entry = entry if entry is None or entry.object is not None else None
        # Namespaces repeat thousands of times; intern them.
        key = ObjectKey(sys.intern(key.namespace), key.name)
        self._entries[key] = _Entry(uid, version, obj if self._keep else None)
        if entry is None:
            return [ObjectChange("ADDED", key, obj)]
        if entry.uid != uid:  # deleted and created again while disconnected
            return [ObjectChange("DELETED", key, entry.object), ObjectChange("ADDED", key, obj)]
        return [ObjectChange("MODIFIED", key, obj, entry.object)]

    def _deliver(self, changes: list[ObjectChange[T]]) -> None:
        if changes:
            for sink in self._sinks:
                self._tell(sink, changes)

    def _tell_of_kind(self, change: ObjectChange[T]) -> None:
        self._closed = change.type == UNREADABLE
        for sink in self._sinks:
            if getattr(sink, "takes_whole_kind", False):
                self._tell(sink, [change])

    def _tell(self, sink: ChangeSink[T], changes: Sequence[ObjectChange[T]]) -> None:
        if not getattr(sink, "takes_unreadable", False):
            changes = [change for change in changes if change.type != UNREADABLE]
            if not changes:
                return
        try:
            sink.apply(changes)
        except Exception:
            # A faulty sink must not keep the others, or the copy, from being current.
            log.exception("listener raised", resource=str(self.resource), changes=len(changes))

    def _followed(self) -> None:
        self.last_error = None
        self._heard()

    def _lost(self, error: KubeError) -> None:
        """Keep the reason for the silence; the watch retries by itself."""
        self.last_error = error

    def _heard(self) -> None:
        self._last_contact = self._client.clock.monotonic()


def _is_older(version: str, than: str) -> bool:
    """Compare versions of one kind as integers; other versions are never older."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
