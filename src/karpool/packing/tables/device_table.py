"""The devices of nodes, and what is free on each.

There is one row per device, in no order; `node` is the row of its node in the room. The fixed properties of a
device are its `DeviceKind`. A `DeviceTable` never changes; a `DeviceFilling` is a copy that pods are placed
on, and every placement can be undone. The hardware partitions of a device are a `layout`; layouts are few,
too, so how many more partitions fit is computed once per kind and layout.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import Device
from karpool.model.devices.isolation import PARTITIONED, SHARED
from karpool.model.devices.node_devices import RESOURCES
from karpool.model.devices.request import DeviceDemand
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.columns import Bools, Int32s, Int64s, read_only
from karpool.packing.tables.device_kinds import NO_LOCK, DeviceKinds, lock_code

# Cap per device: more shares than any device is divided into.
MANY_SHARES = 2**31 - 1
_MEMO_LIMIT = 512
_CHANGING = ("free_tflops", "free_vram", "users", "lock", "layout", "closed")  # columns of a table


@dataclass(frozen=True)
class DeviceTable:
    """One row per device.

    `closed`: the device is gone, used by others, taken as a whole, or its free amount is unknown.
    """

    kinds: DeviceKinds
    names: Sequence[str]
    node: Int64s
    kind: Int32s
    free_tflops: Int64s
    free_vram: Int64s
    users: Int64s  # pods that use the device
    lock: Int64s  # the mode set by its users, for a device without a mode of its own
    layout: Int64s  # its partitions
    closed: Bools
    _rooms: dict[tuple[DeviceDemand, int], Int64s] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def admitted(self, demand: DeviceDemand) -> Bools:
        """Return the devices of a kind that the demand may use, ignoring how much is free."""
        mask: Bools = self.kinds.admitted(demand)[self.kind]
        return mask

    def shares(self, demand: DeviceDemand, rows: Int64s | slice = slice(None)) -> Int64s:
        """Return how many more shares of this demand each of these devices could take."""
        kinds, kind = self.kinds, self.kind[rows]
        lock = self.lock[rows]
        is_open = kinds.admitted(demand)[kind] & ~self.closed[rows]
        is_open &= (lock == NO_LOCK) | (lock == lock_code(demand.isolation)) | ~kinds.dynamic[kind]
        if demand.isolation == SHARED:
            whole: Int64s = (is_open & (self.users[rows] == 0)).astype(np.int64)
            return whole
        if demand.isolation == PARTITIONED:
            return self._partitions(demand, rows, is_open)
        fits: Int64s = np.full(len(kind), MANY_SHARES, dtype=np.int64)
        tflops, vram = kinds.taken(demand)
        for free, need in ((self.free_tflops[rows], tflops[kind]), (self.free_vram[rows], vram[kind])):
            # A demand of zero still needs a device that is not overcommitted.
            unasked = np.where(free < 0, 0, fits)
            np.minimum(fits, np.where(need > 0, free // np.maximum(need, 1), unasked), out=fits)
        return np.where(is_open, np.maximum(fits, 0), 0)

    def left(self, row: int) -> DeviceAmount:
        return DeviceAmount(int(self.free_tflops[row]), int(self.free_vram[row]))

    def _partitions(self, demand: DeviceDemand, rows: Int64s | slice, is_open: Bools) -> Int64s:
        numbers = np.arange(len(self.kind))[rows]
        fits: Int64s = np.zeros(len(is_open), dtype=np.int64)
        for position in np.flatnonzero(is_open).tolist():
            row = int(numbers[position])
            code, layout = int(self.kind[row]), int(self.layout[row])
            fits[position] = self.kinds.more_partitions(code, layout, self.left(row), demand)
        return fits

    def room(self, demand: DeviceDemand, nodes: int) -> Int64s:
        """Return how many such pods the devices of each node could take; cached."""
        room = self._rooms.get((demand, nodes))
        if room is None:
            if len(self._rooms) >= _MEMO_LIMIT:
                self._rooms.clear()
            room = read_only(_pods(self.shares(demand), self.node, nodes, demand.count))
            self._rooms[demand, nodes] = room
        return room

    def on_nodes(self, new_row: Int32s) -> "DeviceTable | None":
        """Return the devices of the remaining nodes; `new_row` is -1 for the others."""
        node = new_row[self.node].astype(np.int64)
        stays = np.flatnonzero(node >= 0)
        if not len(stays):
            return None
        kept = (getattr(self, column)[stays] for column in _CHANGING)
        names = [self.names[row] for row in stays.tolist()]
        return DeviceTable(self.kinds, names, node[stays], self.kind[stays], *kept)

    def joined(self, more: "DeviceTable") -> "DeviceTable":
        """Return a table with the devices of other nodes, of the same kinds, appended."""
        both = (np.concatenate((getattr(self, column), getattr(more, column))) for column in _CHANGING)
        node, kind = np.concatenate((self.node, more.node)), np.concatenate((self.kind, more.kind))
        return DeviceTable(self.kinds, [*self.names, *more.names], node, kind, *both)

    @cached_property
    def by_node(self) -> Callable[[int], Int64s]:
        """A function that returns the devices of a node, ordered by name."""
        order = np.lexsort((np.arange(len(self.node)), self.node))
        nodes = self.node[order]

        def rows_of(node: int) -> Int64s:
            return order[np.searchsorted(nodes, node) : np.searchsorted(nodes, node, side="right")]

        return rows_of


def new_devices(kinds: DeviceKinds, devices: Iterable[tuple[int, Device, str]]) -> DeviceTable | None:
    """Return a table of idle devices of new nodes: row of the node, device, resource of the plugin."""
    chosen = list(devices)
    if not chosen:
        return None
    capacities = [device.capacity or NOTHING for _, device, _ in chosen]
    nothing = np.zeros(len(chosen), dtype=np.int64)
    return DeviceTable(
        kinds,
        [device.name for _, device, _ in chosen],
        np.array([row for row, _, _ in chosen], dtype=np.int64),
        np.array([kinds.code_of(device, plugin) for _, device, plugin in chosen], dtype=np.int32),
        np.array([capacity.tflops_milli for capacity in capacities], dtype=np.int64),
        np.array([capacity.vram_bytes for capacity in capacities], dtype=np.int64),
        nothing,
        nothing,
        nothing,
        np.zeros(len(chosen), dtype=np.bool_),
    )


def _pods(shares: Int64s, node: Int64s, nodes: int, count: int) -> Int64s:
    """Return by node how many pods get `count` different devices each.

    A device serves at most one share per pod, so this is the largest m with sum(min(shares, m)) >= count * m.
    """
    low = np.bincount(node, weights=shares, minlength=nodes).astype(np.int64)
    if count == 1:
        return np.minimum(low, MANY_SHARES)
    high, low = np.minimum(low // count, MANY_SHARES), np.zeros(nodes, dtype=np.int64)
    while (low < high).any():
        middle = (low + high + 1) // 2
        served = np.bincount(node, weights=np.minimum(shares, middle[node]), minlength=nodes)
        enough = served >= count * middle
        low, high = np.where(enough, middle, low), np.where(enough, high, middle - 1)
    return low


def uses_devices(shape: PodShape) -> bool:
    """Whether a shape uses shares of devices, or whole devices."""
    return shape.devices is not None or any(name in RESOURCES for name, _ in shape.requests)


@dataclass(frozen=True, slots=True)
class DevicesTaken:
    """The state that `undo` restores, and the plugin units that the devices were: those that were idle."""

    rows: Int64s
    before: tuple[Int64s | Bools, ...]  # previous values of the columns that change
    of_plugin: Mapping[str, int] = field(default_factory=dict)


class DeviceFilling:
    """Devices being allocated, those with the most room first: this order reaches the count of `room`."""

    def __init__(self, table: DeviceTable) -> None:
        copies = {column: getattr(table, column).copy() for column in _CHANGING}
        self._table = replace(table, **copies)

    def room(self, demand: DeviceDemand, nodes: int) -> Int64s:
        return _pods(self._table.shares(demand), self._table.node, nodes, demand.count)

    def room_on(self, node: int, demand: DeviceDemand) -> int:
        shares = self._table.shares(demand, self._table.by_node(node))
        return int(_pods(shares, np.zeros(len(shares), dtype=np.int64), 1, demand.count)[0])

    def take(self, node: int, demand: DeviceDemand, names: Collection[str] = ()) -> DevicesTaken | None:
        """Take devices for one pod, these or those with the most room; None if there are not enough."""
        rows = self._table.by_node(node)
        if names:
            named = [row for row in rows.tolist() if self._table.names[row] in names]
            chosen = np.array(named, dtype=np.int64)
            complete = len(chosen) == len(names)
        else:
            shares = self._table.shares(demand, rows)
            chosen = rows[np.argsort(-shares, kind="stable")[: demand.count]]
            complete = int(np.count_nonzero(shares)) >= demand.count
        if not complete:
            return None
        table, kind = self._table, self._table.kind[chosen]
        tflops, vram = table.kinds.taken(demand)
        taken = self._keep(chosen, self._busied(chosen))
        if demand.isolation == PARTITIONED:
            for row in chosen.tolist():
                self._cut(row, demand)
        table.free_tflops[chosen] -= tflops[kind]
        table.free_vram[chosen] -= vram[kind]
        table.users[chosen] += 1
        table.lock[chosen] = np.where(
            table.kinds.dynamic[kind], lock_code(demand.isolation), table.lock[chosen]
        )
        table.closed[chosen] |= demand.isolation == SHARED
        return taken

    def _cut(self, row: int, demand: DeviceDemand) -> None:
        table = self._table
        layout = table.kinds.layout(int(table.layout[row]))
        place = table.kinds[int(table.kind[row])].place(demand, layout, table.left(row))
        if place is None:  # the pod holds the device although it does not fit, so what is left is unknown
            table.closed[row] = True
        else:
            table.layout[row] = table.kinds.intern_layout((*layout, place))

    def close(self, node: int, resource: str, units: int) -> DevicesTaken:
        """Close whole devices of a plugin: the last idle ones, because the plugin chooses which."""
        table = self._table
        rows = table.by_node(node)
        idle = [
            row
            for row in rows.tolist()
            if not table.closed[row]
            and not table.users[row]
            and table.kinds[int(table.kind[row])].plugin == resource
        ]
        chosen = np.array(idle[len(idle) - min(units, len(idle)) :], dtype=np.int64)
        taken = self._keep(chosen)
        table.closed[chosen] = True
        return taken

    def close_for(self, node: int, requests: Iterable[tuple[str, int]], pods: int) -> list[DevicesTaken]:
        """Close the devices that plugins allocate to this many pods."""
        return [self.close(node, name, units * pods) for name, units in requests if name in RESOURCES]

    def undo(self, taken: DevicesTaken) -> None:
        table, rows = self._table, taken.rows
        for column, before in zip(_CHANGING, taken.before, strict=True):
            getattr(table, column)[rows] = before

    def table(self) -> DeviceTable:
        """Return the table in its current state; it must not be filled further."""
        for column in _CHANGING:
            read_only(getattr(self._table, column))
        return self._table

    def _keep(self, rows: Int64s, of_plugin: Mapping[str, int] | None = None) -> DevicesTaken:
        before = tuple(getattr(self._table, column)[rows] for column in _CHANGING)
        return DevicesTaken(rows, before, of_plugin or {})

    def _busied(self, rows: Int64s) -> dict[str, int]:
        units: dict[str, int] = {}
        for row in rows.tolist():
            plugin = self._table.kinds[int(self._table.kind[row])].plugin
            if plugin and not self._table.users[row] and not self._table.closed[row]:
                units[plugin] = units.get(plugin, 0) + 1
        return units
