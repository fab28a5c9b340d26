"""Why a pod has no node, in the words of kube-scheduler, which people and tools search for.

`0/7 nodes are available: 3 Insufficient cpu, 4 node(s) had untolerated taint {a: b}.` Each node counts under
the first plugin that rejects it, in upstream's order; only the plugin for resources names all that a node
lacks. Reasons are sorted as text.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import ATTACHED_VOLUMES
from karpool.model.taints import UNSCHEDULABLE, Taint, untolerated
from karpool.packing.feasibility import matches_terms, ports_free, selected
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import AFFINITY, SPREAD_LABEL
from karpool_fleet.kube_scheduler.board import PlacementBoard

NO_NODES = "no nodes available to schedule pods"
UNBOUND_CLAIMS = "pod has unbound immediate PersistentVolumeClaims"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
_CONFLICT = "node(s) had volume node affinity conflict"
_VOLUME_COUNT = "node(s) exceed max volume count"
_PORTS = "node(s) didn't have free ports for the requested pod ports"
_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_NAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"

# Reason, nodes, and whether preemption could help those nodes.
Cause = tuple[str, Bools, Bools | bool]


class FilterVerdict:
    """Why each node rejects a shape. `helpable` are the nodes that preemption may help."""

    def __init__(self, board: PlacementBoard, shape: PodShape) -> None:
        self.nodes = board.n
        self.helpable: Bools = np.zeros(board.n, dtype=np.bool_)
        self.whole = UNBOUND_CLAIMS if () in shape.volume_terms else ""  # a reason of the pod, not of nodes
        self.in_vain = False  # preemption was tried, and would not help
        self._counts: dict[str, int] = {}
        if not self.whole:
            self._count(board, shape)

    def _count(self, board: PlacementBoard, shape: PodShape) -> None:
        left = np.ones(board.n, dtype=np.bool_)
        for plugin in (_named, _taints, _node_affinity, _ports, _resources, _volumes, _topology):
            refused = np.zeros(board.n, dtype=np.bool_)
            hopeless = np.zeros(board.n, dtype=np.bool_)
            for reason, where, helpable in plugin(board, shape):
                nodes = where & left
                if number := int(nodes.sum()):
                    self._counts[reason] = self._counts.get(reason, 0) + number
                    refused |= nodes
                    hopeless |= nodes & ~np.broadcast_to(np.asarray(helpable), nodes.shape)
            self.helpable |= refused & ~hopeless
            left &= ~refused

    def message(self, after: str = "") -> str:
        """Return the message; `after` is the result of preemption."""
        if not self.nodes:
            return NO_NODES
        reasons = self.whole or ", ".join(sorted(f"{n} {reason}" for reason, n in self._counts.items()))
        text = f"0/{self.nodes} nodes are available: {reasons}."
        return f"{text} preemption: {after}" if after else text

    def no_preemption(self, without_victims: int) -> str:
        """Return the message of failed preemption; `without_victims` nodes have no pods to preempt."""
        counts = {NO_VICTIMS: without_victims, NOT_HELPFUL: self.nodes - without_victims}
        reasons = sorted(f"{number} {reason}" for reason, number in counts.items() if number)
        return f"0/{self.nodes} nodes are available: {', '.join(reasons)}."


def _taints(snapshot: Room, shape: PodShape) -> Iterator[Cause]:
    by_taint: dict[Taint, list[int]] = {}
    for code, taints in enumerate(snapshot.taint_sets):
        taint = untolerated(taints, shape.tolerations)
        if taint is not None:
            by_taint.setdefault(taint, []).append(code)
    for taint, codes in by_taint.items():
        nodes = np.isin(snapshot.taint_codes, codes)
        if taint == UNSCHEDULABLE:
            yield "node(s) were unschedulable", nodes, False
        else:
            yield f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}", nodes, False


def _node_affinity(snapshot: Room, shape: PodShape) -> Iterator[Cause]:
    yield _AFFINITY, ~selected(snapshot, shape), False


def _named(snapshot: Room, shape: PodShape) -> Iterator[Cause]:
    """Handle a pod that names its nodes, as those of a DaemonSet: other nodes are not checked."""
    rows = _named_rows(snapshot, shape)
    if rows is not None:
        yield _NAMED, ~rows, False


def _named_rows(snapshot: Room, shape: PodShape) -> Bools | None:
    names: set[str] = set()
    for term in shape.node_terms or ():
        wanted = [values for key, values in term.fields if key == "metadata.name" and not values.complement]
        if not wanted:
            return None
        names |= wanted[0].values
    if not names:
        return None
    rows = np.zeros(snapshot.n, dtype=np.bool_)
    rows[[row for row in map(snapshot.find, sorted(names)) if row is not None]] = True
    return rows


def _ports(snapshot: Room, shape: PodShape) -> Iterator[Cause]:
    if shape.host_ports:
        yield _PORTS, ~ports_free(snapshot, shape), True


def _resources(snapshot: Room, shape: PodShape) -> Iterator[Cause]:
    yield "Too many pods", snapshot.slots < 1, snapshot.allocatable("pods") >= 1
    for resource, units in shape.requests:
        yield (
            _VOLUME_COUNT if resource.startswith(ATTACHED_VOLUMES) else f"Insufficient {resource}",
            snapshot.free(resource) < units,
            snapshot.allocatable(resource) >= units,
        )


def _volumes(snapshot: Room, shape: PodShape) -> Iterable[Cause]:
    for alternatives in shape.volume_terms:
        yield _CONFLICT, ~matches_terms(snapshot.nodes, alternatives), False


def _topology(board: PlacementBoard, shape: PodShape) -> Iterator[Cause]:
    topology = board.topology(shape)
    if topology is not None:
        seen = np.zeros(board.n, dtype=np.bool_)
        for reason, nodes in topology.refusals(shape):
            yield reason, nodes & ~seen, reason not in (SPREAD_LABEL, AFFINITY)
            seen |= nodes
