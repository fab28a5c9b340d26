"""The garbage collector: deletes objects whose owners are gone.

An object is deleted when every owner it names is gone. The propagation policy of an owner's deletion is kept
in its finalizers: `foregroundDeletion` makes the owner wait for blocking dependents, and `orphan` removes it
from its dependents. The owner index finds the work after each change; nothing is scanned.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent, store_changed
from karpool_fleet.apiserver.verbs.deletion import FOREGROUND, ORPHAN, DeleteOptions, delete

_MANAGER = "karpool-garbage-collector"


class Garbage:
    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._store = cluster.store
        cluster.store.listeners.append(self._on_change)

    def resume(self) -> None:
        """Continue the work that a restored store implies."""
        for collection in self._store.collections():
            for record in collection.records():
                if record.deleting:
                    self._schedule(self._carry_out, record.uid)
                if record.owners:
                    self._schedule(self._reconsider, record.uid)

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        if event.type == "DELETED":
            for dependent in self._store.dependents(record.uid):
                self._schedule(self._reconsider, dependent.uid)
        elif record.deleting:
            self._schedule(self._carry_out, record.uid)
        if record.owners:
            self._on_dependent(event)

    def _on_dependent(self, event: StoredEvent) -> None:
        for uid in event.record.owners:
            owner = self._owner(event.record, uid)
            if owner is None:
                if event.type != "DELETED":
                    self._schedule(self._reconsider, event.record.uid)
            elif owner.deleting:
                self._schedule(self._carry_out, uid)

    def _schedule(self, work: Callable[[str], None], uid: str) -> None:
        self._cluster.background.schedule((work.__name__, uid), lambda: work(uid))

    def _carry_out(self, uid: str) -> None:
        """Execute the finalizers of an object that is being deleted."""
        record = self._store.by_uid(uid)
        if record is None or not record.deleting:
            return
        finalizers = record.object()["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            for dependent in self._store.dependents(uid):
                self._drop_references(dependent, {uid})
            self._drop_finalizer(record, ORPHAN)
        elif FOREGROUND in finalizers:
            blocking = [d for d in self._store.dependents(uid) if _blocks(d.object(), uid)]
            if not blocking:
                self._drop_finalizer(record, FOREGROUND)
            for dependent in blocking:
                if not dependent.deleting:
                    self._schedule(self._reconsider, dependent.uid)

    def _reconsider(self, uid: str) -> None:
        """Delete an object if all its owners are gone or wait for its deletion."""
        record = self._store.by_uid(uid)
        if record is None or record.deleting or not record.owners:
            return
        obj = record.object()
        solid: list[str] = []
        gone: set[str] = set()
        waiting: set[str] = set()
        for reference in obj["metadata"].get("ownerReferences") or ():
            match self._owner_state(record, reference):
                case "gone":
                    gone.add(reference["uid"])
                case "waiting":
                    waiting.add(reference["uid"])
                case _:
                    solid.append(reference["uid"])
        if solid:
            if gone or waiting:
                self._drop_references(record, gone | waiting)
        elif gone or waiting:
            has_dependents = bool(self._store.dependents(uid))
            self._delete(record, obj, foreground=bool(waiting) and has_dependents)

    def _owner(self, dependent: StoredObject, uid: str) -> StoredObject | None:
        """Return an owner; one in another namespace counts as absent."""
        owner = self._store.by_uid(uid)
        if owner is not None and owner.namespace and owner.namespace != dependent.namespace:
            return None
        return owner

    def _owner_state(self, dependent: StoredObject, reference: Object) -> str:
        owner = self._owner(dependent, reference["uid"])
        if owner is None:
            group = reference["apiVersion"].rpartition("/")[0]
            # An owner of a kind that is not served here is not known to be absent.
            is_served = self._cluster.types.of_kind(group, reference["kind"]) is not None
            return "gone" if is_served else "solid"
        if owner.deleting and FOREGROUND in (owner.object()["metadata"].get("finalizers") or ()):
            return "waiting"
        return "solid"

    def _delete(self, record: StoredObject, obj: Object, *, foreground: bool) -> None:
        resource = self._cluster.types.preferred(record.collection.group_resource)
        if resource is None:
            return
        finalizers = obj["metadata"].get("finalizers") or ()
        if ORPHAN in finalizers:
            policy = "Orphan"
        else:
            policy = "Foreground" if foreground or FOREGROUND in finalizers else "Background"
        delete(self._cluster, resource, record, DeleteOptions(policy=policy))

    def _drop_references(self, record: StoredObject, owners: set[str]) -> None:
        def forget(metadata: dict[str, Any]) -> None:
            kept = [r for r in metadata.get("ownerReferences") or () if r["uid"] not in owners]
            _set_or_drop(metadata, "ownerReferences", kept)

        self._change(record, forget)

    def _drop_finalizer(self, record: StoredObject, finalizer: str) -> None:
        def forget(metadata: dict[str, Any]) -> None:
            kept = [f for f in metadata.get("finalizers") or () if f != finalizer]
            _set_or_drop(metadata, "finalizers", kept)

        self._change(record, forget)

    def _change(self, record: StoredObject, edit: Callable[[dict[str, Any]], None]) -> None:
        resource = self._cluster.types.preferred(record.collection.group_resource)
        if resource is None:
            return
        old = record.object()
        new = {**old, "metadata": dict(old["metadata"])}
        edit(new["metadata"])
        store_changed(self._cluster, Intent(resource, manager=_MANAGER), record, old, new)


def _set_or_drop(metadata: dict[str, Any], field: str, values: list[Any]) -> None:
    if values:
        metadata[field] = values
    else:
        metadata.pop(field, None)


def _blocks(obj: Object, owner: str) -> bool:
    references = obj["metadata"].get("ownerReferences") or ()
    return any(r["uid"] == owner and r.get("blockOwnerDeletion") is True for r in references)
