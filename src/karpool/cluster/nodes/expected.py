"""What Karpenter expects of a node that is still coming up, as a row for the packing kernel.

A claim counts as soon as it is launched, with what its instance type promises. Its
node counts with what it shows, except that what is still zero is taken from the
claim, and taints that will go away by themselves are not held against it. Once
initialised, a node is what it says. Room for daemons that are still to come is
taken off. Pure.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import REGISTERED, UNREGISTERED
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import PODS, Resources, parse
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, Taint
from karpool.packing.feasibility import admitted
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of

_EPHEMERAL = (
    Taint(key="node.kubernetes.io/not-ready", effect=NO_SCHEDULE),
    Taint(key="node.kubernetes.io/not-ready", effect=NO_EXECUTE),
    Taint(key="node.kubernetes.io/unreachable", effect=NO_SCHEDULE),
    Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect=NO_SCHEDULE),
    UNREGISTERED,
)


def is_ephemeral(taint: Taint) -> bool:
    """Whether a taint goes away by itself while a node starts."""
    return taint in _EPHEMERAL or taint.key.startswith("readiness.k8s.io/")


def same_taint(one: Taint, other: Taint) -> bool:
    """Taints are told apart by key and effect; there cannot be two of both."""
    return one.key == other.key and one.effect == other.effect


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def row_name(claim: _Named | None, node: _Named | None) -> str:
    """A node's own name; a claim without a node gets one that no node can have."""
    if node is not None:
        return node.name
    return f"nodeclaim/{claim.name}" if claim is not None else ""


def expected_row(claim: ClaimFacts | None, node: NodeFacts | None) -> NodeRow:
    """Raises Invalid when the resources cannot be read."""
    if node is None:
        assert claim is not None
        labels = {**claim.labels, HOSTNAME: claim.name}
        return NodeRow(row_name(claim, None), labels, tuple(claim.taints), claim_allocatable(claim))
    if claim is None or node.is_initialized:
        return NodeRow(node.name, node.labels, _with_cordon(node, node.taints), _allocatable(node))
    registered = node.labels.get(REGISTERED) == "true"
    labels = dict(node.labels) if registered else {**node.labels, **claim.labels}
    return NodeRow(node.name, labels, _lasting_taints(claim, node), _promised(claim, node))


def _lasting_taints(claim: ClaimFacts, node: NodeFacts) -> tuple[Taint, ...]:
    starting = (claim.spec.startup_taints if claim.spec is not None else None) or ()
    shown = [
        taint
        for taint in node.taints
        if not is_ephemeral(taint) and not any(same_taint(taint, other) for other in starting)
    ]
    shown += [taint for taint in claim.taints if not any(same_taint(taint, other) for other in shown)]
    return _with_cordon(node, tuple(shown))


def _with_cordon(node: NodeFacts, taints: tuple[Taint, ...]) -> tuple[Taint, ...]:
    return (UNSCHEDULABLE, *taints) if node.is_unschedulable and UNSCHEDULABLE not in taints else taints


def _promised(claim: ClaimFacts, node: NodeFacts) -> Resources:
    shown, promised = _allocatable(node), claim_allocatable(claim)
    return {**shown, **{name: units for name, units in promised.items() if not shown.get(name)}}


def counted_capacity(claim: ClaimFacts | None, node: NodeFacts | None) -> Resources:
    """What it takes from its pool's limits; a claim nothing before launch. Raises Invalid."""
    if node is not None and (claim is None or node.is_initialized):
        return _parsed(node.capacity, "status.capacity")
    return _parsed(claim.capacity, "status.capacity") if claim is not None else {}


def claim_allocatable(claim: ClaimFacts) -> Resources:
    return _parsed(claim.allocatable, "status.allocatable")


def _allocatable(node: NodeFacts) -> Resources:
    return _parsed(node.allocatable, "status.allocatable")


def _parsed(amounts: QuantityMap, path: str) -> Resources:
    try:
        return parse(amounts)
    except Invalid as error:
        raise error.at(path) from None


class DaemonOverhead:
    """Room that daemons will take on nodes where they do not run yet."""

    def __init__(self) -> None:
        self.shapes: dict[ObjectKey, PodShape] = {}
        self._runs: dict[tuple[frozenset[tuple[str, str]], tuple[Taint, ...]], tuple[ObjectKey, ...]] = {}

    def put(self, key: ObjectKey, shape: PodShape) -> bool:
        """Whether that is news."""
        if self.shapes.get(key) == shape:
            return False
        self.shapes[key] = shape
        self._runs.clear()
        return True

    def remove(self, key: ObjectKey) -> bool:
        self._runs.clear()
        return self.shapes.pop(key, None) is not None

    def less(self, row: NodeRow, present: Collection[ObjectKey]) -> NodeRow:
        """The row without the room of daemons that belong there and are not `present`."""
        missing = [self.shapes[key] for key in self._running_on(row) if key not in present]
        if not missing:
            return row
        left = dict(row.allocatable)
        for shape in missing:
            _take(left, {**dict(shape.requests), PODS: 1})
        return NodeRow(row.name, row.labels, row.taints, left)

    def _running_on(self, row: NodeRow) -> tuple[ObjectKey, ...]:
        if not self.shapes:
            return ()
        named = frozenset(pair for pair in row.labels.items() if pair[0] != HOSTNAME)
        known = self._runs.get((named, row.taints))
        if known is None:
            nodes = snapshot_of([row]).nodes
            known = tuple(key for key, shape in self.shapes.items() if bool(admitted(nodes, shape)[0]))
            self._runs[named, row.taints] = known
        return known


def _take(left: Resources, amounts: Mapping[str, int]) -> None:
    for name, units in amounts.items():
        if name in left:
            left[name] = max(0, left[name] - units)
