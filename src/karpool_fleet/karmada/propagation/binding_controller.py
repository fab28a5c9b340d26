"""The binding controller: creates a work in each target cluster of a binding.

Works of clusters that are neither targets nor being evicted gracefully are deleted. A binding is released
only after the deletion of its works was requested; the execution controller handles works in members.
"""

from contextlib import suppress

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import Conflict, NotFound
from karpool.kube.event_recorder import ref as event_ref
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import CLUSTERS, WORKS, ListOptions, ObjectKey
from karpool_fleet.karmada.members.members import MemberKinds
from karpool_fleet.karmada.propagation.bindings import (
    BindingFeeds,
    BindingRef,
    keeps_works_in,
    ref_in,
    ref_of,
    targets_of,
)
from karpool_fleet.karmada.propagation.names import (
    CLUSTEROVERRIDEPOLICIES,
    OVERRIDEPOLICIES,
    Object,
    cluster_of,
    execution_space,
)
from karpool_fleet.karmada.propagation.overrides import BadOverride, means, override
from karpool_fleet.karmada.propagation.works import manifests, new_work, write_work
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, patch_version

KIND_RETRY = Requeue(10.0)


class WorksByBinding:
    """Works of a watch, by their binding."""

    def __init__(self, feed: Feed[Object]) -> None:
        self._feed = feed
        self._by_ref: dict[BindingRef, dict[ObjectKey, None]] = {}

    def note(self, change: ObjectChange[Object]) -> BindingRef | None:
        """Apply a change, and return the binding it concerns. It must be called for every change."""
        if change.object is None:
            return None
        ref = ref_in(change.object["metadata"].get("annotations") or {})
        if ref is None:
            return None
        if change.type == "DELETED":
            held = self._by_ref.get(ref, {})
            held.pop(change.key, None)
            if not held:
                self._by_ref.pop(ref, None)
        else:
            self._by_ref.setdefault(ref, {})[change.key] = None
        return ref

    def of(self, ref: BindingRef) -> list[Object]:
        works = (self._feed.get(key) for key in self._by_ref.get(ref, ()))
        return [work for work in works if work is not None]


class BindingController(QueueController[BindingRef]):
    workers = 5

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._kinds = MemberKinds(context.client)
        self._bindings = BindingFeeds(context)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._wide: Feed[Object] = context.informers.of(CLUSTEROVERRIDEPOLICIES)
        self._own: Feed[Object] = context.informers.of(OVERRIDEPOLICIES)
        self._feed: Feed[Object] = context.informers.of(WORKS)
        self._works = WorksByBinding(self._feed)
        self._feed.on_change(self._on_work)
        self._bindings.on_change(self._on_binding)
        for feed in (self._wide, self._own):
            feed.on_change(self._on_override)
        self._clusters.on_change(self._on_cluster)

    # Triggers

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        obj, old = change.object, change.old
        if obj is None or change.type == "DELETED":
            return
        # Changes of its status do not matter here.
        if old is None or _is_other(old, obj):
            self._queue.add(ref_of(obj))

    def _on_work(self, change: ObjectChange[Object]) -> None:
        ref = self._works.note(change)
        if ref is None or change.object is None:
            return
        if change.old is None or _is_other(change.old, change.object):
            self._queue.add(ref)

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        """Requeue bindings when a target cluster appears after the result."""
        if change.type != "ADDED":
            return
        for binding in self._bindings.objects():
            if any(target["name"] == change.key.name for target in targets_of(binding["spec"])):
                self._queue.add(ref_of(binding))

    def _on_override(self, change: ObjectChange[Object]) -> None:
        """Requeue every binding in its scope, whether it applied before or applies now."""
        for binding in self._bindings.objects():
            if change.key.namespace in ("", binding["metadata"].get("namespace", "")):
                self._queue.add(ref_of(binding))

    # Reconciliation

    async def _reconcile(self, ref: BindingRef) -> Requeue | None:
        binding = self._bindings.get(ref)
        if binding is None:
            return None
        if "deletionTimestamp" in binding["metadata"]:
            await self._finish(ref, binding)
            return None
        await self._remove_orphans(ref, binding)
        return await self._ensure(ref, binding)

    async def _finish(self, ref: BindingRef, binding: Object) -> None:
        finalizers = binding["metadata"].get("finalizers") or ()
        if ref.finalizer not in finalizers:
            return
        # The watch may not have a work yet that we created; the server has them all.
        ident = (binding["metadata"].get("labels") or {}).get(ref.id_label)
        if ident:
            listed = await self._client.list(WORKS, ListOptions(label_selector=f"{ref.id_label}={ident}"))
            for work in listed.items:
                await self._delete(work)
        kept = [finalizer for finalizer in finalizers if finalizer != ref.finalizer]
        with suppress(NotFound):
            patch = {"metadata": {"finalizers": kept or None}}
            await patch_version(self._client, ref.resource, binding, patch)

    async def _remove_orphans(self, ref: BindingRef, binding: Object) -> None:
        kept = keeps_works_in(binding["spec"])
        for work in self._works.of(ref):
            if cluster_of(work["metadata"]["namespace"]) not in kept:
                await self._delete(work)

    async def _delete(self, work: Object) -> None:
        if "deletionTimestamp" not in work["metadata"]:
            with suppress(Conflict):  # replaced meanwhile; the watch will report it
                await delete_object(self._client, WORKS, work)

    async def _ensure(self, ref: BindingRef, binding: Object) -> Requeue | None:
        spec = binding["spec"]
        if not spec.get("clusters") and not spec.get("requiredBy"):
            return None
        source = spec["resource"]
        resource = await self._kinds.find(source["apiVersion"], source["kind"])
        if resource is None:
            return KIND_RETRY
        try:
            template = await self._client.get(resource, source["name"], namespace=source.get("namespace"))
        except NotFound:
            return None  # its owner is gone, and the binding will be soon
        if template["metadata"]["uid"] != source.get("uid", template["metadata"]["uid"]):
            return None
        waits: list[Requeue] = []
        for cluster, manifest in manifests(template, spec).items():
            if wait := await self._ensure_work(cluster, template, manifest, ref, binding):
                waits.append(wait)
        return waits[0] if waits else None

    async def _ensure_work(
        self, cluster: str, template: Object, manifest: Object, ref: BindingRef, binding: Object
    ) -> Requeue | None:
        member = self._clusters.get(ObjectKey("", cluster))
        if member is None or "deletionTimestamp" in member["metadata"]:
            return None  # no execution namespace; the event of the cluster brings us back
        wide = [policy for policy in self._wide.objects() if means(policy, manifest)]
        own = [policy for policy in self._own.objects() if means(policy, manifest)]
        try:
            manifest, notes = override(manifest, member, wide, own)
        except BadOverride as error:
            self._context.events.record(
                event_ref(ref.resource, binding), "Warning", "SyncWorkFailed", str(error)
            )
            raise
        work = new_work(cluster, template, manifest, ref=ref, binding=binding, notes=notes)
        key = ObjectKey(execution_space(cluster), work["metadata"]["name"])
        return await write_work(self._client, self._feed.get(key), work)


def _is_other(old: Object, new: Object) -> bool:
    """Whether more than the status differs, by generation, or the object is being deleted."""
    generations = (obj["metadata"].get("generation") for obj in (old, new))
    return next(generations) != next(generations) or "deletionTimestamp" in new["metadata"]
