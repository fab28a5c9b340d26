"""Finds the system that enforces shares on a node: without one, a share is an annotation without effect.

TensorFusion's device plugin gives a worker the devices of its annotations. HAMi's does so for a pod in its
phase `allocating`, and limits memory and cores inside the container. Labels of feature discovery, or devices
that only our own agent describes, enforce nothing. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence

from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.device import Device
from karpool.model.devices.inventory import HAMI, MIB, inventory_of
from karpool.model.devices.systems import HANDED_OUT_BY, GpuSystem
from karpool.model.kubernetes.meta import Labels

ENFORCING = (GpuSystem.TENSOR_FUSION, GpuSystem.HAMI)
Enforcers = Mapping[str, frozenset[GpuSystem]]  # by pool of devices
ALLOCATING = "allocating"
BIND_PHASE = "hami.io/bind-phase"


def enforcer_of_node(
    labels: Labels, registers: Mapping[str, str], offered: Mapping[str, int], described: Iterable[Device]
) -> GpuSystem | None:
    """The system that enforces shares on the node. `described` are its devices that have GPU objects."""
    if any(not device.is_of_agent for device in described):
        return GpuSystem.TENSOR_FUSION
    groups = inventory_of(labels, registers, offered).groups
    return GpuSystem.HAMI if any(group.handed_out_by == HAMI for group in groups) else None


def declared_enforcer(labels: Labels) -> GpuSystem | None:
    """The enforcer that a NodePool declares for its future nodes."""
    return next((system for system in ENFORCING if labels.get(HANDED_OUT_BY) == system), None)


def why_unenforced(item: WaitingWorker, enforcers: Enforcers) -> str:
    """Why nothing would enforce the item's share; empty if something does."""
    pool, systems = item.request.pool, enforcers.get(item.request.pool, frozenset())
    trying = "--accept-unenforced-shares allocates anyway, for tests"
    if not systems:
        advice = f"run TensorFusion or HAMi there and label its NodePool {HANDED_OUT_BY}"
        return f"nothing on the nodes of GPU pool {pool} enforces a share: {advice}; {trying}"
    if len(systems) > 1:
        names = " and ".join(sorted(systems))
        return f"nodes of GPU pool {pool} are allocated by {names}: split it into two pools"
    if item.enforcer in systems:
        return ""
    (system,) = systems
    return (
        f"GPU pool {pool} is enforced by {system}, which would not see the pod: {item.unenforced}; {trying}"
    )


def hami_annotations(item: WaitingWorker, node: str, devices: Sequence[Device], now: float) -> dict[str, str]:
    """The annotations that HAMi's scheduler would write, so that its device plugin gives the container these
    devices: `uuid,vendor,MiB,cores` of each, `;` after every container.
    """
    asking, containers = item.containers
    share, cores = item.request.request, item.request.request.percent_milli // 1000
    rows = "".join(f"{device.name},{device.vendor},{_mib(share, device)},{cores}:" for device in devices)
    assigned = "".join(f"{rows if index == asking else ''};" for index in range(containers))
    stamp = str(int(now))
    return {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-time": stamp,
        "hami.io/vgpu-devices-to-allocate": assigned,
        "hami.io/vgpu-devices-allocated": assigned,
        BIND_PHASE: ALLOCATING,
        "hami.io/bind-time": stamp,
    }


def _mib(share: DeviceShare, device: Device) -> int:
    return share.on(device.capacity).vram_bytes // MIB if device.capacity is not None else 0
