"""Pods that need a node before anybody else may have one, in the order in which Karpenter places them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpool.cluster.nodes.expected import is_tied
from karpool.cluster.snapshot import Snapshot
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import CPU, MEMORY
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.tables.room import snapshot_of
from karpool.provisioning.placeholders.placeholder import REQUEST


@dataclass(frozen=True, slots=True)
class PendingDemand:
    """Pods of one shape that need a node, and since when the first of them does."""

    shape: PodShape
    pods: int
    since: float


def without_topology(shape: PodShape) -> PodShape:
    """Without what depends on other pods."""
    if not (shape.has_topology or shape.preferred_affinity or shape.preferred_anti_affinity):
        return shape
    return replace(
        shape, spreads=(), affinity=(), anti_affinity=(), preferred_affinity=(), preferred_anti_affinity=()
    )


def demands(snapshot: Snapshot, leaving: Sequence[str] = (), now: float = 0.0) -> list[PendingDemand]:
    """Pods that wait, and pods of nodes that are `leaving`, which have to go somewhere."""
    room = snapshot.room
    pods: dict[PodShape, int] = {}
    since: dict[PodShape, float] = {}

    def add(number: int, at: float) -> None:
        shape = without_topology(room.shapes[number])
        pods[shape] = pods.get(shape, 0) + 1
        since[shape] = min(since.get(shape, at), at)

    for key, waiting in snapshot.waiting.items():
        number = room.pending.get(str(key))
        if number is not None and waiting.wants_node_since is not None:
            add(number, waiting.wants_node_since)
    for name in leaving:
        row = room.find(name)
        for number in room.pods_on(row).values() if row is not None else ():
            if not is_tied(room.shapes[number]):
                add(number, now)
    demand = [PendingDemand(shape, count, since[shape]) for shape, count in pods.items()]
    return sorted(demand, key=lambda pending: largest_first(pending.shape))


def served_by_expected(snapshot: Snapshot, now: float) -> set[ObjectKey]:
    """Waiting pods whose node is launching, registering or initialising, and is not overdue.

    Placeholders stand for others, and take nothing from them.
    """
    coming = [node.row for node in snapshot.expected() if node.deadline is not None and now < node.deadline]
    if not coming:
        return set()
    room, filling = snapshot.room, NodeFilling(snapshot_of(coming), topology=False)
    waiting = [
        (without_topology(room.shapes[number]), pod)
        for key, pod in snapshot.waiting.items()
        if (number := room.pending.get(str(key))) is not None and REQUEST not in pod.labels
    ]
    waiting.sort(key=lambda entry: (largest_first(entry[0]), entry[1].since or 0.0, entry[1].key))
    return {pod.key for shape, pod in waiting if filling.place(PodGroup(shape, 1))}


def largest_first(shape: PodShape) -> tuple[int, int]:
    """Karpenter's order of pods, as far as shapes decide it."""
    asked = dict(shape.requests)
    return -asked.get(CPU, 0), -asked.get(MEMORY, 0)
