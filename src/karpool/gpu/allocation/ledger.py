"""The ledger of devices: reservations that only this process knows, and committed allocations.

Entries are keyed by the UID of the pod. A reservation (`assume`) keeps other requests away and `commit` turns
it into an allocation. Every operation may be repeated, and a release returns exactly what was taken, once. A
refusal changes nothing, except that a failed `commit` ends its reservation.

Not thread-safe. The caller passes the time, in seconds of any monotonic clock.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpool.gpu.allocation.allocation import DeviceAllocation, GpuAllocation, HeldShare, NodeLoad
from karpool.gpu.allocation.share_check import ShareCheck
from karpool.gpu.scoring_columns import ScoringColumns
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import DYNAMIC, PARTITIONED, SHARED, STATIC, recover_modes
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.quota import GpuQuotas, QuotaCharge
from karpool.model.devices.request import GpuRequest
from karpool.model.infeasible import Infeasible

RESERVATION_SECONDS = 30 * 60.0
_RELEASED_KEPT = 10_000


@dataclass
class DeviceLedger:
    table: ScoringColumns
    quotas: GpuQuotas = field(default_factory=GpuQuotas)
    policy: str = STATIC
    catalogue: PartitionCatalogue = field(default_factory=PartitionCatalogue)
    workers_per_node: int = 0  # 0: no cap
    assumed: dict[str, DeviceAllocation] = field(default_factory=dict)
    committed: dict[str, DeviceAllocation] = field(default_factory=dict)
    _released: dict[str, None] = field(default_factory=dict)
    _on_device: dict[str, dict[str, HeldShare]] = field(default_factory=dict)
    _load: dict[str, NodeLoad] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.taking = ShareCheck(
            self.table, self.policy, self.catalogue, self.workers_per_node, self._on_device
        )

    # Reservations

    def assume(
        self, request: GpuRequest, devices: Sequence[str], now: float | None, until: float | None = None
    ) -> GpuAllocation | NoDevice:
        """Reserve these devices for the request."""
        refused = self.refused_uid(request.uid)
        if refused is not None:
            return refused
        taken = self.taking.possible(request, devices)
        if isinstance(taken, Infeasible):
            return taken
        charge = self.charge(request, taken)
        refused = self.quotas.check(request.namespace, charge)
        if refused is not None:
            return refused
        entry = DeviceAllocation(request, taken, self.taking.node_of(taken), charge, now, until)
        self.assumed[request.uid] = entry
        self.quotas.assume(request.namespace, charge)
        self._attach(entry)
        return entry.allocation

    def forget(self, uid: str) -> None:
        """Drop a reservation."""
        entry = self.assumed.pop(uid, None)
        if entry is None:
            return
        self.quotas.forget(entry.request.namespace, entry.charge)
        self._detach(entry)

    def commit(self, uid: str) -> GpuAllocation | NoDevice:
        """Turn a reservation into an allocation. Repeating it has no effect."""
        done = self.committed.get(uid)
        if done is not None:
            return done.allocation
        entry = self.assumed.get(uid)
        if entry is None:
            return no_device(DeviceReason.NOT_ASSUMED, f"{uid} has no reservation; allocate again")
        refused = self.taking.still_possible(entry)
        if refused is not None:
            self.forget(uid)
            return refused
        del self.assumed[uid]
        self.committed[uid] = entry
        for share in entry.taken:
            self.recount(share.device)
        self.quotas.forget(entry.request.namespace, entry.charge)
        self.quotas.use(entry.request.namespace, entry.charge)
        return entry.allocation

    # Releases

    def rollback(self, uid: str) -> None:
        """Release an allocation whose pod was not bound; the pod may be allocated again."""
        entry = self.committed.pop(uid, None)
        if entry is None:
            return
        self.quotas.give_back(entry.request.namespace, entry.charge)
        self._detach(entry)

    def unreserve(self, uid: str) -> None:
        """Remove every entry of this pod."""
        self.rollback(uid)
        self.forget(uid)

    def release(self, uid: str) -> None:
        """Release everything of a pod that is gone for good. Never fails, because finalizers wait for it."""
        self.unreserve(uid)
        self._released.pop(uid, None)
        self._released[uid] = None
        while len(self._released) > _RELEASED_KEPT:
            del self._released[next(iter(self._released))]

    def sweep(
        self, now: float, waiting: Collection[str] = (), ttl_seconds: float = RESERVATION_SECONDS
    ) -> list[str]:
        """Drop expired reservations, except those that wait for their gang."""
        swept = []
        for uid, entry in list(self.assumed.items()):
            if uid in self.committed:
                del self.assumed[uid]
            elif uid in waiting or entry.since is None:
                self.assumed[uid] = replace(entry, since=now)
            elif now - entry.since > ttl_seconds or (entry.until is not None and now >= entry.until):
                self.forget(uid)
                swept.append(uid)
        return swept

    def replace_committed(self, entry: DeviceAllocation) -> None:
        """Replace the amounts of an allocation on the same devices. The caller has checked that they fit."""
        old = self.committed[entry.request.uid]
        self.committed[entry.request.uid] = entry
        namespace = entry.request.namespace
        self.quotas.give_back(namespace, old.charge)
        self.quotas.use(namespace, entry.charge)
        for share in entry.taken:
            self._on_device[share.device][entry.request.uid] = share
            self.recount(share.device)

    # Restore after a start

    def restore(
        self,
        request: GpuRequest,
        devices: Sequence[str],
        node: str = "",
        partitions: Sequence[DevicePartition] = (),
    ) -> None:
        """Restore an allocation of a running pod without any check: it is a fact."""
        if request.uid in self.committed:
            return
        self.forget(request.uid)
        taken = []
        for position, name in enumerate(dict.fromkeys(devices)):
            row = self.table.find(name)
            capacity = self.table.capacity(row) if row is not None else NOTHING
            partition = None
            if request.isolation == PARTITIONED:
                is_written = position < len(partitions)
                partition = partitions[position] if is_written else DevicePartition(request.template)
            taken.append(HeldShare(name, self.taking.needed(request, name, capacity, partition), partition))
        charge = self.charge(request, tuple(taken))
        entry = DeviceAllocation(request, tuple(taken), node or self.taking.node_of(taken), charge)
        self.committed[request.uid] = entry
        self.quotas.use(request.namespace, charge)
        self._attach(entry)

    def device_arrived(self, name: str) -> None:
        """Subtract the ledger's entries from a device that was added to the table (again)."""
        row = self._row(name)
        device = self.table.device(row)
        if device.node:
            self.table.set_workers(device.node, self.load_of(device.node).workers)
        holders = self._on_device.get(name)
        if not holders:
            return
        for uid in list(holders):
            self._reprice(uid, name, self.table.capacity(row))
        self.recount(name)
        self._count_holders(row, name)

    def capacity_changed(self, name: str, capacity: DeviceAmount) -> None:
        """Update the capacity. Amounts stay as they are; a holder of the whole device holds all of the new
        capacity.

        After a capacity of zero the amounts are computed again.
        """
        row = self._row(name)
        old = self.table.capacity(row)
        if old == capacity:
            return
        self.table.set_capacity(row, capacity)
        for uid in list(self._on_device.get(name, ())):
            if old.is_zero or self._mode_of(uid) == SHARED:
                self._reprice(uid, name, capacity)
        self.recount(name)

    # Reading

    def holders(self, device: str) -> Mapping[str, HeldShare]:
        return self._on_device.get(device, {})

    def partitions_on(self, device: str) -> dict[str, DevicePartition]:
        held = self.holders(device)
        return {uid: share.partition for uid, share in held.items() if share.partition is not None}

    def entries(self) -> Iterator[DeviceAllocation]:
        yield from self.committed.values()
        yield from self.assumed.values()

    def load_of(self, node: str) -> NodeLoad:
        return self._load.get(node, NodeLoad())

    def refused_uid(self, uid: str) -> NoDevice | None:
        if uid in self.committed:
            return no_device(
                DeviceReason.ALREADY_ALLOCATED, f"{uid} already has {self.committed[uid].allocation}"
            )
        if uid in self.assumed:
            return no_device(
                DeviceReason.ALREADY_ASSUMED, f"{uid} already holds {self.assumed[uid].allocation}"
            )
        if uid in self._released:
            return no_device(DeviceReason.ALREADY_ALLOCATED, f"{uid} was released; its pod is gone")
        return None

    # Internals

    def charge(self, request: GpuRequest, taken: Sequence[HeldShare]) -> QuotaCharge:
        """The quota charge; percentages count as amounts of the chosen devices."""
        rows = [self.table.find(share.device) for share in taken]
        capacities = [self.table.capacity(row) for row in rows if row is not None] or [NOTHING]
        requests = [request.request.on(capacity) for capacity in capacities]
        limits = [request.limit.on(capacity) for capacity in capacities]
        return QuotaCharge(_largest(requests), _largest(limits), request.count)

    def _attach(self, entry: DeviceAllocation) -> None:
        request = entry.request
        for share in entry.taken:
            self._on_device.setdefault(share.device, {})[request.uid] = share
            row = self.table.find(share.device)
            if row is not None:
                self._count_holders(row, share.device)
                self.recount(share.device)
        self._occupy(entry, 1)

    def _detach(self, entry: DeviceAllocation) -> None:
        request = entry.request
        for share in entry.taken:
            on_device = self._on_device.get(share.device, {})
            on_device.pop(request.uid, None)
            if not on_device:
                self._on_device.pop(share.device, None)
            row = self.table.find(share.device)
            if row is not None:
                self._count_holders(row, share.device)
                self.recount(share.device)
        self._occupy(entry, -1)

    def _occupy(self, entry: DeviceAllocation, sign: int) -> None:
        if not entry.node:
            return
        request = entry.request
        load = self._load.get(entry.node, NodeLoad()).plus(request, sign)
        if load.workers:
            self._load[entry.node] = load
        else:
            self._load.pop(entry.node, None)
        code = self.table.node_code(entry.node)
        if code is not None:
            self.table.occupy(code, sign * request.cpu_milli, sign * request.memory_bytes, load.workers)

    def _count_holders(self, row: int, name: str) -> None:
        held = self._on_device.get(name, {})
        self.table.holders[row] = len(held)
        self.table.partitions[row] = len(self.taking.partitions(name))
        self.table.taken_whole[row] = any(self._mode_of(uid) == SHARED for uid in held)
        if self.policy == DYNAMIC:
            # Two modes meet only among restored pods; the device must drain first.
            recovered = recover_modes(((name,), self._mode_of(uid)) for uid in held)
            conflict = name in recovered.conflicts or (bool(self.table.conflict[row]) and bool(held))
            self.table.set_lock(row, "" if conflict else recovered.modes.get(name, ""), conflict)

    def _mode_of(self, uid: str) -> str:
        entry = self.committed.get(uid) or self.assumed.get(uid)
        return "" if entry is None else entry.request.isolation

    def recount(self, name: str) -> None:
        """Recompute available and free amounts from the entries, so that nothing drifts.

        They are negative if pods hold more than the capacity.
        """
        row = self.table.find(name)
        if row is None:
            return
        available = self.table.capacity(row) - self.table.device(row).used_by_others
        reserved = NOTHING
        for uid, share in self._on_device.get(name, {}).items():
            if uid in self.committed:
                available = available - share.amount
            else:
                reserved = reserved + share.amount
        self.table.set_balance(row, available, reserved)

    def _reprice(self, uid: str, name: str, capacity: DeviceAmount) -> None:
        """Recompute a request's amounts on a device whose capacity was unknown before."""
        book = self.committed if uid in self.committed else self.assumed
        entry = book[uid]
        taken = tuple(
            replace(
                held_share, amount=self.taking.needed(entry.request, name, capacity, held_share.partition)
            )
            if held_share.device == name
            else held_share
            for held_share in entry.taken
        )
        book[uid] = replace(entry, taken=taken)
        self._on_device[name][uid] = next(share for share in taken if share.device == name)

    def _row(self, name: str) -> int:
        row = self.table.find(name)
        if row is None:
            raise LookupError(f"there is no GPU {name}")
        return row


def _largest(amounts: Sequence[DeviceAmount]) -> DeviceAmount:
    largest = amounts[0]
    for amount in amounts[1:]:
        largest = largest.at_least(amount)
    return largest
