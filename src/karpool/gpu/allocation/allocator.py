"""Allocates fractions of GPUs to worker pods: find, hold, commit, release.

`try_allocate` applies quota, filters and strategy, and reserves the chosen devices; `commit` makes the
reservation an allocation once the pod carries the annotation. Refusals are values with a stable code. Until
`open` is called after all running pods were restored, nothing is allocated. No I/O; the caller passes the
time.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from msgspec import structs

from karpool.gpu import device_filters
from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.allocation.ledger import RESERVATION_SECONDS, DeviceLedger
from karpool.gpu.allocation.open_nodes import NodeChoice, by_nodes
from karpool.gpu.scoring_columns import UNBOUNDED, Rows, ScoringColumns
from karpool.gpu.strategies import strategy as placement
from karpool.gpu.strategies.strategy import CandidateScope, PlacementStrategy
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import POOL_LABEL, Device, DevicePartition
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import DYNAMIC, PARTITIONED, STATIC
from karpool.model.devices.links import belonging_together
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.quota import GpuQuota, GpuQuotas, QuotaCharge
from karpool.model.devices.request import COUNT_MAX, GpuRequest
from karpool.model.infeasible import Infeasible
from karpool.packing.tables.columns import Bools

WORKERS_PER_NODE = 256


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    strategy: PlacementStrategy = field(default_factory=partial(placement.by_load, placement.NODE_COMPACT))
    policy: str = STATIC
    workers_per_node: int = WORKERS_PER_NODE
    catalogue: PartitionCatalogue = field(default_factory=PartitionCatalogue)


class Allocator:
    def __init__(self, settings: AllocatorSettings | None = None, devices: Iterable[Device] = ()) -> None:
        self.settings = settings or AllocatorSettings()
        self.table = ScoringColumns()
        self.quotas = GpuQuotas()
        self.ledger = DeviceLedger(
            self.table,
            self.quotas,
            self.settings.policy,
            self.settings.catalogue,
            self.settings.workers_per_node,
        )
        self.is_open = False
        for device in devices:
            self.put_device(device)

    def open(self) -> None:
        """Start allocating: all running pods have been restored."""
        self.is_open = True

    # Devices and nodes

    def put_device(self, device: Device) -> None:
        """Add or update a device. The ledger, not the object, says what our pods use of it."""
        row = self.table.find(device.name)
        strangers = NOTHING if row is None else self.table.device(row).strangers
        self.table.put(device)
        if row is None:
            self.ledger.device_arrived(device.name)
        else:
            self.ledger.capacity_changed(device.name, device.capacity or NOTHING)
            if device.strangers != strangers:
                self.ledger.recount(device.name)

    def remove_device(self, name: str) -> None:
        self.table.remove(name)

    def put_node(
        self,
        name: str,
        labels: Mapping[str, str],
        *,
        cpu_milli: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        """Set the node's labels for affinity, and its capacity for worker pods (None: not checked).

        The capacity is that for all workers together; the ledger's workers are subtracted here.
        """
        taken = self.ledger.load_of(name)
        self.table.put_node(
            name,
            labels,
            cpu_milli=UNBOUNDED if cpu_milli is None else cpu_milli - taken.cpu_milli,
            memory_bytes=UNBOUNDED if memory_bytes is None else memory_bytes - taken.memory_bytes,
        )

    def put_quota(self, quota: GpuQuota) -> None:
        self.quotas.put(quota)

    def remove_quota(self, namespace: str) -> None:
        self.quotas.remove(namespace)

    def devices_of(self, pool: str) -> list[Device]:
        return [self.table.device(int(row)) for row in self.table.rows_of_pool(pool)]

    def available(self, device: str) -> DeviceAmount | None:
        """Capacity less committed amounts; None for an unknown device."""
        row = self.table.find(device)
        return None if row is None else self.table.available(row).at_least(NOTHING)

    def free(self, device: str) -> DeviceAmount | None:
        """Capacity less committed and reserved amounts; None for an unknown device."""
        row = self.table.find(device)
        return None if row is None else self.table.free(row).at_least(NOTHING)

    # Requests

    def find(
        self,
        request: GpuRequest,
        only: Collection[str] | None = None,
        avoid_nodes: Collection[str] = (),
        nodes: NodeChoice | None = None,
    ) -> tuple[str, ...] | NoDevice:
        """The devices that `try_allocate` would choose; changes nothing.

        `only` limits the choice to these devices, `avoid_nodes` excludes nodes. `nodes` are those that fit
        the pod itself; None: the caller has checked that.
        """
        refused = self._not_now(request) or self._over_quota(request)
        if refused is not None:
            return refused
        rows = self.table.rows_of_pool(request.pool)
        is_narrowed = only is not None or bool(avoid_nodes)
        if only is not None:
            rows = _among(self.table, rows, only)
        if avoid_nodes:
            rows = _outside(self.table, rows, avoid_nodes)
        if not len(rows):
            where = " among those allowed here" if is_narrowed else ""
            return no_device(DeviceReason.POOL_EMPTY, f"pool {request.pool} has no GPU{where}")
        survivors = self.filter_devices(request, rows, nodes)
        if survivors.refusal is not None or not len(survivors.rows):
            return self._explained(request, rows, survivors)
        scope = CandidateScope(self._counted(request), only is not None or bool(request.indices))
        chosen = self.settings.strategy.choose(self.table, survivors.rows, request, scope)
        if len(chosen) < request.count:
            return no_device(
                DeviceReason.NOT_ENOUGH_GPUS,
                f"{len(survivors.rows)} GPUs fit, but no node has {request.count}",
            )
        names = tuple(self.table.device(int(row)).name for row in chosen)
        return self._linked(names, survivors.rows) if request.count > 1 else names

    def try_allocate(
        self,
        request: GpuRequest,
        now: float = 0.0,
        *,
        only: Collection[str] | None = None,
        avoid_nodes: Collection[str] = (),
        nodes: NodeChoice | None = None,
        until: float | None = None,
    ) -> GpuAllocation | NoDevice:
        """Find devices and reserve them, until `until` or for half an hour."""
        refused = self.ledger.refused_uid(request.uid)
        if refused is not None:
            return refused
        self.settings.strategy.observe(request)
        chosen = self.find(request, only, avoid_nodes, nodes)
        if isinstance(chosen, Infeasible):
            return chosen
        return self.ledger.assume(request, chosen, now, until)

    def hold(
        self, request: GpuRequest, devices: Sequence[str], now: float, until: float | None = None
    ) -> GpuAllocation | NoDevice:
        """Reserve exactly these devices, whatever their phase and external use: they may still be
        starting.
        """
        if not self.is_open:
            return _NOT_RECOVERED
        return self.ledger.assume(request, devices, now, until)

    def commit(self, uid: str) -> GpuAllocation | NoDevice:
        return self.ledger.commit(uid)

    def release(self, uid: str) -> None:
        """Release everything of a pod that is gone for good."""
        self.ledger.release(uid)

    def drop(self, uid: str) -> None:
        """Release a hold or an allocation; the same pod may be allocated again."""
        self.ledger.unreserve(uid)

    def restore(
        self,
        request: GpuRequest,
        devices: Sequence[str],
        node: str = "",
        partitions: Sequence[DevicePartition] = (),
    ) -> None:
        """Restore an allocation of a running pod; call before `open`."""
        self.ledger.restore(request, devices, node, partitions)

    def sweep(
        self, now: float, waiting: Collection[str] = (), ttl_seconds: float = RESERVATION_SECONDS
    ) -> list[str]:
        return self.ledger.sweep(now, waiting, ttl_seconds)

    # Internals

    def _linked(self, chosen: tuple[str, ...], rows: Rows) -> tuple[str, ...]:
        """The best linked devices of the node; the strategy's choice if links do not decide."""
        candidates = [self.table.device(int(row)) for row in rows]
        node = next(device.node for device in candidates if device.name == chosen[0])
        devices = [device for device in candidates if device.node == node]
        links = {device.name.lower(): dict(device.links) for device in devices if device.links}
        others = sorted(device.name for device in devices if device.name not in chosen)
        return belonging_together((*chosen, *others), len(chosen), links)

    def _not_now(self, request: GpuRequest) -> NoDevice | None:
        if not self.is_open:
            return _NOT_RECOVERED
        if not request.pool:
            return no_device(
                DeviceReason.POOL_NAME_EMPTY,
                f"{request.key} names no GPU pool; set the annotation {POOL_LABEL}",
            )
        if not 1 <= request.count <= COUNT_MAX:
            return no_device(
                DeviceReason.GPU_COUNT_OUT_OF_RANGE,
                f"{request.key} asks for {request.count} GPUs; 1 to {COUNT_MAX}",
            )
        return None

    def _over_quota(self, request: GpuRequest) -> NoDevice | None:
        """The quota check before a device is chosen; percentages are checked afterwards."""
        if request.namespace not in self.quotas.quotas:
            return None
        return self.quotas.check(request.namespace, known_charge(request))

    def filter_devices(
        self, request: GpuRequest, rows: Rows, nodes: NodeChoice | None = None, *, trace: bool = False
    ) -> device_filters.FittingDevices:
        chain = device_filters.device_filters(request, self.settings.policy, self.settings.catalogue)
        cap = self.settings.workers_per_node
        more: list[tuple[str, device_filters.Filter]] = []
        if nodes is not None:
            more.append(("node", partial(by_nodes, nodes=nodes)))
        if cap > 0:
            more.append(("worker cap", partial(device_filters.by_worker_cap, cap=cap)))
        if request.isolation == PARTITIONED:
            more.append(("partition slot", partial(self._with_slot, request)))
        before_same_node = len(chain) - (request.count > 1)
        chain[before_same_node:before_same_node] = more
        return device_filters.run_filters(self.table, rows, chain, trace)

    def _with_slot(self, request: GpuRequest, table: ScoringColumns, rows: Rows) -> Rows:
        """Rows with room for the requested partition, checked device by device, because partitions
        are few.
        """
        free = [self.ledger.taking.can_slice(request, int(row)) for row in rows]
        kept: Rows = rows[np.array(free, dtype=np.bool_)]
        return kept

    def _explained(
        self, request: GpuRequest, rows: Rows, survivors: device_filters.FittingDevices
    ) -> NoDevice:
        if survivors.refusal is not None:
            return structs.replace(
                survivors.refusal,
                detail=f"no node of pool {request.pool} has {request.count} GPUs with {request.request}",
            )
        return no_device(
            DeviceReason.NO_GPU_AFTER_FILTER,
            f"none of the {len(rows)} GPUs of pool {request.pool} can take {request.request}",
        )

    def _counted(self, request: GpuRequest) -> Bools | None:
        """The devices that count for a node's score. Under Dynamic, devices locked to another mode do not."""
        if self.settings.policy != DYNAMIC:
            return None
        every = self.table.all_rows()
        mask = np.zeros(self.table.n, dtype=np.bool_)
        mask[device_filters.by_policy(self.table, every, policy=DYNAMIC, mode=request.isolation)] = True
        return mask


def known_charge(request: GpuRequest) -> QuotaCharge:
    """The quota charge of a request, as far as it is known before a device is chosen."""
    share, limit = request.request, request.limit
    return QuotaCharge(
        DeviceAmount(share.tflops_milli, share.vram_bytes),
        DeviceAmount(limit.tflops_milli, limit.vram_bytes),
        request.count,
    )


_NOT_RECOVERED = no_device(DeviceReason.NOT_RECOVERED, "still reading running pods; try again")


def _among(table: ScoringColumns, rows: Rows, names: Collection[str]) -> Rows:
    allowed = np.array([row for name in names if (row := table.find(name)) is not None], dtype=np.int64)
    kept: Rows = rows[np.isin(rows, allowed)]
    return kept


def _outside(table: ScoringColumns, rows: Rows, nodes: Collection[str]) -> Rows:
    codes = [code for name in nodes if (code := table.node_code(name)) is not None]
    kept: Rows = rows[~np.isin(table.node[rows], np.array(codes, dtype=np.int64))]
    return kept
