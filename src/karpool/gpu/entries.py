"""What the ledger writes down: who took what of which device."""

from dataclasses import dataclass

from karpool.gpu.allocation import Allocation
from karpool.gpu.amounts import Amount
from karpool.gpu.devices import Partition
from karpool.gpu.quota import Charge
from karpool.gpu.request import GpuRequest


@dataclass(frozen=True, slots=True)
class Taken:
    """What one request has of one device."""

    device: str
    amount: Amount
    partition: Partition | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers of one node take of the node itself."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    workers: int = 0

    def plus(self, request: GpuRequest, sign: int) -> "Load":
        return Load(
            self.cpu_milli + sign * request.cpu_milli,
            self.memory_bytes + sign * request.memory_bytes,
            self.workers + sign,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    request: GpuRequest
    taken: tuple[Taken, ...]
    node: str
    charge: Charge
    since: float | None = None  # of a reservation
    until: float | None = None  # a reservation with an end of its own

    @property
    def allocation(self) -> Allocation:
        partitions = [each.partition for each in self.taken]
        return Allocation(
            self.request.uid,
            self.node,
            tuple(each.device for each in self.taken),
            tuple(each.amount for each in self.taken),
            next((each.template for each in partitions if each), ""),
            tuple(each.start if each.group is None else each.group for each in partitions if each),
        )
