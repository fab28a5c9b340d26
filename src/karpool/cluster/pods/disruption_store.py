"""The disruption cost of pods and what prevents their eviction, computed once per version of a pod.

`table` joins this to a snapshot: the snapshot has the node and the shape of a pod, this store has the cost of
moving it and what prevents that.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from karpool.model.errors import Invalid
from karpool.model.kubernetes import pod_disruption
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb, pod_cost
from karpool.model.kubernetes.times import moment
from karpool.packing.tables.columns import Bools, Int32s, Int64s, read_only
from karpool.packing.tables.room import Room

Float64s = npt.NDArray[np.float64]
Uint8s = npt.NDArray[np.uint8]

NONE = -1
SEVERAL = -2
# Flags of pods
RESCHEDULABLE = 1  # needs a new node when its node is removed
ACTIVE = 2
EVICTABLE = 4  # ignoring its own do-not-disrupt annotation
UNREADY = 8  # reports that it is not ready
STARTING = 16  # has a node and has not run yet: it may be pulling its image
CLAIMING = 32  # uses devices through resource claims
BARE_SHARE = 64  # uses a share of a device, and has no owner
# Groups without pods are dropped when they outnumber the pods by this much.
_SLACK = 128
Group = tuple[str, frozenset[tuple[str, str]]]  # namespace and labels: what budgets select by


@dataclass(frozen=True, slots=True)
class PodDisruptionTable:
    """Pods on nodes, by row. `budget` indexes the budgets; -1: none, -2: several."""

    keys: Sequence[str]
    rows: Int32s
    shapes: Int32s
    costs: Float64s
    flags: Uint8s
    protected_until: Float64s  # seconds since the epoch; inf: without end
    budget: Int32s
    since: Float64s  # the latest of binding, start and deletion; 0 if unknown
    starts: Int64s  # pods of row r: starts[r] to starts[r + 1]
    several: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # pod to names of its budgets

    def on(self, row: int) -> range:
        return range(int(self.starts[row]), int(self.starts[row + 1]))

    @property
    def moves(self) -> Bools:
        mask: Bools = (self.flags & RESCHEDULABLE) != 0
        return mask


def _protected_until(pod: Pod, seconds: float) -> float:
    """Return until when do-not-disrupt protects the pod; 0 without it, no end before the pod has started."""
    if seconds <= 0:
        return 0.0
    started = moment(pod.status.start_time)
    return inf if started is None else started + seconds


def flags_of(pod: Pod) -> int:
    ready = condition(pod.status.conditions, "Ready")
    return (
        RESCHEDULABLE * pod_disruption.is_reschedulable(pod)
        | ACTIVE * pod_disruption.is_active(pod)
        | EVICTABLE * pod_disruption.is_evictable(pod, protected=False)
        | UNREADY * (ready is not None and ready.status == "False")
        | STARTING * (pod.status.phase == "Pending" and not pod.is_terminating)
        | CLAIMING * _has_resource_claims(pod)
        | BARE_SHARE * pod_disruption.is_bare_share(pod)
    )


def _has_resource_claims(pod: Pod) -> bool:
    status = pod.status
    return bool(
        pod.spec.resource_claims
        or status.resource_claim_statuses
        or status.extended_resource_claim_status is not None
    )


class _Ordered(NamedTuple):
    pods: Mapping[str, int]
    keys: Sequence[str]
    shapes: Sequence[int]


class PodDisruptionStore:
    def __init__(self) -> None:
        self._slot_of: dict[str, int] = {}
        self._spare: list[int] = []
        self._costs = array("d")
        self._flags = array("B")
        self._protected = array("d")
        self._since = array("d")
        self._groups = array("l")
        self._group_ids: dict[Group, int] = {}
        self._wishes: dict[str, str] = {}  # do-not-disrupt annotations that are ignored
        self._nominated: dict[str, str] = {}  # pending pod to nominated node
        self._waiting: dict[str, None] = {}
        self._ordered: list[_Ordered] = []  # by row of the last snapshot

    def put(self, key: ObjectKey, pod: Pod) -> None:
        if pod.is_terminal:
            self.drop(key)
            return
        name = str(key)
        slot = self._slot_of.get(name)
        if slot is None:
            slot = self._slot_of[name] = self._spare.pop() if self._spare else self._grow()
        for table in (self._wishes, self._nominated, self._waiting):
            table.pop(name, None)
        seconds = 0.0
        try:
            seconds = pod_disruption.protected_seconds(pod)
        except Invalid as error:
            self._wishes[name] = str(error)
        self._costs[slot] = pod_cost(pod)
        self._flags[slot] = flags_of(pod)
        self._protected[slot] = _protected_until(pod, seconds)
        self._since[slot] = _last_event(pod)
        labels = pod.metadata.labels
        group = pod.metadata.namespace, frozenset(labels.items()) if labels else _NO_LABELS
        self._groups[slot] = self._group_ids.setdefault(group, len(self._group_ids))
        if not pod.spec.node_name and not pod.is_terminating:
            if pod.status.nominated_node_name:
                self._nominated[name] = pod.status.nominated_node_name
            if pod_disruption.is_provisionable(pod):
                self._waiting[name] = None

    def drop(self, key: ObjectKey) -> None:
        name = str(key)
        for table in (self._wishes, self._nominated, self._waiting):
            table.pop(name, None)
        slot = self._slot_of.pop(name, None)
        if slot is not None:
            self._spare.append(slot)

    def _grow(self) -> int:
        for column in (self._costs, self._protected, self._since):
            column.append(0.0)
        self._flags.append(0)
        self._groups.append(0)
        return len(self._costs) - 1

    # Reading

    def problems(self) -> Iterable[str]:
        return (f"Pod {name}: {why}" for name, why in self._wishes.items())

    def nominated(self) -> frozenset[str]:
        return frozenset(self._nominated.values())

    def pending(self, snapshot: Room) -> list[str]:
        return [name for name in self._waiting if name in snapshot.pending]

    def table(self, snapshot: Room, budgets: Sequence[CompiledPdb]) -> PodDisruptionTable:
        """Return the table of a snapshot; unknown pods count as ordinary pods that do not move."""
        keys: list[str] = []
        shapes: list[int] = []
        counts = np.zeros(snapshot.n + 1, dtype=np.int64)
        for row in range(snapshot.n):
            ordered = self._in_order(row, snapshot.pods_on(row))
            counts[row + 1] = len(ordered.keys)
            keys += ordered.keys
            shapes += ordered.shapes
        del self._ordered[snapshot.n :]
        starts = np.cumsum(counts)
        self._drop_unused_groups()
        find = self._slot_of.get
        slots = np.fromiter((find(key, NONE) for key in keys), dtype=np.int64, count=len(keys))
        is_seen, slots = slots >= 0, np.maximum(slots, 0)

        def column(
            values: "array[float] | array[int]", dtype: type[np.generic], missing: float
        ) -> np.ndarray:
            whole = np.array(values, dtype=dtype) if len(values) else np.zeros(1, dtype=dtype)
            return read_only(np.where(is_seen, whole[slots], np.array(missing, dtype=dtype)))

        group = column(self._groups, np.int64, NONE)
        budget_of_group, several_of_group = self._selected_by(budgets)
        budget = np.where(group >= 0, budget_of_group[np.maximum(group, 0)], NONE).astype(np.int32)
        several = {
            int(pod): tuple(budgets[number].name for number in several_of_group[int(group[pod])])
            for pod in np.flatnonzero(budget == SEVERAL)
        }
        return PodDisruptionTable(
            keys=keys,
            rows=read_only(np.repeat(np.arange(snapshot.n, dtype=np.int32), counts[1:])),
            shapes=read_only(np.array(shapes, dtype=np.int32)),
            costs=column(self._costs, np.float64, 1.0),
            flags=column(self._flags, np.uint8, ACTIVE),
            protected_until=column(self._protected, np.float64, 0.0),
            budget=read_only(budget),
            since=column(self._since, np.float64, 0.0),
            starts=read_only(starts),
            several=several,
        )

    def _in_order(self, row: int, pods: Mapping[str, int]) -> _Ordered:
        """Return the pods of a node by name; cached while the snapshot has the same object."""
        if row == len(self._ordered):
            self._ordered.append(_Ordered({}, (), ()))
        ordered = self._ordered[row]
        if ordered.pods is not pods:
            keys = sorted(pods)
            ordered = self._ordered[row] = _Ordered(pods, keys, [pods[key] for key in keys])
        return ordered

    def _drop_unused_groups(self) -> None:
        """Drop the labels that no pod has, from time to time."""
        if len(self._group_ids) <= 2 * len(self._slot_of) + _SLACK:
            return
        by_id = {number: group for group, number in self._group_ids.items()}
        old = self._groups
        self._group_ids = {}
        for slot in self._slot_of.values():
            group = by_id[old[slot]]
            old[slot] = self._group_ids.setdefault(group, len(self._group_ids))

    def _selected_by(self, budgets: Sequence[CompiledPdb]) -> tuple[Int32s, dict[int, list[int]]]:
        """Return by group of pods the budget that selects it, and all of them if there are several."""
        budget_of_group = np.full(max(len(self._group_ids), 1), NONE, dtype=np.int32)
        several: dict[int, list[int]] = {}
        by_namespace: dict[str, list[int]] = {}
        for number, budget in enumerate(budgets):
            by_namespace.setdefault(budget.namespace, []).append(number)
        for (namespace, labels), group in self._group_ids.items():
            in_namespace = by_namespace.get(namespace)
            if not in_namespace:
                continue
            pairs = dict(labels)
            chosen = [
                number
                for number in in_namespace
                if (selector := budgets[number].selector) is not None and selector.matches(pairs)
            ]
            if len(chosen) == 1:
                budget_of_group[group] = chosen[0]
            elif chosen:
                budget_of_group[group] = SEVERAL
                several[group] = chosen
        return budget_of_group, several


_NO_LABELS: frozenset[tuple[str, str]] = frozenset()


def _last_event(pod: Pod) -> float:
    """Return when the pod was last bound, started or deleted, which restarts `consolidateAfter`.

    Daemons return 0, because they come with their node.
    """
    if pod_disruption.is_daemon(pod):
        return 0.0
    scheduled = condition(pod.status.conditions, "PodScheduled")
    moments = (
        moment(pod.metadata.deletion_timestamp),
        moment(scheduled.last_transition_time) if scheduled is not None else None,
        moment(pod.status.start_time),
    )
    return max((at for at in moments if at is not None), default=0.0)
