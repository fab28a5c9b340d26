"""The execution controller: applies works in the members.

A member that is not ready is skipped until it is ready. An object that is deleted or changed in a member is
restored. An object is deleted with its work, unless it is not ours or must be preserved.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import condition_of, upsert_condition
from karpool.kube.errors import AlreadyExists, Conflict, KubeError, NotFound, Rejected
from karpool.kube.event_recorder import ref as event_ref
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import CLUSTERS, WORKS, ApiResource, ObjectKey
from karpool.model.kubernetes.meta import ObjectMeta, Wire
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.karmada.members.members import (
    Connection,
    JoinedMember,
    MemberController,
    MemberInformers,
)
from karpool_fleet.karmada.propagation.names import (
    MANAGED,
    WORK_FINALIZER,
    WORK_ID,
    WORK_NAME,
    WORK_NAMESPACE,
    Object,
)
from karpool_fleet.karmada.propagation.names import cluster_of as cluster_of_space
from karpool_fleet.karmada.propagation.retention import has_drifted, may_write, retained
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, patch_object, patch_version

APPLIED = ("Applied", "AppliedSuccessful", "Manifest has been successfully applied")
SUSPENDED = ("SuspendDispatching", "Work dispatching is in a suspended state.")
DISPATCHING = ("Dispatching", "Work is being dispatched to member clusters.")


class MemberObject(Wire, frozen=True):
    """The fields of a member's object that show whether it was changed."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def stamp(self) -> str:
        """Return a value that changes with the spec; for kinds without generations, with any write."""
        meta = self.metadata
        return f"gen:{meta.generation}" if meta.generation else f"rv:{meta.resource_version}"


class _Place(NamedTuple):
    cluster: str
    resource: ApiResource
    key: ObjectKey


def is_ready(cluster: Object | None) -> bool:
    ready = condition_of(((cluster or {}).get("status") or {}).get("conditions"), "Ready")
    return ready is not None and ready["status"] == "True"


