"""The devices of a cluster's nodes, and the shares that bound pods use.

GPU objects take precedence if they describe the devices of a node; otherwise a node with GPUs has as many
devices as its plugin offers. A pod states its demand, and in an annotation its devices. If a pod on a node
uses unknown devices, no device of that node is free for others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from karpool.cluster.nodes.node_store import NodeStore
from karpool.cluster.nodes.room_store import RoomStore
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import RUNNING, UNKNOWN, Device, DevicePartition
from karpool.model.devices.isolation import DYNAMIC, PARTITIONED, SHARED
from karpool.model.devices.node_devices import labelled_devices, model_name, plugin_of, plugin_order
from karpool.model.devices.partitions import PARTITIONS, written_partitions
from karpool.model.devices.pod_requests import assigned_devices
from karpool.model.devices.request import DeviceDemand
from karpool.packing.tables.columns import Column
from karpool.packing.tables.device_kinds import DeviceKind, DeviceKinds, kind_of, lock_code
from karpool.packing.tables.device_table import DeviceTable
from karpool.packing.tables.node_table import NodeRow

_NO_PODS: Mapping[str, "HeldDevices"] = {}


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices that one bound pod uses, and the demand on each of them."""

    demand: DeviceDemand
    names: tuple[str, ...]
    partitions: tuple[DevicePartition, ...] = ()  # one for each device, if recorded


def held_devices(demand: DeviceDemand, annotations: Mapping[str, str]) -> HeldDevices:
    """Return what the annotations of a pod say about its devices."""
    return HeldDevices(
        demand, assigned_devices(annotations), written_partitions(annotations.get(PARTITIONS, ""))
    )


class DeviceUse(msgspec.Struct, frozen=True):
    """A device, the pods that use a share of it (keys), and what is left.

    `closed`: no pod may get more of it, whatever is left. `described`: a GPU object describes it.
    """

    device: Device
    left: DeviceAmount
    holders: tuple[str, ...] = ()
    lock: str = ""
    closed: bool = False
    described: bool = False
    partitions: tuple[DevicePartition, ...] = ()


