"""The node lifecycle controller: unreachable nodes, and eviction of the pods on them.

A node whose machine is gone, or whose kubelet has been silent for too long, becomes Ready=Unknown. Ready
decides the taints not-ready and unreachable; NoExecute taints evict pods after the time that they tolerate. A
node whose machine is gone is deleted, unless it has Karpenter's finalizer, which then handles it.

A kubelet counts as silent only if it has ever sent heartbeats (`KubeletSettings.heartbeat_seconds`), which
must be shorter than the grace period.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube import event_recorder
from karpool.kube.errors import NotFound
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.karpenter.objects import TERMINATION_FINALIZER
from karpool.model.kubernetes.api_resources import NODES, PODS, ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, Taint, Toleration
from karpool_fleet.cloud.cloud import Cloud, Instance
from karpool_fleet.kubelet.pod_status import condition_patch
from karpool_fleet.runtime.supervisor import Build, Context
from karpool_fleet.runtime.watched_cluster import PodsByNode
from karpool_fleet.runtime.writes import delete_object, patch_object, patch_version

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
PROVIDER = "embedded:///"  # prefix of the provider ids of machines


GRACE_SECONDS = 40.0  # of silence, after which a node is unreachable
DEFAULT_TOLERATION_SECONDS = 300.0  # of pods without a toleration of their own


def node_lifecycle(cloud: Cloud | None) -> Build:
    return lambda context: NodeLifecycle(context, cloud)


def taints_for(ready: str) -> tuple[Taint, ...]:
    """Return the taints for a status of the Ready condition."""
    key = {"True": "", "False": NOT_READY}.get(ready, UNREACHABLE)
    return tuple(Taint(key=key, effect=effect) for effect in (NO_SCHEDULE, NO_EXECUTE)) if key else ()


def stay_seconds(taints: Iterable[Taint], tolerations: Iterable[Toleration], default_seconds: float) -> float:
    """Return how long a pod may stay on a node with these NoExecute taints: 0 not at all, inf for ever."""
    tolerations = tuple(tolerations)
    allowed = math.inf
    for taint in taints:
        matching = [toleration for toleration in tolerations if toleration.tolerates(taint)]
        if not matching:
            allowed = min(allowed, default_seconds if taint.key in (NOT_READY, UNREACHABLE) else 0.0)
            continue
        limits = [
            toleration.toleration_seconds
            for toleration in matching
            if toleration.toleration_seconds is not None
        ]
        allowed = min(allowed, *(max(float(limit), 0.0) for limit in limits)) if limits else allowed
    return allowed


class NodeLifecycle:
    def __init__(self, context: Context, cloud: Cloud | None) -> None:
        self._context, self._client, self._clock = context, context.client, context.clock
        self._cloud = cloud
        self._nodes = context.informers.of(NODES, Node)
        self._pods = context.informers.of(PODS, Pod)
        self._node_queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._heard: dict[str, tuple[str, float]] = {}  # the last heartbeat, and when it was received
        self._gone_at: dict[str, float] = {}  # nodes whose machine is gone, and since when this is known
        self._driving_out: dict[str, dict[Taint, float]] = {}  # NoExecute taints by node, and since when
        self._pods_by_node = PodsByNode()

    async def run(self) -> None:
        await self._context.informers.synced()
        self._pods.on_change(self._pod_changed)
        self._nodes.on_change(self._node_changed)
        if self._cloud is not None:
            self._cloud.subscribe(self._machine_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._node_queue.run(self._reconcile, workers=4))
                group.create_task(self._pod_queue.run(self._drive_out, workers=4))
        finally:
            if self._cloud is not None:
                self._cloud.unsubscribe(self._machine_changed)

    # Events

    def _machine_changed(self, instance: Instance) -> None:
        if instance.state == "terminated":
            self._node_queue.add(instance.id)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        name, node = change.key.name, change.object
        if change.type == "DELETED" or node is None:
            self._heard.pop(name, None)
            self._gone_at.pop(name, None)
            self._driving_out.pop(name, None)
            return
        beat = self._heartbeat(node)
        if beat and self._heard.get(name, ("", 0.0))[0] != beat:
            self._heard[name] = (beat, self._clock.monotonic())
        old = change.old
        if (
            old is None
            or old.spec != node.spec
            or _ready(old) != _ready(node)
            or (beat and not self._heartbeat(old))
        ):
            self._follow_taints(node)
            self._node_queue.add(name)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        key = change.key
        if self._pods_by_node.take(change) and self._pods_by_node.node_of(key) in self._driving_out:
            self._pod_queue.add(key)

    def _follow_taints(self, node: Node) -> None:
        before = self._driving_out.pop(node.name, {})
        now = self._clock.monotonic()
        taints = {
            taint: before.get(taint, now) for taint in node.spec.taints or () if taint.effect == NO_EXECUTE
        }
        if taints:
            self._driving_out[node.name] = taints
        if taints.keys() != before.keys():
            for key in self._pods_by_node.on(node.name):
                self._pod_queue.add(key)

    # Nodes

    async def _reconcile(self, name: str) -> Requeue | None:
        node = self._nodes.get(ObjectKey("", name))
        if node is None:
            return None
        wait = self._silence_left(node)
        if wait == 0 and _ready(node) != "Unknown":
            await self._mark_unknown(node)
            return None  # its event brings it back
        if wait == 0 and self._is_gone(node):
            await self._delete(node)
            return None
        await self._set_taints(node)
        return Requeue(wait) if wait else None

    def _silence_left(self, node: Node) -> float | None:
        """Return the seconds until this node is unreachable; None if that is not expected."""
        now = self._clock.monotonic()
        since: list[float] = []
        if self._is_gone(node):
            since.append(self._gone_at.setdefault(node.name, now))
        else:
            self._gone_at.pop(node.name, None)
        if node.name in self._heard:
            since.append(self._heard[node.name][1])
        return _wait(min(since) + GRACE_SECONDS - now) if since else None

    def _is_gone(self, node: Node) -> bool:
        bought = node.spec.provider_id.startswith(PROVIDER)
        return self._cloud is not None and bought and self._cloud.find(node.spec.provider_id) is None

    @staticmethod
    def _heartbeat(node: Node) -> str:
        ready = condition(node.status.conditions, "Ready")
        return (ready.last_heartbeat_time or "") if ready is not None else ""

    async def _mark_unknown(self, node: Node) -> None:
        condition_types = [condition.type for condition in node.status.conditions or ()] or ["Ready"]
        conditions = [
            condition_patch(
                kind, "Unknown", "NodeStatusUnknown", self._now(), "Kubelet stopped posting node status."
            )
            for kind in condition_types
        ]
        with suppress(NotFound):
            await self._client.patch(
                NODES,
                node.name,
                {"status": {"conditions": conditions}},
                how="strategic",
                subresource="status",
            )
            self._event(node, "NodeNotReady", f"Node {node.name} status is now: NodeNotReady")

    async def _set_taints(self, node: Node) -> None:
        ready = _ready(node)
        if not ready:
            return  # no status yet
        ours = {(taint.key, taint.effect) for taint in taints_for(ready)}
        if _ours(node.spec.taints or ()) == ours:
            return
        with suppress(NotFound):
            # Read the whole node, because a taint has more fields than our struct; a conflict requeues the
            # key.
            raw = await self._client.get(NODES, node.name)
            taints = (raw.get("spec") or {}).get("taints") or []
            kept = [
                taint
                for taint in taints
                if taint["key"] not in (NOT_READY, UNREACHABLE) or (taint["key"], taint["effect"]) in ours
            ]
            there = {(taint["key"], taint["effect"]) for taint in kept}
            for taint in taints_for(ready):
                if (taint.key, taint.effect) not in there:
                    added = {"timeAdded": self._now()}
                    kept.append({"key": taint.key, "effect": taint.effect, **added})
            if kept != taints:
                await patch_version(self._client, NODES, raw, {"spec": {"taints": kept}})

    async def _delete(self, node: Node) -> None:
        if TERMINATION_FINALIZER in (node.metadata.finalizers or ()):
            await self._set_taints(node)
            return
        self._event(
            node, "DeletingNode", f"Deleting node {node.name} because it does not exist in the cloud provider"
        )
        await delete_object(self._client, NODES, node)

    # Pods

    async def _drive_out(self, key: ObjectKey) -> Requeue | None:
        pod = self._pods.get(key)
        taints = self._driving_out.get(self._pods_by_node.node_of(key))
        if pod is None or pod.is_terminating or not taints:
            return None
        left = _wait(self._stay_left(pod, taints))
        if math.isinf(left):
            return None
        if left > 0:
            return Requeue(left)
        target = condition_patch(
            "DisruptionTarget",
            "True",
            "DeletionByTaintManager",
            self._now(),
            "Taint manager: deleting due to NoExecute taint",
        )
        told = {"status": {"conditions": [target]}}
        await patch_object(self._client, PODS, pod, told, status=True, how="strategic")
        if await delete_object(self._client, PODS, pod):
            about, message = event_recorder.ref(PODS, pod), f"Marking for deletion Pod {key}"
            self._context.events.record(about, "Normal", "TaintManagerEviction", message)
        return None

    def _stay_left(self, pod: Pod, taints: Mapping[Taint, float]) -> float:
        now = self._clock.monotonic()
        tolerations = pod.spec.tolerations or ()
        return min(
            since + stay_seconds((taint,), tolerations, DEFAULT_TOLERATION_SECONDS) - now
            for taint, since in taints.items()
        )

    def _event(self, node: Node, reason: str, message: str) -> None:
        about: Any = event_recorder.ref(NODES, node)
        self._context.events.record(about, "Normal", reason, message)

    def _now(self) -> str:
        return rfc3339(self._clock.now())


def _wait(seconds: float) -> float:
    """Return the seconds to wait, or 0: times are sums of floats, and the last bit must not cause a wait."""
    return seconds if seconds > 1e-6 else 0.0


def _ready(node: Node) -> str:
    ready = condition(node.status.conditions, "Ready")
    return ready.status if ready is not None else ""


def _ours(taints: Iterable[Taint]) -> set[tuple[str, str]]:
    return {(taint.key, taint.effect) for taint in taints if taint.key in (NOT_READY, UNREACHABLE)}
