"""Who has what of which devices: what the ledger writes down, and what the allocator answers."""

from dataclasses import dataclass

from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.quota import QuotaCharge
from karpool.model.devices.request import GpuRequest


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


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one request has of one device."""

    device: str
    amount: DeviceAmount
    partition: DevicePartition | None = None


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What the workers of one node take of the node itself."""

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
    until: float | None = None  # a reservation with an end of its own

    @property
    def allocation(self) -> GpuAllocation:
        return GpuAllocation(
            self.request.uid,
            self.node,
            tuple(share.device for share in self.taken),
            tuple(share.amount for share in self.taken),
            tuple(share.partition for share in self.taken if share.partition is not None),
        )