class DeviceStore:
    def __init__(self) -> None:
        self._kinds = DeviceKinds()
        self.offering: dict[str, NodeRow] = {}  # nodes that offer devices of a plugin or a register
        self._labelled: dict[str, tuple[Device, ...]] = {}  # as their labels and plugins promise
        self._described: dict[str, dict[str, Device]] = {}  # by node
        self._node_of_device: dict[str, str] = {}
        self._held: dict[str, dict[str, HeldDevices]] = {}  # by node, then by pod
        self.node_of_pod: dict[str, str] = {}  # pods that use shares
        self._devices: dict[str, tuple[tuple[Device, ...], str]] = {}  # by node, with its plugin
        self._slots: dict[str, list[int]] = {}
        self._spare: list[int] = []
        self._names: list[str] = []
        self._node = Column(np.int64)
        self._kind = Column(np.int32)
        self._tflops = Column(np.int64)
        self._vram = Column(np.int64)
        self._users = Column(np.int64)
        self._lock = Column(np.int64)
        self._layout = Column(np.int64)
        self._closed = Column(np.bool_, True)
        self._units_taken: dict[str, int] = {}  # by node: whole units of its plugin, as of the latest table
        self._stale: set[str] = set()
        self._table: DeviceTable | None = None
        self._uses: dict[str, tuple[DeviceUse, ...]] = {}  # by node
        self.uses: Mapping[str, tuple[DeviceUse, ...]] = MappingProxyType({})  # as of the latest table

    # Feeding

    def described_device(self, name: str) -> Device | None:
        return self._described.get(self._node_of_device.get(name, ""), {}).get(name)

    def put_node(self, node: NodeRow) -> None:
        if self.offering.get(node.name) == node:
            return
        # Volcano's plugin has a resource of its own: its register is what lists the devices.
        if plugin_of(node.allocatable) or node.registers:
            self.offering[node.name] = node
            self._labelled[node.name] = labelled_devices(
                node.name, node.labels, node.allocatable, node.registers
            )
            self._stale.add(node.name)
        elif self.offering.pop(node.name, None) is not None or node.name in self._described:
            self._stale.add(node.name)

    def remove_node(self, name: str, moved: str = "") -> None:
        """Remove a node; `moved` is the node that takes its row."""
        self.offering.pop(name, None)
        self._labelled.pop(name, None)
        self._stale |= {node for node in (name, moved) if node in self._slots or node in self._described}

    def put_device(self, device: Device) -> bool:
        device = replace(device, model=model_name(device.model))
        if self._described.get(device.node, {}).get(device.name) == device:
            return False
        self.remove_device(device.name)
        self._described.setdefault(device.node, {})[device.name] = device
        self._node_of_device[device.name] = device.node
        self._stale.add(device.node)
        return True

    def close_device(self, name: str) -> bool:
        """Close a device that can no longer be read, keeping its last readable state."""
        node = self._node_of_device.get(name)
        return node is not None and self.put_device(replace(self._described[node][name], phase=UNKNOWN))

    def remove_device(self, name: str) -> bool:
        node = self._node_of_device.pop(name, None)
        if node is None:
            return False
        del self._described[node][name]
        if not self._described[node]:
            del self._described[node]
        self._stale.add(node)
        return True

    def put_pod(self, key: str, node: str, held: HeldDevices) -> bool:
        if self._held.get(node, _NO_PODS).get(key) == held:
            return False
        self.remove_pod(key)
        if node:
            self._held.setdefault(node, {})[key] = held
            self.node_of_pod[key] = node
            self._stale.add(node)
        return bool(node)

    def remove_pod(self, key: str) -> bool:
        node = self.node_of_pod.pop(key, None)
        if node is None:
            return False
        del self._held[node][key]
        if not self._held[node]:
            del self._held[node]
        self._stale.add(node)
        return True

    # Reading

    def table(self, nodes: NodeStore, room: RoomStore) -> DeviceTable | None:
        """Return the table; None if no node has devices. Tells `room` which units of plugins have shares."""
        if self.offering:
            self._notice_taken_units(nodes, room)
        if self._stale:
            self._names = list(self._names)  # earlier tables keep their own columns
            self._write(
                [values for name in self._stale for values in self._work_out(name, nodes.find(name), room)]
            )
            self._stale.clear()
            self.uses = MappingProxyType(dict(self._uses))
            size = len(self._names)
            self._table = (
                DeviceTable(
                    self._kinds,
                    self._names,
                    self._node.view(size),
                    self._kind.view(size),
                    self._tflops.view(size),
                    self._vram.view(size),
                    self._users.view(size),
                    self._lock.view(size),
                    self._layout.view(size),
                    self._closed.view(size),
                )
                if self._slots
                else None
            )
        return self._table

    def _notice_taken_units(self, nodes: NodeStore, room: RoomStore) -> None:
        """Find nodes whose pods took or returned whole units of a plugin since the last table."""
        for row in room.stale:
            node = self.offering.get(nodes.rows[row].name)
            if node is not None:
                units = room.units_taken(row, plugin_of(node.allocatable))
                if units != self._units_taken.get(node.name, 0):
                    self._stale.add(node.name)

    def _write(self, devices: Sequence[tuple[int, ...]]) -> None:
        """Write the slot and the columns of many devices at once."""
        if not devices:
            return
        slots, *values = (np.array(column) for column in zip(*devices, strict=True))
        columns: tuple[Column[Any], ...] = (
            self._node,
            self._tflops,
            self._vram,
            self._users,
            self._lock,
            self._layout,
            self._closed,
        )
        for column, written in zip(columns, values, strict=True):
            column.writable(len(self._names))[slots] = written

    def _work_out(self, name: str, row: int | None, room: RoomStore) -> list[tuple[int, ...]]:
        described = tuple(self._described.get(name, {}).values())
        node = self.offering.get(name)
        plugin = plugin_of(node.allocatable) if node is not None else ""
        devices: tuple[Device, ...] = ()
        if row is not None:
            devices = described or (self._labelled[name] if node is not None else ())
        self._settle(name, devices, plugin)
        self._uses.pop(name, None)
        if row is None:
            self._units_taken.pop(name, None)
            return []
        held = self._held.get(name, _NO_PODS)
        units = self._units_taken[name] = room.units_taken(row, plugin)
        given_away = 0 if described else units
        uses = _uses(devices, held, given_away=given_away, described=bool(described))
        if uses:
            self._uses[name] = tuple(uses)
        if plugin:
            room.keep_shared(row, plugin, _units_held(devices, held))
        return [
            (
                slot,
                row,
                use.left.tflops_milli,
                use.left.vram_bytes,
                len(use.holders),
                lock_code(use.lock),
                self._kinds.intern_layout(use.partitions),
                use.closed,
            )
            for slot, use in zip(self._slots.get(name, ()), uses, strict=True)
        ]

    def _settle(self, name: str, devices: tuple[Device, ...], plugin: str) -> None:
        """Assign slots to the devices of a node."""
        old = self._slots.get(name, [])
        if self._devices.get(name, ((), plugin)) == (devices, plugin):
            return
        for slot in old:
            self._closed[slot], self._node[slot], self._names[slot] = True, 0, ""
        self._spare += old
        slots = []
        for device in devices:
            if self._spare:
                slot = self._spare.pop()
                self._names[slot] = device.name
            else:
                slot = len(self._names)
                self._names.append(device.name)
            slots.append(slot)
            self._kind[slot] = self._kinds.code_of(device, plugin)
        self._devices.pop(name, None)
        self._slots.pop(name, None)
        if devices:
            self._devices[name], self._slots[name] = (devices, plugin), slots


