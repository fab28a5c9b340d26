"""Reads the GPU request of a pod in any of the supported dialects.

| dialect | becomes |
|---|---|
| TensorFusion annotations | shares of devices as they say |
| `nvidia.com/gpu: n` | n whole units of that plugin; a time slice is a unit |
| `nvidia.com/gpu.shared: n` | n time slices |
| `nvidia.com/mig-1g.5gb: n` | n slices of that profile |
| HAMi: `nvidia.com/gpu` with `gpumem`, `gpumem-percentage`, `gpucores` | n shares of devices |
| Volcano: `volcano.sh/vgpu-number` with `vgpu-memory`, `vgpu-memory-percentage`, `vgpu-cores` | n shares |
| KAI: annotations `gpu-fraction`, `gpu-memory`, `gpu-fraction-num-devices` | shares of devices |

Amounts in annotations of TensorFusion win if a pod has several; its pool, model and vendor apply to any
dialect. A request for zero is refused, because even a full device would satisfy it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from karpool.model import quantity, resources
from karpool.model.devices import tensor_fusion
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.device_reasons import DeviceReason
from karpool.model.devices.isolation import PARTITIONED, SHARED, SOFT
from karpool.model.devices.node_devices import model_name
from karpool.model.devices.request import (
    COUNT_MAX,
    UNREADABLE_DEMAND,
    DeviceDemand,
    GpuRequest,
    PreferredTerm,
)
from karpool.model.devices.tensor_fusion import AnnotationProblem, BadGpuRequest
from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool.model.requirements import NodeSelector, NodeTerm, ValueSet, node_terms_of

_MIB = 2**20
VENDORS = {"nvidia.com": "NVIDIA", "amd.com": "AMD"}
_OF_VOLCANO = "NVIDIA"
_WHOLE = ("gpu", "gpu.shared")
_MIG = "mig-"
_FRACTION, _MEMORY, _DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"
_MEMORY_MIB, _MEMORY_PERCENT, _CORES = "gpumem", "gpumem-percentage", "gpucores"
_SHARES = (_MEMORY_MIB, _MEMORY_PERCENT, _CORES)
VOLCANO_PREFIX = "volcano.sh/vgpu-"
# Volcano's resource names mapped to HAMi's, from which they were derived.
_AS_HAMI = {
    "number": "gpu",
    "memory": _MEMORY_MIB,
    "memory-percentage": _MEMORY_PERCENT,
    "cores": _CORES,
}
_ANNOTATIONS = frozenset((*tensor_fusion.REQUEST_ANNOTATIONS, _FRACTION, _MEMORY, _DEVICES))
# The assignment: `uuid,type,MiB,cores` for each device, `:` between devices, `;` between containers.
_ASSIGNMENTS = (
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-devices-to-allocate",
    "volcano.sh/vgpu-ids-new",
)
_INSTANCE = re.compile(r"\[[0-9]+-[0-9]+\]\Z")  # the MIG instance of the card, after its UUID
_ASSIGNMENT_MAX = 65_536  # characters; more than any real pod needs
_PERCENT_MAX = 100_000  # thousandths of a percent


@dataclass(frozen=True, slots=True)
class _Plain:
    """What the resources of a pod, or KAI's annotations, request."""

    resource: str
    count: int
    share: DeviceShare = field(default_factory=DeviceShare)
    isolation: str = SHARED


def gpu_request_of(pod: Pod, default_pool: str = "") -> GpuRequest | None:
    """Return the GPU request of a pod; None if it has none. Raises BadGpuRequest, which names the problem."""
    meta = pod.metadata
    try:
        needs = effective_requests(pod)
        request, problems = _read(
            tensor_fusion.of_worker(pod.annotations, pod.labels),
            needs,
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            workload=pod.labels.get(tensor_fusion.WORKLOAD_LABEL, ""),
        )
        terms, preferred = _placement(pod)
    except Invalid as error:
        raise BadGpuRequest(meta.key, (AnnotationProblem(DeviceReason.BAD_REQUEST, error),)) from None
    if request is None:
        return None
    if problems:
        raise BadGpuRequest(meta.key, problems)
    return replace(
        request,
        pool=request.pool or default_pool,
        node_terms=terms,
        preferred=preferred,
        priority=pod.spec.priority or 0,
        cpu_milli=needs.get(resources.CPU, 0),
        memory_bytes=needs.get(resources.MEMORY, 0),
    )


