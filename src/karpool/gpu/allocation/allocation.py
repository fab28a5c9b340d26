"""The values of an allocation: what the ledger stores, and what the allocator returns."""

from dataclasses import dataclass

from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.quota import QuotaCharge
from karpool.model.devices.request import GpuRequest


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """The devices on one node, the amount taken of each, and its partition if one was requested, in the same
    order.
    """

    uid: str
    node: str
    devices: tuple[str, ...]
    amounts: tuple[DeviceAmount, ...]
    partitions: tuple[DevicePartition, ...] = ()

    @property
    def gpu_ids(self) -> str:
        """The device ids in the format of the pod annotation."""
        return ",".join(self.devices)

    def __str__(self) -> str:
        taken = f", {self.amounts[0]} each" if self.amounts else ""
        return f"{self.gpu_ids} on {self.node or '(no node)'}{taken}"


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one request holds of one device."""

    device: str
    amount: DeviceAmount
    partition: DevicePartition | None = None


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The CPU and memory that the workers of one node use."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    workers: int = 0

    def plus(self, request: GpuRequest, sign: int) -> "NodeLoad":
        return NodeLoad(
            self.cpu_milli + sign * request.cpu_milli,
            self.memory_bytes + sign * request.memory_bytes,
            self.workers + sign,
        )


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    request: GpuRequest
    taken: tuple[HeldShare, ...]
    node: str
    charge: QuotaCharge
    since: float | None = None  # of a reservation
    until: float | None = None  # a reservation with its own expiry

    @property
    def allocation(self) -> GpuAllocation:
        return GpuAllocation(
            self.request.uid,
            self.node,
            tuple(share.device for share in self.taken),
            tuple(share.amount for share in self.taken),
            tuple(share.partition for share in self.taken if share.partition is not None),
        )
