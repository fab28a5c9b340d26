"""The scheduler's side: copies of the rooms of many clusters, and answers from them.

All copies share the same columns, so that one pass of the kernel answers for all clusters. Promises are
placed on the copy by first fit, as the estimator does; so an answer is what the estimator would say as of its
last change. A change that does not match the copy is refused and the copy is dropped: the scheduler then asks
the estimator and never guesses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from karpool.model.karmada.replica_requirements import Component
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.resource_quota import Matching, QuotaHeadroom
from karpool.model.resources import PODS
from karpool.packing.counting.assumed import placed_first_fit
from karpool.packing.counting.count import count, fits
from karpool.packing.counting.first_fit import PodGroup, first_fit
from karpool.packing.tables.columns import Int32s, Int64s
from karpool.packing.tables.node_table import ZoneOrder
from karpool.rooms.column_room import CopiedColumns, CopiedNodes, CopiedRoom, TextColumn
from karpool.rooms.quota_limits import UNLIMITED, replicas_admitted, sets_admitted
from karpool.rooms.room_change import (
    ARRIVAL,
    COLUMNS_MAX,
    NAME,
    SLOTS,
    TAINT_SETS_MAX,
    TAINTS,
    ZONE,
    ColumnId,
    PodsOfWorkload,
    RoomChange,
    RoomChangeRefused,
    Values,
    WorkloadKey,
    absent_of,
    checksum,
)
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import AssumedWorkload, ComponentSetsRequest, EstimateRequest, RoomParts

_SPARE = 16  # rows by which a cluster may grow before it is moved, plus a quarter of its size
_TEXT_SLACK = 4_096  # unused texts that are tolerated
# From this share of all rows on, one pass over all clusters is cheaper than a pass per cluster.
_SHARE_FOR_ONE_PASS = 0.2


class RoomAnswer(NamedTuple):
    value: int
    parts: RoomParts | None


@dataclass(eq=False)
class CopiedCluster:
    """The copy of one cluster's room: rows `start` to `start + nodes` of the columns."""

    name: str
    epoch: int
    sequence: int
    rules: pb.RoomRules
    start: int = 0
    capacity: int = 0
    nodes: int = 0
    zones: Int32s = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    arrivals: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    # The publisher's codes -> codes of our columns.
    codes: dict[ColumnId, Int32s] = field(default_factory=dict)
    resources: set[str] = field(default_factory=set)
    quotas: dict[str, tuple[QuotaHeadroom, ...]] = field(default_factory=dict)
    workloads: dict[WorkloadKey, PodsOfWorkload] = field(default_factory=dict)
    assumed: tuple[AssumedWorkload, ...] = ()  # promises that are placed on the copy
    room: CopiedRoom | None = None
    changes: int = 0  # number of writes

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.nodes)

    @property
    def matching(self) -> Matching:
        return "all" if self.rules.quotas_match_all else "any"

    def quotas_of(self, namespace: str) -> Sequence[QuotaHeadroom]:
        return self.quotas.get(namespace, ()) if self.rules.counts_quotas else ()

    def pods_of(self, namespace: str, api_version: str, kind: str, name: str) -> PodsOfWorkload | None:
        """Return the pods of a workload; None if the publisher does not report them (yet)."""
        return self.workloads.get((namespace, api_version, kind, name))