def request_by_claims(pod: Pod) -> GpuRequest:
    """Return the request of a pod with resource claims: its owner and its other needs. Raises Invalid."""
    meta, needs = pod.metadata, effective_requests(pod)
    terms, preferred = _placement(pod)
    return GpuRequest(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        node_terms=terms,
        preferred=preferred,
        priority=pod.spec.priority or 0,
        cpu_milli=needs.get(resources.CPU, 0),
        memory_bytes=needs.get(resources.MEMORY, 0),
    )


def device_demand_of(
    annotations: Mapping[str, str], labels: Mapping[str, str], needs: Mapping[str, int]
) -> tuple[DeviceDemand | None, Mapping[str, int]]:
    """Return the pod's demand for devices, and the rest of its requests.

    A share written as resources (HAMi) is a share, not units of a plugin. The demand is None if the pod
    requests at most whole units.
    """
    annotations = tensor_fusion.of_worker(annotations, labels)
    if not device_annotations(annotations) and not any(
        is_share(name) or name.startswith(VOLCANO_PREFIX) for name in needs
    ):
        return None, needs
    try:
        request, problems = _read(annotations, needs)
    except Invalid as error:
        return replace(UNREADABLE_DEMAND, problem=str(error)), needs
    if request is None or request.is_of_plugin:
        return None, needs
    other_needs = _without_shares(needs) if request.resource else needs
    if problems:
        text = "; ".join(str(problem) for problem in problems)
        return replace(UNREADABLE_DEMAND, problem=text), other_needs
    return replace(request, model=model_name(request.model)).demand, other_needs


