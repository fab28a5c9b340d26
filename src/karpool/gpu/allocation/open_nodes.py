"""Asks the packing kernel which nodes and devices fit a worker; it does not choose between them.

The kernel checks taints, affinity, volumes, host ports, pod slots, every resource, spread, pod affinity and
the free amounts of each device, less what is held for pods that are not bound yet. A device is not given if a
pod of another scheduler holds it, if its plugin gave it away, or if its free amount is unknown, whatever our
ledger says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from karpool.gpu.scoring_columns import NO_NODE, Rows, ScoringColumns
from karpool.model.devices.request import DeviceDemand
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import open_nodes
from karpool.packing.feasibility import preference
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.device_table import DeviceTable
from karpool.packing.tables.room import PodPlacement, Room


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """By node: whether it fits the pod, and how much the pod prefers it. By device: whether it fits the pod's
    request for one device; None if the pod's shape requests none.
    """

    is_open: Bools
    weight: Int64s | None = None
    has_share: Bools | None = None


@dataclass(frozen=True, slots=True)
class NodeHold:
    """A reserved place for a pod that is not bound yet."""

    node: str
    shape: PodShape
    devices: tuple[str, ...] = ()


class OpenNodes:
    """`holds` are by uid of the pod."""

    def __init__(self, table: ScoringColumns, room: Room, holds: Mapping[str, NodeHold]) -> None:
        self._table = table
        self._room = room
        self._holds = dict(holds)
        self._left: Room | None = None
        self._rows_of: tuple[int, Int64s] | None = None
        self._device_rows: tuple[int, Int64s] | None = None

    def hold(self, uid: str, hold: NodeHold) -> None:
        self._holds[uid] = hold
        self._left = None

    def drop(self, uid: str) -> None:
        self._holds.pop(uid, None)
        self._left = None

    def choice(self, shape: PodShape) -> NodeChoice:
        if self._left is None:
            self._left = self._room.minus(self._placements(self._holds.values()))
        return self._by_code(self._left, shape)

    def takes(self, uid: str, hold: NodeHold) -> bool:
        """Whether the node fits the pod, ignoring the pod's own hold."""
        row = self._room.find(hold.node)
        others = (other for held, other in self._holds.items() if held != uid)
        left = self._room.minus(self._placements(others))
        return row is not None and bool(open_nodes(left, hold.shape)[row])

    def _placements(self, holds: Iterable[NodeHold]) -> list[PodPlacement]:
        rows = ((self._room.find(hold.node), hold) for hold in holds)
        return [PodPlacement(row, hold.shape, devices=hold.devices) for row, hold in rows if row is not None]

    def _by_code(self, room: Room, shape: PodShape) -> NodeChoice:
        rows = self._rows(room)
        is_known = rows >= 0
        is_open: Bools = np.zeros(len(rows), dtype=np.bool_)
        is_open[is_known] = open_nodes(room, shape)[rows[is_known]]
        has_share = None if shape.devices is None else self._with_share(room.devices, shape.devices)
        if not shape.preferred_nodes:
            return NodeChoice(is_open, None, has_share)
        weight = np.zeros(len(rows), dtype=np.int64)
        weight[is_known] = preference(room.nodes, shape)[rows[is_known]]
        return NodeChoice(is_open, weight, has_share)

    def _with_share(self, devices: DeviceTable | None, demand: DeviceDemand) -> Bools:
        has_share: Bools = np.zeros(self._table.n, dtype=np.bool_)
        if devices is not None:
            rows = self._rows_of_devices(devices)
            has_share[rows >= 0] = devices.shares(demand)[rows[rows >= 0]] > 0
        return has_share

    def _rows_of_devices(self, devices: DeviceTable) -> Int64s:
        """By device of the table: its row in the room; -1 if the cluster does not know it."""
        if self._device_rows is None or self._device_rows[0] != self._table.membership:
            row_of = {name: row for row, name in enumerate(devices.names)}
            rows = [-1 if device is None else row_of.get(device.name, -1) for device in self._table.devices]
            self._device_rows = self._table.membership, np.array(rows, dtype=np.int64)
        return self._device_rows[1]

    def _rows(self, room: Room) -> Int64s:
        """By node of the table: its row in the room; -1 if the cluster does not know it."""
        size = len(self._table.node_names)
        if self._rows_of is None or self._rows_of[0] != size:
            rows = [room.find(name) for name in self._table.node_names]
            self._rows_of = size, np.array([-1 if row is None else row for row in rows], dtype=np.int64)
        return self._rows_of[1]


def by_nodes(table: ScoringColumns, rows: Rows, *, nodes: NodeChoice) -> Rows:
    """Fitting devices on fitting nodes, those of preferred nodes first. A device without a node
    never counts.
    """
    rows = rows[table.node[rows] != NO_NODE]
    kept: Rows = rows[nodes.is_open[table.node[rows]]]
    if nodes.has_share is not None:
        kept = kept[nodes.has_share[kept]]
    if nodes.weight is None:
        return kept
    order: Rows = kept[np.argsort(-nodes.weight[table.node[kept]], kind="stable")]
    return order
