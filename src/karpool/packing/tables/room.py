"""One moment of a cluster, and what-if questions about it.

A snapshot never changes. `minus`, `plus` and `without` return another snapshot that reads through to this
one: only the requested columns are copied, and only on demand. They stack in any order.

All arrays are per node, read-only, and aligned with `names`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from karpool.model.devices.node_devices import RESOURCES, labelled_devices, plugin_of
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.quantity import INT64_MAX
from karpool.model.resources import PODS
from karpool.packing.dra.pod_claims import (
    DraNode,
    DraState,
    demand_of_shape,
    place_pod,
    served_by_drivers,
    with_pod,
)
from karpool.packing.tables.columns import Int32s, Int64s, read_only
from karpool.packing.tables.device_kinds import DeviceKinds
from karpool.packing.tables.device_table import DeviceFilling, DeviceTable, new_devices, uses_devices
from karpool.packing.tables.node_table import (
    JoinedNodeTable,
    LabelCodes,
    NodeRow,
    NodeTable,
    SubsetNodeTable,
    TaintSet,
    table_of,
)
from karpool.packing.tables.shape_table import ShapeTable


@dataclass(frozen=True, slots=True)
class BoundPodCounts:
    """Pods on nodes: `count[i]` pods of shape `shape[i]` on row `node[i]`. Pairs may repeat."""

    shape: Int32s
    node: Int32s
    count: Int64s


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Some pods of one shape on one row of a snapshot; `devices` if it is known which they use."""

    node: int
    shape: PodShape
    count: int = 1
    devices: tuple[str, ...] = ()


class Room(ABC):
    """The read interface of one moment, real or hypothetical."""

    def __init__(
        self, version: int, nodes: NodeTable, shapes: ShapeTable, namespaces: Mapping[str, Labels]
    ) -> None:
        self.version = version  # of the cluster state it comes from
        self.nodes = nodes
        self.shapes = shapes
        self.namespaces = namespaces
        self._free: dict[str, Int64s] = {}
        self._allocatable: dict[str, Int64s] = {}
        self.claim_rooms: dict[object, Int64s] = {}  # cached results of `claim_room`

    @property
    def n(self) -> int:
        return self.nodes.n

    @property
    def names(self) -> Sequence[str]:
        return self.nodes.names

    @property
    def order(self) -> Int64s:
        """Rows in the order in which Karmada and kube-scheduler walk them."""
        return self.nodes.order

    @property
    @abstractmethod
    def resources(self) -> Collection[str]:
        """The resources that any node offers, apart from pod slots."""

    def find(self, name: str) -> int | None:
        return self.nodes.find(name)

    def label(self, key: str) -> LabelCodes:
        return self.nodes.label(key)

    @property
    def taint_codes(self) -> Int32s:
        return self.nodes.taint_codes

    @property
    def taint_sets(self) -> Sequence[TaintSet]:
        return self.nodes.taint_sets

    def free(self, resource: str) -> Int64s:
        """Return what is free of a resource, never below zero; zeros if no node offers it."""
        if resource == PODS:
            return self.slots
        column = self._free.get(resource)
        if column is None:
            column = self._free[resource] = read_only(self._read_free(resource))
        return column

    def allocatable(self, resource: str) -> Int64s:
        column = self._allocatable.get(resource)
        if column is None:
            column = self._allocatable[resource] = read_only(self._read_allocatable(resource))
        return column

    @cached_property
    def slots(self) -> Int64s:
        """The number of pods that each node may still take."""
        return read_only(self._read_slots())

    @cached_property
    def bound(self) -> BoundPodCounts:
        """All pods on nodes."""
        return self._read_bound()

    @cached_property
    def devices(self) -> DeviceTable | None:
        """The devices of the nodes and what is free on them; None if no node has any."""
        return self._read_devices()

    @cached_property
    def dra(self) -> DraState | None:
        """DRA devices, claims and allocations; None if they are not watched."""
        return self._read_dra()

    def _read_dra(self) -> DraState | None:
        return None

    def dra_node(self, row: int, extended: Iterable[str] = ()) -> DraNode:
        """Return a node as drivers see it, with these extended resources as far as its plugins have them."""
        units = {resource: int(self.allocatable(resource)[row]) for resource in extended}
        return DraNode(
            self.names[row],
            self.nodes.labels_of(row),
            {resource: amount for resource, amount in units.items() if amount > 0},
        )

    @abstractmethod
    def _read_devices(self) -> DeviceTable | None: ...

    @abstractmethod
    def _read_free(self, resource: str) -> Int64s: ...

    @abstractmethod
    def _read_allocatable(self, resource: str) -> Int64s: ...

    @abstractmethod
    def _read_slots(self) -> Int64s: ...

    @abstractmethod
    def _read_bound(self) -> BoundPodCounts: ...

    @abstractmethod
    def pods_on(self, row: int) -> Mapping[str, int]:
        """Return the existing pods of a node, `namespace/name` to shape number, without promised pods."""

    @property
    @abstractmethod
    def pending(self) -> Mapping[str, int]:
        """Pods without a node: `namespace/name` to shape number."""

    def minus(self, placements: Iterable[PodPlacement]) -> "Room":
        """Return the room with these pods on their nodes."""
        some = tuple(placement for placement in placements if placement.count)
        return ReservedRoom(self, some) if some else self

    def closing(self, devices: Collection[str]) -> "Room":
        """Return the room with these devices closed to further pods."""
        closed = ReservedRoom(self, ())
        if self.devices is not None:
            rows = np.array([name in devices for name in self.devices.names], dtype=np.bool_)
            closed.devices = replace(self.devices, closed=self.devices.closed | rows)
        return closed

    def plus(self, nodes: Iterable[NodeRow]) -> "Room":
        """Return the room with these nodes added; raises Invalid for a duplicate name."""
        rows = tuple(nodes)
        return ExtendedRoom(self, rows) if rows else self

    def without(self, names: Iterable[str]) -> "Room":
        """Return the room without these nodes and their pods. Unknown names are ignored."""
        gone = {row for row in map(self.find, names) if row is not None}
        if not gone:
            return self
        stays = np.ones(self.n, dtype=np.bool_)
        stays[list(gone)] = False
        return RoomSubset(self, np.flatnonzero(stays))


