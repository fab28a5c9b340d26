"""Which changes of a device are worth another look at a pod that waits."""

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
    rise = after - before
    return _is_positive(rise) and rise.covers(request.request.on(new.capacity or after))


def _is_positive(amount: DeviceAmount) -> bool:
    return amount.tflops_milli > 0 or amount.vram_bytes > 0
