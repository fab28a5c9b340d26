"""Places groups of pods on existing nodes, first fit, like Karmada's simulator.

One set is all components in list order. The replicas of a component go to the first nodes, in the order of
the snapshot, that still take any, and may span nodes. Sets are placed until one fails or the bound is
reached. As upstream, a set that fails half-way keeps what it took; nothing is rolled back.

First fit is not monotone: a larger node early in the order can attract a small component and leave a later
one without a node. `count`, for one shape, is monotone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.quantity import INT64_MAX
from karpool.packing.claim_filling import ClaimFilling
from karpool.packing.claim_room import asks_drivers, free_beside_drivers, shares_devices
from karpool.packing.counting.count import MANY, fits, in_play
from karpool.packing.counting.spread_replicas import spread_replicas
from karpool.packing.feasibility import ports_conflict
from karpool.packing.tables.columns import Int64s
from karpool.packing.tables.device_table import DeviceFilling, uses_devices
from karpool.packing.tables.room import PodPlacement, Room
from karpool.packing.topology.topology import Topology

UNBOUNDED = MANY
# After this many single sets, as many sets as possible are placed at once. This bounds the work by the
# number of nodes, however large they are, and costs nothing where nodes hold only a few sets.
_STRIDE = 8


@dataclass(frozen=True, slots=True)
class PodGroup:
    shape: PodShape
    replicas: int


@dataclass(frozen=True)
class FirstFitResult:
    """The result of `first_fit`. Placements include those of a set that failed half-way."""

    sets: int
    _filling: "NodeFilling"

    @cached_property
    def placements(self) -> tuple[PodPlacement, ...]:
        return self._filling.placements()

    def rest(self) -> "NodeFilling | None":
        """See `NodeFilling.rest`."""
        return self._filling.rest()

    @cached_property
    def placed(self) -> dict[PodShape, int]:
        """Number of placed pods by shape."""
        return self._filling.placed()

    def unfinished(self, groups: Sequence[PodGroup]) -> tuple[list["NodeFilling"], dict[PodShape, int]]:
        """Return the remaining nodes, and by shape the pods of the set that failed half-way."""
        rest = self.rest()
        replicas: dict[PodShape, int] = {}
        for group in groups:
            replicas[group.shape] = replicas.get(group.shape, 0) + group.replicas
        begun = {shape: pods - self.sets * replicas.get(shape, 0) for shape, pods in self.placed.items()}
        return [rest] if rest else [], begun

    @cached_property
    def after(self) -> Room:
        """The snapshot with all placements applied."""
        return self._filling.snapshot()


def first_fit(
    snapshot: Room,
    components: Iterable[PodGroup],
    *,
    bound: int = UNBOUNDED,
    order: Int64s | None = None,
    topology: bool = True,
) -> FirstFitResult:
    """Count the complete sets that fit, at most `bound`; raises Invalid for a negative number of replicas.

    O(nodes x components) for any number of sets without topology; O(nodes) per component and set with it.
    Components without replicas fit `bound` times. `order` is a list of rows, by default the order of the
    snapshot. `topology=False` ignores other pods, as Karmada does.
    """
    filling = NodeFilling(snapshot, order=order, topology=topology)
    return FirstFitResult(filling.place_sets(components, bound=bound), filling)


class NodeFilling:
    """Nodes that are being filled.

    Room only shrinks, so a node that rejects a shape rejects it for good, and each shape has a cursor that
    only moves forward. With topology there are no cursors, because a closed node may open again.
    """

    def __init__(self, snapshot: Room, *, order: Int64s | None = None, topology: bool = True) -> None:
        self._start = snapshot
        self._order = snapshot.order if order is None else order
        self._heeds_topology = topology
        self._filled: _Filled | None = None  # set once topology matters
        self._devices: _FilledDevices | None = None  # set once a pod asks for devices
        self._slots: list[int] = snapshot.slots.tolist()
        self._free: dict[str, list[int]] = {}
        self._ports: dict[int, set[HostPort]] = {}
        self._cursors: dict[PodShape, _Cursor] = {}

    def place_sets(self, components: Iterable[PodGroup], *, bound: int = UNBOUNDED) -> int:
        parts = self._parts(components)
        if not parts:
            return max(bound, 0)
        sets = 0
        while sets < bound:
            for cursor, replicas in parts:
                if cursor.place(replicas) < replicas:
                    return sets
            sets += 1
            if not sets % _STRIDE:
                sets += _whole_sets(parts, bound - sets)
        return sets

    def place(self, component: PodGroup) -> int:
        """Place as many replicas of a component as fit; return their number."""
        cursor = self._cursors.get(component.shape)
        if cursor is not None and component.replicas > 0:
            return cursor.place(component.replicas)
        return sum(cursor.place(replicas) for cursor, replicas in self._parts((component,)))

    def rest(self) -> "NodeFilling | None":
        """Return a copy of the remaining room without the record of placements.

        Returns None if devices or topology matter, because they are not copied.
        """
        if self._filled is not None or self._devices is not None:
            return None
        rest = NodeFilling(self._start, order=self._order, topology=False)
        rest._slots = list(self._slots)
        rest._free = {resource: list(column) for resource, column in self._free.items()}
        rest._ports = {row: set(held) for row, held in self._ports.items()}
        columns = {id(self._free[resource]): column for resource, column in rest._free.items()}
        columns[id(self._slots)] = rest._slots
        for shape, cursor in self._cursors.items():
            needs = [(columns[id(column)], units) for column, units in cursor.needs]
            rest._cursors[shape] = (
                _PortCursor(cursor.rows, needs, shape.host_ports, rest._ports)
                if shape.host_ports
                else _Cursor(cursor.rows, needs)
            )
            rest._cursors[shape].position = cursor.position
        return rest

    def placements(self) -> tuple[PodPlacement, ...]:
        return tuple(
            PodPlacement(row, shape, pods)
            for shape, cursor in self._cursors.items()
            for row, pods in cursor.placed.items()
        )

    def placed(self) -> dict[PodShape, int]:
        return {shape: sum(cursor.placed.values()) for shape, cursor in self._cursors.items()}

    def snapshot(self) -> Room:
        """Return the nodes as filled so far."""
        return self._start.minus(self.placements())

    def _parts(self, components: Iterable[PodGroup]) -> list[tuple["_Cursor", int]]:
        chosen = list(components)
        for index, component in enumerate(chosen):
            if component.replicas < 0:
                raise Invalid(f"components[{index}].replicas", component.replicas, "must not be negative")
        groups = [group for group in chosen if group.replicas]
        if self._devices is None and any(self._takes_devices(group.shape) for group in groups):
            self._watch_devices()
        heeds = self._heeds_topology and self._filled is None
        if heeds and any(in_play(self._start, pod_group.shape) for pod_group in groups):
            self._watch_topology()
        return [(self._cursor(group.shape), group.replicas) for group in groups]

    def _watch_topology(self) -> None:
        """Consider topology from now on, and count the pods that were already placed."""
        before = self.placements()
        topology = Topology(self._start)
        for pod_placement in before:
            topology.place(pod_placement.shape, pod_placement.node, pod_placement.count)
        self._filled = _Filled(topology, [placement.node for placement in before], self._ports)
        self._renew_cursors()

    def _takes_devices(self, shape: PodShape) -> bool:
        return shape.devices is not None or asks_drivers(self._start, shape)

    def _watch_devices(self) -> None:
        """Track devices from now on, and allocate devices for the pods that were already placed."""
        table = self._start.devices
        filling = DeviceFilling(table) if table is not None else None
        self._devices = _FilledDevices(self._start, filling, self._column)
        for placement in self.placements():
            self._devices.take(placement.shape, placement.node, placement.count)
        self._renew_cursors()

    def _renew_cursors(self) -> None:
        for shape, old in self._cursors.items():
            self._cursors[shape] = self._new_cursor(shape)
            self._cursors[shape].placed = old.placed

    def _cursor(self, shape: PodShape) -> "_Cursor":
        cursor = self._cursors.get(shape)
        if cursor is None:
            cursor = self._cursors[shape] = self._new_cursor(shape)
        return cursor

    def _new_cursor(self, shape: PodShape) -> "_Cursor":
        room = fits(self._start, shape)
        rows = self._order[room[self._order] > 0].tolist()
        needs = [(self._slots, 1)]
        needs += ((self._column(resource), units) for resource, units in shape.requests)
        if self._filled is not None:
            return _TopologyCursor(rows, needs, shape, filled=self._filled, room=room, devices=self._devices)
        if self._devices is not None and self._devices.serves(shape):
            return _DeviceCursor(rows, needs, shape, self._ports, self._devices)
        if shape.host_ports:
            return _PortCursor(rows, needs, shape.host_ports, self._ports)
        return _Cursor(rows, needs)

    def _column(self, resource: str) -> list[int]:
        if resource not in self._free:
            self._free[resource] = free_beside_drivers(self._start, resource).tolist()
        return self._free[resource]


Need = tuple[list[int], int]  # a column of free amounts, and how much of it one pod takes


class _Cursor:
    """The position of one shape among the nodes that admit it."""

    __slots__ = ("needs", "placed", "position", "rows")
    is_plain = True  # resources alone decide

    def __init__(self, rows: list[int], needs: Sequence[Need]) -> None:
        self.rows = rows
        self.needs = needs
        self.position = 0
        self.placed: dict[int, int] = {}

    def place(self, replicas: int) -> int:
        """Place up to this many pods from the cursor on; return how many were placed."""
        needs, placed, left = self.needs, self.placed, replicas
        for position in range(self.position, len(self.rows)):
            row = self.rows[position]
            pods = left
            for column, units in needs:
                fit = column[row] // units
                if fit < pods:  # noqa: PLR1730 - calling min() here costs a third of the whole
                    pods = fit
            if pods:
                for column, units in needs:
                    column[row] -= units * pods
                placed[row] = placed.get(row, 0) + pods
                left -= pods
                if not left:
                    self.position = position
                    return replicas
        self.position = len(self.rows)
        return replicas - left

    def take(self, row: int, pods: int) -> None:
        for column, units in self.needs:
            column[row] -= units * pods
        self.placed[row] = self.placed.get(row, 0) + pods


class _PortCursor(_Cursor):
    """A cursor for pods with host ports: a node takes one pod of such a shape."""

    __slots__ = ("_ports", "_wanted")
    is_plain = False

    def __init__(
        self,
        rows: list[int],
        needs: Sequence[Need],
        wanted: frozenset[HostPort],
        ports: dict[int, set[HostPort]],
    ) -> None:
        super().__init__(rows, needs)
        self._wanted = wanted
        self._ports = ports

    def place(self, replicas: int) -> int:
        left = replicas
        while self.position < len(self.rows):
            row = self.rows[self.position]
            held = self._ports.setdefault(row, set())
            if not ports_conflict(held, self._wanted) and all(
                column[row] >= units for column, units in self.needs
            ):
                held |= self._wanted
                self.take(row, 1)
                left -= 1
                if not left:
                    return replicas
            self.position += 1
        return replicas - left


class _FilledDevices:
    """Devices of the nodes being filled, kept in step with the columns of their device plugins."""

    def __init__(
        self, start: Room, filling: DeviceFilling | None, column: Callable[[str], list[int]]
    ) -> None:
        self._start = start
        self._filling = filling
        self._claims = ClaimFilling(start)
        self._column = column

    def serves(self, shape: PodShape) -> bool:
        return uses_devices(shape) or asks_drivers(self._start, shape)

    def is_decided(self, shape: PodShape) -> bool:
        """Whether more than whole units of a device plugin decide."""
        return shape.devices is not None or asks_drivers(self._start, shape)

    def are_shared(self, shape: PodShape) -> bool:
        return asks_drivers(self._start, shape) and shares_devices(self._start, shape)

    def room_on(self, row: int, shape: PodShape, most: int) -> int:
        if shape.devices is not None:
            most = min(most, self._filling.room_on(row, shape.devices) if self._filling is not None else 0)
        return self._claims.room_on(row, shape, most) if asks_drivers(self._start, shape) else most

    def take(self, shape: PodShape, row: int, pods: int = 1) -> bool:
        """Take devices; returns False if there are not enough, and keeps those that were taken."""
        return all(self._take_one(shape, row) for _ in range(pods))

    def _take_one(self, shape: PodShape, row: int) -> bool:
        before = self._claims.state
        if asks_drivers(self._start, shape) and not self._claims.take(row, shape):
            return False
        if shape.devices is None:
            if self._filling is not None:
                self._filling.close_for(row, shape.requests, 1)
            return True
        taken = self._filling.take(row, shape.devices) if self._filling is not None else None
        if taken is None:
            self._claims.state = before
            return False
        for resource, units in taken.of_plugin.items():
            self._column(resource)[row] -= units
        return True


class _DeviceCursor(_PortCursor):
    """A cursor for pods with devices, placed one by one; several may share a node."""

    __slots__ = ("_devices", "_shape")

    def __init__(
        self,
        rows: list[int],
        needs: Sequence[Need],
        shape: PodShape,
        ports: dict[int, set[HostPort]],
        devices: _FilledDevices,
    ) -> None:
        super().__init__(rows, needs, shape.host_ports, ports)
        self._shape = shape
        self._devices = devices

    def place(self, replicas: int) -> int:
        left = replicas
        while self.position < len(self.rows) and left:
            row = self.rows[self.position]
            held = self._ports.setdefault(row, set()) if self._wanted else set()
            if (
                not ports_conflict(held, self._wanted)
                and all(column[row] >= units for column, units in self.needs)
                and self._devices.take(self._shape, row)
            ):
                held |= self._wanted
                self.take(row, 1)
                left -= 1
            else:
                self.position += 1
        return replicas - left


class _TopologyCursor(_Cursor):
    """A cursor that counts every pod in the topology and checks the rules that restrict the shape."""

    __slots__ = ("_devices", "_in_order", "_ports", "_room", "_seen", "_shape", "_topology", "_touched")
    is_plain = False

    def __init__(
        self,
        rows: list[int],
        needs: Sequence[Need],
        shape: PodShape,
        *,
        filled: "_Filled",
        room: Int64s,
        devices: _FilledDevices | None,
    ) -> None:
        super().__init__(rows, needs)
        self._devices = devices if devices is not None and devices.serves(shape) else None
        self._in_order = np.array(rows, dtype=np.int64)
        self._shape = shape
        self._topology, self._touched, self._ports = filled.topology, filled.touched, filled.ports
        self._room = np.minimum(room, MANY)
        self._seen = 0

    def place(self, replicas: int) -> int:
        is_restricted = any(True for _ in self._topology.rules(self._shape).all)
        by_devices = self._devices is not None and self._devices.is_decided(self._shape)
        if not is_restricted and not self._shape.host_ports and not by_devices:
            return self._by_room(replicas)
        if replicas > 1 and self._devices is not None and self._devices.are_shared(self._shape):
            return self._one_after_another(replicas)
        self._catch_up()
        taken = spread_replicas(self._topology, self._shape, self._room, self._in_order, replicas)
        rows = np.flatnonzero(taken)
        for row, pods in zip(rows.tolist(), taken[rows].tolist(), strict=True):
            self.take(row, pods)
            self._tell(row, pods)
        return int(taken.sum())

    def _one_after_another(self, replicas: int) -> int:
        """Place pods one by one: a pod may take a device that the next could have got on another node."""
        placed = 0
        while placed < replicas and self.place(1):
            placed += 1
        return placed

    def _by_room(self, replicas: int) -> int:
        before, self.placed = self.placed, {}
        placed = super().place(replicas)
        for row, pods in self.placed.items():
            self._tell(row, pods)
            before[row] = before.get(row, 0) + pods
        self.placed = before
        return placed

    def _tell(self, row: int, pods: int) -> None:
        if self._devices is not None:
            self._devices.take(self._shape, row, pods)
        self._topology.place(self._shape, row, pods)
        self._touched.append(row)
        if self._shape.host_ports:
            self._ports.setdefault(row, set()).update(self._shape.host_ports)

    def _catch_up(self) -> None:
        """Recompute the room of the nodes that changed since the last call."""
        touched = self._touched[self._seen :]
        if touched and self._devices is not None and self._devices.are_shared(self._shape):
            touched = self.rows
        for row in touched:
            if not self._room[row]:
                continue
            room = min(column[row] // units for column, units in self.needs)
            if self._shape.host_ports:
                room = 0 if ports_conflict(self._ports.get(row, ()), self._shape.host_ports) else min(room, 1)
            if self._devices is not None:
                room = self._devices.room_on(row, self._shape, room)
            self._room[row] = min(room, MANY)
        self._seen = len(self._touched)


@dataclass(frozen=True, slots=True)
class _Filled:
    """State shared by topology cursors. Rows are listed in the order in which pods were placed."""

    topology: Topology
    touched: list[int]
    ports: dict[int, set[HostPort]]


def _whole_sets(parts: Sequence[tuple[_Cursor, int]], limit: int) -> int:
    """Place as many whole sets as fit at the current cursors; return their number.

    This is exact: no cursor would have moved while all of them fit.
    """
    demand: dict[tuple[int, int], int] = {}
    columns: dict[int, list[int]] = {}
    for cursor, replicas in parts:
        if cursor.position >= len(cursor.rows) or not cursor.is_plain:
            return 0
        row = cursor.rows[cursor.position]
        for column, units in cursor.needs:
            columns[id(column)] = column
            place = (id(column), row)
            demand[place] = demand.get(place, 0) + units * replicas
    sets = min((columns[column][row] // units for (column, row), units in demand.items()), default=INT64_MAX)
    sets = min(sets, limit)
    for cursor, replicas in parts if sets else ():
        cursor.take(cursor.rows[cursor.position], sets * replicas)
    return sets
