"""Serves custom resources as CustomResourceDefinitions are created, changed and deleted.

A definition is served from the write that creates it on. Deleting a definition deletes its objects first;
watches on them end, and a later definition of the same name starts anew.
"""

from karpool_fleet.apiserver.kinds import crds
from karpool_fleet.apiserver.objects.cluster import Operation, ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.status import conflict
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent, store_changed
from karpool_fleet.apiserver.verbs.deletion import DeleteOptions, delete

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_AT_ONCE = 200


class CustomResources:
    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._definitions = cluster.store.collection(DEFINITIONS)
        self._terminating: set[str] = set()
        cluster.store.listeners.append(self._on_change)
        cluster.admission.append(self._admit)

    def resume(self) -> None:
        """Serve the definitions of a restored store."""
        for record in self._definitions.ordered(None):
            self._serve(record)

    def _admit(
        self, operation: Operation, resource: ResourceType, new: Object | None, old: Object | None
    ) -> None:
        if resource.group_resource != DEFINITIONS or new is None:
            return
        self._refuse_taken_names(resource, new)
        crds.accept(new, self._cluster.clock.now())
        if operation == "CREATE":
            finalizers = new["metadata"].setdefault("finalizers", [])
            if CLEANUP not in finalizers:
                finalizers.append(CLEANUP)

    def _refuse_taken_names(self, resource: ResourceType, new: Object) -> None:
        spec, name = new["spec"], new["metadata"]["name"]
        holder = self._cluster.types.of_kind(spec["group"], spec["names"]["kind"])
        if holder is not None and holder.group_resource != name:
            raise conflict(
                resource,
                name,
                f"kind {holder.kind} of group {holder.group} is already {holder.group_resource}",
            )
        taken = self._cluster.types.preferred(name)
        if taken is not None and not taken.custom:
            raise conflict(resource, name, "a built-in resource has this name")

    def _on_change(self, event: StoredEvent) -> None:
        record = event.record
        if record.collection is self._definitions:
            if event.type == "DELETED":
                self._terminating.discard(record.name)
                self._cluster.types.remove(record.name)
                self._cluster.store.drop(record.name)
            else:
                self._serve(record)
        elif event.type == "DELETED" and record.collection.group_resource in self._terminating:
            self._schedule(record.collection.group_resource)

    def _serve(self, record: StoredObject) -> None:
        self._cluster.types.replace(record.name, crds.resource_types(record.object()))
        if record.deleting:
            self._terminating.add(record.name)
            self._schedule(record.name)

    def _schedule(self, name: str) -> None:
        self._cluster.background.schedule(("cleanup", name), lambda: self._clean_up(name))

    def _clean_up(self, name: str) -> None:
        """Delete some objects of a definition that is being deleted; release it when there are none."""
        resource = self._cluster.types.preferred(name)
        objects = self._cluster.store.collection(name)
        if resource is not None:
            waiting = [record for record in objects.records() if not record.deleting]
            for record in waiting[:_AT_ONCE]:
                delete(self._cluster, resource, record, DeleteOptions(policy="Background"))
            if len(waiting) > _AT_ONCE:
                self._schedule(name)
        if not len(objects):
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        record = self._definitions.get("", name)
        resource = self._cluster.types.preferred(DEFINITIONS)
        if record is None or resource is None or not record.deleting:
            return
        old = record.object()
        kept = [f for f in old["metadata"].get("finalizers") or () if f != CLEANUP]
        metadata = {**old["metadata"], "finalizers": kept}
        if not kept:
            del metadata["finalizers"]
        intent = Intent(resource, manager="karpool")
        store_changed(self._cluster, intent, record, old, {**old, "metadata": metadata})
