"""The Deployment controller: one ReplicaSet per revision of the pod template.

Old ReplicaSets are kept, empty, up to the history limit: `kubectl rollout undo` writes an old template back,
and its ReplicaSet is found and scaled up again. The arithmetic is in `rollout`, the conditions are in
`progress`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from karpool.kube.api.conditions import condition_of
from karpool.kube.api.decoding import Object
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS, REPLICASETS, ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import owner_reference, patch_object, patch_version
from karpool_fleet.workloads import progress
from karpool_fleet.workloads.controller import WorkloadController
from karpool_fleet.workloads.dependents import controller_of, meta_of
from karpool_fleet.workloads.ownership import claim
from karpool_fleet.workloads.replicaset_pods import SetPods
from karpool_fleet.workloads.revisions import same_template, template_hash
from karpool_fleet.workloads.rollout import (
    Bounds,
    RolloutPart,
    Sizes,
    bounds_of,
    grow_new,
    obsolete,
    rescale,
    shrink_old,
)

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MOST = "deployment.kubernetes.io/max-replicas"
# Annotations of a Deployment that are not copied to its ReplicaSets.
_OWN = frozenset((REVISION, HISTORY, DESIRED, MOST, "kubectl.kubernetes.io/last-applied-configuration"))


class _Family(NamedTuple):
    """The ReplicaSets of a Deployment, with that of the current template apart."""

    new: Object | None
    old: list[Object]

    @property
    def all(self) -> list[Object]:
        return [*self.old, self.new] if self.new is not None else self.old


def part_of(obj: Object) -> RolloutPart:
    status = obj.get("status") or {}
    annotations = obj["metadata"].get("annotations") or {}
    return RolloutPart(
        name=obj["metadata"]["name"],
        created=obj["metadata"].get("creationTimestamp") or "",
        size=obj["spec"].get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        most=_number(annotations.get(MOST)) or 0,
        desired=_number(annotations.get(DESIRED)),
    )


def revision_of(obj: Object) -> int:
    return _number((obj["metadata"].get("annotations") or {}).get(REVISION)) or 0


def _number(text: object) -> int | None:
    return (
        int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 19 else None
    )


def family_of(obj: Object, sets: Sequence[Object]) -> _Family:
    """Return the ReplicaSets; of several with the current template, the oldest is the new one."""
    ordered = sorted(
        sets,
        key=lambda replica_set: (
            replica_set["metadata"].get("creationTimestamp") or "",
            replica_set["metadata"]["name"],
        ),
    )
    template = obj["spec"]["template"]
    new = next(
        (
            replica_set
            for replica_set in ordered
            if same_template(replica_set["spec"]["template"], template, HASH)
        ),
        None,
    )
    return _Family(new, [replica_set for replica_set in ordered if replica_set is not new])


def annotations_of(obj: Object, held: Object, revision: int, bounds: Bounds | None) -> Object:
    """Return the annotations of the new ReplicaSet: the Deployment's, its revision and its share."""
    given = obj["metadata"].get("annotations") or {}
    annotations = {**held, **{key: value for key, value in given.items() if key not in _OWN}}
    before = _number(held.get(REVISION)) or 0
    if revision > before:
        annotations[REVISION] = str(revision)
        if before:
            history = [revision for revision in str(held.get(HISTORY, "")).split(",") if revision]
            annotations[HISTORY] = ",".join([*history, str(before)])
    if bounds is not None:
        annotations |= {DESIRED: str(bounds.desired), MOST: str(bounds.most)}
    return annotations


