"""The nodes of a cluster, kept current one node at a time.

Rows stay dense: the last row moves into the place of a removed one. `table` returns the current nodes as an
immutable table, the same one until a name, label or taint changes; heartbeats change none of these.
"""

from collections.abc import Callable

import numpy as np

from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import ARCH, HOSTNAME, INSTANCE_TYPE, OS, REGION, ZONE, zone_key
from karpool.packing.tables.columns import Column
from karpool.packing.tables.node_table import (
    LabelCodes,
    NodeRow,
    StoredNodeTable,
    TaintSet,
    ZoneOrder,
    encoded,
)

# Distinct values without a node are dropped when they outnumber the nodes by this much.
_SLACK = 128
_COLUMN_LIMIT = 256
# The labels that pods use most; other labels become columns on demand.
_USUAL_LABELS = (
    ARCH,
    HOSTNAME,
    INSTANCE_TYPE,
    OS,
    REGION,
    ZONE,
    "karpenter.sh/capacity-type",
    "karpenter.sh/nodepool",
)


class _LabelColumn:
    """One label as codes; follows the nodes after its first use."""

    def __init__(self, codes: LabelCodes) -> None:
        self.codes = Column(np.int32, -1, len(codes.codes))
        self.codes.writable(len(codes.codes))[: len(codes.codes)] = codes.codes
        self.values = list(codes.values)
        self._code_of = {value: code for code, value in enumerate(self.values)}

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.codes[row] = -1
            return
        code = self._code_of.get(value)
        if code is None:
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        self.codes[row] = code


class NodeStore:
    def __init__(self) -> None:
        self.version = 0
        self.rows: list[NodeRow] = []
        self._row_of: dict[str, int] = {}
        self._taint_codes = Column(np.int32)
        self._taint_sets: list[TaintSet] = []
        self._taint_code_of: dict[TaintSet, int] = {}
        self._zones = Column(np.int64)
        self._arrivals = Column(np.int64)
        self._zone_ranks: dict[str, int] = {}
        self._zone_sizes: dict[str, int] = {}
        self._next_zone = 0
        self._next_arrival = 0
        self._labels = {key: _LabelColumn(encoded(key, ())) for key in _USUAL_LABELS}
        self._table: StoredNodeTable | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, name: str) -> int | None:
        return self._row_of.get(name)

    def put(self, node: NodeRow) -> int:
        """Add or update a node; return its row."""
        row = self._row_of.get(node.name)
        if row is None:
            row = self._row_of[node.name] = len(self.rows)
            self.rows.append(node)
            self._join_zone(row, zone_key(node.labels))
            self._write_labels(row, node.labels)
            self._write_taints(row, node.taints)
            return row
        old, self.rows[row] = self.rows[row], node
        if old.labels != node.labels:
            before, after = zone_key(old.labels), zone_key(node.labels)
            if before != after:
                self._leave_zone(before)
                self._join_zone(row, after)
            self._write_labels(row, node.labels)
        if old.taints != node.taints:
            self._write_taints(row, node.taints)
        return row

    def remove(self, name: str) -> tuple[int, int] | None:
        """Return the freed row and the last row, which moved there; None for an unknown name."""
        row = self._row_of.pop(name, None)
        if row is None:
            return None
        self._changed()
        self._leave_zone(zone_key(self.rows[row].labels))
        last = len(self.rows) - 1
        moved = self.rows.pop()
        if row != last:
            self.rows[row] = moved
            self._row_of[moved.name] = row
            for column in (self._taint_codes, self._zones, self._arrivals):
                column[row] = column[last]
            for label in self._labels.values():
                label.codes[row] = label.codes[last]
        return row, last

    def table(self) -> StoredNodeTable:
        if self._table is None:
            self._drop_unused_values()
            size = len(self.rows)
            self._table = StoredNodeTable(
                tuple([row.name for row in self.rows]),
                tuple([row.labels for row in self.rows]),
                taint_codes=self._taint_codes.view(size),
                taint_sets=self._taint_sets,
                zone_order=ZoneOrder(
                    self._zones.view(size), self._arrivals.view(size), dict(self._zone_ranks)
                ),
                read_label=self._label_reader(),
            )
        return self._table

    def _changed(self) -> None:
        self.version += 1
        self._table = None

    def _join_zone(self, row: int, zone: str) -> None:
        self._changed()
        if zone not in self._zone_ranks:
            self._zone_ranks[zone] = self._next_zone
            self._next_zone += 1
        self._zone_sizes[zone] = self._zone_sizes.get(zone, 0) + 1
        self._zones[row] = self._zone_ranks[zone]
        self._arrivals[row] = self._next_arrival
        self._next_arrival += 1

    def _leave_zone(self, zone: str) -> None:
        self._zone_sizes[zone] -= 1
        if not self._zone_sizes[zone]:
            # kube-scheduler forgets an empty zone; if it returns, it comes last.
            del self._zone_sizes[zone], self._zone_ranks[zone]

    def _write_labels(self, row: int, labels: Labels) -> None:
        self._changed()
        for key, column in self._labels.items():
            column.put(row, labels.get(key))

    def _write_taints(self, row: int, taints: TaintSet) -> None:
        self._changed()
        code = self._taint_code_of.get(taints)
        if code is None:
            code = self._taint_code_of[taints] = len(self._taint_sets)
            self._taint_sets.append(taints)
        self._taint_codes[row] = code

    def _label_reader(self) -> Callable[[str], LabelCodes | None]:
        version = self.version

        def read(key: str) -> LabelCodes | None:
            """Return the codes; None if the nodes have changed, and the table must compute them itself."""
            if self.version != version:
                return None
            if key not in self._labels:
                if len(self._labels) >= _COLUMN_LIMIT:
                    del self._labels[next(iter(self._labels))]
                self._labels[key] = _LabelColumn(encoded(key, [row.labels for row in self.rows]))
            column = self._labels[key]
            return LabelCodes(column.codes.view(len(self.rows)), column.values)

        return read

    def _drop_unused_values(self) -> None:
        limit = 2 * len(self.rows) + _SLACK
        for key, column in list(self._labels.items()):
            if len(column.values) > limit:
                del self._labels[key]
        if len(self._taint_sets) > limit:
            # New objects, because older tables still use the old ones.
            self._taint_sets, self._taint_code_of, self._taint_codes = [], {}, Column(np.int32)
            for row, node in enumerate(self.rows):
                self._write_taints(row, node.taints)
