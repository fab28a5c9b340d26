"""The estimator's side: the room of one cluster as columns, and the changes since the state of a caller.

A state is published when a caller reads and something has changed. It is compared with the caller's state,
column by column. So a slow caller gets fewer and larger changes, and no backlog grows. Texts are numbered in
order of appearance. A number is never reused within an epoch, and an epoch ends when most of its texts belong
to deleted nodes.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from karpool.cluster.aspects import Aspect
from karpool.cluster.snapshot import Snapshot
from karpool.model.kubernetes.meta import NO_LABELS, Labels
from karpool.model.kubernetes.resource_quota import QuotaHeadroom
from karpool.packing.tables.columns import Int32s, read_only
from karpool.packing.tables.node_table import NodeTable, TaintSet
from karpool.packing.tables.room import Room
from karpool.rooms.room_change import (
    ARRIVAL,
    COLUMNS_MAX,
    NAME,
    NODES_MAX,
    SLOTS,
    TAINTS,
    ZONE,
    ColumnId,
    PodsOfWorkload,
    Values,
    WorkloadKey,
    absent_of,
    checksum,
    differing,
    quota_message,
    taint_set_message,
    width_of,
    workload_message,
)
from karpool.wire.proto import rooms_pb2 as pb

PART_BYTES = 512 * 1024  # gRPC allows 4 MiB per message; smaller parts let other requests pass in between
_ROWS_AT_ONCE = 32 * 1024
_STRINGS_AT_ONCE = 2_000
_SLACK = 1_024  # unused texts that are tolerated, in addition to the number of nodes

Quotas = Mapping[str, Sequence[QuotaHeadroom]]


@dataclass(frozen=True, slots=True)
class PublishedRoom:
    epoch: int
    sequence: int
    nodes: int
    columns: Mapping[ColumnId, Values]
    strings: Mapping[ColumnId, int]  # number of texts
    taint_sets: int
    quotas: Quotas


class TooLarge(Exception):
    """The room is larger than a caller accepts."""


@dataclass
class _NodeColumns:
    """Columns of nodes other than their free capacity, from one node table."""

    table: NodeTable | None = None
    names: Sequence[str] = ()
    labels: list[Labels] = field(default_factory=list)
    columns: dict[ColumnId, Values] = field(default_factory=dict)


class RoomPublisher:
    """Publishes the room of one cluster; `rules` say how answers are computed from it."""

    def __init__(self, rules: pb.RoomRules) -> None:
        self.rules = rules
        self._sequence = 0
        self._room: Room | None = None
        self._latest: PublishedRoom | None = None
        self._begin_epoch()

    def publish(self, snapshot: Snapshot) -> PublishedRoom:
        """Return the current state; it is the same object until something changes. Raises TooLarge."""
        quotas: Quotas = snapshot.facts.quotas if Aspect.QUOTAS in snapshot.facts.aspects else {}
        latest, room = self._latest, snapshot.room
        if latest is not None and self._room is room and latest.quotas is quotas:
            return latest
        if room.n > NODES_MAX:
            raise TooLarge(f"it has {room.n} nodes, more than {NODES_MAX}")
        if room.nodes is not self._nodes.table:
            self._read_nodes(room.nodes)
        columns: dict[ColumnId, Values] = {SLOTS: room.slots, **self._nodes.columns}
        columns.update(((pb.FREE, resource), room.free(resource)) for resource in room.resources)
        if len(columns) > COLUMNS_MAX:
            raise TooLarge(f"its nodes have {len(columns)} resources and labels, more than {COLUMNS_MAX}")
        self._sequence += 1
        sizes = {column: len(strings) for column, strings in self._strings.items()}
        self._room = room
        self._latest = PublishedRoom(
            self.epoch, self._sequence, room.n, columns, sizes, len(self._taint_sets), quotas
        )
        return self._latest

    def parts(
        self,
        cluster: str,
        before: PublishedRoom | None,
        after: PublishedRoom,
        workloads: Mapping[WorkloadKey, PodsOfWorkload],
    ) -> Iterator[pb.RoomPatch]:
        """Yield the patches from one state to another; all of it if `before` is None or of another epoch."""
        if before is not None and before.epoch != after.epoch:
            before = None
        patch: pb.RoomPatch | None = None
        size = 0
        for piece, cost in self._pieces(before, after, workloads):
            if patch is not None and size + cost > PART_BYTES:
                patch.more = True
                yield patch
                patch = None
            if patch is None:
                patch, size = self._part(cluster, before, after), 0
            _put(patch, piece)
            size += cost
        patch = patch or self._part(cluster, before, after)
        patch.checksum = checksum(after.columns, after.nodes)
        yield patch

    def _part(self, cluster: str, before: PublishedRoom | None, after: PublishedRoom) -> pb.RoomPatch:
        return pb.RoomPatch(
            cluster=cluster,
            epoch=after.epoch,
            base=0 if before is None else before.sequence,
            sequence=after.sequence,
            nodes=after.nodes,
            rules=self.rules if before is None else None,
        )

    def _pieces(
        self,
        before: PublishedRoom | None,
        after: PublishedRoom,
        workloads: Mapping[WorkloadKey, PodsOfWorkload],
    ) -> Iterator[tuple["_Piece", int]]:
        """Yield the parts of a patch, each with its approximate size in bytes."""
        known_sets = 0 if before is None else before.taint_sets
        for taints in self._taint_sets[known_sets : after.taint_sets]:
            yield taint_set_message(taints), 100 * len(taints)
        for column, values in after.columns.items():
            old = None if before is None else before.columns.get(column)
            if old is not values:
                sent = 0 if before is None else before.strings.get(column, 0)
                yield from self._column_pieces(column, old, values, slice(sent, after.strings.get(column)))
        for kind, key in before.columns.keys() - after.columns.keys() if before is not None else ():
            yield pb.ColumnName(kind=kind, key=key), len(key)
        for namespace in _changed({} if before is None else before.quotas, after.quotas):
            message = pb.NamespaceQuotas(
                namespace=namespace, quotas=map(quota_message, after.quotas.get(namespace, ()))
            )
            yield message, message.ByteSize()
        for workload, pods in workloads.items():
            pods_message = workload_message(workload, pods)
            yield pods_message, pods_message.ByteSize()

    def _column_pieces(
        self, column: ColumnId, old: Values | None, values: Values, new: slice
    ) -> Iterator[tuple[pb.ColumnPatch, int]]:
        kind, key = column
        strings = self._strings[column][new] if column in self._strings else []
        for start in range(0, len(strings), _STRINGS_AT_ONCE):
            some = strings[start : start + _STRINGS_AT_ONCE]
            yield pb.ColumnPatch(kind=kind, key=key, strings=some), sum(map(len, some)) + 4 * len(some)
        rows = differing(old, values, absent_of(column))
        dtype = width_of(column)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            chosen = np.asarray(rows[start : start + _ROWS_AT_ONCE])
            message = pb.ColumnPatch(kind=kind, key=key, values=values[chosen].astype(dtype).tobytes())
            first, last = int(chosen[0]), int(chosen[-1])
            if last - first + 1 == len(chosen):
                message.first = first
            else:
                message.rows = chosen.astype("<i4").tobytes()
            yield message, len(message.values) + len(message.rows)

    # Names and labels of nodes

    def _begin_epoch(self) -> None:
        self.epoch = secrets.randbits(63) + 1
        self._strings: dict[ColumnId, list[str]] = {}
        self._code_of: dict[ColumnId, dict[str, int]] = {}
        self._taint_sets: list[TaintSet] = []
        self._code_of_taints: dict[TaintSet, int] = {}
        self._nodes = _NodeColumns()

    def _read_nodes(self, table: NodeTable) -> None:
        limit = 2 * table.n + _SLACK
        sizes = [len(self._taint_sets), *map(len, self._strings.values())]
        if max(sizes) > limit:
            self._begin_epoch()
        old, names = self._nodes, table.names
        labels = [table.labels_of(row) for row in range(table.n)]
        changed = [
            row
            for row in range(table.n)
            if row >= len(old.labels)
            or names[row] != old.names[row]
            or (labels[row] is not old.labels[row] and labels[row] != old.labels[row])
        ]
        columns = self._recoded(old, names, labels, changed)
        columns[TAINTS] = self._taint_column(table)
        columns[ZONE] = read_only(table.zone_order.zones.astype(np.int32))
        columns[ARRIVAL] = table.zone_order.arrivals
        self._nodes = _NodeColumns(table, names, labels, columns)

    def _recoded(
        self, old: _NodeColumns, names: Sequence[str], labels: Sequence[Labels], changed: Sequence[int]
    ) -> dict[ColumnId, Values]:
        """Return names and labels as codes: the old ones, with the changed rows replaced."""
        nodes = len(names)
        columns: dict[ColumnId, Values] = {
            column: _resized(values, nodes)
            for column, values in old.columns.items()
            if column in self._strings
        }
        touched: set[ColumnId] = {column for column in columns if columns[column] is not old.columns[column]}

        def write(column: ColumnId, row: int, code: int) -> None:
            if column not in touched:
                latest = columns.get(column)
                columns[column] = np.full(nodes, -1, np.int32) if latest is None else latest.copy()
                touched.add(column)
            columns[column][row] = code

        for row in changed:
            write(NAME, row, self._code(NAME, names[row]))
            before = old.labels[row] if row < len(old.labels) else NO_LABELS
            for key in before.keys() - labels[row].keys():
                write((pb.LABEL, key), row, -1)
            for key, value in labels[row].items():
                column = (pb.LABEL, key)
                write(column, row, self._code(column, value))
        return {column: read_only(values) for column, values in columns.items()}

    def _code(self, column: ColumnId, text: str) -> int:
        codes = self._code_of.setdefault(column, {})
        code = codes.get(text)
        if code is None:
            code = codes[text] = len(codes)
            self._strings.setdefault(column, []).append(text)
        return code

    def _taint_column(self, table: NodeTable) -> Int32s:
        by_code = np.zeros(len(table.taint_sets) + 1, dtype=np.int32)
        for code in np.unique(table.taint_codes).tolist():
            taints = table.taint_sets[code]
            if taints not in self._code_of_taints:
                self._code_of_taints[taints] = len(self._taint_sets)
                self._taint_sets.append(taints)
            by_code[code] = self._code_of_taints[taints]
        return read_only(by_code[table.taint_codes])


_Piece = pb.ColumnPatch | pb.ColumnName | pb.RoomTaintSet | pb.NamespaceQuotas | pb.WorkloadPods


def _put(patch: pb.RoomPatch, piece: _Piece) -> None:
    match piece:
        case pb.ColumnPatch():
            patch.columns.append(piece)
        case pb.ColumnName():
            patch.dropped.append(piece)
        case pb.RoomTaintSet():
            patch.taint_sets.append(piece)
        case pb.NamespaceQuotas():
            patch.quotas.append(piece)
        case pb.WorkloadPods():
            patch.workloads.append(piece)


def _resized(values: Values, nodes: int) -> Values:
    if len(values) == nodes:
        return values
    resized = np.full(nodes, -1, dtype=values.dtype)
    common = min(nodes, len(values))
    resized[:common] = values[:common]
    return resized


def _changed(before: Quotas, after: Quotas) -> Iterable[str]:
    if before is after:
        return ()
    return [
        namespace
        for namespace in {**before, **after}
        if tuple(before.get(namespace, ())) != tuple(after.get(namespace, ()))
    ]
