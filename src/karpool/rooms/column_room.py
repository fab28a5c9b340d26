"""Rooms over the copied columns, for the kernel: the rows of one cluster, or of all clusters.

Changes are written into the columns in place. So a room is valid only until the next await. The node table
caches masks; it is rebuilt whenever more than amounts change.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from karpool.model.kubernetes.meta import Labels
from karpool.packing.tables.columns import Int32s, Int64s
from karpool.packing.tables.device_table import DeviceTable
from karpool.packing.tables.node_table import LabelCodes, NodeTable, TaintSet, ZoneOrder
from karpool.packing.tables.room import BoundPodCounts, Room
from karpool.packing.tables.shape_table import ShapeTable
from karpool.rooms.room_change import NAME, ColumnId
from karpool.wire.proto import rooms_pb2 as pb

_NO_ROWS: Int64s = np.zeros(0, dtype=np.int64)


@dataclass
class TextColumn:
    """One text per row, such as a label or the name, as a code; -1 for none."""

    codes: Int32s
    values: list[str] = field(default_factory=list)
    code_of: dict[str, int] = field(default_factory=dict)

    def code(self, value: str) -> int:
        code = self.code_of.get(value)
        if code is None:
            code = self.code_of[value] = len(self.values)
            self.values.append(value)
        return code


@dataclass
class CopiedColumns:
    """The columns of all clusters, one segment of rows per cluster.

    `free` includes pod slots (`PODS`); `left` is `free` minus promises. An unused row has no slots.
    """

    size: int
    free: dict[str, Int64s]
    left: dict[str, Int64s]
    texts: dict[ColumnId, TextColumn]
    taint_codes: Int32s
    taint_sets: list[TaintSet]


class CopiedNodes(NodeTable):
    memo_limit = 64  # masks over all clusters are large, and there is one table per cluster as well

    def __init__(self, columns: CopiedColumns, rows: slice, zone_order: ZoneOrder | None = None) -> None:
        """Create a table; `zone_order` None is for many clusters, whose nodes have no common order."""
        super().__init__()
        self.n = rows.stop - rows.start
        self._columns, self._slice, self._zone_order = columns, rows, zone_order

    @property
    def names(self) -> Sequence[str]:
        column = self._columns.texts.get(NAME)
        if column is None:
            return [""] * self.n
        return [column.values[code] if code >= 0 else "" for code in column.codes[self._slice].tolist()]

    def find(self, name: str) -> int | None:
        rows = self.rows_named(name)
        return rows[0] if len(rows) == 1 else None

    def rows_named(self, name: str) -> Sequence[int]:
        column = self._columns.texts.get(NAME)
        code = None if column is None else column.code_of.get(name)
        if column is None or code is None:
            return ()
        rows: list[int] = np.flatnonzero(column.codes[self._slice] == code).tolist()
        return rows

    def labels_of(self, row: int) -> Labels:
        at = self._slice.start + row
        return {
            key: column.values[column.codes[at]]
            for (kind, key), column in self._columns.texts.items()
            if kind == pb.LABEL and column.codes[at] >= 0
        }

    def _read_label(self, key: str) -> LabelCodes:
        column = self._columns.texts.get((pb.LABEL, key))
        if column is None:
            return LabelCodes(np.full(self.n, -1, dtype=np.int32), ())
        return LabelCodes(column.codes[self._slice], column.values)

    @property
    def taint_codes(self) -> Int32s:
        return self._columns.taint_codes[self._slice]

    @property
    def taint_sets(self) -> Sequence[TaintSet]:
        return self._columns.taint_sets

    @property
    def zone_order(self) -> ZoneOrder:
        if self._zone_order is None:
            raise LookupError("nodes of several clusters cannot be sorted")
        return self._zone_order

    def _derive(self, key: Hashable, compute: Callable[[NodeTable], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return compute(self)


class CopiedRoom(Room):
    """The free capacity of each node, minus promises."""

    def __init__(self, columns: CopiedColumns, rows: slice, nodes: CopiedNodes) -> None:
        super().__init__(0, nodes, ShapeTable(), {})
        self._columns, self._slice = columns, rows

    @property
    def resources(self) -> Collection[str]:
        return tuple(self._columns.left)

    def _read_left(self, resource: str) -> Int64s:
        column = self._columns.left.get(resource)
        return np.zeros(self.n, dtype=np.int64) if column is None else column[self._slice]

    def _read_free(self, resource: str) -> Int64s:
        return self._read_left(resource)

    def _read_slots(self) -> Int64s:
        return self._read_left("pods")

    def _read_allocatable(self, resource: str) -> Int64s:
        raise LookupError(f"the amount of {resource} on nodes is not part of room streams")

    def _read_devices(self) -> DeviceTable | None:
        return None

    def _read_bound(self) -> BoundPodCounts:
        empty = np.zeros(0, dtype=np.int32)
        return BoundPodCounts(empty, empty, _NO_ROWS)

    def pods_on(self, row: int) -> Mapping[str, int]:
        return {}

    @property
    def pending(self) -> Mapping[str, int]:
        return {}
