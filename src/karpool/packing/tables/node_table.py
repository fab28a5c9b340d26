"""Facts about nodes other than their free resources: names, labels, taints, zones.

A `NodeTable` never changes. Arrays derived from it per node (a label as codes, a feasibility mask) are cached
in it through `per_node`, and survive pod events, because only a change of a node's labels or taints makes a
new table. Tables for what-if questions (`SubsetNodeTable`, `JoinedNodeTable`) read through to their base
tables, so they share those caches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from karpool.model.devices.node_devices import registers_of
from karpool.model.kubernetes.meta import NO_LABELS, Labels
from karpool.model.kubernetes.node import Node, allocatable, zone_key
from karpool.model.requirements import ValueSet
from karpool.model.taints import UNSCHEDULABLE, Taint
from karpool.packing.tables.columns import Bools, Int32s, Int64s, read_only

TaintSet = tuple[Taint, ...]
Array = npt.NDArray[Any]
_FEW = 8


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node, existing or potential. A cordoned node has the `unschedulable` taint.

    `registers` are annotations in which a device plugin lists the node's devices one by one.
    """

    name: str
    labels: Labels = field(default_factory=lambda: NO_LABELS)
    taints: TaintSet = ()
    allocatable: Mapping[str, int] = field(default_factory=dict)
    registers: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)


def node_row(node: Node) -> NodeRow:
    """Compile a node. Raises Invalid, which names the field."""
    taints = tuple(node.spec.taints or ())
    if node.spec.unschedulable and UNSCHEDULABLE not in taints:
        taints = (UNSCHEDULABLE, *taints)
    return NodeRow(node.name, node.labels, taints, allocatable(node), registers_of(node.annotations))


@dataclass(frozen=True, slots=True)
class LabelCodes:
    """One label of every node: `codes[row]` indexes `values`; -1 if the node has no such label."""

    codes: Int32s
    values: Sequence[str]

    def select(self, value_set: ValueSet) -> Bools:
        """Return the nodes whose value, or lack of one, is admitted; each distinct value is tested once."""
        by_code = np.empty(len(self.values) + 1, dtype=np.bool_)
        if value_set.at_least is None and value_set.at_most is None and len(value_set.values) <= _FEW:
            # A scan in C per admitted value is faster than a test in Python per existing value.
            by_code[:] = value_set.complement
            for value in value_set.values:
                if value in self.values:
                    by_code[self.values.index(value)] = not value_set.complement
        else:
            by_code[:-1] = [value in value_set for value in self.values]
        by_code[-1] = value_set.admits_absence
        return by_code.take(self.codes)  # twice as fast as an index


@dataclass(frozen=True, slots=True)
class ZoneOrder:
    """The inputs of kube-scheduler's node order: when a zone of nodes appeared, and when each node did."""

    zones: Int64s
    arrivals: Int64s
    ranks: Mapping[str, int]  # zone key to number

    def order(self) -> Int64s:
        """Return rows, one of each zone in turn: zones by appearance, nodes of a zone by arrival."""
        by_zone = np.lexsort((self.arrivals, self.zones))
        zones = self.zones[by_zone]
        starts = np.flatnonzero(np.diff(zones, prepend=zones[:1] - 1))
        sizes = np.diff(starts, append=len(zones))
        turn = np.arange(len(zones)) - np.repeat(starts, sizes)
        return read_only(by_zone[np.lexsort((zones, turn))])


