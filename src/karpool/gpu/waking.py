"""Which changes of a device are worth another try of a pod that waits, and who comes first."""

from dataclasses import dataclass

from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import RUNNING, Device
from karpool.model.devices.request import GpuRequest


def should_wake(
    request: GpuRequest, old: Device | None, new: Device | None, nominated_node: str = ""
) -> bool:
    """It is on the node the pod was promised, it turned Running in the pod's pool, or a slot came free."""
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
    rose = after - before
    need = request.request.on(new.capacity or after)
    return _more_than_nothing(rose) and rose.covers(need)


def _more_than_nothing(rose: DeviceAmount) -> bool:
    return rose.tflops_milli > 0 or rose.vram_bytes > 0


@dataclass(frozen=True, slots=True)
class Standing:
    priority: int = 0
    gang: str = ""


def must_leave_room(current: Standing, nominated: Standing) -> bool:
    """A pod may not take what one of higher priority, or an equal one of its gang, waits for."""
    if nominated.priority != current.priority:
        return nominated.priority > current.priority
    return bool(current.gang) and nominated.gang == current.gang
