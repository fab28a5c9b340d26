"""Chooses the group to scale up for pods that fit nowhere, and by how much. Pure.

As cluster-autoscaler does: for every group, compute how many of its nodes would take how many pods; then grow
the group that wastes least. The next scan handles the rest. The shared kernel places the pods on existing
nodes, on nodes that are starting, and then on new nodes of a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import CPU, MEMORY
from karpool.packing.fit_reasons import explain_nodes
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of
from karpool_fleet.cluster_autoscaler.groups import NodeGroup

# The kernel fills nodes in order of name. No node's name begins like these, so new nodes come
# last, after those that are starting.
UPCOMING = "~coming/"
NEW = "~~new/"
FULL = "max node group size reached"


@dataclass(frozen=True)
class GrowCandidate:
    """A group with a row for each possible new node. `refusal`: why it gets none."""

    group: NodeGroup
    rows: Sequence[NodeRow]
    refusal: str = ""
    is_capped: bool = False  # the pods may need more nodes than these


@dataclass(frozen=True)
class ExpanderOption:
    group: NodeGroup
    rows: tuple[NodeRow, ...]  # the new nodes that are needed
    pods: tuple[str, ...]  # pods that they would take
    waste: float  # 0 to 2: the unused part of their cpu, and of their memory


@dataclass(frozen=True)
class GrowDecision:
    chosen: ExpanderOption | None
    unhelped: Mapping[str, str]  # pods that no group can take, with the reason


def decide(
    snapshot: Room,
    pods: Sequence[PendingPod],
    candidates: Sequence[GrowCandidate],
    catalogue: Catalogue,
    random: Random,
) -> GrowDecision:
    """Decide which group grows. `snapshot` holds existing nodes and nodes that are starting."""
    waiting = pack_new_nodes(snapshot, pods, (), catalogue).left
    homeless = {unplaced_pod.pod for unplaced_pod in waiting}
    if not homeless:
        return GrowDecision(None, {})
    options = [
        option for candidate in candidates if (option := _option(snapshot, pods, candidate, catalogue))
    ]
    helped = {pod for option in options for pod in option.pods}
    why = _Reasons(candidates)
    unhelped = {
        pod.name: why.of(pod.shape) for pod in pods if pod.name in homeless and pod.name not in helped
    }
    return GrowDecision(least_waste(options, random) if options else None, unhelped)


def _option(
    snapshot: Room, pods: Sequence[PendingPod], candidate: GrowCandidate, catalogue: Catalogue
) -> ExpanderOption | None:
    if candidate.refusal or not candidate.rows:
        return None
    rows = {row.name: row for row in candidate.rows}
    placed = pack_new_nodes(snapshot.plus(candidate.rows), pods, (), catalogue).placed
    used = {node: rows[node] for node in placed.values() if node in rows}
    if not used:
        return None
    taken = [pod for pod in pods if placed.get(pod.name) in rows]
    return ExpanderOption(
        candidate.group,
        tuple(used.values()),
        tuple(pod.name for pod in taken),
        _waste(list(used.values()), [pod.shape for pod in taken]),
    )


def _waste(rows: Sequence[NodeRow], shapes: Sequence[PodShape]) -> float:
    total = 0.0
    for resource in (CPU, MEMORY):
        offered = sum(row.allocatable.get(resource, 0) for row in rows)
        asked = sum(units for shape in shapes for name, units in shape.requests if name == resource)
        total += (offered - asked) / offered if offered else 0.0
    return total


class _Reasons:
    """Reasons why no group helps, computed once per shape."""

    def __init__(self, candidates: Sequence[GrowCandidate]) -> None:
        self._candidates = candidates
        self._known: dict[PodShape, str] = {}

    def of(self, shape: PodShape) -> str:
        if shape not in self._known:
            self._known[shape] = self._worded(shape)
        return self._known[shape]

    def _worded(self, shape: PodShape) -> str:
        counts: dict[str, int] = {}
        for candidate in self._candidates:
            reason = candidate.refusal or self._refusal(shape, candidate)
            counts[reason] = counts.get(reason, 0) + 1
        return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "there is no node group"

    @staticmethod
    def _refusal(shape: PodShape, candidate: GrowCandidate) -> str:
        refusals = explain_nodes(snapshot_of(candidate.rows[:1]), shape)
        if refusals:
            return refusals[0].detail
        return FULL if candidate.is_capped else "other pods are in the way on any new node"


def least_waste(options: Sequence[ExpanderOption], random: Random) -> ExpanderOption:
    least = min(option.waste for option in options)
    return random.choice([option for option in options if option.waste == least])
