"""Pods that get new nodes before other requests, in the order in which Karpenter places them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpool.cluster.nodes.expected import LAUNCH_SECONDS, REGISTRATION_SECONDS, is_tied
from karpool.cluster.pods.waiting_store import WaitingPod
from karpool.cluster.snapshot import Snapshot
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import NO_LABELS
from karpool.model.kubernetes.pod_shape import Pairs, PodShape
from karpool.model.requirements import NodeTerm
from karpool.model.resources import CPU, MEMORY, PODS
from karpool.model.taints import Toleration
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.dra.driver_templates import DriverTemplates
from karpool.packing.new_nodes.claim_templates import DriversToCome
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of
from karpool.provisioning.placeholders.placeholder import REQUEST

_Rules = tuple[Pairs, tuple[NodeTerm, ...] | None, frozenset[Toleration]]
_PODS_OF_PLACEHOLDER = 110  # the kubelet's default; amounts are the limit before that


@dataclass(frozen=True, slots=True)
class PendingDemand:
    """Pods of one shape that need a node, and since when the first of them does."""

    shape: PodShape
    pods: int
    since: float


def without_topology(shape: PodShape) -> PodShape:
    """The shape without constraints that depend on other pods."""
    if not (shape.has_topology or shape.preferred_affinity or shape.preferred_anti_affinity):
        return shape
    return replace(
        shape, spreads=(), affinity=(), anti_affinity=(), preferred_affinity=(), preferred_anti_affinity=()
    )


def demands(snapshot: Snapshot, leaving: Sequence[str] = (), now: float = 0.0) -> list[PendingDemand]:
    """Pending pods, and pods of `leaving` nodes, which need another node."""
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
    """Pending pods whose capacity is on its way and not overdue.

    Their node is launching, registering or initialising; or they are nominated for a node that other pods
    leave; or a smart pod requests capacity of their kind. Placeholders are not counted: they stand for other
    pods.
    """
    room = snapshot.room
    nominated: set[ObjectKey] = set()
    placeholders: list[tuple[PodShape, WaitingPod]] = []
    waiting: list[tuple[PodShape, WaitingPod]] = []
    for key, pod in snapshot.waiting.items():
        number = room.pending.get(str(key))
        if number is None:
            continue
        shape = without_topology(room.shapes[number])
        if REQUEST in pod.labels:
            placeholders.append((shape, pod))
        elif _is_nominated(snapshot, pod, now):
            nominated.add(pod.key)
        else:
            waiting.append((shape, pod))
    coming = [node.row for node in snapshot.expected() if node.deadline is not None and now < node.deadline]
    asked_for = _Placeholders(placeholders, now)
    filling = NodeFilling(expected_room(snapshot, coming), topology=False)
    waiting.sort(key=lambda entry: (largest_first(entry[0]), entry[1].since or 0.0, entry[1].key))
    return nominated | {
        pod.key
        for shape, pod in waiting
        if (coming and filling.place(PodGroup(shape, 1))) or asked_for.holds(shape)
    }


def expected_room(
    snapshot: Snapshot, rows: Sequence[NodeRow], templates: DriverTemplates | None = None
) -> Room:
    """The nodes that are coming, with the devices that drivers would publish there."""
    return DriversToCome(snapshot.room, templates).room_of(rows, snapshot.catalogue.types)


def _is_nominated(snapshot: Snapshot, pod: WaitingPod, now: float) -> bool:
    """Whether the pod is nominated for an existing node, and the grace period of its victims is running."""
    if not pod.nominated_node or snapshot.room.find(pod.nominated_node) is None:
        return False
    return pod.since is None or now < pod.since + REGISTRATION_SECONDS


class _Placeholders:
    """Capacity that smart pods request and no claim has yet, for pods with the same node constraints."""

    def __init__(self, placeholders: Sequence[tuple[PodShape, WaitingPod]], now: float) -> None:
        rows: dict[_Rules, list[NodeRow]] = {}
        for shape, pod in placeholders:
            if pod.wants_node_since is not None and now < pod.wants_node_since + LAUNCH_SECONDS:
                room = {**dict(shape.requests), PODS: _PODS_OF_PLACEHOLDER}
                rules = shape.node_selector, shape.node_terms, frozenset(shape.tolerations)
                rows.setdefault(rules, []).append(NodeRow(f"placeholder/{pod.key}", NO_LABELS, (), room))
        self._by_rules = {
            rules: NodeFilling(snapshot_of(of_rules), topology=False) for rules, of_rules in rows.items()
        }

    def holds(self, shape: PodShape) -> bool:
        if shape.host_ports or shape.volume_terms or shape.devices or shape.resource_claims:
            return False  # placeholders do not request these
        one = PodGroup(PodShape(requests=shape.requests), 1)
        return any(
            bool(filling.place(one))
            for (selector, terms, tolerations), filling in self._by_rules.items()
            if (selector, terms) == (shape.node_selector, shape.node_terms)
            and tolerations <= {*shape.tolerations}
        )


def largest_first(shape: PodShape) -> tuple[int, int]:
    """Karpenter's order of pods, as far as shapes decide it."""
    asked = dict(shape.requests)
    return -asked.get(CPU, 0), -asked.get(MEMORY, 0)
