"""A cache of the objects that a controller's owners have, including its own recent writes.

A watch reports a write some time after it is done. A controller that counts only reported pods would create a
missing pod twice. So every own write is assumed here at once, and replaced when the watch reports a state
that is as new. After a restart, `catch_up` reads from the server what a former process did and the watch has
not reported yet. `verify` checks assumed objects that are never confirmed.

Objects without a controller are kept apart, by label, for adoption.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import ApiResource, ObjectKey
from karpool.model.kubernetes.meta import ObjectMeta, OwnerReference, Wire
from karpool.model.labels import LabelMatcher
from karpool_fleet.runtime.informers import STRUCTS, Feed

T = TypeVar("T")

VERIFY_SECONDS = 30.0


def meta_of(obj: Any) -> ObjectMeta:
    if isinstance(obj, dict):
        return msgspec.convert(obj["metadata"], ObjectMeta)
    meta: ObjectMeta = obj.metadata
    return meta


def key_of(meta: ObjectMeta) -> ObjectKey:
    return ObjectKey(meta.namespace, meta.name)


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    for owner in meta.owner_references or ():
        if owner.controller:
            return owner
    return None


def version_of(meta: ObjectMeta) -> int:
    """Return the version as a number; versions of the embedded server grow over all kinds."""
    return int(meta.resource_version) if meta.resource_version.isdecimal() else 0


def label_pair(selector: LabelMatcher) -> tuple[str, str] | None:
    """Return a label that all selected objects must have, for an index lookup."""
    for requirement in selector.requirements:
        if requirement.operator == "In" and len(requirement.values) == 1:
            return requirement.key, next(iter(requirement.values))
    return None


@dataclass(slots=True)
class _Entry(Generic[T]):
    uid: str
    version: int
    owner: str  # uid of the controller; empty for an orphan
    object: T
    group: str = ""


class _Listed(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class Dependents(Generic[T]):
    """Objects of `resource` that are controlled by owners of one kind, or have no controller."""

    def __init__(
        self,
        feed: Feed[T],
        client: Client,
        resource: ApiResource,
        owner: ApiResource,
        *,
        on_owner: Callable[[ObjectKey, str], None],
        on_orphan: Callable[[str, dict[str, str]], None],
        group: Callable[[T], str] | None = None,
    ) -> None:
        """Create the cache.

        `on_owner(key, change)` is called with an owner to reconcile; `change` is ADDED, MODIFIED or DELETED.
        `on_orphan(namespace, labels)` is called for an object without a controller. With `group`, an owner's
        objects, and the groups that have changed, can be read by group.
        """
        self._client = client
        self.resource = resource
        self._owner = owner
        self._on_owner = on_owner
        self._on_orphan = on_orphan
        self._entries: dict[ObjectKey, _Entry[T]] = {}
        self._by_owner: dict[str, dict[ObjectKey, T]] = {}
        self._orphans: dict[tuple[str, str, str], dict[ObjectKey, T]] = {}
        self._assumed: dict[ObjectKey, float] = {}  # not yet confirmed -> since when
        self._group = group
        self._groups: dict[tuple[str, str], dict[ObjectKey, T]] = {}  # by owner and group
        self._touched: dict[str, dict[str, None]] = {}  # owner -> groups that changed since the last read
        self._unchecked: dict[str, dict[ObjectKey, None]] = {}  # by owner: new objects, or with new labels
        self._going: dict[str, ObjectKey] = {}  # uids that we deleted, until the watch reports it
        self._wake = asyncio.Event()
        feed.add_sink(self)

    # Reading

    def of(self, uid: str) -> list[T]:
        """Return what an owner controls, in order of first appearance."""
        return list(self._by_owner.get(uid, {}).values())

    def in_group(self, uid: str, group: str) -> list[T]:
        return list(self._groups.get((uid, group), {}).values())

    def take_touched(self, uid: str) -> list[str]:
        """Return the groups of an owner that have changed since the last call."""
        return list(self._touched.pop(uid, ()))

    def unchecked(self, uid: str) -> list[T]:
        """Return an owner's objects whose labels have not been compared with its selector yet."""
        entries = (self._entries.get(key) for key in self._unchecked.get(uid, ()))
        return [entry.object for entry in entries if entry is not None]

    def checked(self, uid: str) -> None:
        self._unchecked.pop(uid, None)

    def get(self, key: ObjectKey) -> T | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.object

    def orphans(self, namespace: str, selector: LabelMatcher) -> list[T]:
        """Return objects without a controller that a selector matches."""
        pair = label_pair(selector) or ("", "")
        held = self._orphans.get((namespace, *pair), {})
        return [obj for obj in held.values() if selector.matches(meta_of(obj).labels or {})]

    # Our own writes

    def assume(self, answer: Object) -> None:
        """Store the answer to our write as the newest state."""
        into = STRUCTS.get(self.resource)
        obj: Any = answer if into is None else msgspec.convert(answer, into, strict=False)
        meta = meta_of(obj)
        key = key_of(meta)
        entry = self._entries.get(key)
        if entry is None and meta.deletion_timestamp:
            return  # deleted during our write
        if entry is not None and entry.version >= version_of(meta):
            return
        self._store(key, meta, obj)
        self._assumed[key] = self._client.clock.monotonic()
        self._wake.set()

    def assume_deleted(self, key: ObjectKey, uid: str) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._going[uid] = key
            self._store(key, meta_of(entry.object), entry.object)

    def forget_owner(self, uid: str) -> None:
        """Drop the groups of a deleted owner."""
        self._touched.pop(uid, None)

    def forget(self, key: ObjectKey, uid: str) -> None:
        """Remove an object that the server does not have."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid == uid:
            self._remove(key, entry)
            self._tell(meta_of(entry.object), "DELETED")

    # Events of the watch

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            if change.object is not None:
                self._apply(change.type, change.key, change.object)

    def _apply(self, event_type: str, key: ObjectKey, obj: T) -> None:
        meta = meta_of(obj)
        entry = self._entries.get(key)
        if event_type == "DELETED":
            self._going.pop(meta.uid, None)
            if entry is not None and entry.uid == meta.uid:
                self._remove(key, entry)
                self._tell(meta, event_type)
            return
        if entry is not None:
            if version_of(meta) < entry.version:
                return
            self._assumed.pop(key, None)
        controller = controller_of(meta)
        mine = self._is_mine(controller)
        if entry is not None and entry.owner and (not mine or (controller and controller.uid != entry.owner)):
            self._tell(meta_of(entry.object), event_type)  # released, or adopted by another owner
        if mine or controller is None:
            fresh = entry is None or entry.owner or _labels_changed(entry.object, meta)
            self._store(key, meta, obj)
            if mine:
                self._tell(meta, event_type)
            elif fresh:
                self._on_orphan(meta.namespace, meta.labels or {})
        elif entry is not None:
            self._remove(key, entry)

    def _is_mine(self, controller: OwnerReference | None) -> bool:
        return (
            controller is not None
            and controller.kind == self._owner.kind
            and controller.api_version == self._owner.api_version
        )

    def _tell(self, meta: ObjectMeta, event_type: str) -> None:
        controller = controller_of(meta)
        if controller is not None and self._is_mine(controller):
            self._on_owner(ObjectKey(meta.namespace, controller.name), event_type)

    def _store(self, key: ObjectKey, meta: ObjectMeta, obj: T) -> None:
        before = self._entries.get(key)
        if before is not None and before.uid != meta.uid:
            self._remove(key, before)
            before = None
        if meta.uid in self._going:
            if meta.deletion_timestamp:
                del self._going[meta.uid]
            else:
                obj = _as_deleted(obj)
        controller = controller_of(meta)
        owner = controller.uid if controller is not None and self._is_mine(controller) else ""
        if before is not None and (before.owner != owner or not owner):
            self._unindex(key, before)
        entry = self._entries[key] = _Entry(meta.uid, version_of(meta), owner, obj)
        if owner:
            self._by_owner.setdefault(owner, {})[key] = obj
            if before is None or before.owner != owner or _labels_changed(before.object, meta):
                self._unchecked.setdefault(owner, {})[key] = None
            if self._group is not None:
                self._regroup(key, before, entry, self._group(obj))
        else:
            for pair in _pairs(meta):
                self._orphans.setdefault((meta.namespace, *pair), {})[key] = obj

    def _regroup(self, key: ObjectKey, before: _Entry[T] | None, entry: _Entry[T], group: str) -> None:
        if before is not None and before.owner == entry.owner and before.group != group:
            self._ungroup(key, before)
        entry.group = group
        self._groups.setdefault((entry.owner, group), {})[key] = entry.object
        self._touched.setdefault(entry.owner, {})[group] = None

    def _ungroup(self, key: ObjectKey, entry: _Entry[T]) -> None:
        _drop(self._groups, (entry.owner, entry.group), key)
        self._touched.setdefault(entry.owner, {})[entry.group] = None

    def _remove(self, key: ObjectKey, entry: _Entry[T]) -> None:
        del self._entries[key]
        self._assumed.pop(key, None)
        self._going.pop(entry.uid, None)
        self._unindex(key, entry)

    def _unindex(self, key: ObjectKey, entry: _Entry[T]) -> None:
        if entry.owner:
            _drop(self._by_owner, entry.owner, key)
            _drop(self._unchecked, entry.owner, key)
            if self._group is not None:
                self._ungroup(key, entry)
        else:
            for pair in _pairs(meta_of(entry.object)):
                _drop(self._orphans, (key.namespace, *pair), key)

    # Reads from the server

    async def catch_up(self) -> None:
        """Read what a former process wrote and the watch has not reported yet."""
        page = await self._client.list(self.resource, into=_Listed)
        listed: set[ObjectKey] = set()
        for item in page.items:
            meta = item.metadata
            key = key_of(meta)
            listed.add(key)
            entry = self._entries.get(key)
            behind = entry is None or entry.version < version_of(meta)
            if behind and self._is_mine(controller_of(meta)):
                await self._read(key)
        until = int(page.resource_version) if page.resource_version.isdecimal() else 0
        for key, entry in list(self._entries.items()):
            if key not in listed and entry.version <= until:
                self.forget(key, entry.uid)

    async def verify(self) -> None:
        """Read objects that have been assumed for long, until cancelled."""
        clock = self._client.clock
        while True:
            await self._wake.wait()
            await clock.sleep(VERIFY_SECONDS)
            self._wake.clear()
            for key, since in list(self._assumed.items()):
                if clock.monotonic() - since >= VERIFY_SECONDS and key in self._assumed:
                    await self._read(key)
            if self._assumed:
                self._wake.set()

    async def _read(self, key: ObjectKey) -> None:
        entry = self._entries.get(key)
        into: type[Any] = STRUCTS.get(self.resource, dict)
        try:
            obj = await self._client.get(self.resource, key.name, namespace=key.namespace, into=into)
        except NotFound:
            if entry is not None:
                self.forget(key, entry.uid)
            return
        meta = meta_of(obj)
        known = self._entries.get(key)
        if known is None or known.version <= version_of(meta):
            self._store(key, meta, obj)
            self._assumed[key] = self._client.clock.monotonic()
            self._tell(meta, "MODIFIED")


def _as_deleted(obj: Any) -> Any:
    """Return the object with a deletion mark, while the watch shows it without one."""
    mark = "assumed"
    if isinstance(obj, dict):
        return {**obj, "metadata": {**obj["metadata"], "deletionTimestamp": mark}}
    metadata = msgspec.structs.replace(obj.metadata, deletion_timestamp=mark)
    return msgspec.structs.replace(obj, metadata=metadata)


def _labels_changed(old: Any, meta: ObjectMeta) -> bool:
    return meta_of(old).labels != meta.labels


def _pairs(meta: ObjectMeta) -> Iterable[tuple[str, str]]:
    yield "", ""
    yield from (meta.labels or {}).items()


K = TypeVar("K")


def _drop(index: dict[K, dict[ObjectKey, Any]], at: K, key: ObjectKey) -> None:
    held = index.get(at)
    if held is not None:
        held.pop(key, None)
        if not held:
            del index[at]
