"""State of the allocator: devices, holds, and the requests tried in this step.

All of it is rebuilt from observations; losing it costs a repetition, never a device. `refresh` takes an
observation, updates the allocator, serves the pods that fit, and returns the input of a step. No I/O, no
clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from karpool.gpu.allocation.allocation import GpuAllocation
from karpool.gpu.allocation.allocator import Allocator, AllocatorSettings
from karpool.gpu.allocation.open_nodes import NodeHold, OpenNodes
from karpool.gpu.allocation.resizing import resize
from karpool.gpu.records.scale_up_record import ScaleUpRecord
from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.input import DeviceHold, GpuNodeView, HoldDevices, ScaleUpInput
from karpool.gpu.scale_up.settings import ScaleUpSettings
from karpool.gpu.scale_up.triage import CandidateSource, TriageResult, Why, triage
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import Device, DevicePartition
from karpool.model.devices.device_reasons import NoDevice
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.oversubscription import Oversubscription, node_totals, virtual_capacity
from karpool.model.devices.quota import GpuQuota
from karpool.model.devices.request import GpuRequest
from karpool.model.devices.systems import GpuSystem
from karpool.model.infeasible import Infeasible
from karpool.model.taints import Taint
from karpool.packing.tables.room import Room
from karpool.provisioning.claims.claim_progress import ClaimProgress
from karpool.provisioning.placeholders.placeholder import Placeholder

_ANSWERS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """A readable worker pod. It is pending unless it has a node, is being deleted, or is nominated."""

    item: WaitingWorker
    node: str = ""
    devices: tuple[str, ...] = ()
    leaving: bool = False
    nominated_node: str = ""
    released: bool = False  # deleted, without a finalizer or grace period that keeps it
    partitions: tuple[DevicePartition, ...] = ()  # of the devices, in the same order
    unschedulable: bool = True  # for pods of another scheduler: whether it reported so

    @property
    def uid(self) -> str:
        return self.item.uid

    @property
    def waits(self) -> bool:
        return self.unschedulable and not (self.node or self.leaving or self.nominated_node)

    @property
    def has_devices(self) -> bool:
        return bool(self.node) and bool(self.devices) and not self.released


@dataclass(frozen=True, slots=True)
class GpuNodeFacts:
    """The facts of a node: its devices, and its capacity for all workers together."""

    name: str
    ready: bool = False
    going: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    host_memory_bytes: int = 0  # total
    host_disk_bytes: int = 0
    taints: tuple[Taint, ...] = ()
    shown: Mapping[str, int] = field(default_factory=dict)  # number of devices by system
    enforcer: GpuSystem | None = None  # the system that enforces shares of its devices


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as the watches show it at one moment."""

    now: float
    workers: tuple[GpuWorker, ...] = ()
    records: Mapping[str, ScaleUpRecord] = field(default_factory=dict)
    placeholders: tuple[Placeholder, ...] = ()
    claims: Mapping[str, ClaimProgress] = field(default_factory=dict)
    nodes: tuple[GpuNodeFacts, ...] = ()
    resting: Mapping[str, float] = field(default_factory=dict)
    room: Room | None = None  # of the cluster's snapshot; None: only devices of nodes are checked


@dataclass(frozen=True, slots=True)
class DevicePoolTotals:
    """Totals of a pool of devices. `virtual` is the maximum sum of limits, `limits` their current sum."""

    capacity: DeviceAmount = NOTHING
    available: DeviceAmount = NOTHING
    virtual: DeviceAmount = NOTHING
    limits: DeviceAmount = NOTHING

    def plus(
        self, capacity: DeviceAmount, available: DeviceAmount, virtual: DeviceAmount
    ) -> "DevicePoolTotals":
        return DevicePoolTotals(
            self.capacity + capacity, self.available + available, self.virtual + virtual, self.limits
        )