class NodeTable(ABC):
    """The read interface. Rows are dense; row numbers have no meaning outside one table."""

    n: int
    memo_limit = 512  # limits the cached arrays

    def __init__(self) -> None:
        self._labels: dict[str, LabelCodes] = {}
        self._memo: dict[Hashable, Array] = {}

    @property
    @abstractmethod
    def names(self) -> Sequence[str]: ...

    @abstractmethod
    def labels_of(self, row: int) -> Labels: ...

    @abstractmethod
    def _read_label(self, key: str) -> LabelCodes: ...

    @property
    @abstractmethod
    def taint_codes(self) -> Int32s: ...

    @property
    @abstractmethod
    def taint_sets(self) -> Sequence[TaintSet]:
        """Taint sets by code. May hold sets that no node has."""

    @property
    @abstractmethod
    def zone_order(self) -> ZoneOrder: ...

    @abstractmethod
    def _derive(self, key: Hashable, compute: "Callable[[NodeTable], Array]") -> Array: ...

    @cached_property
    def order(self) -> Int64s:
        """All rows in the order in which Karmada and kube-scheduler walk them."""
        return self.zone_order.order()

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def find(self, name: str) -> int | None:
        return self._rows.get(name)

    def rows_named(self, name: str) -> Sequence[int]:
        """Return the rows of a name; several only if the table holds the nodes of several clusters."""
        row = self.find(name)
        return () if row is None else (row,)

    def label(self, key: str) -> LabelCodes:
        column = self._labels.get(key)
        if column is None:
            column = self._labels[key] = self._read_label(key)
        return column

    def per_node(self, key: Hashable, compute: "Callable[[NodeTable], Array]") -> Array:
        """Return one value per node that depends on that node alone, computed at most once per `key`.

        Overlays call their base tables, so `compute` must not read other nodes.
        """
        derived = self._memo.get(key)
        if derived is None:
            derived = read_only(self._derive(key, compute))
            if len(self._memo) >= self.memo_limit:
                del self._memo[next(iter(self._memo))]
            self._memo[key] = derived
        return derived


class StoredNodeTable(NodeTable):
    """Existing nodes. `read_label` reads the label columns of the cluster state while they are current."""

    def __init__(
        self,
        names: Sequence[str],
        labels: Sequence[Labels],
        *,
        taint_codes: Int32s,
        taint_sets: Sequence[TaintSet],
        zone_order: ZoneOrder,
        read_label: Callable[[str], LabelCodes | None] = lambda key: None,
    ) -> None:
        super().__init__()
        self.n = len(names)
        self._names = names
        self._label_rows = labels
        self._taint_codes = taint_codes
        self._taint_sets = taint_sets
        self._zone_order = zone_order
        self._indexed = read_label

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def labels_of(self, row: int) -> Labels:
        return self._label_rows[row]

    @property
    def taint_codes(self) -> Int32s:
        return self._taint_codes

    @property
    def taint_sets(self) -> Sequence[TaintSet]:
        return self._taint_sets

    @property
    def zone_order(self) -> ZoneOrder:
        return self._zone_order

    def _read_label(self, key: str) -> LabelCodes:
        indexed = self._indexed(key)
        return encoded(key, self._label_rows) if indexed is None else indexed

    def _derive(self, key: Hashable, compute: Callable[[NodeTable], Array]) -> Array:
        return compute(self)


class SubsetNodeTable(NodeTable):
    """Some rows of another table, in the same order."""

    def __init__(self, base: NodeTable, keep: Int64s) -> None:
        super().__init__()
        self.n = len(keep)
        self._base = base
        self._keep = keep

    @cached_property
    def _names(self) -> Sequence[str]:
        names = self._base.names
        return [names[row] for row in self._keep.tolist()]

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def labels_of(self, row: int) -> Labels:
        return self._base.labels_of(int(self._keep[row]))

    @cached_property
    def _taint_codes(self) -> Int32s:
        return read_only(self._base.taint_codes[self._keep])

    @property
    def taint_codes(self) -> Int32s:
        return self._taint_codes

    @property
    def taint_sets(self) -> Sequence[TaintSet]:
        return self._base.taint_sets

    @cached_property
    def _zone_order(self) -> ZoneOrder:
        whole = self._base.zone_order
        zones = whole.zones[self._keep]
        left = set(zones.tolist())  # a zone without nodes loses its position, as in kube-scheduler
        ranks = {key: rank for key, rank in whole.ranks.items() if rank in left}
        return ZoneOrder(zones, whole.arrivals[self._keep], ranks)

    @property
    def zone_order(self) -> ZoneOrder:
        return self._zone_order

    def _read_label(self, key: str) -> LabelCodes:
        whole = self._base.label(key)
        return LabelCodes(read_only(whole.codes[self._keep]), whole.values)

    def _derive(self, key: Hashable, compute: Callable[[NodeTable], Array]) -> Array:
        kept: Array = self._base.per_node(key, compute)[self._keep]
        return kept