class StoredRoom(Room):
    """The room that `ClusterState.snapshot` returns: views of its columns."""

    def __init__(
        self,
        version: int,
        nodes: NodeTable,
        shapes: ShapeTable,
        namespaces: Mapping[str, Labels],
        *,
        free: dict[str, Int64s],
        allocatable: dict[str, Int64s],
        slots: Int64s,
        pod_nodes: Int32s,
        pod_shapes: Int32s,
        pods_by_row: Sequence[Mapping[str, int]],
        pending: Mapping[str, int],
        devices: DeviceTable | None = None,
        dra: DraState | None = None,
    ) -> None:
        super().__init__(version, nodes, shapes, namespaces)
        self.devices = devices
        self.dra = dra
        self._resources = tuple(free)
        self._free.update(free)
        self._allocatable.update(allocatable)
        self.slots = slots
        self._pod_nodes = pod_nodes
        self._pod_shapes = pod_shapes
        self._pods_by_row = pods_by_row
        self._pending = pending

    @property
    def resources(self) -> Collection[str]:
        return self._resources

    def _read_devices(self) -> DeviceTable | None:
        return self.devices

    def _read_dra(self) -> DraState | None:
        return self.dra

    def _read_free(self, resource: str) -> Int64s:
        return np.zeros(self.n, dtype=np.int64)

    def _read_allocatable(self, resource: str) -> Int64s:
        return np.zeros(self.n, dtype=np.int64)

    def _read_slots(self) -> Int64s:
        return self.slots

    def _read_bound(self) -> BoundPodCounts:
        used = np.flatnonzero(self._pod_nodes >= 0)
        return BoundPodCounts(
            read_only(self._pod_shapes[used]),
            read_only(self._pod_nodes[used]),
            read_only(np.ones(len(used), dtype=np.int64)),
        )

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._pods_by_row[row]

    @property
    def pending(self) -> Mapping[str, int]:
        return self._pending


