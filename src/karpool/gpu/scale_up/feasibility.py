"""Checks whether a request could ever fit on a new node, and within quota.

A scale-up for a request that no new node could serve launches a node in vain. So each candidate of a ladder
is turned into idle devices, and the packing kernel decides whether they fit the request. Candidates that do
not are left out; if none is left, the refusal is the answer. Pure.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from functools import lru_cache

from karpool.gpu.scale_up.demand import ScaleUpCandidate, WaitingWorker
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import Device
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import STATIC, is_allowed
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.request import GpuRequest
from karpool.packing.tables.device_kinds import DeviceKinds
from karpool.packing.tables.device_table import DeviceTable, new_devices

Answers = MutableMapping[tuple[GpuRequest, NodeYield], NoDevice | None]


def feasible(
    item: WaitingWorker,
    rungs: Sequence[ScaleUpCandidate],
    policy: str = STATIC,
    answers: Answers | None = None,
) -> tuple[ScaleUpCandidate, ...] | NoDevice:
    """The candidates that could serve this item, in order; or why none can.

    The ladder has already applied node affinity. `answers` is a cache for callers that ask the same every few
    seconds.
    """
    request = replace(item.request, uid="", namespace="", name="", workload="", priority=0)
    request = replace(request, node_terms=None, preferred=(), gang=None)
    kept: list[ScaleUpCandidate] = []
    refusal: NoDevice | None = None
    memory: Answers = {} if answers is None else answers
    for rung in rungs:
        if (request, rung.brings) not in memory:
            memory[request, rung.brings] = _refused(request, rung.brings, policy)
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


def _refused(request: GpuRequest, brings: NodeYield, policy: str) -> NoDevice | None:
    if request.cpu_milli > brings.cpu_milli or request.memory_bytes > brings.memory_bytes:
        return no_device(
            DeviceReason.NO_GPU_AFTER_FILTER, "no node with the GPU has the pod's CPU and memory"
        )
    if not is_allowed(policy, request.isolation, ""):
        return no_device(
            DeviceReason.NO_GPU_AFTER_FILTER,
            f"a new node's GPUs have no isolation policy of their own, and {policy} is in force",
        )
    # A new node belongs to the pool that launched it.
    table, demand = _idle_devices(brings), replace(request.demand, pool="")
    if table is not None and table.room(demand, 1)[0] > 0:
        return None
    if table is not None and table.shares(demand).any():
        return no_device(
            DeviceReason.SAME_NODE_UNSATISFIED, f"no node brings {request.count} GPUs with {request.request}"
        )
    return no_device(
        DeviceReason.NO_GPU_AFTER_FILTER, f"none of its {brings.devices} GPUs can take {request.request}"
    )


@lru_cache(maxsize=1024)
def _idle_devices(brings: NodeYield) -> DeviceTable | None:
    """The devices that a node of this yield would register."""
    capacity = DeviceAmount(brings.tflops_milli, brings.vram_bytes)
    return new_devices(
        DeviceKinds(),
        (
            (
                0,
                Device(
                    f"template-{index}",
                    vendor=brings.vendor,
                    model=brings.model,
                    index=index,
                    capacity=capacity,
                    compute_known=brings.tflops_milli > 0,
                ),
                "",
            )
            for index in range(brings.devices)
        ),
    )
