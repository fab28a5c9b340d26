"""What the allocator answers when there is room."""

from dataclasses import dataclass

from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import DevicePartition


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """These devices of this node, what is taken of each, and its partition where that was asked for, in the
    same order."""

    uid: str
    node: str
    devices: tuple[str, ...]
    amounts: tuple[DeviceAmount, ...]
    partitions: tuple[DevicePartition, ...] = ()

    @property
    def gpu_ids(self) -> str:
        """As it is written on the pod."""
        return ",".join(self.devices)

    def __str__(self) -> str:
        taken = f", {self.amounts[0]} each" if self.amounts else ""
        return f"{self.gpu_ids} on {self.node or '(no node)'}{taken}"
