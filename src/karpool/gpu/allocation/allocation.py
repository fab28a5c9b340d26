"""What the allocator answers when there is room."""

from dataclasses import dataclass

from karpool.model.devices.amounts import DeviceAmount


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """These devices of this node, and what is taken of each, in the same order.

    `slots` are the places of hardware partitions where the request is for one.
    """

    uid: str
    node: str
    devices: tuple[str, ...]
    amounts: tuple[DeviceAmount, ...]
    template: str = ""
    slots: tuple[int | None, ...] = ()

    @property
    def gpu_ids(self) -> str:
        """As it is written on the pod."""
        return ",".join(self.devices)

    def __str__(self) -> str:
        taken = f", {self.amounts[0]} each" if self.amounts else ""
        return f"{self.gpu_ids} on {self.node or '(no node)'}{taken}"