class AllocatorState:
    def __init__(self, settings: ScaleUpSettings, allocator: AllocatorSettings | None = None) -> None:
        self.settings = settings
        self.allocator = Allocator(allocator)
        self.attempted: set[tuple[str, str, int]] = set()
        self.refused: dict[tuple[str, int, int], str] = {}
        self.deletes: dict[str, tuple[float, int]] = {}
        self.refused_resizes: dict[str, NoDevice] = {}  # by uid of the pod
        self._devices: dict[str, Device] = {}
        self._nodes: dict[str, GpuNodeFacts] = {}
        self._latest: OpenNodes | None = None
        self._answers: dict[tuple[GpuRequest, NodeYield], NoDevice | None] = {}

    def refresh(
        self,
        view: View,
        ladders: CandidateSource,
        why_none: Why = lambda item: "",
        unenforced: Why = lambda item: "",
    ) -> tuple[TriageResult, ScaleUpInput]:
        """Update the allocator and triage the workers. `unenforced` says why nothing enforces the share of
        one of our pods; such a pod stays pending.
        """
        self._sync_nodes(view.nodes)
        self._sync_workers(view.workers)
        self.allocator.sweep(view.now)
        self._forget(view)
        running = _running(view.workers, self.allocator)
        waiting = [
            worker.item
            for worker in view.workers
            if worker.waits and worker.uid not in self.allocator.ledger.committed
        ]
        triaged = triage(
            waiting,
            self.allocator,
            ladders,
            now=view.now,
            until=view.now + self.settings.hold,
            reserved_nodes=reserved_nodes(view),
            open_nodes=self._open_nodes(view),
            gangs_running=running,
            nominated={
                worker.item: worker.nominated_node
                for worker in view.workers
                if worker.item.system is None
                and worker.nominated_node
                and not worker.node
                and not worker.leaving
            },
            answers=self._answers,
            why_none=why_none,
            unenforced=unenforced,
        )
        return triaged, self._world(view, triaged, running)

    def _open_nodes(self, view: View) -> OpenNodes | None:
        """The nodes less the holds and allocations of pods that are not seen on their node yet."""
        self._latest = None
        if view.room is not None:
            waiting = {worker.uid: worker.item.shape for worker in view.workers if not worker.node}
            holds = {
                entry.request.uid: NodeHold(
                    entry.node, waiting[entry.request.uid], tuple(share.device for share in entry.taken)
                )
                for entry in self.allocator.ledger.entries()
                if entry.request.uid in waiting
            }
            self._latest = OpenNodes(self.allocator.table, view.room, holds)
        return self._latest

    def takes(self, item: WaitingWorker) -> bool:
        """Whether the node of the item's hold fits the pod itself, by the last observation."""
        entry = self.allocator.ledger.assumed.get(item.uid)
        if entry is None or self._latest is None:
            return True  # nothing is held, or nodes are not checked
        return self._latest.takes(item.uid, NodeHold(entry.node, item.shape))

    def _world(self, view: View, triaged: TriageResult, running: Mapping[str, int]) -> ScaleUpInput:
        served = {item.uid for item, _ in triaged.served}
        return ScaleUpInput(
            now=view.now,
            demand=triaged.demand,
            records=view.records,
            placeholders=view.placeholders,
            claims=view.claims,
            nodes={node.name: self._node(node) for node in view.nodes},
            holds={
                uid: DeviceHold(uid, entry.node, tuple(share.device for share in entry.taken), entry.until)
                for uid, entry in self.allocator.ledger.assumed.items()
                if uid not in served and entry.until is not None
            },
            committed=frozenset(self.allocator.ledger.committed),
            attempted=frozenset(self.attempted),
            refused=dict(self.refused),
            deletes=dict(self.deletes),
            resting=view.resting,
            gangs_running=running,
        )

    def _node(self, node: GpuNodeFacts) -> GpuNodeView:
        taken = self.allocator.ledger.load_of(node.name)
        return GpuNodeView(
            node.name,
            ready=node.ready,
            going=node.going,
            devices=tuple(
                structs.replace(
                    device,
                    available=self.allocator.free(device.name),
                    partitions=self.allocator.ledger.partitions_on(device.name),
                )
                for device in node.devices
            ),
            cpu_milli=node.cpu_milli - taken.cpu_milli,
            memory_bytes=node.memory_bytes - taken.memory_bytes,
            taints=node.taints,
            labels=node.labels,
            shown=node.shown,
        )

    # Observations

    def _sync_nodes(self, nodes: Iterable[GpuNodeFacts]) -> None:
        """Update nodes and devices. Devices of a leaving node are not running for the allocator."""
        seen: dict[str, Device] = {}
        facts = {node.name: node for node in nodes}
        for node in facts.values():
            for device in node.devices:
                seen[device.name] = structs.replace(device, phase="Destroying") if node.going else device
        for name in self._devices.keys() - seen.keys():
            self.allocator.remove_device(name)
        for name, device in seen.items():
            if self._devices.get(name) != device:
                self.allocator.put_device(device)
        for node in facts.values():
            if self._nodes.get(node.name) != node:
                self.allocator.put_node(
                    node.name, node.labels, cpu_milli=node.cpu_milli, memory_bytes=node.memory_bytes
                )
        self._devices, self._nodes = seen, facts

    def _sync_workers(self, workers: Sequence[GpuWorker]) -> None:
        """Update workers. Pods are authoritative: a bound pod holds its devices, and a deleted pod holds
        nothing.
        """
        ledger = self.allocator.ledger
        alive = {worker.uid for worker in workers}
        for worker in workers:
            if worker.has_devices and worker.uid not in ledger.committed:
                self.allocator.restore(worker.item.request, worker.devices, worker.node, worker.partitions)
        self._resize(workers)
        for uid in [*ledger.committed, *ledger.assumed]:
            if uid not in alive:
                self.allocator.release(uid)
        self.allocator.open()

    def _resize(self, workers: Iterable[GpuWorker]) -> None:
        """Apply changed amounts of running pods. If they do not fit, the old ones count."""
        refused: dict[str, NoDevice] = {}
        for worker in workers:
            entry, request = self.allocator.ledger.committed.get(worker.uid), worker.item.request
            if entry is None or (entry.request.request, entry.request.limit) == (
                request.request,
                request.limit,
            ):
                continue
            answer = resize(self.allocator.ledger, worker.uid, request.request, request.limit)
            if isinstance(answer, Infeasible):
                refused[worker.uid] = answer
        self.refused_resizes = refused

    def _forget(self, view: View) -> None:
        if len(self._answers) > _ANSWERS_KEPT:
            self._answers.clear()
        pods = {pod.uid for pod in view.placeholders}
        self.deletes = {uid: tried for uid, tried in self.deletes.items() if uid in pods}
        uids = {record.uid for record in view.records.values()}
        self.attempted = {attempt for attempt in self.attempted if attempt[1] in uids}
        epochs = {record.name: record.epoch for record in view.records.values()}
        self.refused = {key: why for key, why in self.refused.items() if epochs.get(key[0]) == key[1]}

    def sync_quotas(self, quotas: Mapping[str, GpuQuota]) -> None:
        old_quotas = self.allocator.quotas.quotas
        for namespace in old_quotas.keys() - quotas.keys():
            self.allocator.remove_quota(namespace)
        for namespace, quota in quotas.items():
            if old_quotas.get(namespace) != quota:
                self.allocator.put_quota(quota)

    def pool_totals(self, nodes: Iterable[GpuNodeFacts]) -> dict[str, DevicePoolTotals]:
        """By pool: capacity and uncommitted amounts of its devices, and limits with their maximum."""
        totals: dict[str, DevicePoolTotals] = {}
        for node in nodes:
            by_pool: dict[str, list[Device]] = {}
            for device in node.devices:
                available = self.allocator.available(device.name)
                by_pool.setdefault(device.pool, []).append(structs.replace(device, available=available))
            for pool, devices in by_pool.items():
                capacity, available = node_totals(devices)
                virtual = virtual_capacity(
                    capacity, node.host_memory_bytes, node.host_disk_bytes, Oversubscription()
                )
                totals[pool] = totals.get(pool, DevicePoolTotals()).plus(capacity, available, virtual)
        for entry in self.allocator.ledger.committed.values():
            pool = entry.request.pool
            limits = entry.charge.limit * entry.charge.count
            totals[pool] = replace(
                totals.get(pool, DevicePoolTotals()),
                limits=totals.get(pool, DevicePoolTotals()).limits + limits,
            )
        return totals

    # Actions

    def hold(self, hold: HoldDevices, now: float) -> GpuAllocation | NoDevice:
        return self.allocator.hold(hold.item.request, hold.devices, now, hold.expires)

    def drop(self, uid: str) -> None:
        """Release a hold; a committed allocation stays."""
        self.allocator.ledger.forget(uid)

    def deleted(self, uid: str, now: float) -> None:
        self.deletes[uid] = (now, self.deletes.get(uid, (0.0, 0))[1] + 1)


def reserved_nodes(view: View) -> frozenset[str]:
    """The nodes of active units and of smart pods."""
    staying = [pod for pod in view.placeholders if pod.deleting_since is None]
    claims, nodes = {pod.claim for pod in staying}, {pod.node for pod in staying}
    for record in view.records.values():
        for unit in record.active_units:
            claims.add(unit.claim)
            nodes.add(unit.node)
    nodes |= {view.claims[claim].node for claim in claims if claim in view.claims}
    return frozenset(nodes - {""})


def _running(workers: Sequence[GpuWorker], allocator: Allocator) -> dict[str, int]:
    """The number of allocated members of each gang."""
    running: dict[str, int] = {}
    for worker in workers:
        gang = worker.item.request.gang
        if gang is not None and worker.uid in allocator.ledger.committed:
            running[gang.group] = running.get(gang.group, 0) + 1
    return running
