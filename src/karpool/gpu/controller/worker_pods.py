"""Reads pods that request devices: those of our scheduler, and unschedulable ones of others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from karpool.gpu.controller.allocator_state import GpuWorker
from karpool.gpu.controller.enforcement import ALLOCATING, BIND_PHASE
from karpool.gpu.controller.mode import ScalerMode
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import WaitExplanation, WaitReason
from karpool.model.devices import node_devices, pod_requests, tensor_fusion
from karpool.model.devices.partitions import PARTITIONS, written_partitions
from karpool.model.devices.request import GpuRequest
from karpool.model.devices.systems import CLASS_RESOURCES, GpuSystem, system_of
from karpool.model.devices.tensor_fusion import BadGpuRequest
from karpool.model.errors import Invalid
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Container, Pod
from karpool.model.kubernetes.pod_shape import PodShape, shape_of
from karpool.model.kubernetes.times import moment
from karpool.provisioning.names import digest

UNSCHEDULABLE = "Unschedulable"
HAMI_MODELS = "nvidia.com/use-gputype"  # parts of model names, separated by commas
_MODELS_MAX = 1024  # characters
TENSOR_FUSION_INDEX = "tensor-fusion.ai/index"  # and index_0 to index_f: how its plugin identifies the pod


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """`said` is its current condition; `problem` why it cannot be read. `is_ours`: it is a pod of our
    scheduler, whose condition we write.
    """

    key: ObjectKey
    uid: str
    worker: GpuWorker | None
    said: tuple[str, str]
    problem: str = ""
    is_bound: bool = False
    version: str = ""  # of the pod, for updates of exactly that version
    is_ours: bool = True
    is_being_given: bool = False  # HAMi's device plugin is about to give it its devices


class WorkerPods:
    """Reads each version of a pod once."""

    def __init__(
        self, scheduler_name: str, default_pool: str = "", mode: ScalerMode = ScalerMode.AUTO
    ) -> None:
        self.scheduler_name = scheduler_name
        self._default_pool = default_pool
        self._mode = mode
        self._pods: Mapping[ObjectKey, Pod] = {}
        self._workers: dict[ObjectKey, WorkerPod] = {}

    def is_worker(self, pod: Pod) -> bool:
        if self._is_ours(pod):
            return True
        if self._mode is ScalerMode.ALLOCATE or pod.spec.node_name or _is_daemon(pod):
            return False
        return system_of(pod) is not None

    def _is_ours(self, pod: Pod) -> bool:
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

    def being_given_on(self, pods: Mapping[ObjectKey, Pod], node: str) -> frozenset[str]:
        """Our pods (uids) on a node whose devices HAMi's device plugin has not given yet."""
        return frozenset(
            worker.uid
            for key, worker in self.of(pods).items()
            if worker.is_being_given and pods[key].spec.node_name == node
        )

    def read(self, key: ObjectKey, pod: Pod) -> WorkerPod:
        meta, scheduled = pod.metadata, condition(pod.status.conditions, "PodScheduled")
        unread = WorkerPod(
            key,
            meta.uid,
            None,
            said=(scheduled.reason or "", scheduled.message or "") if scheduled else ("", ""),
            is_bound=bool(pod.spec.node_name),
            version=meta.resource_version,
            is_ours=self._is_ours(pod),
            is_being_given=pod.annotations.get(BIND_PHASE) == ALLOCATING and pod.status.phase == "Pending",
        )
        try:
            item = self._item(pod) if unread.is_ours else _foreign_item(pod)
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
            unschedulable=unread.is_ours or unread.said[0] == UNSCHEDULABLE,
        )
        return replace(unread, worker=worker)

    def _item(self, pod: Pod) -> WaitingWorker | str:
        """Raises BadGpuRequest or Invalid; a text if the request is valid but cannot be served here."""
        if self._mode is ScalerMode.BRING_NODES:
            return (
                f"this gpu-scaler runs with --mode={ScalerMode.BRING_NODES} and binds no pods; use the "
                "scheduler that allocates the devices"
            )
        if system_of(pod) is GpuSystem.DRA:
            # The scheduler that binds such a pod writes the allocation of its claims; kube-scheduler does, we
            # do not.
            return (
                "its resource claims (DRA) are allocated by kube-scheduler; name the default scheduler, and "
                "gpu-scaler brings the node"
            )
        request = pod_requests.gpu_request_of(pod, self._default_pool)
        if request is None:
            return (
                f"it requests no GPU; set {tensor_fusion.VRAM_REQUEST}, or remove schedulerName "
                f"{self.scheduler_name}"
            )
        if request.is_of_plugin:
            return f"{request.resource} is allocated by its device plugin; use the default scheduler"
        request = replace(request, resource="", model=node_devices.model_name(request.model))
        return replace(_waiting(pod, request), **_enforcement(pod))