def snapshot_of(
    rows: Sequence[NodeRow], namespaces: Mapping[str, Labels] | None = None, dra: DraState | None = None
) -> Room:
    """Return a room of nodes without pods and without a cluster state, in arrival order."""
    nothing = StoredRoom(
        0,
        table_of(()),
        ShapeTable(),
        namespaces or {},
        free={},
        allocatable={},
        slots=np.zeros(0, dtype=np.int64),
        pod_nodes=np.zeros(0, dtype=np.int32),
        pod_shapes=np.zeros(0, dtype=np.int32),
        pods_by_row=(),
        pending={},
        dra=dra,
    )
    return nothing.plus(rows)


class OverlaidRoom(Room):
    """Another room, changed by a subclass. Devices allocated by drivers stay allocated."""

    def __init__(self, base: Room, nodes: NodeTable) -> None:
        super().__init__(base.version, nodes, base.shapes, base.namespaces)
        self._base = base

    @property
    def resources(self) -> Collection[str]:
        return self._base.resources

    def _read_devices(self) -> DeviceTable | None:
        return self._base.devices

    def _read_dra(self) -> DraState | None:
        return self._base.dra

    def _read_allocatable(self, resource: str) -> Int64s:
        return self._base.allocatable(resource)

    def _read_bound(self) -> BoundPodCounts:
        return self._base.bound

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._base.pods_on(row)

    @property
    def pending(self) -> Mapping[str, int]:
        return self._base.pending


class ReservedRoom(OverlaidRoom):
    def __init__(self, base: Room, placements: Sequence[PodPlacement]) -> None:
        super().__init__(base, base.nodes)
        self._placements = placements
        self._taken: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for placement in placements:
            if placement.count < 0 or not 0 <= placement.node < base.n:
                raise ValueError(f"a placement of {placement.count} pods on row {placement.node} of {base.n}")
            self._taken[PODS][placement.node] += placement.count
            for resource, units in placement.shape.requests:
                self._taken[resource][placement.node] += units * placement.count
        shares = any(placement.shape.devices is not None for placement in placements)
        if (shares or any(name in self._taken for name in RESOURCES)) and base.devices is not None:
            self.devices = self._devices_left(base.devices)
        if any(pod_placement.shape.anti_affinity for pod_placement in placements):
            # Pods with anti-affinity matter to every later question, so the table must contain them.
            _ = self._shape_ids

    @cached_property
    def _shape_ids(self) -> list[int]:
        # Only when the pods are read: a question about resources alone must not grow the table
        # that all snapshots share.
        return _interned(self.shapes, self._placements)

    def _read_dra(self) -> DraState | None:
        """Allocate the devices that these pods would get."""
        state = self._base.dra
        if state is None:
            return None
        for placement in self._placements:
            shape = placement.shape
            extended = served_by_drivers(state, shape)
            if not shape.resource_claims and not extended:
                continue
            node = self.dra_node(placement.node, (name for name, _ in shape.requests if extended))
            for _ in range(placement.count):
                demand = demand_of_shape(state, shape)
                placed = place_pod(state, demand, node)
                if not placed.fits:
                    break  # no device is left for the pod
                state = with_pod(state, demand, placed)
        return state

    def _devices_left(self, whole: DeviceTable) -> DeviceTable:
        """Adjust devices and plugin units: a device with shares is no longer a whole unit, and vice versa."""
        filling: DeviceFilling | None = None
        for placement in self._placements:
            demand = placement.shape.devices
            if not uses_devices(placement.shape):
                continue
            filling = filling or DeviceFilling(whole)
            if demand is None:
                filling.close_for(placement.node, placement.shape.requests, placement.count)
                continue
            for _ in range(placement.count):
                taken = filling.take(placement.node, demand, placement.devices)
                if taken is None:
                    break  # nothing is left to subtract
                for resource, units in taken.of_plugin.items():
                    self._taken[resource][placement.node] += units
        return filling.table() if filling is not None else whole

    def _less(self, whole: Int64s, resource: str) -> Int64s:
        taken = self._taken.get(resource)
        if not taken:
            return whole
        rows = np.fromiter(taken.keys(), dtype=np.int64, count=len(taken))
        amounts = (min(units, INT64_MAX) for units in taken.values())
        less = whole.copy()
        less[rows] = np.maximum(less[rows] - np.fromiter(amounts, dtype=np.int64, count=len(taken)), 0)
        return less

    def _read_free(self, resource: str) -> Int64s:
        return self._less(self._base.free(resource), resource)

    def _read_slots(self) -> Int64s:
        return self._less(self._base.slots, PODS)

    def _read_bound(self) -> BoundPodCounts:
        base, more = self._base.bound, self._placements
        places = [(placement.node, placement.count) for placement in more]
        nodes, counts = zip(*places, strict=True) if places else ((), ())
        columns = (base.shape, self._shape_ids), (base.node, nodes), (base.count, counts)
        joined = (np.concatenate((column, np.array(values, column.dtype))) for column, values in columns)
        return BoundPodCounts(*map(read_only, joined))


