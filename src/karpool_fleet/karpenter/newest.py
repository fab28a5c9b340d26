"""A cache of one cluster-scoped kind that includes our own writes at once.

A watch reports a write some time after it is done. So the answer to a write counts as the newest state, and
is replaced when the watch has caught up. After a restart `catch_up` reads from the server what the watch has
not reported yet, and `verify` reads objects whose writes the watch never confirmed. Writes name the version
they are based on, so that no write of another client is lost.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import Conflict, NotFound
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import WireObject
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.runtime.supervisor import Context

T = TypeVar("T", bound=WireObject)
VERIFY_SECONDS = 30.0
Listener = Callable[[T | None, T | None], None]  # before, after


class Newest(Generic[T]):
    def __init__(self, context: Context, resource: ApiResource, into: type[T]) -> None:
        self.resource = resource
        self._client = context.client
        self._clock = context.clock
        self._into = into
        self._known: dict[str, T] = {}
        self._unseen: dict[str, float] = {}  # written and not confirmed by the watch -> since
        self._listeners: list[Listener[T]] = []
        self._wake = asyncio.Event()
        self._feed = context.informers.of(resource, into)

    def start(self) -> None:
        """Start to listen; listeners receive everything that is known."""
        self._feed.on_change(self._on_change)

    def subscribe(self, listener: Listener[T]) -> None:
        self._listeners.append(listener)

    # Reading

    def get(self, name: str) -> T | None:
        return self._known.get(name)

    def __len__(self) -> int:
        return len(self._known)

    def objects(self) -> list[T]:
        return list(self._known.values())

    # Writing

    async def create(self, obj: Mapping[str, Any]) -> T:
        """Create an object. It is not repeated when the answer is lost; the watch will report it."""
        return self._assume(await self._client.create(self.resource, obj))

    async def patch(self, obj: T, patch: Mapping[str, Any], *, status: bool = False) -> T | None:
        """Apply a merge patch to exactly this version; return None if the object is gone. Raises Conflict."""
        meta = obj.metadata
        lock = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **lock}}
        try:
            answer = await self._client.patch(
                self.resource, obj.name, body, subresource="status" if status else ""
            )
        except NotFound:
            self._forget(obj)
            return None
        except Conflict:
            await self._read(obj.name)  # the watch may be far behind; a retry needs the newest state
            raise
        return self._assume(answer)

    async def delete(self, obj: T) -> None:
        try:
            await self._client.delete(self.resource, obj.name, uid=obj.metadata.uid)
        except NotFound:
            self._forget(obj)
            return
        except Conflict:
            if await self.exists(obj.name, obj.metadata.uid):
                raise  # not deleted yet; the caller has to try again
            self._forget(obj)
            return
        newest = self._known.get(obj.name)
        if newest is not None and newest.metadata.uid == obj.metadata.uid:
            self._put(_as_deleted(newest, rfc3339(self._clock.now())))
            self._note(obj.name)

    async def exists(self, name: str, uid: str) -> bool:
        """Ask the server, for decisions that cannot be undone."""
        with suppress(NotFound):
            current = await self._client.get(self.resource, name, into=self._into)
            return current.metadata.uid == uid
        return False

    def _assume(self, answer: Mapping[str, Any]) -> T:
        obj = msgspec.convert(answer, self._into, strict=False)
        if obj.metadata.deletion_timestamp and not obj.metadata.finalizers:
            self._forget(obj)
        elif self._is_news(obj):
            self._put(obj)
            self._note(obj.name)
        return obj

    def _note(self, name: str) -> None:
        self._unseen[name] = self._clock.monotonic()
        self._wake.set()

    # Events

    def _on_change(self, change: ObjectChange[T]) -> None:
        if change.object is None:
            return
        if change.type == "DELETED":
            self._forget(change.object)
            return
        newest = self._known.get(change.object.name)
        if newest is None or _version(change.object) >= _version(newest):
            self._unseen.pop(change.object.name, None)
        if self._is_news(change.object):
            self._put(change.object)

    def _is_news(self, obj: T) -> bool:
        newest = self._known.get(obj.name)
        return newest is None or _version(obj) > _version(newest)

    def _put(self, obj: T) -> None:
        before = self._known.get(obj.name)
        if before is not None and before.metadata.uid != obj.metadata.uid:
            self._forget(before)
            before = None
        self._known[obj.name] = obj
        for listener in self._listeners:
            listener(before, obj)

    def _forget(self, obj: T) -> None:
        newest = self._known.get(obj.name)
        if newest is None or newest.metadata.uid != obj.metadata.uid:
            return
        del self._known[obj.name]
        self._unseen.pop(obj.name, None)
        for listener in self._listeners:
            listener(newest, None)

    # Reads

    async def catch_up(self) -> None:
        page = await self._client.list(self.resource, into=self._into)
        listed: set[str] = set()
        for item in page.items:
            listed.add(item.name)
            if self._is_news(item):
                self._put(item)
                self._note(item.name)
        until = int(page.resource_version) if page.resource_version.isdecimal() else 0
        for held in self.objects():
            if held.name not in listed and _version(held) <= until:
                self._forget(held)

    async def verify(self) -> None:
        """Read objects that the watch has not confirmed for long, until cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(VERIFY_SECONDS)
            self._wake.clear()
            for name, since in list(self._unseen.items()):
                if self._clock.monotonic() - since >= VERIFY_SECONDS:
                    await self._read(name)
            if self._unseen:
                self._wake.set()

    async def _read(self, name: str) -> None:
        self._unseen.pop(name, None)
        newest = self._known.get(name)
        try:
            current = await self._client.get(self.resource, name, into=self._into)
        except NotFound:
            if newest is not None:
                self._forget(newest)
            return
        if self._is_news(current):
            self._put(current)


def _version(obj: WireObject) -> int:
    text = obj.metadata.resource_version
    return int(text) if text.isdecimal() else 0


def _as_deleted(obj: T, at: str) -> T:
    """Return the object with a deletion mark, while the watch shows it without one."""
    if obj.metadata.deletion_timestamp is not None:
        return obj
    metadata = msgspec.structs.replace(obj.metadata, deletion_timestamp=at)
    return msgspec.structs.replace(obj, metadata=metadata)
