"""Which nodes take a worker, devices apart from the choice between them: the packing kernel's answer.

Taints, affinity, volumes, host ports, pod slots, every resource, spread and pod affinity are asked of
the one room of the cluster, less what is held for others and not bound yet.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from karpool.gpu.device_columns import NO_NODE, DeviceColumns, Rows
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import open_nodes
from karpool.packing.feasibility import preference
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import PodPlacement, Room


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """By node of a device table: whether it takes the pod, and how much the pod prefers it."""

    is_open: Bools
    weight: Int64s | None = None


@dataclass(frozen=True, slots=True)
class NodeHold:
    """A place for a pod that is not bound yet."""

    node: str
    shape: PodShape
    devices: tuple[str, ...] = ()


class OpenNodes:
    """`holds` are by uid of the pod. Nodes in `closed` take nobody."""

    def __init__(
        self, table: DeviceColumns, room: Room, holds: Mapping[str, NodeHold], closed: Collection[str] = ()
    ) -> None:
        self._table = table
        self._room = room
        self._holds = dict(holds)
        self._closed = closed
        self._left: Room | None = None
        self._rows_of: tuple[int, Int64s] | None = None

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
        """Whether a node takes a pod whose own hold does not stand in its way."""
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
        for name in self._closed:
            code = self._table.node_code(name)
            if code is not None:
                is_known[code] = False
        is_open: Bools = np.zeros(len(rows), dtype=np.bool_)
        is_open[is_known] = open_nodes(room, shape)[rows[is_known]]
        if not shape.preferred_nodes:
            return NodeChoice(is_open)
        weight = np.zeros(len(rows), dtype=np.int64)
        weight[is_known] = preference(room.nodes, shape)[rows[is_known]]
        return NodeChoice(is_open, weight)

    def _rows(self, room: Room) -> Int64s:
        """By node of the table, its row in the room; -1 where the cluster does not know it."""
        size = len(self._table.node_names)
        if self._rows_of is None or self._rows_of[0] != size:
            rows = [room.find(name) for name in self._table.node_names]
            self._rows_of = size, np.array([-1 if row is None else row for row in rows], dtype=np.int64)
        return self._rows_of[1].copy()


def by_nodes(table: DeviceColumns, rows: Rows, *, nodes: NodeChoice) -> Rows:
    """Devices of nodes that take the pod, those of preferred nodes first. One without a node never counts."""
    rows = rows[table.node[rows] != NO_NODE]
    kept: Rows = rows[nodes.is_open[table.node[rows]]]
    if nodes.weight is None:
        return kept
    order: Rows = kept[np.argsort(-nodes.weight[table.node[kept]], kind="stable")]
    return order