def _uses(
    devices: Sequence[Device], held: Mapping[str, HeldDevices], *, given_away: int, described: bool
) -> list[DeviceUse]:
    uses = [_use(device, held, described) for device in devices]
    if held:
        names = {device.name for device in devices}
        if any(not _is_told(holding, names) for holding in held.values()):
            return [replace(use, closed=True) for use in uses]
    if not given_away:
        return uses
    busy = {use.device.name for use in uses if use.holders}
    gone = set(plugin_order([use.device.name for use in uses], busy)[:given_away])
    is_unclear = given_away > len(uses) - len(busy)
    return [replace(use, closed=True) if is_unclear or use.device.name in gone else use for use in uses]


def _is_told(holding: HeldDevices, devices: set[str]) -> bool:
    """Whether the devices that a pod uses are known."""
    return bool(holding.names) and all(name in devices for name in holding.names)


def _units_held(devices: Sequence[Device], held: Mapping[str, HeldDevices]) -> int:
    """Return how many devices the plugin must not allocate, with the demand of pods that name no devices."""
    if not held:
        return 0
    names = {device.name for device in devices}
    shared = {name for holding in held.values() for name in holding.names if name in names}
    untold = [holding for holding in held.values() if not _is_told(holding, names)]
    if any(not holding.demand.is_readable for holding in untold):
        return len(devices)
    return len(shared) + sum(holding.demand.count for holding in untold)


def _use(device: Device, held: Mapping[str, HeldDevices], described: bool) -> DeviceUse:
    capacity = device.capacity or NOTHING
    is_dynamic = device.isolation_policy == DYNAMIC
    is_unusable = device.phase != RUNNING or not device.is_ours or device.capacity is None
    if not held:
        lock = device.active_isolation_mode if is_dynamic else ""
        return DeviceUse(device, capacity, (), lock, is_unusable, described)
    holders = tuple(key for key, holding in held.items() if device.name in holding.names)
    demands = [held[key].demand for key in holders]
    left = capacity
    partitions: tuple[DevicePartition, ...] | None = ()
    if demands:
        kind = kind_of(device)
        partitions = _layout(kind, device.name, [held[key] for key in holders])
        for demand in demands:
            left = left - kind.taken_by(demand)
    modes = {demand.isolation for demand in demands}
    lock = device.active_isolation_mode if not demands else next(iter(modes)) if len(modes) == 1 else ""
    closed = (
        is_unusable
        or (device.isolation_conflict and bool(demands))
        or (is_dynamic and len(modes) > 1)
        # A demand that cannot be read or partitioned may take the whole device.
        or any(demand.isolation == SHARED or not demand.is_readable for demand in demands)
        or partitions is None
    )
    return DeviceUse(device, left, holders, lock if is_dynamic else "", closed, described, partitions or ())


def _layout(
    kind: DeviceKind, device: str, holders: Sequence[HeldDevices]
) -> tuple[DevicePartition, ...] | None:
    """Return the partitions of a device; None if they do not fit together.

    Partitions with a recorded position come first, then the others where the driver puts them.
    """
    recorded, others = [], []
    for holding in holders:
        if holding.demand.isolation != PARTITIONED:
            continue
        position = holding.names.index(device)
        if position < len(holding.partitions):
            recorded.append(holding.partitions[position])
        else:
            others.append(holding.demand)
    layout = tuple(recorded)
    if not all(kind.has_place(partition) for partition in layout):
        return None
    for demand in others:
        place = kind.place(demand, layout, kind.capacity)
        if place is None:
            return None
        layout = (*layout, place)
    return layout