class DeploymentController(WorkloadController):
    resource = DEPLOYMENTS

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sets = self.watch(REPLICASETS, dict)
        self._set_pods = SetPods(self._on_empty_set)
        context.informers.of(PODS, Pod).on_change(self._set_pods.on_change)

    async def reconcile(self, key: ObjectKey) -> Requeue | None:
        obj = self.owners.get(key)
        if obj is None:
            return None
        await claim(self.client, self.resource, obj, self._sets)
        family = self._family(obj)
        bounds = bounds_of(obj["spec"])
        event = ""
        if "deletionTimestamp" not in obj["metadata"]:
            if self._is_scaling(bounds, family) or obj["spec"].get("paused"):
                await self._rescale(obj, bounds, family)
            else:
                family, event = await self._ensure_new(obj, bounds, family)
                if family.new is None:
                    return None  # a collision was counted; the write requeues the key
                await self._roll(obj, bounds, family)
            family = self._family(obj)
        return await self._report(obj, bounds, family, event)

    # Steps

    def _is_scaling(self, bounds: Bounds, family: _Family) -> bool:
        """Whether the Deployment was scaled after its ReplicaSets."""
        parts = (part_of(replica_set) for replica_set in family.all)
        return any(part.size > 0 and part.desired not in (None, bounds.desired) for part in parts)

    async def _rescale(self, obj: Object, bounds: Bounds, family: _Family) -> None:
        parts = [part_of(replica_set) for replica_set in family.all]
        new = part_of(family.new) if family.new is not None else None
        several = sum(part.size > 0 for part in parts) > 1
        if several and new is not None and _recreates(obj):
            sizes: Sizes = {part.name: 0 for part in parts if part.name != new.name}
        else:
            sizes = rescale(bounds, parts, new, (obj.get("status") or {}).get("replicas", 0))
        for replica_set in family.all:
            name = replica_set["metadata"]["name"]
            size = sizes.get(name, replica_set["spec"].get("replicas", 1))
            if size > 0 or name in sizes:
                await self._resize(obj, replica_set, size, bounds)

    async def _ensure_new(self, obj: Object, bounds: Bounds, family: _Family) -> tuple[_Family, str]:
        revision = max((revision_of(replica_set) for replica_set in family.old), default=0) + 1
        event = ""
        new = family.new
        if new is None:
            new = await self._create(obj, bounds, family, revision)
            event = progress.CREATED
            if new is None:
                return family, ""
        else:
            event = progress.FOUND
            held = new["metadata"].get("annotations") or {}
            annotations = annotations_of(obj, held, revision, None)
            min_ready = obj["spec"].get("minReadySeconds") or 0
            patch: Object = {}
            if annotations != held:
                patch["metadata"] = {"annotations": annotations}
            if (new["spec"].get("minReadySeconds") or 0) != min_ready:
                patch["spec"] = {"minReadySeconds": min_ready}
            if patch:
                new = await self._patch_set(new, patch)
        await self._write_revision(obj, revision_of(new))
        return _Family(new, family.old), event

    async def _create(self, obj: Object, bounds: Bounds, family: _Family, revision: int) -> Object | None:
        spec, meta = obj["spec"], obj["metadata"]
        collisions = (obj.get("status") or {}).get("collisionCount") or 0
        suffix = template_hash(spec["template"], collisions)
        labels = {**(spec["template"].get("metadata", {}).get("labels") or {}), HASH: suffix}
        old = [part_of(replica_set) for replica_set in family.old]
        recreate = _recreates(obj)
        waits = recreate and (any(part.size for part in old) or self._old_pods(family))
        size = 0 if waits else bounds.desired if recreate else grow_new(bounds, RolloutPart(""), old)
        body = {
            "metadata": {
                "name": f"{meta['name']}-{suffix}",
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": annotations_of(obj, {}, revision, bounds),
                "ownerReferences": [owner_reference(self.resource, obj)],
            },
            "spec": {
                "replicas": size,
                "minReadySeconds": spec.get("minReadySeconds") or 0,
                "selector": _selector_with(spec["selector"], suffix),
                "template": {
                    **spec["template"],
                    "metadata": {**spec["template"].get("metadata", {}), "labels": labels},
                },
            },
        }
        name = body["metadata"]["name"]
        ours = await self.create_named(self._sets, body, meta["uid"])
        created = self._sets.get(ObjectKey(meta["namespace"], name))
        if ours and created and same_template(created["spec"]["template"], spec["template"], HASH):
            self.record(obj, "Normal", "ScalingReplicaSet", f"Scaled up replica set {name} from 0 to {size}")
            return created
        # The name is taken: count the collision, which changes the next hash.
        status = {**(obj.get("status") or {}), "collisionCount": collisions + 1}
        await self.write_status(obj, status)
        self.queue.add(ObjectKey(meta["namespace"], meta["name"]))
        return None

    async def _write_revision(self, obj: Object, revision: int) -> None:
        annotations = obj["metadata"].get("annotations") or {}
        if annotations.get(REVISION) == str(revision):
            return
        patch = {"metadata": {"annotations": {REVISION: str(revision)}}}
        if (answer := await patch_object(self.client, self.resource, obj, patch)) is not None:
            self.owners.assume(answer, obj)

    async def _roll(self, obj: Object, bounds: Bounds, family: _Family) -> None:
        assert family.new is not None
        new, old = part_of(family.new), [part_of(replica_set) for replica_set in family.old]
        by_name = {replica_set["metadata"]["name"]: replica_set for replica_set in family.old}
        if _recreates(obj):
            for part in old:
                if part.size > 0:
                    await self._resize(obj, by_name[part.name], 0, bounds)
            if not any(part.size for part in old) and not self._old_pods(family):
                await self._resize(obj, family.new, bounds.desired, bounds)
            return
        size = grow_new(bounds, new, old)
        if size != new.size:
            await self._resize(obj, family.new, size, bounds)
            return
        for name, smaller in shrink_old(bounds, new, old).items():
            await self._resize(obj, by_name[name], smaller, bounds)

    def _old_pods(self, family: _Family) -> bool:
        return any(self._set_pods.has_any(replica_set["metadata"]["uid"]) for replica_set in family.old)

    async def _resize(self, obj: Object, target: Object, size: int, bounds: Bounds) -> None:
        before = target["spec"].get("replicas", 1)
        annotations = {DESIRED: str(bounds.desired), MOST: str(bounds.most)}
        held = target["metadata"].get("annotations") or {}
        if before == size and all(held.get(key) == value for key, value in annotations.items()):
            return
        patch: Object = {"metadata": {"annotations": annotations}}
        if before != size:
            patch["spec"] = {"replicas": size}
        await self._patch_set(target, patch)
        if before != size:
            name, way = target["metadata"]["name"], "up" if size > before else "down"
            message = f"Scaled {way} replica set {name} from {before} to {size}"
            self.record(obj, "Normal", "ScalingReplicaSet", message)

    async def _patch_set(self, target: Object, patch: Object) -> Object:
        """Patch a ReplicaSet. Raises Conflict if it has changed: decide again."""
        answer = await patch_version(self.client, REPLICASETS, target, patch)
        self._sets.assume(answer)
        return answer

    def _family(self, obj: Object) -> _Family:
        """Return the current ReplicaSets, including our own writes."""
        sets = self._sets.of(obj["metadata"]["uid"])
        return family_of(
            obj, [replica_set for replica_set in sets if "deletionTimestamp" not in replica_set["metadata"]]
        )

    async def _report(self, obj: Object, bounds: Bounds, family: _Family, event: str) -> Requeue | None:
        meta = obj["metadata"]
        # The report is about the reconciled spec, and extends the latest status.
        latest = self.owners.get(ObjectKey(meta["namespace"], meta["name"])) or obj
        obj = {**obj, "status": latest.get("status") or {}}
        now = self.clock.now()
        parts = [part_of(replica_set) for replica_set in family.all]
        new = part_of(family.new) if family.new is not None else None
        status = progress.status_of(
            obj,
            bounds,
            parts,
            new,
            event=progress.ProgressEvent(new.name if new else meta["name"], event),
            failure=_failure_of(family.all),
            now=now,
        )
        complete = progress.is_complete(bounds, status)
        await self.write_status(obj, status)
        if complete and "deletionTimestamp" not in meta:
            await self._clean_up(obj, family)
        wait = progress.check_again_in(obj, status, now)
        return Requeue(wait) if wait is not None else None

    async def _clean_up(self, obj: Object, family: _Family) -> None:
        limit = obj["spec"].get("revisionHistoryLimit", 10)
        history = [(part_of(replica_set), revision_of(replica_set)) for replica_set in family.old]
        by_name = {replica_set["metadata"]["name"]: replica_set for replica_set in family.old}
        for name in obsolete(history, limit):
            await self.delete_dependent(self._sets, by_name[name])

    def _on_empty_set(self, key: ObjectKey) -> None:
        """Requeue the Deployment, which may have waited for the last pod."""
        emptied = self._sets.get(key)
        owner = controller_of(meta_of(emptied)) if emptied is not None else None
        if owner is not None:
            self.queue.add(ObjectKey(key.namespace, owner.name))


def _recreates(obj: Object) -> bool:
    return bool((obj["spec"].get("strategy") or {}).get("type") == "Recreate")


def _selector_with(selector: Object, suffix: str) -> Object:
    return {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH: suffix}}


def _failure_of(sets: Sequence[Object]) -> Object | None:
    """Return the condition that keeps a ReplicaSet from creating pods, as the Deployment reports it."""
    for replica_set in reversed(sets):
        failure = condition_of((replica_set.get("status") or {}).get("conditions"), progress.FAILURE)
        if failure is not None:
            return {key: failure[key] for key in ("type", "status", "reason", "message") if key in failure}
    return None