class CopiedRooms:
    def __init__(self) -> None:
        self._clusters: dict[str, CopiedCluster] = {}
        self._columns = _empty_columns(0)
        self._used = 0  # rows in use
        # Room over all clusters, cluster names by row, and their first rows.
        self._whole: tuple[CopiedRoom, list[str], Int64s] | None = None

    def get(self, cluster: str) -> CopiedCluster | None:
        return self._clusters.get(cluster)

    # Keeping

    def apply(self, change: RoomChange) -> CopiedCluster:
        """Apply a change. Raises RoomChangeRefused and drops the copy of the cluster."""
        try:
            return self._apply(change)
        except RoomChangeRefused:
            self.drop(change.cluster)
            raise

    def drop(self, cluster: str) -> None:
        copy = self._clusters.pop(cluster, None)
        if copy is not None:
            self._clear(slice(copy.start, copy.start + copy.capacity))
            self._whole = None

    def _apply(self, change: RoomChange) -> CopiedCluster:
        copy = self._clusters.get(change.cluster)
        if change.base:
            if copy is None or (copy.epoch, copy.sequence) != (change.epoch, change.base):
                held = None if copy is None else (copy.epoch, copy.sequence)
                raise RoomChangeRefused(f"it changes {(change.epoch, change.base)}, and {held} is held")
        else:
            assert change.rules is not None
            self.drop(change.cluster)
            copy = CopiedCluster(change.cluster, change.epoch, 0, change.rules)
        self._learn_texts(copy, change)
        _check_codes(copy, change)
        self._fit_rows(copy, change.nodes)
        self._clusters[change.cluster] = copy
        for column in change.dropped:
            self._write(copy, column, np.arange(copy.nodes), np.full(copy.nodes, absent_of(column)))
        for column, parts in change.columns.items():
            for part in parts:
                self._write(copy, column, part.rows, part.values)
        self._take_the_rest(copy, change)
        if self._checksum(copy) != change.checksum:
            raise RoomChangeRefused("its checksum is not that of the copy")
        if change.columns or change.dropped:
            self._restore(copy)
        if change.changes_nodes:
            copy.room, self._whole = None, None
        copy.sequence = change.sequence
        copy.changes += 1
        return copy

    def _learn_texts(self, copy: CopiedCluster, change: RoomChange) -> None:
        for column, strings in change.strings.items():
            if column[0] not in (pb.LABEL, pb.NAME):
                raise RoomChangeRefused(f"column {column} has no texts")
            texts = self._text_column(column)
            codes = np.fromiter(map(texts.code, strings), dtype=np.int32, count=len(strings))
            known = copy.codes.get(column)
            copy.codes[column] = codes if known is None else np.concatenate((known, codes))
        if change.taint_sets:
            sets = self._columns.taint_sets
            code_of = {taints: code for code, taints in enumerate(sets)}
            for taints in change.taint_sets:
                if taints not in code_of:
                    code_of[taints] = len(sets)
                    sets.append(taints)
            more = np.array([code_of[taints] for taints in change.taint_sets], dtype=np.int32)
            known = copy.codes.get(TAINTS)
            copy.codes[TAINTS] = more if known is None else np.concatenate((known, more))
        if len(copy.codes) > COLUMNS_MAX or len(copy.codes.get(TAINTS, ())) > TAINT_SETS_MAX:
            raise RoomChangeRefused("it has more columns or sets of taints than anybody reads")

    def _write(self, copy: CopiedCluster, column: ColumnId, rows: Int64s, values: Values) -> None:
        kind, key = column
        if column == ZONE:
            copy.zones[rows] = values
        elif column == ARRIVAL:
            copy.arrivals[rows] = values
        elif column == TAINTS:
            self._columns.taint_codes[copy.start + rows] = copy.codes[TAINTS][values]
        elif kind in (pb.LABEL, pb.NAME):
            # Index -1 (no text) is the last entry.
            translated = np.append(copy.codes.get(column, _NO_CODES), np.int32(-1))
            self._text_column(column).codes[copy.start + rows] = translated[values]
        else:
            resource = PODS if column == SLOTS else key
            copy.resources.add(resource)
            self._amounts(resource)[copy.start + rows] = values

    def _take_the_rest(self, copy: CopiedCluster, change: RoomChange) -> None:
        for namespace, quotas in change.quotas.items():
            if quotas:
                copy.quotas[namespace] = quotas
            else:
                copy.quotas.pop(namespace, None)
        copy.workloads.update(change.workloads)

    def _checksum(self, copy: CopiedCluster) -> int:
        columns: dict[ColumnId, Values] = {ZONE: copy.zones, ARRIVAL: copy.arrivals}
        for resource in copy.resources:
            column = SLOTS if resource == PODS else (pb.FREE, resource)
            columns[column] = self._columns.free[resource][copy.rows]
        return checksum(columns, copy.nodes)

    def _restore(self, copy: CopiedCluster) -> None:
        """Remove all promises from the copy."""
        for resource in copy.resources:
            self._columns.left[resource][copy.rows] = self._columns.free[resource][copy.rows]
        copy.assumed = ()

    # Rows

    def _fit_rows(self, copy: CopiedCluster, nodes: int) -> None:
        """Resize the copy to `nodes` rows; new rows have default values."""
        before = copy.nodes
        if nodes > copy.capacity:
            self._move(copy, nodes)
        if nodes == before:
            return
        copy.nodes = nodes
        copy.zones, copy.arrivals = _resized(copy.zones, nodes), _resized(copy.arrivals, nodes)
        if nodes < before:
            self._clear(slice(copy.start + nodes, copy.start + before))
        elif len(copy.codes.get(TAINTS, ())):
            self._columns.taint_codes[copy.start + before : copy.start + nodes] = copy.codes[TAINTS][0]
        self._restore(copy)
        copy.room, self._whole = None, None

    def _move(self, copy: CopiedCluster, nodes: int) -> None:
        """Move the copy to the end, with space to grow; repack all copies when the columns are full."""
        capacity = nodes + nodes // 4 + _SPARE
        if self._used + capacity > self._columns.size:
            self._repack(copy, capacity)
            return
        start = self._used
        old, new = copy.rows, slice(start, start + copy.nodes)
        for values in self._all_columns():
            values[new] = values[old]
        self._clear(slice(copy.start, copy.start + copy.capacity))
        copy.start, copy.capacity, copy.room = start, capacity, None
        self._used += capacity

    def _repack(self, grown: CopiedCluster, capacity: int) -> None:
        copies = [copy for copy in self._clusters.values() if copy is not grown]
        needed = capacity + sum(copy.capacity for copy in copies)
        before, after = self._columns, _empty_columns(needed + needed // 2)
        after.taint_sets = before.taint_sets
        for resource in before.free:
            after.free[resource] = np.zeros(after.size, dtype=np.int64)
            after.left[resource] = np.zeros(after.size, dtype=np.int64)
        for column, texts in before.texts.items():
            fresh = np.full(after.size, -1, dtype=np.int32)
            after.texts[column] = TextColumn(fresh, texts.values, texts.code_of)
        self._columns, self._used = after, 0
        for copy in (*copies, grown):
            old = copy.rows
            copy.start, copy.room = self._used, None
            copy.capacity = capacity if copy is grown else copy.capacity
            for source, target in zip(_columns_of(before), _columns_of(after), strict=True):
                target[copy.rows] = source[old]
            self._used += copy.capacity
        self._whole = None
        self._forget_texts()

    def _forget_texts(self) -> None:
        """Drop texts that no cluster uses, in columns where most are unused."""
        for column, texts in self._columns.texts.items():
            held = [copy.codes[column] for copy in self._clusters.values() if column in copy.codes]
            used = np.unique(np.concatenate(held)) if held else _NO_CODES
            if len(texts.values) <= 2 * len(used) + _TEXT_SLACK:
                continue
            ours = np.full(len(texts.values) + 1, -1, dtype=np.int32)  # old codes -> new codes; -1 stays
            ours[used] = np.arange(len(used), dtype=np.int32)
            values = [texts.values[code] for code in used.tolist()]
            code_of = {value: code for code, value in enumerate(values)}
            self._columns.texts[column] = TextColumn(ours[texts.codes], values, code_of)
            for copy in self._clusters.values():
                if column in copy.codes:
                    copy.codes[column] = ours[copy.codes[column]]
                copy.room = None

    def _clear(self, rows: slice) -> None:
        columns = self._columns
        for amounts in (*columns.free.values(), *columns.left.values()):
            amounts[rows] = 0
        for texts in columns.texts.values():
            texts.codes[rows] = -1
        columns.taint_codes[rows] = 0

    def _all_columns(self) -> Iterable[Values]:
        return _columns_of(self._columns)

    def _text_column(self, column: ColumnId) -> TextColumn:
        texts = self._columns.texts.get(column)
        if texts is None:
            texts = self._columns.texts[column] = TextColumn(np.full(self._columns.size, -1, dtype=np.int32))
        return texts

    def _amounts(self, resource: str) -> Int64s:
        columns = self._columns
        if resource not in columns.free:
            columns.free[resource] = np.zeros(columns.size, dtype=np.int64)
            columns.left[resource] = np.zeros(columns.size, dtype=np.int64)
            self._whole = None
            for copy in self._clusters.values():
                copy.room = None  # its cached room does not know the resource
        return columns.free[resource]

    # Answering

    def assume(self, cluster: str, workloads: Sequence[AssumedWorkload]) -> None:
        """Place promises on the copy. It is cheap if promises were only added since the last call."""
        copy = self._clusters[cluster]
        asked = tuple(workloads)
        if copy.assumed == asked:
            return
        placed = len(copy.assumed)
        if copy.assumed != asked[:placed]:
            self._restore(copy)
            placed = 0
        groups = ([_group(part) for part in workload.components] for workload in asked[placed:])
        left = self._columns.left
        for placement in placed_first_fit(self._room(copy), groups)[0]:
            row = copy.start + placement.node
            for resource, units in ((PODS, 1), *placement.shape.requests):
                if resource in left:
                    left[resource][row] = max(0, int(left[resource][row]) - units * placement.count)
        copy.assumed = asked

    def answers(self, request: EstimateRequest, clusters: Sequence[str]) -> dict[str, RoomAnswer]:
        """Return what the estimators of the clusters would answer, with the promises of the last `assume`."""
        copies = [self._clusters[cluster] for cluster in clusters]
        if isinstance(request, ComponentSetsRequest):
            return {copy.name: self._sets(request, copy) for copy in copies}
        counts = self._counts(request.shape, copies)
        answers: dict[str, RoomAnswer] = {}
        for copy, existing in zip(copies, counts, strict=True):
            value = existing
            if copy.rules.counts_quotas:
                admitted = replicas_admitted(copy.quotas_of, request, copy.assumed, copy.matching)
                value = min(existing, admitted)
            answers[copy.name] = RoomAnswer(value, RoomParts(min(existing, value)) if copy.nodes else None)
        return answers

    def _sets(self, request: ComponentSetsRequest, copy: CopiedCluster) -> RoomAnswer:
        if not copy.nodes:
            return RoomAnswer(0, None)
        if not request.components:
            return RoomAnswer(UNLIMITED, None)
        placed = first_fit(self._room(copy), map(_group, request.components), topology=False).sets
        existing = value = min(placed, UNLIMITED)
        if copy.rules.counts_quotas:
            value = min(value, sets_admitted(copy.quotas_of, request, copy.assumed, copy.matching))
        return RoomAnswer(value, RoomParts(min(existing, value)))

    def _counts(self, shape: PodShape, copies: Sequence[CopiedCluster]) -> list[int]:
        rows = sum(copy.nodes for copy in copies)
        if rows < _SHARE_FOR_ONE_PASS * self._used:
            return [min(count(self._room(copy), shape, topology=False).total, UNLIMITED) for copy in copies]
        room, names, starts = self._all_rooms()
        per_node = np.minimum(fits(room, shape), UNLIMITED)
        totals = np.minimum(np.add.reduceat(per_node, starts), UNLIMITED).tolist()
        by_name = dict(zip(names, totals, strict=True))
        return [by_name[copy.name] for copy in copies]

    def _all_rooms(self) -> tuple[CopiedRoom, list[str], Int64s]:
        if self._whole is None:
            rows = slice(0, self._used)
            in_order = sorted(
                (copy for copy in self._clusters.values() if copy.capacity), key=lambda copy: copy.start
            )
            starts = np.array([copy.start for copy in in_order], dtype=np.int64)
            room = CopiedRoom(self._columns, rows, CopiedNodes(self._columns, rows))
            self._whole = room, [copy.name for copy in in_order], starts
        return self._whole

    def _room(self, copy: CopiedCluster) -> CopiedRoom:
        if copy.room is None:
            order = ZoneOrder(copy.zones.astype(np.int64), copy.arrivals, {})
            nodes = CopiedNodes(self._columns, copy.rows, order)
            copy.room = CopiedRoom(self._columns, copy.rows, nodes)
        return copy.room


_NO_CODES: Int32s = np.zeros(0, dtype=np.int32)


def _group(component: Component) -> PodGroup:
    return PodGroup(component.shape, component.replicas)


def _empty_columns(size: int) -> CopiedColumns:
    return CopiedColumns(size, {}, {}, {}, np.zeros(size, dtype=np.int32), [])


def _columns_of(columns: CopiedColumns) -> list[Values]:
    """Return all columns in a fixed order."""
    texts = (texts.codes for texts in columns.texts.values())
    return [*columns.free.values(), *columns.left.values(), *texts, columns.taint_codes]


def _resized(values: Values, nodes: int) -> Values:
    resized = np.zeros(nodes, dtype=values.dtype)
    common = min(nodes, len(values))
    resized[:common] = values[:common]
    return resized


def _check_codes(copy: CopiedCluster, change: RoomChange) -> None:
    """Check that every code refers to a text that was sent."""
    for column, parts in change.columns.items():
        if column[0] in (pb.LABEL, pb.NAME, pb.TAINTS):
            size = len(copy.codes.get(column, ()))
            if any(int(part.values.max()) >= size for part in parts):
                raise RoomChangeRefused(f"column {column} has a code beyond the {size} that were told")
    if change.nodes and not len(copy.codes.get(TAINTS, ())):
        raise RoomChangeRefused("no taint set was sent")
    if change.nodes and not len(copy.codes.get(NAME, ())):
        raise RoomChangeRefused("no node name was sent")