def _waiting(
    pod: Pod, request: GpuRequest, system: GpuSystem | None = None, models: tuple[str, ...] = ()
) -> WaitingWorker:
    shape = shape_of(pod)
    # Pods with different CPU and memory need different nodes; small differences do not matter.
    size = (request.cpu_milli.bit_length(), request.memory_bytes.bit_length())
    where: tuple[object, ...] = (
        shape.node_selector,
        shape.node_terms,
        request.preferred,
        shape.tolerations,
        size,
    )
    if system is not None:
        where = (*where, models, shape.namespace, shape.resource_claims, *_extended(shape))
    created = moment(pod.metadata.creation_timestamp) or 0.0
    return WaitingWorker(request, created, digest(repr(where)), shape, system, models=models)


def _extended(shape: PodShape) -> tuple[object, ...]:
    """Devices that a class offers as an extended resource; their number decides on the node."""
    return tuple(entry for entry in shape.requests if entry[0].startswith(CLASS_RESOURCES))


def _enforcement(pod: Pod) -> dict[str, Any]:
    """The system whose device plugin the kubelet would call for our pod, and the container."""
    resources = [set(_resources(container)) for container in pod.spec.containers or ()]
    match system_of(pod):
        case GpuSystem.HAMI:
            asking = [index for index, names in enumerate(resources) if names & set(node_devices.RESOURCES)]
            if len(asking) == 1:
                return {"enforcer": GpuSystem.HAMI, "containers": (asking[0], len(resources))}
            why = "exactly one container must request nvidia.com/gpu"
        case GpuSystem.TENSOR_FUSION:
            if any(name.startswith(TENSOR_FUSION_INDEX) for names in resources for name in names):
                return {"enforcer": GpuSystem.TENSOR_FUSION}
            why = f"no container requests {TENSOR_FUSION_INDEX}, which TensorFusion's webhook adds"
        case system:
            why = f"shares of {system} are allocated by its own scheduler"
    return {"unenforced": why}


def _resources(container: Container) -> Iterator[str]:
    if container.resources is not None:
        yield from container.resources.requests or {}
        yield from container.resources.limits or {}


def _foreign_item(pod: Pod) -> WaitingWorker | str:
    """The item of a pod of another scheduler. Raises BadGpuRequest or Invalid."""
    system = system_of(pod)
    if system is None:
        return "it requests no device that a GPU system allocates"
    if system is GpuSystem.DRA:
        return _waiting(pod, pod_requests.request_by_claims(pod), system)
    request = pod_requests.gpu_request_of(pod)
    if request is None:
        return "it requests no GPU"
    model = node_devices.model_name(request.model)
    if system in (GpuSystem.MIG, GpuSystem.TIME_SLICES):
        unit = request.resource.partition("/")[2].removeprefix("mig-")
        return _waiting(pod, replace(request, resource="", model=model, template=unit), system)
    names = pod.annotations.get(HAMI_MODELS, "")[:_MODELS_MAX] if system is GpuSystem.HAMI else ""
    models = tuple(name for part in names.split(",") if (name := part.strip()))
    return _waiting(pod, replace(request, resource="", model=model), system, models)


def _is_daemon(pod: Pod) -> bool:
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references or ())


def unreadable(workers: Mapping[ObjectKey, WorkerPod]) -> dict[str, WaitExplanation]:
    """Explanations for our pods whose request cannot be read."""
    return {
        worker.uid: WaitExplanation(worker.uid, WaitReason.BAD_REQUEST, worker.problem)
        for worker in workers.values()
        if worker.problem
    }