def _interned(shapes: ShapeTable, placements: Iterable[PodPlacement]) -> list[int]:
    """Intern shapes with few hash computations: shapes are slow to hash, and equal ones are adjacent."""
    last: PodShape | None = None
    ids: list[int] = []
    for placement in placements:
        if placement.shape is not last:
            last, shape_id = placement.shape, shapes.intern(placement.shape)
        ids.append(shape_id)
    return ids


class ExtendedRoom(OverlaidRoom):
    """A room with added nodes. A new node has no slices, and so no known DRA devices."""

    def __init__(self, base: Room, rows: Sequence[NodeRow]) -> None:
        seen: set[str] = set()
        for row in rows:
            if row.name in seen or base.find(row.name) is not None:
                raise Invalid("name", row.name, "is the name of another node; a potential node needs its own")
            seen.add(row.name)
        super().__init__(base, JoinedNodeTable(base.nodes, table_of(rows)))
        self._extra = rows

    @cached_property
    def _offered(self) -> Collection[str]:
        more = {name for row in self._extra for name in row.allocatable if name != PODS}
        return tuple(dict.fromkeys((*self._base.resources, *sorted(more))))

    @property
    def resources(self) -> Collection[str]:
        return self._offered

    def _read_devices(self) -> DeviceTable | None:
        """Add the devices that the labels and the plugin of a new node promise."""
        base = self._base.devices
        more = new_devices(
            base.kinds if base is not None else DeviceKinds(),
            (
                (self._base.n + number, device, plugin_of(row.allocatable))
                for number, row in enumerate(self._extra)
                for device in labelled_devices(row.name, row.labels, row.allocatable, row.registers)
            ),
        )
        return base.joined(more) if base is not None and more is not None else base or more

    def _joined(self, whole: Int64s, resource: str) -> Int64s:
        more = [min(max(row.allocatable.get(resource, 0), 0), INT64_MAX) for row in self._extra]
        return np.concatenate((whole, np.array(more, dtype=np.int64)))

    def _read_free(self, resource: str) -> Int64s:
        return self._joined(self._base.free(resource), resource)

    def _read_allocatable(self, resource: str) -> Int64s:
        return self._joined(self._base.allocatable(resource), resource)

    def _read_slots(self) -> Int64s:
        return self._joined(self._base.slots, PODS)

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._base.pods_on(row) if row < self._base.n else {}


class RoomSubset(OverlaidRoom):
    """Some rows of another room, in this order."""

    def __init__(self, base: Room, rows: Int64s | Sequence[int]) -> None:
        self._keep: Int64s = np.asarray(rows, dtype=np.int64)
        super().__init__(base, SubsetNodeTable(base.nodes, self._keep))

    @cached_property
    def _new_row(self) -> Int32s:
        """Return the new number by row of the base; -1 for a removed node."""
        new_row = np.full(self._base.n, -1, dtype=np.int32)
        new_row[self._keep] = np.arange(self.n, dtype=np.int32)
        return new_row

    def _read_devices(self) -> DeviceTable | None:
        base = self._base.devices
        return None if base is None else base.on_nodes(self._new_row)

    def _read_free(self, resource: str) -> Int64s:
        return self._base.free(resource)[self._keep]

    def _read_allocatable(self, resource: str) -> Int64s:
        return self._base.allocatable(resource)[self._keep]

    def _read_slots(self) -> Int64s:
        return self._base.slots[self._keep]

    def _read_bound(self) -> BoundPodCounts:
        whole = self._base.bound
        nodes = self._new_row[whole.node]
        left = np.flatnonzero(nodes >= 0)
        return BoundPodCounts(
            read_only(whole.shape[left]), read_only(nodes[left]), read_only(whole.count[left])
        )

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._base.pods_on(int(self._keep[row]))
