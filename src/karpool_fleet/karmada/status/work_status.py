"""The work status controller: copies the status of members' objects into the works.

Changes of one object are batched for a moment, so that a rollout of a hundred pods is reported a few times,
not a hundred times. While a member is unreachable, its last status stays.
"""

from collections.abc import Mapping

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import condition_of
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import CLUSTERS, WORKS, ApiResource, ObjectKey
from karpool_fleet.karmada.members.members import JoinedMember, MemberController, MemberInformers
from karpool_fleet.karmada.propagation.names import (
    GATHER_SECONDS,
    WORK_ID,
    WORK_NAME,
    WORK_NAMESPACE,
    Object,
    cluster_of,
)
from karpool_fleet.karmada.status import resource_interpreter
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_object

UNSEEN_RETRY = Requeue(1.0)


def manifest_status(ordinal: int, resource: ApiResource, observed: Object) -> Object:
    meta = observed["metadata"]
    identifier: Object = {
        "ordinal": ordinal,
        "version": resource.version,
        "kind": resource.kind,
        "resource": resource.plural,
        "name": meta["name"],
    }
    if resource.group:
        identifier["group"] = resource.group
    if meta.get("namespace"):
        identifier["namespace"] = meta["namespace"]
    told: Object = {"identifier": identifier, "health": resource_interpreter.health(observed)}
    if (status := resource_interpreter.reflected(observed)) is not None:
        told["status"] = status
    return told


class WorkStatusController(MemberController):
    def __init__(self, context: Context, members: Mapping[str, JoinedMember]) -> None:
        super().__init__(context, members)
        self._watches: MemberInformers[Object] = MemberInformers(self, dict, self._on_member)
        self._works: Feed[Object] = context.informers.of(WORKS)
        self._works.on_change(self._on_work)
        clusters: Feed[Object] = context.informers.of(CLUSTERS)
        clusters.on_change(self._on_cluster)

    def _on_work(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED" or change.object is None:
            return
        if not _is_applied(change.object):
            return
        # Our own writes count too: we may have compared with a state older than the last one.
        old = (change.old or {}).get("status") or {}
        told = old.get("manifestStatuses") != change.object["status"].get("manifestStatuses")
        cluster = cluster_of(change.key.namespace)
        if cluster and (told or not _is_applied(change.old or {})):
            self._queue_of(cluster).add(change.key)

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED":
            self._watches.stop(change.key.name)

    def _on_member(self, _cluster: str, _resource: ApiResource, change: ObjectChange[Object]) -> None:
        if change.object is not None:
            notes = change.object["metadata"].get("annotations") or {}
            work = ObjectKey(notes.get(WORK_NAMESPACE, ""), notes.get(WORK_NAME, ""))
            if cluster := cluster_of(work.namespace):
                self._queue_of(cluster).add_after(work, GATHER_SECONDS)

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        work = self._works.get(key)
        if work is None or "deletionTimestamp" in work["metadata"] or not _is_applied(work):
            return None
        cluster = cluster_of(key.namespace)
        connection = self.connections.get(cluster)
        if connection is None:
            return None
        statuses: list[Object] = []
        for ordinal, manifest in enumerate((work["spec"].get("workload") or {}).get("manifests") or ()):
            resource = await connection.kinds.find(manifest["apiVersion"], manifest["kind"])
            informer = self._watches.of(cluster, resource) if resource is not None else None
            if resource is None or informer is None or not informer.synced.is_set():
                return UNSEEN_RETRY
            meta = manifest["metadata"]
            observed = informer.get(ObjectKey(meta.get("namespace", ""), meta["name"]))
            if observed is None or not _is_same(manifest, observed):
                continue  # deleted in the member; the execution controller will restore it
            observed = {**observed, "apiVersion": manifest["apiVersion"], "kind": manifest["kind"]}
            statuses.append(manifest_status(ordinal, resource, observed))
        if ((work.get("status") or {}).get("manifestStatuses") or []) != statuses:
            patch = {"status": {"manifestStatuses": statuses}}
            await patch_object(self._client, WORKS, work, patch, status=True)
        return None


def _is_applied(work: Object) -> bool:
    applied = condition_of((work.get("status") or {}).get("conditions"), "Applied")
    return applied is not None and applied["status"] == "True"


def _is_same(manifest: Object, observed: Object) -> bool:
    labels = observed["metadata"].get("labels") or {}
    return bool(labels.get(WORK_ID) == manifest["metadata"]["labels"].get(WORK_ID))
