"""A simplified persistent-volume controller and provisioner.

A claim binds the smallest free volume that fits, or gets a new one if its class has a provisioner: at once,
or, if the class waits for the first consumer, in the zone of the node that the scheduler has chosen. Volumes
are deleted with their claims unless they are to be retained. Claims of ephemeral volumes are created for
their pods.

New volumes are named after the uid of their claim, so that a restart finds them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model import resources
from karpool.model.kubernetes.api_resources import NODES, PODS, PVCS, PVS, STORAGECLASSES, ObjectKey
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.volumes import (
    BIND_COMPLETED,
    NO_PROVISIONER,
    SELECTED_NODE,
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    class_name,
    could_bind,
)
from karpool.model.requirements import node_terms_of
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.node_table import node_row, table_of
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import delete_object, owner_reference, patch_version

Object = dict[str, Any]
_FREE = ("", "Pending", "Available")
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


PROVISION_SECONDS = 3.0


class VolumeController:
    def __init__(self, context: Context) -> None:
        self._context, self._client, self._clock = context, context.client, context.clock
        self._claims: Feed[Object] = context.informers.of(PVCS)
        self._volumes: Feed[Object] = context.informers.of(PVS)
        self._classes: Feed[Object] = context.informers.of(STORAGECLASSES)
        self._nodes = context.informers.of(NODES, Node)
        self._pods = context.informers.of(PODS, Pod)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._volume_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._open: dict[ObjectKey, None] = {}  # claims without a volume
        self._ready_at: dict[str, float] = {}  # claim uid -> time when its new volume is ready

    async def run(self) -> None:
        await self._context.informers.synced()
        self._claims.on_change(self._claim_changed)
        self._volumes.on_change(self._volume_changed)
        self._classes.on_change(self._class_changed)
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run(self._reconcile))
            group.create_task(self._volume_queue.run(self._reconcile_volume))
            group.create_task(self._pod_queue.run(self._reconcile_pod))

    def _claim_changed(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED":
            self._open.pop(change.key, None)
            volume = (change.object or {}).get("spec", {}).get("volumeName")
            if volume:
                self._volume_queue.add(ObjectKey("", volume))
            return
        if (change.object or {}).get("status", {}).get("phase") == "Bound":
            self._open.pop(change.key, None)
        else:
            self._open[change.key] = None
            self._queue.add(change.key)

    def _volume_changed(self, change: ObjectChange[Object]) -> None:
        if change.type != "DELETED":
            self._volume_queue.add(change.key)
        self._reopen()

    def _class_changed(self, _: ObjectChange[Object]) -> None:
        self._reopen()

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        if change.type == "DELETED":
            self._reopen()

    def _reopen(self) -> None:
        for key in self._open:
            self._queue.add(key)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if change.type == "ADDED" and pod is not None and any(v.ephemeral for v in pod.spec.volumes or ()):
            self._pod_queue.add(change.key)

    # Claims

    async def _reconcile(self, key: ObjectKey) -> Requeue | None:
        raw = self._claims.get(key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return None
        claim = decode(raw, PersistentVolumeClaim)
        if claim.is_bound and claim.status.phase == "Bound":
            return None
        held = self._held(claim)
        if held is not None:
            await self._bind(claim, held)
            return None
        if claim.spec.volume_name:
            return None  # its volume does not exist or belongs to another claim
        return await self._find_or_provision(claim)

    def _held(self, claim: PersistentVolumeClaim) -> Object | None:
        """Return the volume of this claim: the one it names, or the one created for it."""
        name = claim.spec.volume_name or f"pvc-{claim.metadata.uid}"
        volume = self._volumes.get(ObjectKey("", name))
        holder = (volume or {}).get("spec", {}).get("claimRef") or {}
        mine = holder.get("uid") in (None, "", claim.metadata.uid)
        same = (holder.get("namespace"), holder.get("name")) == (claim.metadata.namespace, claim.name)
        return volume if volume is not None and (not holder or (same and mine)) else None

    async def _find_or_provision(self, claim: PersistentVolumeClaim) -> Requeue | None:
        chosen = self._class_of(claim)
        if chosen is None:
            return None
        node: Node | None = None
        if chosen.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER:
            name = claim.annotations.get(SELECTED_NODE, "")
            if not name:
                return None  # the scheduler has not chosen a node yet
            node = self._nodes.get(ObjectKey("", name))
            if node is None:
                return await self._choose_again(claim, name)
        free = [volume for volume in self._suitable(claim, chosen) if node is None or _reaches(volume, node)]
        if free:
            name = min(free, key=lambda volume: (_size(volume), volume.name)).name
            volume = self._volumes.get(ObjectKey("", name))
            if volume is not None:
                await self._bind(claim, volume)
            return None
        if chosen.provisioner in ("", NO_PROVISIONER):
            return None
        if wait := self._left(claim.metadata.uid):
            return Requeue(wait)
        await self._provision(claim, chosen, node)
        return None

    async def _choose_again(self, claim: PersistentVolumeClaim, node: str) -> Requeue | None:
        """Clear the selected node of a claim if the node is gone; the pod would be pending for ever."""
        with suppress(NotFound):
            await self._client.get(NODES, node)
            return Requeue(1.0)  # the watch has not reported the node yet
        await patch_version(self._client, PVCS, claim, {"metadata": {"annotations": {SELECTED_NODE: None}}})
        return None

    def _class_of(self, claim: PersistentVolumeClaim) -> StorageClass | None:
        """Return the class, None if it does not exist; a claim without class has an empty one."""
        class_asked = class_name(claim)
        if class_asked == "":
            return StorageClass()
        classes = sorted((decode(raw, StorageClass) for raw in self._classes.objects()), key=lambda c: c.name)
        return next(
            (
                storage_class
                for storage_class in classes
                if storage_class.name == class_asked or (class_asked is None and storage_class.is_default)
            ),
            None,
        )

    def _suitable(self, claim: PersistentVolumeClaim, chosen: StorageClass) -> Iterator[PersistentVolume]:
        for raw in self._volumes.objects():
            volume = decode(raw, PersistentVolume)
            if volume.status.phase in _FREE and could_bind(claim, chosen, volume):
                yield volume

    def _left(self, uid: str) -> float:
        if uid not in self._ready_at:
            self._ready_at[uid] = self._clock.monotonic() + PROVISION_SECONDS
        left = self._ready_at[uid] - self._clock.monotonic()
        return left if left > 1e-6 else 0.0  # times are sums of floats

    async def _provision(self, claim: PersistentVolumeClaim, chosen: StorageClass, node: Node | None) -> None:
        name = f"pvc-{claim.metadata.uid}"
        zone = node.labels.get(ZONE) if node is not None else self._any_zone(claim, chosen)
        terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
        requests = claim.spec.resources.requests if claim.spec.resources else None
        volume = {
            "metadata": {"name": name, "annotations": {_PROVISIONED_BY: chosen.provisioner}},
            "spec": {
                "capacity": {"storage": (requests or {}).get("storage", "1Gi")},
                "accessModes": claim.spec.access_modes or ["ReadWriteOnce"],
                "claimRef": _reference(claim),
                "persistentVolumeReclaimPolicy": self._reclaim_policy(chosen),
                "storageClassName": chosen.name,
                "volumeMode": claim.spec.volume_mode,
                "csi": {"driver": chosen.provisioner, "volumeHandle": name},
                **({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if zone else {}),
            },
        }
        with suppress(AlreadyExists):
            await self._client.create(PVS, volume)
        await self._bind(claim, volume)
        self._ready_at.pop(claim.metadata.uid, None)

    def _reclaim_policy(self, chosen: StorageClass) -> str:
        raw = self._classes.get(ObjectKey("", chosen.name)) or {}
        return str(raw.get("reclaimPolicy") or "Delete")

    def _any_zone(self, claim: PersistentVolumeClaim, chosen: StorageClass) -> str | None:
        """Return a zone for a volume with immediate binding; repeated calls return the same zone."""
        allowed = [
            value
            for term in chosen.allowed_topologies or ()
            for expression in term.match_label_expressions or ()
            if expression.key == ZONE
            for value in expression.values or ()
        ]
        zones = sorted(set(allowed) or {n.labels[ZONE] for n in self._nodes.objects() if ZONE in n.labels})
        number = int(claim.metadata.uid.replace("-", "")[:8] or "0", 16)
        return zones[number % len(zones)] if zones else None

    async def _bind(self, claim: PersistentVolumeClaim, volume: Object) -> None:
        """Bind in this order: claimRef of the volume, volume name of the claim, then both phases."""
        name = volume["metadata"]["name"]
        if (volume["spec"].get("claimRef") or {}).get("uid") != claim.metadata.uid:
            # Of two claims for the same volume, one gets a conflict and retries.
            await patch_version(self._client, PVS, volume, {"spec": {"claimRef": _reference(claim)}})
        await self._client.patch(PVS, name, {"status": {"phase": "Bound"}}, subresource="status")
        bound = {
            "metadata": {"uid": claim.metadata.uid, "annotations": {BIND_COMPLETED: "yes"}},
            "spec": {"volumeName": name},
        }
        space = claim.metadata.namespace
        await self._client.patch(PVCS, claim.name, bound, namespace=space)
        spec = volume["spec"]
        status = {"phase": "Bound", "capacity": spec.get("capacity"), "accessModes": spec.get("accessModes")}
        await self._client.patch(PVCS, claim.name, {"status": status}, namespace=space, subresource="status")

    # Volumes whose claim is gone, and claims of ephemeral volumes

    async def _reconcile_volume(self, key: ObjectKey) -> None:
        volume = self._volumes.get(key)
        holder = (volume or {}).get("spec", {}).get("claimRef") or {}
        if volume is None or volume.get("status", {}).get("phase") == "Released":
            return
        if not holder.get("uid"):
            await self._set_phase(key.name, volume, "Available")
            return
        try:
            claim = await self._client.get(PVCS, holder["name"], namespace=holder["namespace"])
            if claim["metadata"]["uid"] == holder["uid"]:
                return
        except NotFound:
            pass
        with suppress(NotFound):
            if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
                await delete_object(self._client, PVS, volume)
            else:
                await self._set_phase(key.name, volume, "Released")

    async def _set_phase(self, name: str, volume: Object, phase: str) -> None:
        if volume.get("status", {}).get("phase") != phase:
            await self._client.patch(PVS, name, {"status": {"phase": phase}}, subresource="status")

    async def _reconcile_pod(self, key: ObjectKey) -> None:
        pod = self._pods.get(key)
        if pod is None or pod.is_terminating:
            return
        for volume in pod.spec.volumes or ():
            template = (volume.ephemeral or {}).get("volumeClaimTemplate")
            if not isinstance(template, dict):
                continue
            metadata = {
                **(template.get("metadata") or {}),
                "name": f"{pod.name}-{volume.name}",
                "namespace": key.namespace,
                "ownerReferences": [owner_reference(PODS, pod)],
            }
            with suppress(AlreadyExists):
                await self._client.create(PVCS, {"metadata": metadata, "spec": template.get("spec") or {}})


def _reference(claim: PersistentVolumeClaim) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.metadata.namespace,
        "name": claim.name,
        "uid": claim.metadata.uid,
    }


def _reaches(volume: PersistentVolume, node: Node) -> bool:
    affinity = volume.spec.node_affinity
    terms = node_terms_of(affinity.required) if affinity is not None else None
    return terms is None or bool(matches_terms(table_of([node_row(node)]), terms)[0])


def _size(volume: PersistentVolume) -> int:
    return resources.parse_all(volume.spec.capacity).get("storage", 0)
