"""Decides which changes need another step: most pods and nodes of a cluster do not use GPUs."""

from typing import Any

from msgspec import structs

from karpool.cluster import kinds
from karpool.cluster.changes import DELETED, ObjectChange
from karpool.cluster.cluster import Cluster
from karpool.gpu.controller.allocator_state import GpuWorker
from karpool.gpu.controller.worker_pods import WorkerPods
from karpool.model.devices import node_devices
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import RUNNING, Device, GpuObject, from_object
from karpool.model.devices.request import GpuRequest
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import GPUS, NODES, PODS, ApiResource, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod


class StepTriggers:
    """Called before the cluster handles a change, so that deleted objects are still known."""

    def __init__(self, cluster: Cluster, workers: WorkerPods) -> None:
        self._cluster = cluster
        self._workers = workers
        self._gpu_nodes: set[str] = set()

    def concerns(self, resource: ApiResource, change: ObjectChange[Any]) -> bool:
        key, after = change.key, None if change.type == DELETED else change.object
        if resource == NODES:
            return self._node_concerns(key.name, after)
        if resource == GPUS:
            return self._gpu_concerns(key.name, after)
        return resource != PODS or self._pod_concerns(key, after)

    def _node_concerns(self, name: str, after: Node | None) -> bool:
        had_gpus = name in self._gpu_nodes
        self._gpu_nodes.discard(name)
        if after is not None and node_devices.has_gpus(after):
            self._gpu_nodes.add(name)
        return had_gpus or name in self._gpu_nodes

    def _pod_concerns(self, key: ObjectKey, after: Pod | None) -> bool:
        before = self._cluster.kept_pods.get(key)
        if before is not None:
            # The conditions that we write change a pod, and must not cause another step.
            return after is None or self._asked(key, before) != self._asked(key, after)
        if after is not None and self._workers.is_worker(after):
            return True
        node = self._cluster.room.node_of(str(key)) or (after.spec.node_name if after is not None else "")
        return node in self._gpu_nodes

    def _asked(self, key: ObjectKey, pod: Pod) -> tuple[GpuWorker | None, str]:
        worker = self._workers.read(key, pod)
        return worker.worker, worker.problem

    def _gpu_concerns(self, name: str, gpu: GpuObject | None) -> bool:
        """Scale-ups follow the devices of their nodes; otherwise a step runs only if it may help a pending
        pod.
        """
        old = self._cluster.room.described_device(name)
        try:
            new = None if gpu is None else from_object(gpu)
        except Invalid:
            new = None
        if new is not None:
            new = structs.replace(new, model=node_devices.model_name(new.model))
        if self._cluster.held(kinds.SCALE_UPS):
            return old != new
        # The ledger, not the object, knows what is free. Assume that all of it may be.
        old, new = (device and structs.replace(device, available=device.capacity) for device in (old, new))
        return any(
            should_wake(pod.worker.item.request, old, new, pod.worker.nominated_node)
            for pod in self._workers.of(self._cluster.kept_pods).values()
            if pod.worker is not None and not pod.worker.node and not pod.worker.leaving
        )


def should_wake(
    request: GpuRequest, old: Device | None, new: Device | None, nominated_node: str = ""
) -> bool:
    """Whether the device is on the pod's nominated node, turned Running in its pool, or has a new
    free slot.
    """
    if new is None:
        return False
    if nominated_node and new.node == nominated_node:
        return True
    if new.pool and request.pool and new.pool != request.pool:
        return False
    if new.phase == RUNNING and old is not None and old.phase != RUNNING:
        return True
    before = (old.available if old is not None else None) or NOTHING
    after = new.available or NOTHING
    rise = after - before
    return _is_positive(rise) and rise.covers(request.request.on(new.capacity or after))


def _is_positive(amount: DeviceAmount) -> bool:
    return amount.tflops_milli > 0 or amount.vram_bytes > 0
