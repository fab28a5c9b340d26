"""Namespaces: which are protected, and how others are deleted.

Deleting a namespace marks it Terminating, deletes its contents, and removes it when its last object is gone.
Creates in it are refused meanwhile.
"""

from karpool_fleet.apiserver.objects.cluster import Operation, ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.status import forbidden
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent, store_changed
from karpool_fleet.apiserver.verbs.deletion import DeleteOptions, delete

IMMORTAL = frozenset({"default", "kube-public", "kube-system"})
FINALIZER = "kubernetes"
_NAMESPACES = "namespaces"
_AT_ONCE = 200  # deletions per job, so that a full namespace does not block the loop


class Namespaces:
    """Listens to the store and executes the deletion of namespaces."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._namespaces = cluster.store.collection(_NAMESPACES)
        self._terminating: set[str] = set()
        cluster.store.listeners.append(self._on_change)
        cluster.admission.append(_keep_immortal)

    def resume(self) -> None:
        """Continue the deletions of a restored store."""
        for record in self._namespaces.records():
            if record.deleting:
                self._begin(record.name)

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        if record.collection is self._namespaces:
            if event.type == "DELETED":
                self._terminating.discard(record.name)
            elif record.deleting and record.name not in self._terminating:
                self._begin(record.name)
        elif event.type == "DELETED" and record.namespace in self._terminating:
            self._schedule_finish(record.namespace)

    def _begin(self, name: str) -> None:
        self._terminating.add(name)
        self._cluster.background.schedule(("empty", name), lambda: self._empty(name))

    def _schedule_finish(self, name: str) -> None:
        self._cluster.background.schedule(("finish", name), lambda: self._finish(name))

    def _empty(self, name: str) -> None:
        """Delete some objects of a namespace and schedule the rest."""
        budget = _AT_ONCE
        for record in self._contents(name):
            resource = self._cluster.types.preferred(record.collection.group_resource)
            if record.deleting or resource is None:
                continue
            if budget == 0:
                self._begin(name)
                return
            delete(self._cluster, resource, record, DeleteOptions(policy="Background"))
            budget -= 1
        self._schedule_finish(name)

    def _contents(self, name: str) -> list[StoredObject]:
        return [
            record
            for collection in self._cluster.store.collections()
            for record in collection.in_namespace(name).values()
        ]

    def _finish(self, name: str) -> None:
        """Remove an empty namespace."""
        record = self._namespaces.get("", name)
        resource = self._cluster.types.preferred(_NAMESPACES)
        if record is None or resource is None or not record.deleting:
            return
        if any(collection.in_namespace(name) for collection in self._cluster.store.collections()):
            return
        old = record.object()
        spec = old.get("spec") or {}
        kept = [f for f in spec.get("finalizers") or () if f != FINALIZER]
        new = {**old, "metadata": dict(old["metadata"]), "spec": {**spec, "finalizers": kept}}
        store_changed(self._cluster, Intent(resource, manager="karpool"), record, old, new)


def _keep_immortal(
    operation: Operation, resource: ResourceType, new: Object | None, old: Object | None
) -> None:
    if operation == "DELETE" and resource.group_resource == _NAMESPACES and old is not None:
        name = old["metadata"]["name"]
        if name in IMMORTAL:
            raise forbidden(resource, name, "this namespace cannot be deleted")