def assigned_devices(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the devices that an allocator wrote on a pod: TensorFusion's and ours, HAMi's, or Volcano's."""
    for key in _ASSIGNMENTS:
        if text := annotations.get(key, "")[:_ASSIGNMENT_MAX]:
            rows = (row for container in text.split(";") for row in container.split(":"))
            names = (_INSTANCE.sub("", row.partition(",")[0].strip()) for row in rows)
            return tuple(dict.fromkeys(filter(None, names)))
    return tensor_fusion.assigned(annotations)


def asks_for_share(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations alone request a share."""
    return tensor_fusion.is_worker(annotations) or asks_kai(annotations)


def asks_kai(annotations: Mapping[str, str]) -> bool:
    return _FRACTION in annotations or _MEMORY in annotations


def is_share(resource: str) -> bool:
    """Whether HAMi uses the resource for parts of a device."""
    return resource.partition("/")[2] in _SHARES


def device_annotations(annotations: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the annotations that `device_demand_of` reads; pods that differ in them may differ in demand."""
    return sorted((key, value) for key, value in annotations.items() if key in _ANNOTATIONS)


def _without_shares(needs: Mapping[str, int]) -> dict[str, int]:
    shares = {name.partition("/")[0] for name in needs if is_share(name)}
    return {
        name: units
        for name, units in needs.items()
        if not (name.partition("/")[0] in shares and name.partition("/")[2] in ("gpu", *_SHARES))
        and not name.startswith(VOLCANO_PREFIX)
    }


def _read(
    annotations: Mapping[str, str], needs: Mapping[str, int], **whose: str
) -> tuple[GpuRequest | None, tuple[AnnotationProblem, ...]]:
    """Read the request. Raises Invalid if resources or KAI's annotations cannot be read."""
    plain = None if tensor_fusion.sets_amounts(annotations) else _plain(annotations, needs)
    if plain is None and not tensor_fusion.is_worker(annotations):
        return None, ()
    request, problems = tensor_fusion.read_request(annotations, **whose)
    if plain is not None:
        request = _with(request, plain)
    elif not problems and request.isolation not in (SHARED, PARTITIONED) and request.request == DeviceShare():
        nothing = Invalid(
            f"annotation {tensor_fusion.VRAM_REQUEST}",
            annotations.get(tensor_fusion.VRAM_REQUEST, ""),
            "asks for nothing of a GPU; set it, or tflops-request, or isolation: shared for a whole one",
        )
        problems = (AnnotationProblem(DeviceReason.BAD_REQUEST, nothing),)
    if not 1 <= request.count <= COUNT_MAX:
        counted = Invalid(request.resource, request.count, f"ask for 1 to {COUNT_MAX} GPUs")
        problems = (*problems, AnnotationProblem(DeviceReason.GPU_COUNT_OUT_OF_RANGE, counted))
    return request, problems


def _with(request: GpuRequest, plain: _Plain) -> GpuRequest:
    vendor = VENDORS.get(plain.resource.partition("/")[0], "")
    if plain.resource.startswith(VOLCANO_PREFIX):
        vendor = _OF_VOLCANO
    return replace(
        request,
        request=plain.share,
        limit=plain.share,
        count=plain.count,
        isolation=plain.isolation,
        vendor=request.vendor or vendor,
        resource=plain.resource,
    )


def _plain(annotations: Mapping[str, str], needs: Mapping[str, int]) -> _Plain | None:
    if asks_kai(annotations):
        return _kai(annotations)
    of_volcano = {
        _AS_HAMI.get(name.removeprefix(VOLCANO_PREFIX), ""): amount
        for name, amount in needs.items()
        if name.startswith(VOLCANO_PREFIX) and amount > 0
    }
    if of_volcano:
        return _share_of(f"{VOLCANO_PREFIX}number", of_volcano)
    for prefix in VENDORS:
        asked = {
            name.partition("/")[2]: amount
            for name, amount in needs.items()
            if name.startswith(prefix + "/") and amount > 0
        }
        mig = sorted(name for name in asked if name.startswith(_MIG))
        if len(mig) > 1 or (mig and any(name in asked for name in _WHOLE)):
            raise Invalid(
                "resources", ", ".join(sorted(asked)), "one pod can ask for one kind of GPU only; split it"
            )
        if mig:
            return _Plain(f"{prefix}/{mig[0]}", asked[mig[0]])
        if any(name in asked for name in _SHARES):
            return _share_of(f"{prefix}/gpu", asked)
        for name in _WHOLE:
            if name in asked:
                return _Plain(f"{prefix}/{name}", asked[name])
    return None


def _share_of(resource: str, asked: Mapping[str, int]) -> _Plain:
    """Return a share in HAMi's terms; without a memory request it has all memory."""
    for name in (_MEMORY_PERCENT, _CORES):
        if asked.get(name, 0) > 100:
            raise Invalid(f"resources of {resource}: {name}", asked[name], "is a percentage; at most 100")
    memory = min(asked.get(_MEMORY_MIB, 0) * _MIB, quantity.INT64_MAX)
    percent = 0 if memory else asked.get(_MEMORY_PERCENT, 100) * 1000
    share = DeviceShare(0, memory, asked.get(_CORES, 0) * 1000, percent)
    return _Plain(resource, asked.get("gpu", 1), share, SOFT)


def _kai(annotations: Mapping[str, str]) -> _Plain:
    devices = annotations.get(_DEVICES, "1")
    if not (devices.isascii() and devices.isdigit() and 0 < len(devices) < 8):
        raise Invalid(f"annotation {_DEVICES}", devices, f"must be a whole number from 1 to {COUNT_MAX}")
    if _FRACTION in annotations:
        text = annotations[_FRACTION]
        part = quantity.milli_value(text) * 100
        if not 0 < part <= _PERCENT_MAX:
            raise Invalid(f"annotation {_FRACTION}", text, "must be more than 0 and at most 1")
        share = DeviceShare(0, 0, part, part)
    else:
        text = annotations[_MEMORY]
        memory = min(quantity.value(text) * _MIB, quantity.INT64_MAX)
        if memory <= 0:
            raise Invalid(f"annotation {_MEMORY}", text, "must be a number of MiB above 0")
        share = DeviceShare(0, memory)
    return _Plain(resources.GPU, int(devices), share, SOFT)


def _placement(pod: Pod) -> tuple[tuple[NodeTerm, ...] | None, tuple[PreferredTerm, ...]]:
    """Merge node selector and node affinity: every alternative includes the selector."""
    selected = tuple(
        (key, ValueSet(frozenset((value,)))) for key, value in sorted((pod.spec.node_selector or {}).items())
    )
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = (
        node_terms_of(affinity.required_during_scheduling_ignored_during_execution) if affinity else None
    )
    terms: tuple[NodeTerm, ...] | None = None
    if required is not None:
        terms = tuple(NodeTerm((*selected, *term.labels), term.fields) for term in required)
    elif selected:
        terms = (NodeTerm(selected),)
    preferred: list[PreferredTerm] = []
    for node_term in (
        affinity.preferred_during_scheduling_ignored_during_execution if affinity else None
    ) or ():
        compiled = node_terms_of(NodeSelector(node_selector_terms=[node_term.preference]))
        preferred.extend(PreferredTerm(node_term.weight, term) for term in compiled or ())
    return terms, tuple(preferred)
