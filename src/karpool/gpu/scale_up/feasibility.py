"""Could it ever fit? On a full-size node of what may be launched, and within quota.

Scaling up for a request that no new node could serve buys a node for nothing. So each
rung of a ladder is turned into idle devices and asked the allocator's own filters;
rungs that refuse are left out, and when none is left the refusal is the answer. Pure.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

from karpool.gpu.allocation.allocator import AllocatorSettings, fits_template
from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import RUNNING, Device
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.request import GpuRequest


def template_devices(brings: NodeYield, pool: str, mode: str = "") -> list[Device]:
    """What a node of this yield would register, all idle."""
    amount = DeviceAmount(brings.tflops_milli, brings.vram_bytes)
    return [
        Device(
            name=f"template-{index}",
            node="template",
            owner="template",
            pool=pool,
            phase=RUNNING,
            vendor=brings.vendor,
            model=brings.model,
            index=index,
            capacity=amount,
            available=amount,
            isolation_mode=mode,
            compute_known=brings.tflops_milli > 0,
        )
        for index in range(brings.devices)
    ]


Answers = MutableMapping[tuple[GpuRequest, NodeYield], NoDevice | None]


def feasible(
    item: WaitingWorker,
    rungs: Sequence[ScaleUpCandidate],
    settings: AllocatorSettings | None = None,
    answers: Answers | None = None,
) -> tuple[ScaleUpCandidate, ...] | NoDevice:
    """The rungs that could serve this item, in order; or why none can.

    Where the node affinity leads is the ladder's business; it is not asked again here.
    `answers` remembers, for a caller that asks the same every few seconds.
    """
    request = replace(item.request, uid="", namespace="", name="", workload="", priority=0)
    request = replace(request, node_terms=None, preferred=(), gang=None)
    kept: list[ScaleUpCandidate] = []
    refusal: NoDevice | None = None
    memory: Answers = {} if answers is None else answers
    for rung in rungs:
        if (request, rung.brings) not in memory:
            memory[request, rung.brings] = _refused(request, rung.brings, settings)
        answer = memory[request, rung.brings]
        if answer is None:
            kept.append(rung)
        else:
            refusal = refusal or answer
    if kept:
        return tuple(kept)
    if refusal is None:
        return no_device(
            DeviceReason.NO_CANDIDATES,
            f"no NodePool can launch a node for {item.request}; check pools, limits and node constraints",
        )
    return refusal


def _refused(request: GpuRequest, brings: NodeYield, settings: AllocatorSettings | None) -> NoDevice | None:
    if request.cpu_milli > brings.cpu_milli or request.memory_bytes > brings.memory_bytes:
        return no_device(
            DeviceReason.NO_GPU_AFTER_FILTER, "no node with the GPU has the pod's CPU and memory"
        )
    alone = replace(request, cpu_milli=0, memory_bytes=0)
    return fits_template(alone, template_devices(brings, request.pool), settings)
