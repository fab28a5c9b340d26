"""The pods of our scheduler: what each asks for, or why that is not known."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from karpool.gpu.allocation.allocator_state import GpuWorker
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.model.devices import node_devices, pod_requests, tensor_fusion
from karpool.model.devices.partitions import PARTITIONS, written_partitions
from karpool.model.devices.tensor_fusion import BadGpuRequest
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import shape_of
from karpool.model.kubernetes.times import moment
from karpool.provisioning.names import digest


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """`said` is what its condition says now; `problem` why it cannot be read."""

    key: ObjectKey
    uid: str
    worker: GpuWorker | None
    said: tuple[str, str]
    problem: str = ""
    is_bound: bool = False
    version: str = ""  # of the pod, for who writes over exactly that


class WorkerPods:
    """Reads each version of a pod once."""

    def __init__(self, scheduler_name: str, default_pool: str = "") -> None:
        self.scheduler_name = scheduler_name
        self._default_pool = default_pool
        self._pods: Mapping[ObjectKey, Pod] = {}
        self._workers: dict[ObjectKey, WorkerPod] = {}

    def is_worker(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name == self.scheduler_name

    def of(self, pods: Mapping[ObjectKey, Pod]) -> Mapping[ObjectKey, WorkerPod]:
        """The workers among the pods that a cluster keeps."""
        if pods is not self._pods:
            old = self._pods
            self._workers = {
                key: self._workers[key] if old.get(key) is pod else self.read(key, pod)
                for key, pod in pods.items()
            }
            self._pods = pods
        return self._workers

    def read(self, key: ObjectKey, pod: Pod) -> WorkerPod:
        meta, scheduled = pod.metadata, condition(pod.status.conditions, "PodScheduled")
        unread = WorkerPod(
            key,
            meta.uid,
            None,
            said=(scheduled.reason or "", scheduled.message or "") if scheduled else ("", ""),
            is_bound=bool(pod.spec.node_name),
            version=meta.resource_version,
        )
        try:
            item = self._item(pod)
        except (BadGpuRequest, Invalid) as error:
            return replace(unread, problem=str(error))
        if isinstance(item, str):
            return replace(unread, problem=item)
        worker = GpuWorker(
            item,
            pod.spec.node_name,
            tensor_fusion.assigned(pod.annotations),
            leaving=pod.is_terminating,
            nominated_node=pod.status.nominated_node_name or "",
            released=pod.is_terminating and not meta.finalizers and meta.deletion_grace_period_seconds == 0,
            partitions=written_partitions(pod.annotations.get(PARTITIONS, "")),
        )
        return replace(unread, worker=worker)

    def _item(self, pod: Pod) -> WaitingWorker | str:
        """Raises BadGpuRequest or Invalid; a text where it is understood and cannot be served here."""
        request = pod_requests.gpu_request_of(pod, self._default_pool)
        if request is None:
            return (
                f"it asks for no GPU; set {tensor_fusion.VRAM_REQUEST}, "
                f"or remove schedulerName {self.scheduler_name}"
            )
        if request.is_of_plugin:
            return f"{request.resource} is handed out by its device plugin; use the default scheduler"
        request = replace(request, resource="", model=node_devices.model_name(request.model))
        shape = shape_of(pod)
        # Pods of very different CPU and memory need different nodes; a little more or less does not.
        size = (request.cpu_milli.bit_length(), request.memory_bytes.bit_length())
        where = (shape.node_selector, shape.node_terms, request.preferred, shape.tolerations, size)
        created = moment(pod.metadata.creation_timestamp) or 0.0
        return WaitingWorker(request, created, digest(repr(where)), shape)


def unreadable(workers: Mapping[ObjectKey, WorkerPod]) -> dict[str, WaitExplanation]:
    """Pods that ask for something in our name that cannot be understood."""
    return {
        worker.uid: WaitExplanation(worker.uid, WaitReason.BAD_REQUEST, worker.problem)
        for worker in workers.values()
        if worker.problem
    }