class JoinedNodeTable(NodeTable):
    """The rows of one table, then those of another."""

    def __init__(self, base: NodeTable, more: NodeTable) -> None:
        super().__init__()
        self.n = base.n + more.n
        self._base = base
        self._more = more

    @cached_property
    def _names(self) -> Sequence[str]:
        return [*self._base.names, *self._more.names]

    @property
    def names(self) -> Sequence[str]:
        return self._names

    def find(self, name: str) -> int | None:
        row = self._base.find(name)
        if row is None and (row := self._more.find(name)) is not None:
            row += self._base.n
        return row

    def labels_of(self, row: int) -> Labels:
        return self._base.labels_of(row) if row < self._base.n else self._more.labels_of(row - self._base.n)

    @cached_property
    def _taint_codes(self) -> Int32s:
        shifted = self._more.taint_codes + np.int32(len(self._base.taint_sets))
        return read_only(np.concatenate((self._base.taint_codes, shifted)))

    @property
    def taint_codes(self) -> Int32s:
        return self._taint_codes

    @cached_property
    def _taint_sets(self) -> Sequence[TaintSet]:
        return [*self._base.taint_sets, *self._more.taint_sets]

    @property
    def taint_sets(self) -> Sequence[TaintSet]:
        return self._taint_sets

    @cached_property
    def _zone_order(self) -> ZoneOrder:
        """Append the new nodes in arrival order; their zones join those of the same key, or follow them."""
        base, more = self._base.zone_order, self._more.zone_order
        ranks = dict(base.ranks)
        next_rank = max(ranks.values(), default=-1) + 1
        translated = np.zeros(max(more.ranks.values(), default=-1) + 1, dtype=np.int64)
        for key, rank in more.ranks.items():
            if key not in ranks:
                ranks[key] = next_rank + rank
            translated[rank] = ranks[key]
        last = int(base.arrivals.max(initial=-1)) + 1
        return ZoneOrder(
            np.concatenate((base.zones, translated[more.zones])),
            np.concatenate((base.arrivals, more.arrivals + last)),
            ranks,
        )

    @property
    def zone_order(self) -> ZoneOrder:
        return self._zone_order

    def _read_label(self, key: str) -> LabelCodes:
        base, more = self._base.label(key), self._more.label(key)
        values = list(base.values)
        code_of = {value: code for code, value in enumerate(values)}
        translated = np.empty(len(more.values) + 1, dtype=np.int32)
        translated[-1] = -1
        for code, value in enumerate(more.values):
            if value not in code_of:
                code_of[value] = len(values)
                values.append(value)
            translated[code] = code_of[value]
        return LabelCodes(read_only(np.concatenate((base.codes, translated[more.codes]))), values)

    def _derive(self, key: Hashable, compute: Callable[[NodeTable], Array]) -> Array:
        return np.concatenate((self._base.per_node(key, compute), self._more.per_node(key, compute)))


def table_of(rows: Sequence[NodeRow]) -> StoredNodeTable:
    """Return a table of nodes without a cluster state, in arrival order."""
    ranks: dict[str, int] = {}
    zones = [ranks.setdefault(zone_key(row.labels), len(ranks)) for row in rows]
    sets: dict[TaintSet, int] = {}
    codes = [sets.setdefault(row.taints, len(sets)) for row in rows]
    return StoredNodeTable(
        [row.name for row in rows],
        [row.labels for row in rows],
        taint_codes=read_only(np.array(codes, dtype=np.int32)),
        taint_sets=list(sets),
        zone_order=ZoneOrder(
            read_only(np.array(zones, dtype=np.int64)), read_only(np.arange(len(rows), dtype=np.int64)), ranks
        ),
    )


def encoded(key: str, rows: Sequence[Labels]) -> LabelCodes:
    label_values = [labels.get(key) for labels in rows]
    values = [value for value in dict.fromkeys(label_values) if value is not None]
    code_of: dict[str | None, int] = {value: code for code, value in enumerate(values)}
    code_of[None] = -1
    codes = np.fromiter(map(code_of.__getitem__, label_values), dtype=np.int32, count=len(label_values))
    return LabelCodes(read_only(codes), values)
