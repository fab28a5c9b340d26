"""Packs pending items first-fit onto existing, coming or new devices.

A `NodeBin` is one node: rooms (devices) with their free amounts, and the node's CPU and memory. Devices of
one item are on one node; items of one gang are placed all or none. Items go largest first, so nodes exceed
the optimum by little; equal items skip the bins that refused one of them. Pure; the same input gives the same
answer.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from karpool.gpu.scale_up.demand import WaitingWorker, size
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.isolation import PARTITIONED, SHARED
from karpool.model.devices.links import Links, belonging_together
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.systems import GpuSystem
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.dra.driver_templates import NEW_NODE
from karpool.packing.dra.extended_resources import is_extended
from karpool.packing.dra.pod_claims import DraNode, DraState, demand_of_shape, place_pod, with_pod
from karpool.packing.tables.device_kinds import DeviceKind

Signature = tuple[object, ...]


@dataclass(slots=True)
class DeviceRoom:
    """One device. `untouched` while nothing is on it: whole-device requests need that."""

    name: str
    kind: DeviceKind
    free: DeviceAmount
    untouched: bool = True
    partitions: tuple[DevicePartition, ...] = ()
    sharers_left: int | None = None  # None: any number

    def holds(self, item: WaitingWorker) -> bool:
        if self.sharers_left == 0:
            return False
        if item.request.isolation == SHARED and not self.untouched:
            return False
        if item.request.isolation == PARTITIONED:
            return self.kind.place(item.demand, self.partitions, self.free) is not None
        return self.free.covers(self.cost(item))

    def cost(self, item: WaitingWorker) -> DeviceAmount:
        """The amounts of the item; an item without amounts takes the whole device."""
        taken = self.kind.taken_by(item.demand)
        return self.kind.capacity if taken.is_zero else taken

    def take(self, item: WaitingWorker) -> None:
        if item.request.isolation == PARTITIONED:
            place = self.kind.place(item.demand, self.partitions, self.free)
            self.partitions = (*self.partitions, *((place,) if place is not None else ()))
        self.free, self.untouched = self.free - self.cost(item), False
        if self.sharers_left is not None:
            self.sharers_left -= 1


Serves = Callable[[WaitingWorker, DeviceRoom], bool]
_NO_ROOM = DeviceRoom("", DeviceKind(), NOTHING)  # claims do not name a device


@dataclass(slots=True)
class GpuPlacement:
    item: WaitingWorker
    rooms: tuple[DeviceRoom, ...]
    before: tuple[DeviceRoom, ...]  # before the change


@dataclass(slots=True)
class NodeBin:
    """`serves` says which items a device of this node could serve at all."""

    name: str
    rooms: list[DeviceRoom]
    cpu_milli: int
    memory_bytes: int
    serves: Serves
    placed: list[GpuPlacement] = field(default_factory=list)
    links: Links = field(default_factory=dict)
    drivers: list[DraState] = field(
        default_factory=list
    )  # the free devices of drivers, after each pod with claims

    def put(self, item: WaitingWorker) -> bool:
        request = item.request
        if request.cpu_milli > self.cpu_milli or request.memory_bytes > self.memory_bytes:
            return False
        if item.system is GpuSystem.DRA:
            return self._put_claims(item)
        if len(self.rooms) < request.count:
            return False
        chosen: list[DeviceRoom] = []
        for room in self.rooms:
            if room.holds(item) and self.serves(item, room):
                chosen.append(room)
                if len(chosen) == request.count and not (self.links and request.count > 1):
                    break
        if len(chosen) < request.count:
            return False
        if len(chosen) > request.count:
            by_name = {room.name: room for room in chosen}
            together = belonging_together(list(by_name), request.count, self.links)
            chosen = [by_name[name] for name in together]
        self._take(item, chosen)
        return True

    def _put_claims(self, item: WaitingWorker) -> bool:
        """Allocate the claims of this pod as the scheduler would, after those of earlier pods."""
        if not self.drivers or not self.serves(item, _NO_ROOM):
            return False
        state = self.drivers[-1]
        demand = demand_of_shape(state, item.shape)
        outcome = place_pod(state, demand, DraNode(NEW_NODE, {}, {}))
        if not outcome.fits:
            return False
        self.drivers.append(with_pod(state, demand, outcome))
        self._take(item, ())
        return True

    def _take(self, item: WaitingWorker, chosen: Sequence[DeviceRoom]) -> None:
        self.placed.append(GpuPlacement(item, tuple(chosen), tuple(replace(room) for room in chosen)))
        for room in chosen:
            room.take(item)
        self.cpu_milli -= item.request.cpu_milli
        self.memory_bytes -= item.request.memory_bytes

    def undo(self) -> None:
        last = self.placed.pop()
        for room, before in zip(last.rooms, last.before, strict=True):
            room.free, room.untouched, room.partitions = before.free, before.untouched, before.partitions
            room.sharers_left = before.sharers_left
        if last.item.system is GpuSystem.DRA:
            self.drivers.pop()
        self.cpu_milli += last.item.request.cpu_milli
        self.memory_bytes += last.item.request.memory_bytes

    @property
    def used_rooms(self) -> int:
        """The number of used devices; one for each pod with claims, because the driver chooses its
        devices.
        """
        by_claims = sum(placement.item.system is GpuSystem.DRA for placement in self.placed)
        return sum(not room.untouched for room in self.rooms) + by_claims


def fresh_bin(
    name: str,
    brings: NodeYield,
    serves: Serves,
    drivers: DraState | None = None,
) -> NodeBin:
    """A node as a candidate would bring it."""
    amount = DeviceAmount(brings.tflops_milli, brings.vram_bytes)
    kind = DeviceKind(model=brings.model, vendor=brings.vendor, capacity=amount)
    rooms = [
        DeviceRoom(f"{name}/{index}", kind, amount, sharers_left=brings.sharers or None)
        for index in range(brings.devices)
    ]
    bin_ = NodeBin(name, rooms, brings.cpu_milli, brings.memory_bytes, serves)
    if drivers is not None:
        bin_.drivers.append(drivers)
    return bin_


def named_claims(item: WaitingWorker) -> frozenset[tuple[str, str]]:
    """Claims with their own name: all pods that use one must go where its devices are."""
    shape = item.shape
    claims = shape.resource_claims if item.system is GpuSystem.DRA else ()
    return frozenset((shape.namespace, reference.claim) for reference in claims if reference.claim)


class BinPacking:
    """Bins that fill up; the caller opens new ones."""

    def __init__(self, bins: Iterable[NodeBin] = ()) -> None:
        self.bins = list(bins)
        self._start: dict[Signature, int] = {}  # equal items: bins before this index refused

    def put(self, item: WaitingWorker) -> NodeBin | None:
        if (home := self._home_of_claims(item)) is not None:
            return home if home.put(item) else None
        kind = signature(item)
        for position in range(self._start.get(kind, 0), len(self.bins)):
            if self.bins[position].put(item):
                self._start[kind] = position
                return self.bins[position]
        self._start[kind] = len(self.bins)
        return None

    def _home_of_claims(self, item: WaitingWorker) -> NodeBin | None:
        """The bin of a shared claim that is already placed."""
        names = named_claims(item)
        if not names:
            return None
        placed = ((bin_, placement.item) for bin_ in self.bins for placement in bin_.placed)
        return next((bin_ for bin_, other in placed if names & named_claims(other)), None)

    def put_all(
        self, items: Sequence[WaitingWorker], fresh: Callable[[WaitingWorker], NodeBin | None] | None = None
    ) -> bool:
        """Place all items of a gang, or none; `fresh` opens a new node if no bin fits."""
        opened = len(self.bins)
        starts = dict(self._start) if len(items) > 1 else self._start
        used: list[NodeBin] = []
        for item in items:
            chosen = self.put(item)
            if chosen is None and fresh is not None and self._home_of_claims(item) is None:
                bin_ = fresh(item)
                if bin_ is not None and bin_.put(item):
                    self.bins.append(bin_)
                    chosen = bin_
            if chosen is None:
                for bin_ in reversed(used):
                    bin_.undo()
                del self.bins[opened:]
                self._start = starts
                return False
            used.append(chosen)
        return True


def groups(items: Iterable[WaitingWorker]) -> list[list[WaitingWorker]]:
    """Gangs together, other pods alone; the largest first, then in the order of service."""
    gangs: dict[str, list[WaitingWorker]] = {}
    for item in items:
        gangs.setdefault(item.gang, []).append(item)
    return sorted(gangs.values(), key=_order)


def by_service(items: Iterable[WaitingWorker]) -> list[list[WaitingWorker]]:
    """The same groups in the order of service: priority, then age."""
    return sorted(groups(items), key=lambda group: min(item.rank for item in group))


def _order(group: list[WaitingWorker]) -> tuple[object, ...]:
    biggest = max(size(item) for item in group)
    return (tuple(-part for part in biggest), min(item.rank for item in group))


def signature(item: WaitingWorker) -> Signature:
    """Equal for items that fit in exactly the same places."""
    request = item.request
    return (
        request.pool,
        request.model,
        request.vendor,
        request.count,
        request.request,
        request.isolation,
        request.template,
        request.cpu_milli,
        request.memory_bytes,
        item.constraints,
        item.system,
        _of_drivers(item.shape) if item.system is GpuSystem.DRA else (),
    )


def _of_drivers(shape: PodShape) -> tuple[object, ...]:
    """A pod's requests to drivers, by claims or by resources that a class offers."""
    extended = tuple(entry for entry in shape.requests if is_extended(entry[0]))
    return shape.namespace, shape.resource_claims, extended, shape.extended_asks
