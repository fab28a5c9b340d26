"""Changes of a room on the wire: their content, checks and limits.

A change leads from one state of the columns to the next and has one or more parts; it is applied after the
last part. It comes from another process: every number is checked before use, and an impossible one raises
`RoomChangeRefused`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from karpool.cluster.pods.owner_store import Requests
from karpool.model.kubernetes.resource_quota import QuotaHeadroom, ScopeRequirement
from karpool.model.taints import Taint
from karpool.packing.tables.columns import Int64s
from karpool.wire.proto import rooms_pb2 as pb

PROTOCOL = 1
NODES_MAX = 200_000
COLUMNS_MAX = 1_024  # resources and labels of one cluster
STRING_MAX = 512  # a label's value has 63 characters at most, a node's name 253
TAINT_SETS_MAX = 50_000
TAINTS_MAX = 100  # per node
NAMESPACES_MAX = 100_000
QUOTAS_MAX = 1_000  # per namespace
DIGITS_MAX = 40  # of the rest of a quota
WORKLOADS_MAX = 50_000  # that one caller follows in one cluster
PARTS_MAX = 512  # of 512 KiB each

ColumnId = tuple[pb.ColumnKind, str]  # kind and key
SLOTS: ColumnId = (pb.SLOTS, "")
NAME: ColumnId = (pb.NAME, "")
TAINTS: ColumnId = (pb.TAINTS, "")
ZONE: ColumnId = (pb.ZONE, "")
ARRIVAL: ColumnId = (pb.ARRIVAL, "")
Values = npt.NDArray[Any]
WorkloadKey = tuple[str, str, str, str]  # namespace, API version, kind, name
PodsOfWorkload = tuple[Counter[Requests], int]

_WIDE = (pb.SLOTS, pb.FREE, pb.ARRIVAL)  # values of 8 bytes
_KEYED = (pb.FREE, pb.LABEL)
_SINGLE = (SLOTS, NAME, TAINTS, ZONE, ARRIVAL)


class RoomChangeRefused(Exception):
    """The received message is not a valid change of this room."""


def width_of(column: ColumnId) -> npt.DTypeLike:
    return np.dtype("<i8") if column[0] in _WIDE else np.dtype("<i4")


def absent_of(column: ColumnId) -> int:
    """Return the default value of a column."""
    return -1 if column[0] in (pb.LABEL, pb.NAME) else 0


@dataclass(frozen=True, slots=True)
class ColumnChange:
    rows: Int64s
    values: Values


@dataclass
class RoomChange:
    """A change; `base` 0 means that it contains the whole room."""

    cluster: str
    epoch: int
    base: int
    sequence: int
    nodes: int
    columns: dict[ColumnId, list[ColumnChange]] = field(default_factory=dict)
    strings: dict[ColumnId, list[str]] = field(default_factory=dict)
    dropped: list[ColumnId] = field(default_factory=list)
    taint_sets: list[tuple[Taint, ...]] = field(default_factory=list)
    quotas: dict[str, tuple[QuotaHeadroom, ...]] = field(default_factory=dict)
    workloads: dict[WorkloadKey, PodsOfWorkload] = field(default_factory=dict)
    rules: pb.RoomRules | None = None
    checksum: int = 0

    @property
    def changes_nodes(self) -> bool:
        """Whether more than amounts changes."""
        return (
            not self.base
            or bool(self.dropped)
            or any(kind not in (pb.SLOTS, pb.FREE) for kind, _ in self.columns)
        )


class RoomChangeReader:
    """Assembles the parts of the changes of one cluster."""

    def __init__(self) -> None:
        self._parts = 0
        self._change: RoomChange | None = None

    def read(self, patch: pb.RoomPatch) -> RoomChange | None:
        """Return the change that this part completes; None while parts are missing.

        Raises RoomChangeRefused.
        """
        change = self._change
        if change is None:
            change = self._change = self._begin(patch)
        elif (change.epoch, change.base, change.sequence, change.nodes) != (
            patch.epoch,
            patch.base,
            patch.sequence,
            patch.nodes,
        ):
            raise RoomChangeRefused("a part belongs to another change than the ones before it")
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise RoomChangeRefused(f"a change has more than {PARTS_MAX} parts")
        _add(change, patch)
        if patch.more:
            return None
        change.checksum = patch.checksum
        self._change, self._parts = None, 0
        return change

    def _begin(self, patch: pb.RoomPatch) -> RoomChange:
        if not patch.epoch or not patch.sequence or patch.sequence < patch.base:
            raise RoomChangeRefused(f"sequence {patch.sequence} cannot follow {patch.base}")
        if patch.nodes > NODES_MAX:
            raise RoomChangeRefused(f"{patch.nodes} nodes are more than {NODES_MAX}")
        if not patch.base and not patch.HasField("rules"):
            raise RoomChangeRefused("the whole comes without its rules")
        rules = patch.rules if patch.HasField("rules") else None
        return RoomChange(patch.cluster, patch.epoch, patch.base, patch.sequence, patch.nodes, rules=rules)


def _add(change: RoomChange, patch: pb.RoomPatch) -> None:
    for message in patch.columns:
        column = _column_id(message.kind, message.key)
        if message.strings:
            change.strings.setdefault(column, []).extend(map(_bounded, message.strings))
        if message.values:
            change.columns.setdefault(column, []).append(_column_change(message, column, patch.nodes))
        if len(change.columns) + len(change.strings) > 2 * COLUMNS_MAX:
            raise RoomChangeRefused(f"more than {COLUMNS_MAX} columns")
    change.dropped += (_column_id(message.kind, message.key) for message in patch.dropped)
    change.taint_sets += map(_taint_set, patch.taint_sets)
    if len(change.taint_sets) > TAINT_SETS_MAX:
        raise RoomChangeRefused(f"more than {TAINT_SETS_MAX} sets of taints")
    for quotas in patch.quotas:
        if len(quotas.quotas) > QUOTAS_MAX or len(change.quotas) >= NAMESPACES_MAX:
            raise RoomChangeRefused(
                f"too many quotas: {QUOTAS_MAX} in a namespace, {NAMESPACES_MAX} of these"
            )
        change.quotas[_bounded(quotas.namespace)] = tuple(map(_quota, quotas.quotas))
    for pods in patch.workloads:
        if len(change.workloads) >= WORKLOADS_MAX:
            raise RoomChangeRefused(f"more than {WORKLOADS_MAX} workloads")
        bound: Counter[Requests] = Counter()
        for group in pods.bound:
            bound[tuple(sorted(group.requests.items()))] += group.pods
        change.workloads[workload_key(pods.workload)] = bound, pods.waiting


def workload_key(message: pb.FollowedWorkload) -> WorkloadKey:
    return message.namespace, message.api_version, message.kind, message.name


def _column_id(kind: pb.ColumnKind, key: str) -> ColumnId:
    column = (kind, _bounded(key))
    if kind not in _KEYED and column not in _SINGLE:
        raise RoomChangeRefused(f"a column of kind {kind} and key {key[:40]!r} is not known")
    return column


def _column_change(message: pb.ColumnPatch, column: ColumnId, nodes: int) -> ColumnChange:
    dtype = np.dtype(width_of(column))
    if len(message.values) % dtype.itemsize or len(message.rows) % 4:
        raise RoomChangeRefused(f"column {column} is cut within a number")
    values = np.frombuffer(message.values, dtype=dtype)
    if message.rows:
        rows = np.frombuffer(message.rows, dtype="<i4").astype(np.int64)
    else:
        rows = np.arange(message.first, message.first + len(values), dtype=np.int64)
    if len(rows) != len(values):
        raise RoomChangeRefused(f"column {column} has {len(values)} values for {len(rows)} rows")
    if int(rows.min()) < 0 or int(rows.max()) >= nodes:
        raise RoomChangeRefused(f"column {column} names a row beyond {nodes} nodes")
    if int(values.min()) < absent_of(column):
        raise RoomChangeRefused(f"column {column} holds {int(values.min())}")
    return ColumnChange(rows, values)


def _bounded(text: str) -> str:
    if len(text) > STRING_MAX:
        raise RoomChangeRefused(f"a text of {len(text)} characters, more than {STRING_MAX}")
    return text


def _taint_set(message: pb.RoomTaintSet) -> tuple[Taint, ...]:
    if len(message.taints) > TAINTS_MAX:
        raise RoomChangeRefused(f"{len(message.taints)} taints on one node, more than {TAINTS_MAX}")
    return tuple(
        Taint(key=_bounded(taint.key), value=_bounded(taint.value), effect=_bounded(taint.effect))
        for taint in message.taints
    )


def _quota(message: pb.QuotaRoom) -> QuotaHeadroom:
    scopes = tuple(
        ScopeRequirement(scope_name=scope.scope, operator=scope.operator, values=list(scope.values) or None)
        for scope in message.scopes
    )
    free = {name: _units(amount.units) for name, amount in message.free.items()}
    return QuotaHeadroom(message.name, free, scopes)


def _units(text: str) -> int:
    digits = text.removeprefix("-")
    if len(digits) > DIGITS_MAX or not digits.isascii() or not digits.isdecimal():
        raise RoomChangeRefused(f"the rest of a quota is {text[:50]!r}, which is not a number")
    return int(text)


# Writing


def quota_message(quota: QuotaHeadroom) -> pb.QuotaRoom:
    return pb.QuotaRoom(
        name=quota.name,
        free={name: pb.QuotaAmount(units=str(units)) for name, units in quota.free.items()},
        scopes=[
            pb.QuotaScope(scope=scope.scope_name, operator=scope.operator, values=scope.values or ())
            for scope in quota.selectors
        ],
    )


def workload_message(workload: WorkloadKey, pods: PodsOfWorkload) -> pb.WorkloadPods:
    namespace, api_version, kind, name = workload
    bound, waiting = pods
    return pb.WorkloadPods(
        workload=pb.FollowedWorkload(namespace=namespace, api_version=api_version, kind=kind, name=name),
        bound=[pb.BoundPods(requests=dict(requests), pods=count) for requests, count in bound.items()],
        waiting=waiting,
    )


def taint_set_message(taints: Iterable[Taint]) -> pb.RoomTaintSet:
    return pb.RoomTaintSet(
        taints=[pb.RoomTaint(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints]
    )


# Computed by both sides


def checksum(columns: Mapping[ColumnId, Values], nodes: int) -> int:
    """Return a checksum of amounts and ranks, so that a wrong copy is noticed with the next change."""
    weights = _weights(nodes)
    total = 0
    for (kind, key), values in columns.items():
        if kind in _WIDE or kind == pb.ZONE:
            part = int((values[:nodes].astype(np.uint64) * weights).sum(dtype=np.uint64))
            total += part * (crc32(f"{kind}/{key}".encode()) | 1)
    return total & 0xFFFF_FFFF_FFFF_FFFF


_WEIGHTS: list[npt.NDArray[np.uint64]] = [np.arange(1, 2, 2, dtype=np.uint64)]


def _weights(nodes: int) -> npt.NDArray[np.uint64]:
    """Return 1, 3, 5, ...: odd, so that no bit is lost; different, so that swapped rows are noticed."""
    if len(_WEIGHTS[0]) < nodes:
        _WEIGHTS[0] = np.arange(1, 4 * nodes + 1, 2, dtype=np.uint64)
    return _WEIGHTS[0][:nodes]


def differing(before: Values | None, after: Values, absent: int) -> Sequence[int] | Int64s:
    """Return the rows of `after` that differ from `before`."""
    if before is None:
        return np.flatnonzero(after != absent)
    common = min(len(before), len(after))
    changed = np.flatnonzero(before[:common] != after[:common])
    if len(after) > common:
        changed = np.concatenate((changed, common + np.flatnonzero(after[common:] != absent)))
    return changed
