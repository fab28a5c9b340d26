"""The object store, with one resourceVersion that only grows.

A write is one synchronous step: version, bytes, indexes, history and listeners change together, so a request
that does not await sees no half-done write. Listeners are called in the order in which they were added and
must be quick.
"""

from collections.abc import Callable, Iterator

import msgspec

from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.storage.history import MAX_BYTES, MAX_EVENTS, StoredEvent, WatchHistory
from karpool_fleet.apiserver.storage.record import FieldIndex, StoredObject

_LABEL_SETS = 256  # shared label sets, in addition to one for each object


class _Bucket:
    """One namespace of one resource. The ordered list is replaced, never changed: pages refer to it."""

    __slots__ = ("_names", "_ordered", "records")

    def __init__(self) -> None:
        self.records: dict[str, StoredObject] = {}
        self._names: list[str] | None = []
        self._ordered: list[StoredObject] | None = []

    def put(self, record: StoredObject) -> None:
        if record.name not in self.records and self._names is not None:
            self._names.append(record.name)
        self.records[record.name] = record
        self._ordered = None

    def remove(self, name: str) -> None:
        del self.records[name]
        self._names = self._ordered = None

    def ordered(self) -> list[StoredObject]:
        if self._ordered is None:
            if self._names is None:
                self._names = list(self.records)
            self._names.sort()  # nearly sorted already: new names are at the end
            records = self.records
            self._ordered = [records[name] for name in self._names]
        return self._ordered


class Collection:
    """All objects of one resource, whatever version they were written in."""

    def __init__(self, group_resource: str, history: WatchHistory) -> None:
        self.group_resource = group_resource
        self.history = history
        self.index_fields = FieldIndex(group_resource)
        self.field_names = self.index_fields.names
        self.changed_at = history.floor  # version of the newest change
        self._buckets: dict[str, _Bucket] = {}
        self._labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._forget_labels_at = _LABEL_SETS

    def get(self, namespace: str, name: str) -> StoredObject | None:
        bucket = self._buckets.get(namespace)
        return bucket.records.get(name) if bucket else None

    def ordered(self, namespace: str | None) -> list[StoredObject]:
        """Sorted by namespace and name; None means every namespace. Do not change the list."""
        if namespace is not None:
            bucket = self._buckets.get(namespace)
            return bucket.ordered() if bucket else []
        buckets = sorted(self._buckets)
        if len(buckets) == 1:
            return self._buckets[buckets[0]].ordered()
        return [record for name in buckets for record in self._buckets[name].ordered()]

    def records(self) -> Iterator[StoredObject]:
        for bucket in self._buckets.values():
            yield from bucket.records.values()

    def in_namespace(self, namespace: str) -> dict[str, StoredObject]:
        bucket = self._buckets.get(namespace)
        return bucket.records if bucket else {}

    def __len__(self) -> int:
        return sum(len(bucket.records) for bucket in self._buckets.values())

    def shared_labels(self, labels: dict[str, str]) -> dict[str, str]:
        """One dict per distinct label set: the replicas of a workload share theirs."""
        key = tuple(labels.items())
        shared = self._labels.get(key)
        if shared is None:
            if len(self._labels) >= self._forget_labels_at:
                # Label sets in use are shared again from here on; the others belonged to deleted objects.
                self._labels.clear()
                self._forget_labels_at = (
                    sum(len(bucket.records) for bucket in self._buckets.values()) + _LABEL_SETS
                )
            shared = self._labels[key] = dict(labels)
        return shared

    def put(self, record: StoredObject) -> None:
        bucket = self._buckets.get(record.namespace)
        if bucket is None:
            bucket = self._buckets[record.namespace] = _Bucket()
        bucket.put(record)

    def remove(self, record: StoredObject) -> None:
        bucket = self._buckets[record.namespace]
        bucket.remove(record.name)
        if not bucket.records:
            del self._buckets[record.namespace]


Listener = Callable[[StoredEvent], None]


