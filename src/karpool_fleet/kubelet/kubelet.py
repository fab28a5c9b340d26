"""The kubelets of an embedded cluster: machines become nodes, bound pods run and stop.

One component is the kubelet of every node. A machine of the cloud registers its Node, becomes ready, and
offers its devices when their plugin is up; a node without a machine is used as it is. A pod waits for its
resource claims, pulls its image unless the node has it, starts, becomes ready, and stops within its grace
period.

Annotations of a pod control its behaviour: `RUN_SECONDS` ends it, `OUTCOME` says how. The pause image never
ends by itself.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model import resources
from karpool.model.kubernetes.api_resources import NODES, PODS, RESOURCECLAIMS, ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import ARCH, HOSTNAME, OS, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.cloud.cloud import Cloud, Instance
from karpool_fleet.cloud.delays import Delay, constant, lognormal
from karpool_fleet.kubelet import pod_status
from karpool_fleet.runtime.supervisor import Build, Context
from karpool_fleet.runtime.writes import delete_object, patch_object, patch_version

RUN_SECONDS = "embedded.karpool.dev/run-seconds"
OUTCOME = "embedded.karpool.dev/outcome"  # Succeeded (default), Failed, or NeverReady
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
VERSION = "v1.34.0"
CLAIM_SECONDS = 2.0  # interval of checks for claims that are not ready


@dataclass(frozen=True)
class KubeletSettings:
    register: Delay = field(default_factory=lambda: lognormal(20.0, 0.2))  # boot until the Node exists
    ready: Delay = field(default_factory=lambda: lognormal(10.0, 0.2))  # registered until Ready
    devices: Delay = field(default_factory=lambda: constant(15.0))  # Ready until devices are offered
    pull: Delay = field(default_factory=lambda: lognormal(4.0, 0.5))  # an image the node does not have
    start: Delay = field(default_factory=lambda: constant(1.0))
    readiness: Delay = field(default_factory=lambda: constant(0.0))  # running until Ready
    stop: Delay = field(default_factory=lambda: constant(1.0))  # limited by the grace period
    run: Delay = field(default_factory=lambda: constant(30.0))  # pods that end without their own duration
    heartbeat_seconds: float | None = None  # interval of node heartbeats


def kubelet(cloud: Cloud | None, settings: KubeletSettings | None = None) -> Build:
    return lambda context: Kubelet(context, cloud, settings or KubeletSettings())


class Kubelet:
    def __init__(self, context: Context, cloud: Cloud | None, settings: KubeletSettings) -> None:
        self._context = context
        self._client = context.client
        self._clock = context.clock
        self._cloud = cloud
        self._settings = settings
        self._pods = context.informers.of(PODS, Pod)
        self._nodes = context.informers.of(NODES, Node)
        self._pod_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, chance=context.random.random)
        self._node_queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._due: dict[tuple[str, str], float] = {}  # (uid, stage) -> when it happens, monotonic
        self._images: dict[str, set[str]] = {}  # node -> images it has
        self._stages: dict[str, dict[str, float]] = {}  # instance id -> stage -> its age then

    async def run(self) -> None:
        await self._context.informers.synced()
        self._pods.on_change(self._pod_changed)
        self._nodes.on_change(self._node_changed)
        if self._cloud is not None:
            self._cloud.subscribe(self._instance_changed)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pod_queue.run(self._reconcile_pod, workers=4))
                group.create_task(self._node_queue.run(self._reconcile_node, workers=4))
        finally:
            if self._cloud is not None:
                self._cloud.unsubscribe(self._instance_changed)

    # Nodes

    def _instance_changed(self, instance: Instance) -> None:
        self._node_queue.add(instance.id)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        if change.type == "DELETED":
            self._images.pop(change.key.name, None)
        elif change.type == "ADDED":
            self._node_queue.add(change.key.name)

    def _alive(self, node: str) -> bool:
        """Whether a node's machine still runs; a node without a machine always runs."""
        if self._cloud is None or node in self._cloud.instances:
            return True
        agent = self._nodes.get(ObjectKey("", node))
        return agent is not None and not agent.spec.provider_id.startswith("embedded:///")

    async def _reconcile_node(self, name: str) -> Requeue | None:
        """Reconcile a node, which has the name of its machine, so that a restart finds it."""
        instance = self._cloud.instances.get(name) if self._cloud else None
        node = self._nodes.get(ObjectKey("", name))
        if instance is None:
            self._stages.pop(name, None)
            return await self._heartbeat(node) if node is not None and self._alive(name) else None
        if not instance.boot.registers:
            return None
        age = self._clock.monotonic() - instance.launched_at
        if node is None:
            if wait := self._left(instance, "register", self._settings.register, age):
                return Requeue(wait)
            await self._register(instance)
            return None  # its event requeues it; until then the cache shows the old state
        tainted = any(taint.key == NOT_READY["key"] for taint in node.spec.taints or ())
        if not node.is_ready or tainted:
            if not instance.boot.becomes_ready:
                return None
            if wait := self._left(instance, "ready", self._settings.ready, age):
                return Requeue(wait)
            await self._client.patch(
                NODES,
                name,
                {"status": pod_status.node_ready(self._now())},
                how="strategic",
                subresource="status",
            )
            await self._untaint(name)
        devices = _devices(instance)
        if devices and not set(devices) <= set(node.status.allocatable or ()):
            slow = instance.boot.device_seconds
            delay = self._settings.devices if slow is None else constant(slow)
            if wait := self._left(instance, "devices", delay, age):
                return Requeue(wait)
            offered = {"capacity": devices, "allocatable": devices}
            await self._client.patch(NODES, name, {"status": offered}, how="strategic", subresource="status")
        return await self._heartbeat(node)

    def _left(self, instance: Instance, stage: str, delay: Delay, age: float) -> float:
        """Return the seconds until a boot stage of a machine; each stage starts after the one before."""
        stages = self._stages.setdefault(instance.id, {})
        if stage not in stages:
            begun = age if stage != "register" else 0.0
            stages[stage] = begun + delay.draw(self._context.random)
        return _wait(stages[stage] - age)

    async def _register(self, instance: Instance) -> None:
        taints = [
            {"key": t.key, "effect": t.effect, **({"value": t.value} if t.value else {})}
            for t in instance.taints
        ]
        quantities = {
            kind: {
                name: units
                for name, units in resources.quantities(amounts).items()
                if not resources.is_extended(name)
            }
            for kind, amounts in (
                ("capacity", instance.type.capacity),
                ("allocatable", instance.type.allocatable),
            )
        }
        node = {
            "metadata": {"name": instance.id, "labels": {**instance.labels, HOSTNAME: instance.id}},
            "spec": {"providerID": instance.provider_id, "taints": [*taints, NOT_READY]},
            "status": {
                **quantities,
                "conditions": [pod_status.condition_patch("Ready", "False", "KubeletNotReady", self._now())],
                "nodeInfo": _node_info(instance),
            },
        }
        try:
            await self._client.create(NODES, node)
        except AlreadyExists:
            return
        await self._client.patch(NODES, instance.id, {"status": node["status"]}, subresource="status")

    async def _untaint(self, name: str) -> None:
        """Remove our own taint and keep the others; a conflict requeues the key."""
        node = await self._client.get(NODES, name)
        kept = [taint for taint in node["spec"].get("taints", ()) if taint["key"] != NOT_READY["key"]]
        await patch_version(self._client, NODES, node, {"spec": {"taints": kept}})

    async def _heartbeat(self, node: Node) -> Requeue | None:
        if self._settings.heartbeat_seconds is None:
            return None
        beat: dict[str, Any] = {"conditions": [{"type": "Ready", "lastHeartbeatTime": self._now()}]}
        ready = condition(node.status.conditions, "Ready")
        if ready is not None and ready.status == "Unknown":  # another controller marked it unreachable
            beat["conditions"][0] |= pod_status.node_ready(self._now())["conditions"][0]
        await self._client.patch(NODES, node.name, {"status": beat}, how="strategic", subresource="status")
        return Requeue(self._settings.heartbeat_seconds)

    # Pods

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if change.type == "DELETED":
            if pod is not None:
                self._forget(pod)
        elif pod is not None and pod.spec.node_name:
            self._pod_queue.add(change.key)

    async def _reconcile_pod(self, key: ObjectKey) -> Requeue | None:
        pod = self._pods.get(key)
        if pod is None or not pod.spec.node_name or not self._alive(pod.spec.node_name):
            return None
        if pod.is_terminating:
            return await self._stop(pod)
        if pod.is_terminal:
            return None
        if pod.status.phase != "Running":
            return await self._start(pod)
        return await self._follow(pod)

    async def _start(self, pod: Pod) -> Requeue | None:
        if not await self._has_claims(pod):
            return Requeue(CLAIM_SECONDS)
        if wait := self._until(pod, "start", lambda: self._start_delay(pod)):
            if pod.status.start_time is None:
                await self._write(pod, pod_status.starting(pod, self._now()))
            return Requeue(wait)
        ready = self._settings.readiness == constant(0) and pod.annotations.get(OUTCOME) != "NeverReady"
        await self._write(
            pod, pod_status.running(pod, pod.status.start_time or self._now(), self._now(), ready=ready)
        )
        return None  # its event requeues it

    async def _has_claims(self, pod: Pod) -> bool:
        """Whether every resource claim of the pod has devices and is reserved for it."""
        for name in claim_names(pod):
            if name is None:
                return False
            try:
                claim: dict[str, Any] = await self._client.get(
                    RESOURCECLAIMS, name, namespace=pod.metadata.namespace
                )
            except NotFound:
                return False
            status = claim.get("status") or {}
            reserved = {consumer.get("uid") for consumer in status.get("reservedFor") or ()}
            if not status.get("allocation") or pod.metadata.uid not in reserved:
                return False
        return True

    def _start_delay(self, pod: Pod) -> float:
        images = self._images.setdefault(pod.spec.node_name, set())
        image_names = [container.image for container in pod.spec.containers or ()]
        delay = self._settings.start.draw(self._context.random)
        for image in image_names:
            if image not in images:
                delay += self._settings.pull.draw(self._context.random)
                images.add(image)
        return delay

    async def _follow(self, pod: Pod) -> Requeue | None:
        """Make a running pod ready, and end it if it is one that ends."""
        wait = None
        if not pod_status.is_ready(pod) and pod.annotations.get(OUTCOME) != "NeverReady":
            wait = self._until(pod, "readiness", lambda: self._settings.readiness.draw(self._context.random))
            if not wait:
                await self._write(
                    pod,
                    pod_status.running(pod, pod.status.start_time or self._now(), self._now(), ready=True),
                )
        if (run := _run_seconds(pod)) is None and (pod.spec.restart_policy in ("", "Always") or _pauses(pod)):
            return Requeue(wait) if wait else None
        ends = self._until(
            pod, "end", lambda: self._settings.run.draw(self._context.random) if run is None else run
        )
        if ends:
            return Requeue(min(ends, wait) if wait else ends)
        succeeded = pod.annotations.get(OUTCOME) != "Failed"
        await self._write(pod, pod_status.ended(pod, self._now(), succeeded=succeeded))
        return None

    async def _stop(self, pod: Pod) -> Requeue | None:
        grace = pod.metadata.deletion_grace_period_seconds
        limit = 30.0 if grace is None else float(grace)
        if wait := self._until(
            pod, "stop", lambda: min(limit, self._settings.stop.draw(self._context.random))
        ):
            return Requeue(wait)
        await delete_object(self._client, PODS, pod, grace_seconds=0)
        return None

    def _until(self, pod: Pod, stage: str, draw: Callable[[], float]) -> float:
        """Return the seconds until a stage of this pod's life; drawn once, on the first call."""
        key = (pod.metadata.uid, stage)
        if key not in self._due:
            self._due[key] = self._clock.monotonic() + draw()
        return _wait(self._due[key] - self._clock.monotonic())

    def _forget(self, pod: Pod) -> None:
        for stage in ("start", "readiness", "end", "stop"):
            self._due.pop((pod.metadata.uid, stage), None)

    async def _write(self, pod: Pod, status: dict[str, Any]) -> None:
        await patch_object(self._client, PODS, pod, {"status": status}, status=True, how="strategic")

    def _now(self) -> str:
        return rfc3339(self._clock.now())


