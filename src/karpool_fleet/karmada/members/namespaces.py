"""The namespace sync controller: creates the namespaces of templates in all members.

Every namespace of the control plane that is not reserved becomes a work in every execution namespace; the
work is owned by the namespace and deleted with it.
"""

from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import CLUSTERS, NAMESPACES, WORKS, ObjectKey
from karpool_fleet.karmada.propagation.names import (
    CONFLICT_RESOLUTION,
    WORK_FINALIZER,
    WORK_ID,
    WORK_NAME,
    Object,
    execution_space,
    is_reserved,
)
from karpool_fleet.karmada.propagation.works import marked_manifest, plain_manifest, write_work
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import owner_reference


class _Pair(NamedTuple):
    namespace: str
    cluster: str


def namespace_work(namespace: Object, cluster: str) -> Object:
    namespace = {**namespace, "apiVersion": "v1", "kind": "Namespace"}
    # A namespace that a member already has is shared.
    notes = {CONFLICT_RESOLUTION: "overwrite"}
    manifest = marked_manifest(cluster, namespace, plain_manifest(namespace), notes, {})
    meta = manifest["metadata"]
    return {
        "metadata": {
            "name": meta["annotations"][WORK_NAME],
            "namespace": execution_space(cluster),
            "labels": {WORK_ID: meta["labels"][WORK_ID]},
            "annotations": {},
            "finalizers": [WORK_FINALIZER],
            "ownerReferences": [owner_reference(NAMESPACES, namespace)],
        },
        "spec": {"workload": {"manifests": [manifest]}},
    }


class NamespaceSyncController(QueueController[_Pair]):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._namespaces: Feed[Object] = context.informers.of(NAMESPACES)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._works: Feed[Object] = context.informers.of(WORKS)
        self._namespaces.on_change(self._on_namespace)
        self._clusters.on_change(self._on_cluster)

    def _on_namespace(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED":
            return
        names = [cluster["metadata"]["name"] for cluster in self._clusters.objects()]
        if not is_reserved(change.key.name):
            for name in names:
                self._queue.add(_Pair(change.key.name, name))
        # The execution namespace of one cluster does not concern the others: with many clusters all would ask
        # for it.
        for name in names:
            if change.key.name == execution_space(name):
                self._whole_cluster(name)

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        if change.type == "ADDED":
            self._whole_cluster(change.key.name)

    def _whole_cluster(self, name: str) -> None:
        for namespace in self._namespaces.objects():
            self._queue.add(_Pair(namespace["metadata"]["name"], name))

    async def _reconcile(self, pair: _Pair) -> Requeue | None:
        namespace, cluster = self._namespaces.get(ObjectKey("", pair.namespace)), ObjectKey("", pair.cluster)
        space = self._namespaces.get(ObjectKey("", execution_space(pair.cluster)))
        if namespace is None or is_reserved(pair.namespace) or pair.namespace == "default":
            return None
        member = self._clusters.get(cluster)
        if member is None or space is None:
            return None  # the event of its creation brings us back
        if any("deletionTimestamp" in obj["metadata"] for obj in (namespace, member, space)):
            return None
        work = namespace_work(namespace, pair.cluster)
        key = ObjectKey(work["metadata"]["namespace"], work["metadata"]["name"])
        return await write_work(self._client, self._works.get(key), work)