class ObjectStore:
    def __init__(
        self,
        now: Callable[[], float],
        *,
        history_events: int = MAX_EVENTS,
        history_bytes: int = MAX_BYTES,
    ) -> None:
        """Create a store; `now` is a monotonic clock for the age of changes."""
        self.version = 1
        self._floor = 1  # the first version whose changes this process has
        self.listeners: list[Listener] = []
        self._now = now
        self._history_events = history_events
        self._history_bytes = history_bytes
        self._collections: dict[str, Collection] = {}
        self._by_uid: dict[str, StoredObject] = {}
        self._dependents: dict[str, dict[str, None]] = {}  # owner uid: uids, in order of arrival
        self._encode = msgspec.json.Encoder().encode

    def collection(self, group_resource: str) -> Collection:
        collection = self._collections.get(group_resource)
        if collection is None:
            history = WatchHistory(
                floor=self._floor,
                now=self._now,
                max_events=self._history_events,
                max_bytes=self._history_bytes,
            )
            collection = self._collections[group_resource] = Collection(group_resource, history)
        return collection

    def drop(self, group_resource: str) -> None:
        """Forget an empty collection; watches on it end."""
        collection = self._collections.get(group_resource)
        if collection is not None and not len(collection):
            collection.history.close()
            del self._collections[group_resource]

    def collections(self) -> list[Collection]:
        return list(self._collections.values())

    def put(self, collection: Collection, obj: Object) -> StoredObject:
        """Store `obj`, whose metadata has name, namespace and uid; its resourceVersion is set here."""
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        record = StoredObject(collection, obj, self.version, self._encode(obj))
        previous = collection.get(record.namespace, record.name)
        self._install(record, previous)
        self._announce(collection, StoredEvent("MODIFIED" if previous else "ADDED", record, previous))
        return record

    def remove(self, record: StoredObject, obj: Object | None = None) -> StoredObject:
        """Remove a record; `obj` is its last state if that differs from the stored one."""
        self.version += 1
        last = obj if obj is not None else record.object()
        last["metadata"]["resourceVersion"] = str(self.version)
        final = StoredObject(record.collection, last, self.version, self._encode(last))
        self._uninstall(record)
        self._announce(record.collection, StoredEvent("DELETED", final, record))
        return final

    def preview(self, collection: Collection, obj: Object) -> StoredObject:
        """What `put` would answer, with nothing stored."""
        return StoredObject(collection, obj, self.version, self._encode(obj))

    def restore(self, group_resource: str, obj: Object, data: bytes) -> None:
        """Put back an object read from a journal: no event, no listener."""
        collection = self.collection(group_resource)
        record = StoredObject(collection, obj, int(obj["metadata"]["resourceVersion"]), data)
        self._install(record, collection.get(record.namespace, record.name))

    def restore_removal(self, group_resource: str, namespace: str, name: str) -> None:
        record = self.collection(group_resource).get(namespace, name)
        if record is not None:
            self._uninstall(record)

    def restored(self, version: int) -> None:
        """Finish reading the journal: watches cannot start before `version`."""
        self.version = self._floor = max(self.version, version)
        for collection in self._collections.values():
            collection.history.floor = collection.changed_at = self.version

    def by_uid(self, uid: str) -> StoredObject | None:
        return self._by_uid.get(uid)

    def dependents(self, uid: str) -> list[StoredObject]:
        dependents = (self._by_uid.get(dependent) for dependent in self._dependents.get(uid, ()))
        return [record for record in dependents if record is not None]

    def _install(self, record: StoredObject, previous: StoredObject | None) -> None:
        if previous is not None and (previous.owners or previous.uid != record.uid):
            self._forget_owners(previous)
            self._by_uid.pop(previous.uid, None)
        record.collection.put(record)
        self._by_uid[record.uid] = record
        for owner in record.owners:
            self._dependents.setdefault(owner, {})[record.uid] = None

    def _uninstall(self, record: StoredObject) -> None:
        record.collection.remove(record)
        self._by_uid.pop(record.uid, None)
        self._forget_owners(record)

    def _forget_owners(self, record: StoredObject) -> None:
        for owner in record.owners:
            if (dependents := self._dependents.get(owner)) is not None:
                dependents.pop(record.uid, None)
                if not dependents:
                    del self._dependents[owner]

    def _announce(self, collection: Collection, event: StoredEvent) -> None:
        collection.changed_at = event.version
        collection.history.append(event)
        for listener in self.listeners:
            listener(event)