def claim_names(pod: Pod) -> Iterator[str | None]:
    """Yield the names of its resource claim objects; None for one that is not created yet."""
    made = {status.name: status for status in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_name:
            yield entry.resource_claim_name
        elif entry.name not in made:
            yield None
        elif (name := made[entry.name].resource_claim_name) is not None:  # otherwise no claim was needed
            yield name


def _wait(seconds: float) -> float:
    """Seconds to wait, or 0. A wall clock in floats is no finer than a quarter of a microsecond."""
    return seconds if seconds > 1e-6 else 0.0


def _pauses(pod: Pod) -> bool:
    """Whether the pod runs the pause image, as placeholders do: it never ends."""
    images = [container.image for container in pod.spec.containers or ()]
    return bool(images) and all(image.rpartition("/")[2].partition(":")[0] == "pause" for image in images)


def _run_seconds(pod: Pod) -> float | None:
    """Return the run time in the annotation of the pod; None if it is missing or cannot be read."""
    text = pod.annotations.get(RUN_SECONDS, "")
    return float(text) if text.isdecimal() else None


def _node_info(instance: Instance) -> dict[str, str]:
    return {
        "machineID": instance.id,
        "systemUUID": instance.id,
        "bootID": instance.id,
        "kernelVersion": "embedded",
        "osImage": "embedded",
        "containerRuntimeVersion": "embedded://1",
        "kubeletVersion": VERSION,
        "kubeProxyVersion": VERSION,
        "operatingSystem": instance.labels.get(OS, "linux"),
        "architecture": instance.labels.get(ARCH, "amd64"),
    }


def _devices(instance: Instance) -> dict[str, str]:
    """Return the extended resources of a machine, which its device plugin offers."""
    return {
        name: str(units)
        for name, units in instance.type.allocatable.items()
        if units and resources.is_extended(name)
    }
