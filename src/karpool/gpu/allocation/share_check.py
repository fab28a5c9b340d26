"""Checks whether a request may have given devices, and computes the amount of each.

It reads the table and the held shares and changes nothing. Time and quota are not checked here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from karpool.gpu.allocation.allocation import DeviceAllocation, HeldShare
from karpool.gpu.scoring_columns import NO_NODE, ScoringColumns
from karpool.model.devices import isolation
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import DYNAMIC, PARTITIONED, SHARED
from karpool.model.devices.partitions import (
    ROUNDING_MILLI,
    PartitionCatalogue,
    PartitionHost,
    place_partition,
)
from karpool.model.devices.request import GpuRequest
from karpool.model.infeasible import Infeasible


@dataclass(frozen=True, slots=True)
class ShareCheck:
    table: ScoringColumns
    policy: str
    catalogue: PartitionCatalogue
    workers_per_node: int
    on_device: Mapping[str, Mapping[str, HeldShare]]  # the ledger's shares: by device, then by UID

    def possible(self, request: GpuRequest, devices: Sequence[str]) -> tuple[HeldShare, ...] | NoDevice:
        if len(set(devices)) != len(devices) or not devices:
            return no_device(
                DeviceReason.NOT_ENOUGH_GPUS, f"{list(devices)} is not a list of different devices"
            )
        taken = []
        for name in devices:
            share = self._possible_on(request, name)
            if isinstance(share, Infeasible):
                return share
            taken.append(share)
        code = self.table.node_code(self.node_of(taken))
        if code is not None and 0 < self.workers_per_node <= self.table.workers[code]:
            return no_device(
                DeviceReason.NO_GPU_AFTER_FILTER,
                f"node {self.node_of(taken)} has {self.workers_per_node} workers, as many as it may have",
            )
        return tuple(taken)

    def _possible_on(self, request: GpuRequest, name: str) -> HeldShare | NoDevice:
        row = self.table.find(name)
        if row is None:
            return no_device(DeviceReason.UNKNOWN_GPU, f"there is no GPU {name}")
        refused = self._wrong_isolation(request, row)
        if refused is not None:
            return refused
        if request.isolation == PARTITIONED:
            return self._slice(request, row)
        capacity, free = self.table.capacity(row), self.table.free_balance(row)
        if request.isolation == SHARED:
            is_idle = free == capacity and not self.table.holders[row] and not self.table.partitions[row]
            if not (is_idle and self.table.has_capacity[row]):
                return no_device(
                    DeviceReason.INSUFFICIENT_TFLOPS,
                    f"GPU {name} is in use, and a whole GPU is requested",
                )
        elif self.table.taken_whole[row]:
            return no_device(DeviceReason.INSUFFICIENT_TFLOPS, f"GPU {name} is allocated as a whole")
        need = request.request.on(capacity)
        if not free.covers(need):
            return no_device(_short(free, need), f"GPU {name} has {free} left, {need} are requested")
        return HeldShare(name, capacity if request.isolation == SHARED else need)

    def can_slice(self, request: GpuRequest, row: int) -> bool:
        """Whether the device has room for the requested partition."""
        return not isinstance(self._slice(request, row), Infeasible)

    def _slice(self, request: GpuRequest, row: int) -> HeldShare | NoDevice:
        device, capacity = self.table.device(row), self.table.capacity(row)
        free, asked = self.table.free_balance(row), request.request.on(capacity)
        template = self.catalogue.match(device.model, capacity, asked, request.template)
        if isinstance(template, Infeasible):
            return template
        host = PartitionHost(
            device.vendor, capacity, free, self.partitions(device.name), self.catalogue.cap(device.model)
        )
        partition = place_partition(template, host, self.catalogue.of(device.model, capacity))
        if isinstance(partition, Infeasible):
            return partition
        return HeldShare(device.name, template.cost(capacity.tflops_milli), partition)

    def _wrong_isolation(self, request: GpuRequest, row: int) -> NoDevice | None:
        device = self.table.device(row)
        lock = self.table.lock_of(row)
        if isolation.is_compatible(
            self.policy,
            request.isolation,
            device_policy=device.isolation_policy,
            device_mode=device.isolation_mode,
            lock=lock,
            conflict=bool(self.table.conflict[row]),
        ):
            return None
        if self.policy == DYNAMIC and lock and lock != request.isolation:
            return no_device(
                DeviceReason.ISOLATION_LOCKED, f"GPU {device.name} is locked to {lock} as long as it is used"
            )
        return no_device(
            DeviceReason.ISOLATION_INCOMPATIBLE,
            f"GPU {device.name} does not take {request.isolation or 'any'} isolation",
        )

    def still_possible(self, entry: DeviceAllocation) -> NoDevice | None:
        for share in entry.taken:
            row = self.table.find(share.device)
            if row is None:
                return no_device(DeviceReason.UNKNOWN_GPU, f"GPU {share.device} no longer exists")
            available = self.table.available_balance(row)
            if share.partition is not None:
                slack = ROUNDING_MILLI * len(self.partitions(share.device))
                available = available + DeviceAmount(slack)
            if not available.covers(share.amount):
                return no_device(
                    _short(available, share.amount),
                    f"GPU {share.device} has shrunk to {available}, {share.amount} are reserved",
                )
        return None

    def needed(
        self, request: GpuRequest, name: str, capacity: DeviceAmount, partition: DevicePartition | None
    ) -> DeviceAmount:
        if request.isolation == SHARED:
            return capacity
        row = self.table.find(name)
        if partition is not None and row is not None:
            template = self.catalogue.named(self.table.device(row).model, capacity, partition.template)
            if template is not None:
                return template.cost(capacity.tflops_milli)
        return request.request.on(capacity)

    def partitions(self, name: str) -> list[DevicePartition]:
        row = self.table.find(name)
        reported = {} if row is None else dict(self.table.device(row).partitions)
        ours = self.on_device.get(name, {})
        outside = [partition for uid, partition in reported.items() if uid not in ours]
        return outside + [our.partition for our in ours.values() if our.partition is not None]

    def node_of(self, taken: Sequence[HeldShare]) -> str:
        for share in taken:
            row = self.table.find(share.device)
            if row is not None and self.table.node[row] != NO_NODE:
                return self.table.node_names[int(self.table.node[row])]
        return ""


def _short(left: DeviceAmount, need: DeviceAmount) -> DeviceReason:
    is_compute = left.tflops_milli < need.tflops_milli
    return DeviceReason.INSUFFICIENT_TFLOPS if is_compute else DeviceReason.INSUFFICIENT_VRAM