class ExecutionController(MemberController):
    def __init__(self, context: Context, members: Mapping[str, JoinedMember]) -> None:
        super().__init__(context, members)
        self._watches = MemberInformers(self, MemberObject, self._on_member)
        self._written: dict[_Place, str] = {}  # stamps of our latest writes
        self._works: Feed[Object] = context.informers.of(WORKS)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._by_cluster: dict[str, dict[ObjectKey, None]] = {}
        self._works.on_change(self._on_work)
        self._clusters.on_change(self._on_cluster)

    # Triggers

    def _on_work(self, change: ObjectChange[Object]) -> None:
        held = self._by_cluster.setdefault(cluster_of_space(change.key.namespace), {})
        if change.type == "DELETED" or change.object is None:
            held.pop(change.key, None)
            return
        held[change.key] = None
        meta = change.object["metadata"]
        same = change.old is not None and meta.get("generation") == change.old["metadata"].get("generation")
        if not same or "deletionTimestamp" in meta:
            self._add(change.key)

    def _add(self, key: ObjectKey) -> None:
        if cluster := cluster_of_space(key.namespace):
            self._queue_of(cluster).add(key)

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        """Requeue the works of a member that has become ready, or is about to leave."""
        name = change.key.name
        if change.type == "DELETED":
            self._watches.stop(name)
        turned = is_ready(change.object) != is_ready(change.old)
        leaving = change.object is not None and "deletionTimestamp" in change.object["metadata"]
        if turned or leaving or change.type == "DELETED":
            for key in self._by_cluster.get(name, ()):
                self._add(key)

    def _on_member(self, cluster: str, resource: ApiResource, change: ObjectChange[MemberObject]) -> None:
        """Requeue the work of an object that was changed in a member, except by our own write."""
        if change.object is None:
            return
        place = _Place(cluster, resource, change.key)
        notes = change.object.metadata.annotations or {}
        work = ObjectKey(notes.get(WORK_NAMESPACE, ""), notes.get(WORK_NAME, ""))
        if change.type == "DELETED":
            self._written.pop(place, None)
            self._add(work)
        elif self._written.get(place) != change.object.stamp and (
            change.old is None or change.old.stamp != change.object.stamp
        ):
            self._add(work)

    # Reconciliation

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        work = self._works.get(key)
        name = cluster_of_space(key.namespace)
        if work is None or not name:
            return None
        cluster, connection = self._clusters.get(ObjectKey("", name)), self.connections.get(name)
        ready = is_ready(cluster) and connection is not None
        leaving = cluster is None or "deletionTimestamp" in cluster["metadata"]
        if "deletionTimestamp" in work["metadata"]:
            if not ready and not leaving:
                return None  # until it is ready again
            # An unreachable member that leaves keeps its objects.
            if ready and connection is not None:
                await self._delete(connection, work)
            await self._release(work)
            return None
        if work["spec"].get("suspendDispatching"):
            await self._say(work, "Dispatching", "False", *SUSPENDED)
            return None
        if not ready or connection is None:
            return None
        await self._sync(name, connection, work)
        return None

    async def _sync(self, cluster: str, connection: Connection, work: Object) -> None:
        contents: Sequence[Object] = (work["spec"].get("workload") or {}).get("manifests") or ()
        errors: list[KubeError] = []
        for manifest in contents:
            try:
                await self._apply(cluster, connection, manifest)
            except Conflict:
                raise  # the member wrote at the same moment
            except KubeError as error:
                errors.append(error)
        if condition_of((work.get("status") or {}).get("conditions"), "Dispatching") is not None:
            work = await self._say(work, "Dispatching", "True", *DISPATCHING)
        if not errors:
            await self._say(work, "Applied", "True", *APPLIED[1:])
            return
        done = f"({len(contents) - len(errors)}/{len(contents)})"
        message = f"Failed to apply all manifests {done}: {errors[0]}"
        await self._say(work, "Applied", "False", "AppliedFailed", message)
        self._context.events.record(event_ref(WORKS, work), "Warning", "SyncFailed", message)
        raise errors[0]

    async def _apply(self, cluster: str, connection: Connection, manifest: Object) -> None:
        client, meta = connection.client, manifest["metadata"]
        resource = await connection.kinds.find(manifest["apiVersion"], manifest["kind"])
        if resource is None:
            what = f"{manifest['apiVersion']} {manifest['kind']}"
            raise Rejected(what, 404, message=f"cluster {cluster} does not serve this kind")
        place = _Place(cluster, resource, ObjectKey(meta.get("namespace", ""), meta["name"]))
        self._watches.of(cluster, resource)
        namespace = meta.get("namespace")
        try:
            observed = await client.get(resource, meta["name"], namespace=namespace)
        except NotFound:
            try:
                self._wrote(place, await client.create(resource, manifest, namespace=namespace))
                return
            except AlreadyExists:
                observed = await client.get(resource, meta["name"], namespace=namespace)
        if not may_write(manifest, observed):
            what = f"{manifest['kind']} {place.key}"
            message = (
                f"already exists in cluster {cluster} and is not managed by Karmada; "
                "set conflictResolution: Overwrite in the policy to take it over"
            )
            raise Rejected(what, 409, message=message)
        if "deletionTimestamp" in observed["metadata"]:
            raise Rejected(f"{manifest['kind']} {place.key}", 409, message="is still being deleted")
        desired = retained(manifest, observed)
        if has_drifted(desired, observed):
            observed = await client.update(resource, desired, namespace=namespace)
        self._wrote(place, observed)

    def _wrote(self, place: _Place, answer: Object) -> None:
        meta = answer["metadata"]
        stamp = f"gen:{meta['generation']}" if meta.get("generation") else f"rv:{meta['resourceVersion']}"
        self._written[place] = stamp

    async def _delete(self, connection: Connection, work: Object) -> None:
        for manifest in (work["spec"].get("workload") or {}).get("manifests") or ():
            meta = manifest["metadata"]
            resource = await connection.kinds.find(manifest["apiVersion"], manifest["kind"])
            if resource is None:
                continue
            client, namespace = connection.client, meta.get("namespace")
            with suppress(NotFound):
                observed = await client.get(resource, meta["name"], namespace=namespace)
                held = observed["metadata"].get("labels") or {}
                if held.get(WORK_ID) != meta["labels"].get(WORK_ID):
                    continue  # not ours
                if work["spec"].get("preserveResourcesOnDeletion"):
                    await self._let_go(connection, resource, observed)
                elif "deletionTimestamp" not in observed["metadata"]:
                    await delete_object(client, resource, observed, propagation="Background")

    async def _let_go(self, connection: Connection, resource: ApiResource, observed: Object) -> None:
        """Remove our marks from an object, and leave it in the member."""
        meta = observed["metadata"]
        marks: Object = {}
        for field in ("labels", "annotations"):
            ours = [key for key in meta.get(field) or {} if "karmada.io/" in key or key == MANAGED]
            marks[field] = dict.fromkeys(ours)
        await connection.client.patch(
            resource, meta["name"], {"metadata": marks}, namespace=meta.get("namespace")
        )

    async def _release(self, work: Object) -> None:
        meta = work["metadata"]
        kept = [finalizer for finalizer in meta.get("finalizers") or () if finalizer != WORK_FINALIZER]
        if len(kept) == len(meta.get("finalizers") or ()):
            return
        await patch_object(self._client, WORKS, work, {"metadata": {"finalizers": kept or None}})

    async def _say(self, work: Object, condition_type: str, status: str, reason: str, message: str) -> Object:
        held = (work.get("status") or {}).get("conditions") or []
        condition = {"type": condition_type, "status": status, "reason": reason, "message": message}
        conditions = upsert_condition(held, condition, rfc3339(self._clock.now()))
        if conditions == held:
            return work
        return await patch_version(
            self._client, WORKS, work, {"status": {"conditions": conditions}}, status=True
        )
