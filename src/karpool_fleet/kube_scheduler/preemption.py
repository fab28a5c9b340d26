"""Preemption: which pods to delete so that a more important one can run.

For each node that may help: does the pod fit without all pods of lower priority? Then as many of them as
possible are kept, first those whose disruption budget would be violated, then the more important. The chosen
node has the fewest budget violations, then the lowest highest priority, the lowest sum of priorities, the
fewest victims, and the latest start. (kube-scheduler pkg/scheduler/framework/preemption)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import PODS
from karpool.packing.counting.count import fits, room_for
from karpool.packing.feasibility import admitted
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import PodPlacement, Room, snapshot_of
from karpool.packing.topology.topology import Topology
from karpool_fleet.kube_scheduler.board import PlacementBoard


@dataclass(frozen=True, slots=True)
class Runner:
    """The fields of a running pod that preemption needs."""

    pod: Pod
    shape: PodShape

    @property
    def priority(self) -> int:
        return self.pod.spec.priority or 0

    @property
    def importance(self) -> tuple[int, str, str]:
        """Return a sort key, the most important first: priority, then the longest running."""
        return (-self.priority, self.pod.status.start_time or "9999", self.pod.metadata.key)


@dataclass(frozen=True, slots=True)
class Preemption:
    node: str
    victims: tuple[Pod, ...]
    broken_budgets: int


def preempt(
    snapshot: Room,
    shape: PodShape,
    helpable: Bools,
    find: Callable[[str], Pod | None],
    budgets: Sequence[CompiledPdb],
    *,
    reserved: Sequence[tuple[PodShape, int]] = (),
    candidates: int = 100,
    start: float = 0.0,
) -> Preemption | None:
    """Choose node and victims. `find` returns a pod by `namespace/name`; `reserved` pods are promised a row.

    At most `candidates` nodes with enough room are checked closely, starting at the position `start` (0 to
    1).
    """
    lower = snapshot.shapes.where(
        ("kube-scheduler below", shape.priority), lambda other: other.priority < shape.priority
    )
    if not lower.any():
        return None
    possible = np.flatnonzero(helpable & _fits_without(snapshot, shape, lower))
    chosen: list[tuple[tuple[object, ...], Preemption]] = []
    first = int(start * len(possible)) if len(possible) > candidates else 0
    for row in np.roll(possible, -first)[: max(candidates, len(possible) // 10)].tolist():
        runners = [
            Runner(pod, snapshot.shapes[number])
            for key, number in snapshot.pods_on(row).items()
            if (pod := find(key)) is not None
        ]
        promised = [other for other, place in reserved if place == row]
        victims = _on_node(_Trial(snapshot, shape, row, runners, promised), runners, budgets)
        if victims is not None:
            chosen.append((_cost(victims), victims))
    return min(chosen, key=lambda choice: choice[0])[1] if chosen else None


def _cost(found: Preemption) -> tuple[object, ...]:
    priorities = [pod.spec.priority or 0 for pod in found.victims]
    highest = max(priorities)
    starts = [pod.status.start_time or "" for pod in found.victims if (pod.spec.priority or 0) == highest]
    # Later starts are better, so the order of the text is reversed.
    youngest = tuple(-ord(letter) for letter in min(starts))
    return (found.broken_budgets, highest, sum(p + 2**31 for p in priorities), len(priorities), youngest)


def _fits_without(snapshot: Room, shape: PodShape, lower: Bools) -> Bools:
    """Return nodes with room for the pod without all pods of some shapes; ports and topology do not count."""
    bound, shapes = snapshot.bound, snapshot.shapes
    going = lower[bound.shape]
    if not going.any():
        return np.zeros(snapshot.n, dtype=np.bool_)
    board = PlacementBoard(snapshot)
    for resource in (PODS, *(name for name, _ in shape.requests)):
        units = np.zeros(len(shapes))
        for number in np.flatnonzero(lower).tolist():
            units[number] = 1 if resource == PODS else dict(shapes[number].requests).get(resource, 0)
        freed: Int64s = np.bincount(
            bound.node[going], weights=(units[bound.shape] * bound.count)[going], minlength=snapshot.n
        ).astype(np.int64)
        if resource == PODS:
            board.slots += freed
        else:
            board.give(resource, freed)
    mask: Bools = admitted(snapshot.nodes, shape) & (room_for(board, shape) > 0)
    return mask & (np.bincount(bound.node[going], minlength=snapshot.n) > 0)


def _on_node(trial: "_Trial", runners: Iterable[Runner], budgets: Sequence[CompiledPdb]) -> Preemption | None:
    lower = [runner for runner in runners if runner.priority < trial.shape.priority]
    for victim in lower:
        trial.remove(victim)
    if not lower or not trial.fits():
        return None
    breaking, others = _split_by_budget(sorted(lower, key=lambda victim: victim.importance), budgets)
    victims: list[Runner] = []
    broken = 0
    for group, breaks in ((breaking, True), (others, False)):
        for victim in group:
            trial.add(victim)
            if not trial.fits():
                trial.remove(victim)
                victims.append(victim)
                broken += breaks
    if not victims:
        return None
    victims.sort(key=lambda victim: victim.importance)
    return Preemption(trial.node, tuple(victim.pod for victim in victims), broken)


def _split_by_budget(
    pods: Iterable[Runner], budgets: Sequence[CompiledPdb]
) -> tuple[list[Runner], list[Runner]]:
    """Return the pods that would violate a budget if all were deleted in this order, and the others."""
    left = [budget.disruptions_allowed for budget in budgets]
    breaking: list[Runner] = []
    others: list[Runner] = []
    for pod in pods:
        breaks = False
        for number, budget in enumerate(budgets):
            if budget.selects(pod.pod):
                left[number] -= 1
                breaks = breaks or left[number] < 0
        (breaking if breaks else others).append(pod)
    return breaking, others


class _Trial:
    """One node without some of its pods."""

    def __init__(
        self,
        snapshot: Room,
        shape: PodShape,
        row: int,
        runners: Iterable[Runner],
        reserved: Sequence[PodShape],
    ) -> None:
        self.shape, self.node, self._row = shape, snapshot.names[row], row
        offered = {name: int(snapshot.allocatable(name)[row]) for name in (*snapshot.resources, PODS)}
        self._alone = snapshot_of(
            [
                NodeRow(
                    snapshot.names[row],
                    snapshot.nodes.labels_of(row),
                    snapshot.taint_sets[int(snapshot.taint_codes[row])],
                    offered,
                )
            ]
        )
        self._there: dict[str, PodShape] = {runner.pod.metadata.key: runner.shape for runner in runners}
        self._there |= {f"reserved {number}": other for number, other in enumerate(reserved)}
        self._room = PlacementBoard(self._alone)
        for other in self._there.values():
            self._room.place(other, 0)
        self._topology = Topology(snapshot) if _matters(snapshot, shape) else None

    def remove(self, runner: Runner) -> None:
        del self._there[runner.pod.metadata.key]
        self._room.take_back(runner.shape, 0)
        if self._topology is not None:
            self._topology.place(runner.shape, self._row, -1)

    def add(self, runner: Runner) -> None:
        self._there[runner.pod.metadata.key] = runner.shape
        self._room.place(runner.shape, 0)
        if self._topology is not None:
            self._topology.place(runner.shape, self._row, 1)

    def fits(self) -> bool:
        if room_for(self._room, self.shape)[0] < 1:
            return False
        if self.shape.host_ports:
            there = [PodPlacement(0, other) for other in self._there.values()]
            if fits(self._alone.minus(there), self.shape)[0] < 1:
                return False
        if self._topology is None:
            return True
        allowed = self._topology.allowed(self.shape)
        return allowed is None or bool(allowed[self._row])


def _matters(snapshot: Room, shape: PodShape) -> bool:
    return PlacementBoard(snapshot).topology(shape) is not None
