"""The systems that allocate devices to pods of other schedulers, recognised by what the pods request.

Autoscalers do not see these requests: a share is an annotation or a resource that no instance type promises,
and a claim is an object. They do see whole devices of a plugin (`nvidia.com/gpu`), so pods that request
nothing else belong to no system here.
"""

from collections.abc import Iterator
from enum import StrEnum

from karpool.model.devices import pod_requests, tensor_fusion
from karpool.model.kubernetes.pod import Pod

CLASS_RESOURCES = "deviceclass.resource.kubernetes.io/"
MIG_RESOURCES, TIME_SLICES_RESOURCE = "nvidia.com/mig-", "nvidia.com/gpu.shared"
# A label of a NodePool's template, for clusters with several systems: the system of its nodes.
HANDED_OUT_BY = "gpu.karpool.dev/handed-out-by"


class GpuSystem(StrEnum):
    DRA = "dra"
    HAMI = "hami"
    KAI = "kai"
    VOLCANO = "volcano"
    TENSOR_FUSION = "tensor-fusion"
    MIG = "mig"
    TIME_SLICES = "time-slices"


def system_of(pod: Pod) -> GpuSystem | None:
    """Return the system that allocates the pod's devices; None for no devices, or plain ones."""
    if pod.spec.resource_claims:
        return GpuSystem.DRA
    if tensor_fusion.is_worker(tensor_fusion.of_worker(pod.annotations, pod.labels)):
        return GpuSystem.TENSOR_FUSION
    if pod_requests.asks_kai(pod.annotations):
        return GpuSystem.KAI
    systems = {_system_of_resource(name) for name in _resources(pod)}
    return next((system for system in GpuSystem if system in systems), None)


def _system_of_resource(name: str) -> GpuSystem | None:
    if name.startswith(CLASS_RESOURCES):
        return GpuSystem.DRA
    if name.startswith(pod_requests.VOLCANO_PREFIX):
        return GpuSystem.VOLCANO
    if pod_requests.is_share(name):
        return GpuSystem.HAMI
    if name.startswith(MIG_RESOURCES):
        return GpuSystem.MIG
    return GpuSystem.TIME_SLICES if name == TIME_SLICES_RESOURCE else None


def _resources(pod: Pod) -> Iterator[str]:
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        if container.resources is not None:
            yield from container.resources.requests or {}
            yield from container.resources.limits or {}
