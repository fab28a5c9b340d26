"""The columns by which strategies choose among fitting devices: amounts, one row per device.

The packing kernel defines what a device is and which requests it fits: a row names its `DeviceKind`. The
kernel's own table also decides which nodes fit the pod, and which of their devices have capacity beside all
pods of the cluster (`allocation/open_nodes`). This table holds only what a choice needs: the use of a device
without reservations, the devices of a node side by side, the node's CPU, and a version per node, so that a
cached score of unchanged nodes stays valid.

Rows are reused, never moved. Each device has three amounts: `capacity`, `available` (capacity less committed)
and `free` (available less reserved). The ledger decides whether a change is allowed.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import PENDING, RUNNING, Device
from karpool.model.requirements import NodeTerm
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.device_kinds import LOCKS, DeviceKind, DeviceKinds, kind_of, lock_code

Rows = npt.NDArray[np.int64]
NO_NODE = -1
UNBOUNDED = 2**62  # capacity of a node without figures

_AMOUNTS = (
    "capacity_tflops",
    "capacity_vram",
    "available_tflops",
    "available_vram",
    "free_tflops",
    "free_vram",
)
_NUMBERS = ("kind", "lock", "node", "partitions", "holders")
_FLAGS = (
    "alive",
    "running",
    "pending",
    "ours",
    "has_available",
    "has_capacity",
    "conflict",
    "taken_whole",
)
_OF_NODES = ("cpu_room", "memory_room", "workers", "version")


class ScoringColumns:
    capacity_tflops: Int64s
    capacity_vram: Int64s
    available_tflops: Int64s
    available_vram: Int64s
    free_tflops: Int64s
    free_vram: Int64s
    kind: Int64s  # index in `kinds`
    lock: Int64s  # code of the mode that its users have set
    node: Int64s
    partitions: Int64s
    holders: Int64s
    alive: Bools
    running: Bools
    pending: Bools
    ours: Bools
    has_available: Bools
    has_capacity: Bools
    conflict: Bools
    taken_whole: Bools
    cpu_room: Int64s
    memory_room: Int64s
    workers: Int64s
    version: Int64s

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self.kinds = DeviceKinds()
        self.devices: list[Device | None] = []
        self.node_names: list[str] = []
        self.node_labels: dict[str, Mapping[str, str]] = {}
        self.node_rows: Rows = np.full((0, 1), -1, dtype=np.int64)
        self.labelled: dict[tuple[NodeTerm, ...], frozenset[str]] = {}  # nodes whose labels match
        self.membership = 0  # incremented when a device is added, removed or described again
        self._row_of: dict[str, int] = {}
        self._node_of: dict[str, int] = {}
        self._vacant: list[int] = []
        self._rows_of_node: list[list[int]] = []
        self._pool_rows: dict[str, Rows] = {}
        for name in (*_AMOUNTS, *_NUMBERS, *_OF_NODES):
            setattr(self, name, np.zeros(0, dtype=np.int64))
        for name in _FLAGS:
            setattr(self, name, np.zeros(0, dtype=np.bool_))
        self._grow(_OF_NODES, 1)  # so that the index of "no node" is valid
        for device in devices:
            self.put(device)

    # Reading

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, name: str) -> bool:
        return name in self._row_of

    def __iter__(self) -> Iterator[Device]:
        return (device for device in self.devices if device is not None)

    @property
    def n(self) -> int:
        """Number of rows, including vacant ones."""
        return len(self.devices)

    def find(self, name: str) -> int | None:
        return self._row_of.get(name)

    def device(self, row: int) -> Device:
        device = self.devices[row]
        if device is None:
            raise LookupError(f"row {row} holds no device")
        return device

    def node_code(self, name: str) -> int | None:
        return self._node_of.get(name)

    def capacity(self, row: int) -> DeviceAmount:
        return DeviceAmount(int(self.capacity_tflops[row]), int(self.capacity_vram[row]))

    def available(self, row: int) -> DeviceAmount:
        """Never negative; see `available_balance`."""
        return self.available_balance(row).at_least(NOTHING)

    def free(self, row: int) -> DeviceAmount:
        return self.free_balance(row).at_least(NOTHING)

    def available_balance(self, row: int) -> DeviceAmount:
        """Negative if pods hold more than the capacity: the device shrank under them."""
        return DeviceAmount(int(self.available_tflops[row]), int(self.available_vram[row]))

    def free_balance(self, row: int) -> DeviceAmount:
        return DeviceAmount(int(self.free_tflops[row]), int(self.free_vram[row]))

    def lock_of(self, row: int) -> str:
        """The mode that a device is locked to; empty for none."""
        return LOCKS[self.lock[row]]

    def rows_of_pool(self, pool: str) -> Rows:
        """Devices of a pool; the same array until a device is added or removed."""
        rows = self._pool_rows.get(pool)
        if rows is None:
            rows = self.all_rows()
            rows = self._pool_rows[pool] = self.of_kinds(rows, "pool", pool, lambda kind: kind.pool == pool)
        return rows

    def of_kinds(self, rows: Rows, rule: str, about: Hashable, holds: Callable[[DeviceKind], object]) -> Rows:
        """The rows whose kind satisfies a rule."""
        kept: Rows = rows[self.kinds.mask(rule, about, holds)[self.kind[rows]]] if len(rows) else rows
        return kept

    def all_rows(self) -> Rows:
        return np.flatnonzero(self.alive[: self.n])

    # Adding and removing devices and nodes

    def put(self, device: Device) -> int:
        """Add a device, or update its description. Amounts of a known device are not changed."""
        row = self._row_of.get(device.name)
        if row is None:
            row = self._new_row(device)
        elif _said_of_itself(self.device(row)) == _said_of_itself(device):
            self.devices[row] = (
                device  # reports are frequent and mostly change amounts, which the ledger counts
            )
            return row
        else:
            self._leave_node(row)
        self.devices[row] = device
        self._describe(row, device)
        self._join_node(row, device)
        self._changed_membership(row)
        return row

    def remove(self, name: str) -> None:
        row = self._row_of.pop(name, None)
        if row is None:
            return
        self._changed_membership(row)
        self._leave_node(row)
        self.devices[row] = None
        self.alive[row] = False
        self.node[row] = NO_NODE
        self._vacant.append(row)

    def put_node(
        self, name: str, labels: Mapping[str, str] | None = None, *, cpu_milli: int, memory_bytes: int
    ) -> None:
        """Set the node's capacity for worker pods, net of those in the ledger."""
        code = self._node(name)
        self.cpu_room[code], self.memory_room[code] = cpu_milli, memory_bytes
        self.version[code] += 1
        if labels is not None:
            self.put_labels(name, labels)

    def put_labels(self, owner: str, labels: Mapping[str, str]) -> None:
        """Set the labels of the node that owns devices."""
        if self.node_labels.get(owner) == labels:
            return
        self.node_labels[owner] = labels
        self.membership += 1
        self.labelled.clear()
        self.version += 1  # node affinity may now admit other devices anywhere

    # Amounts

    def set_capacity(self, row: int, capacity: DeviceAmount) -> None:
        self.capacity_tflops[row], self.capacity_vram[row] = capacity.tflops_milli, capacity.vram_bytes
        self.has_capacity[row] = True
        self._name_kind(row)
        self.touch(row)

    def set_balance(self, row: int, available: DeviceAmount, reserved: DeviceAmount) -> None:
        self.available_tflops[row], self.available_vram[row] = available.tflops_milli, available.vram_bytes
        self.free_tflops[row] = available.tflops_milli - reserved.tflops_milli
        self.free_vram[row] = available.vram_bytes - reserved.vram_bytes
        self.has_available[row] = True
        self.touch(row)

    def set_lock(self, row: int, mode: str, conflict: bool = False) -> None:
        self.lock[row], self.conflict[row] = lock_code(mode), conflict
        self.touch(row)

    def touch(self, row: int) -> None:
        code = self.node[row]
        if code != NO_NODE:
            self.version[code] += 1

    def occupy(self, code: int, cpu_milli: int, memory_bytes: int, workers: int) -> None:
        """Take capacity of a node for a pod (negative: release it), and set its number of workers."""
        if self.cpu_room[code] != UNBOUNDED:
            self.cpu_room[code] -= cpu_milli
        if self.memory_room[code] != UNBOUNDED:
            self.memory_room[code] -= memory_bytes
        self.workers[code] = workers
        self.version[code] += 1

    def set_workers(self, node: str, workers: int) -> None:
        self.workers[self._node(node)] = workers

    # Internals

    def _new_row(self, device: Device) -> int:
        if self._vacant:
            row = self._vacant.pop()
        else:
            row = len(self.devices)
            self.devices.append(None)
            self._grow((*_AMOUNTS, *_NUMBERS, *_FLAGS), row + 1)
        self._row_of[device.name] = row
        figures = [figure for figure in (device.capacity, device.available) if figure is not None]
        capacity, available = (figures[0], figures[-1]) if figures else (NOTHING, NOTHING)
        available = available - device.strangers
        self.has_available[row] = bool(figures)  # a device without figures is not used
        self.has_capacity[row] = device.capacity is not None
        self.capacity_tflops[row], self.capacity_vram[row] = capacity.tflops_milli, capacity.vram_bytes
        self.available_tflops[row], self.available_vram[row] = available.tflops_milli, available.vram_bytes
        self.free_tflops[row], self.free_vram[row] = available.tflops_milli, available.vram_bytes
        self.holders[row], self.taken_whole[row] = 0, False
        self.lock[row] = lock_code(device.active_isolation_mode)
        self.conflict[row] = device.isolation_conflict
        self.partitions[row] = len(device.partitions)
        return row

    def _describe(self, row: int, device: Device) -> None:
        self.alive[row] = True
        self.running[row], self.pending[row] = device.phase == RUNNING, device.phase == PENDING
        self.ours[row] = device.is_ours
        self._name_kind(row)

    def _name_kind(self, row: int) -> None:
        self.kind[row] = self.kinds.intern(replace(kind_of(self.device(row)), capacity=self.capacity(row)))

    def _join_node(self, row: int, device: Device) -> None:
        if not device.node:
            self.node[row] = NO_NODE
            return
        code = self._node(device.node)
        self.node[row] = code
        self._rows_of_node[code].append(row)
        self._list_rows(code)

    def _leave_node(self, row: int) -> None:
        code = int(self.node[row])
        if code != NO_NODE:
            self._rows_of_node[code].remove(row)
            self._list_rows(code)
            self.version[code] += 1

    def _list_rows(self, code: int) -> None:
        rows = self._rows_of_node[code]
        if len(rows) > self.node_rows.shape[1]:
            wider = np.full((len(self.node_rows), len(rows)), -1, dtype=np.int64)
            wider[:, : self.node_rows.shape[1]] = self.node_rows
            self.node_rows = wider
        self.node_rows[code] = -1
        self.node_rows[code, : len(rows)] = rows

    def _node(self, name: str) -> int:
        code = self._node_of.get(name)
        if code is None:
            code = self._node_of[name] = len(self.node_names)
            self.node_names.append(name)
            self.membership += 1
            self._rows_of_node.append([])
            self._grow(_OF_NODES, code + 1)
            self.cpu_room[code] = self.memory_room[code] = UNBOUNDED
            if code >= len(self.node_rows):
                longer = np.full(
                    (max(64, 2 * len(self.node_rows)), self.node_rows.shape[1]), -1, dtype=np.int64
                )
                longer[: len(self.node_rows)] = self.node_rows
                self.node_rows = longer
        return code

    def _grow(self, names: Iterable[str], size: int) -> None:
        for name in names:
            old: npt.NDArray[Any] = getattr(self, name)
            if size > len(old):
                longer = np.zeros(max(64, 2 * len(old)), dtype=old.dtype)
                longer[: len(old)] = old
                setattr(self, name, longer)

    def _changed_membership(self, row: int) -> None:
        self.membership += 1
        self._pool_rows.clear()
        self.touch(row)


def _said_of_itself(device: Device) -> Device:
    """The device without the values that the ledger counts."""
    return structs.replace(device, available=None, running_apps="")
