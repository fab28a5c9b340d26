"""What Karpenter expects of a node that is starting, as a row for the packing kernel.

A claim counts as soon as it is launched, with what its instance type promises. Its node counts with what it
shows; resources that are still zero are taken from the claim, and taints that are removed during startup are
ignored. An initialized node is what it shows. The requests of daemons that do not run there yet are
subtracted. Pure.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from karpool.cluster.market.stock_outs import listed_values
from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.cluster.nodes.state_node import StateNode
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import REGISTERED, UNREGISTERED, NodeClaimSpec, requested
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE
from karpool.model.kubernetes.pod import QuantityMap
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.requirements import canonical_key
from karpool.model.resources import PODS, Resources, parse
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE, Taint
from karpool.packing.feasibility import admitted
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import Room, snapshot_of

_EPHEMERAL = (
    Taint(key="node.kubernetes.io/not-ready", effect=NO_SCHEDULE),
    Taint(key="node.kubernetes.io/not-ready", effect=NO_EXECUTE),
    Taint(key="node.kubernetes.io/unreachable", effect=NO_SCHEDULE),
    Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect=NO_SCHEDULE),
    UNREGISTERED,
)


def is_ephemeral(taint: Taint) -> bool:
    """Whether a taint is removed by itself while a node starts."""
    return taint in _EPHEMERAL or taint.key.startswith("readiness.k8s.io/")


def same_taint(one: Taint, other: Taint) -> bool:
    """Whether two taints have the same key and effect, which identify a taint."""
    return one.key == other.key and one.effect == other.effect


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def row_name(claim: _Named | None, node: _Named | None) -> str:
    """Return the name of the node; a claim without a node gets a name that no node can have."""
    if node is not None:
        return node.name
    return f"nodeclaim/{claim.name}" if claim is not None else ""


def expected_row(claim: ClaimFacts | None, node: NodeFacts | None) -> NodeRow:
    """Return the row of a node after its start. Raises Invalid if its resources cannot be read."""
    if node is None:
        assert claim is not None
        labels = {**claim.labels, HOSTNAME: claim.name}
        return NodeRow(row_name(claim, None), labels, tuple(claim.taints), claim_allocatable(claim))
    if claim is None or node.is_initialized:
        return NodeRow(node.name, node.labels, _with_cordon(node, node.taints), node_allocatable(node))
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
    shown, promised = node_allocatable(node), claim_allocatable(claim)
    return {**shown, **{name: units for name, units in promised.items() if not shown.get(name)}}


def counted_capacity(claim: ClaimFacts | None, node: NodeFacts | None) -> Resources:
    """Return what counts against the limits of the pool; nothing for an unlaunched claim. Raises Invalid."""
    if node is not None and (claim is None or node.is_initialized):
        return _parsed(node.capacity, "status.capacity")
    return _parsed(claim.capacity, "status.capacity") if claim is not None else {}


def claim_allocatable(claim: ClaimFacts) -> Resources:
    return _parsed(claim.allocatable, "status.allocatable")


def node_allocatable(node: NodeFacts) -> Resources:
    return _parsed(node.allocatable, "status.allocatable")


def _parsed(amounts: QuantityMap, path: str) -> Resources:
    try:
        return parse(amounts)
    except Invalid as error:
        raise error.at(path) from None


# Karpenter gives up a launch after 5 minutes and a registration after 15, counted from the claim. It waits
# without limit for the initialization; device drivers are slow, so half an hour is allowed here.
LAUNCH_SECONDS, REGISTRATION_SECONDS, _INITIALIZATION_SECONDS = 300.0, 900.0, 1800.0


@dataclass(frozen=True, slots=True)
class ExpectedNode:
    """A node that is starting, as it will be.

    Its row has a name that no node has, so that it can be added to the cluster's nodes. `twin` is the
    existing node, if any.

    If it is not `launched`, it may still fail: it serves the pods that wait for it, and is promised to no
    others.
    """

    row: NodeRow
    pool: str
    claim: str
    twin: str = ""
    launched: bool = True
    deadline: float | None = None  # when it should be ready; None if its claim has no creation time


def deadline_of(claim: ClaimFacts) -> float | None:
    if claim.created is None:
        return None
    if claim.is_registered:
        return claim.created + _INITIALIZATION_SECONDS
    return claim.created + (REGISTRATION_SECONDS if claim.is_launched else LAUNCH_SECONDS)


def expected_node(
    joined: StateNode, room: Room, daemons: "DaemonOverhead", catalogue: Catalogue
) -> ExpectedNode:
    """Return the expected node without what its pods use and daemons will use. Raises Invalid."""
    claim, node = joined.claim, joined.node
    assert claim is not None
    launched = bool(claim.provider_id) or node is not None
    row = expected_row(claim, node) if launched else _unlaunched_row(claim, catalogue)
    row = replace(row, name=row_name(claim, None))
    at = room.find(node.name) if node is not None else None
    if at is None:
        row = daemons.less(row, ())
    else:
        row = replace(row, allocatable=_not_held(row.allocatable, room, at))
        row = daemons.less(row, _present(daemons, room, at))
    twin = node.name if node is not None else ""
    return ExpectedNode(row, joined.pool, claim.name, twin, launched, deadline_of(claim))


def unlaunched(claim: ClaimFacts, catalogue: Catalogue) -> tuple[Resources, Resources]:
    """Return what a claim without a machine will offer at least, and use of limits at most."""
    spec = claim.spec or NodeClaimSpec()
    types_by_name = catalogue.types
    types = [types_by_name[name] for name in listed_values(spec, INSTANCE_TYPE) if name in types_by_name]
    try:
        least = most = requested(spec)
    except Invalid:
        least = most = {}
    if types:
        names = {name for instance_type in types for name in instance_type.allocatable}
        least = {name: min(choice.allocatable.get(name, 0) for choice in types) for name in names}
        names = {name for instance_type in types for name in instance_type.capacity}
        most = {name: max(choice.capacity.get(name, 0) for choice in types) for name in names}
    return least, most


def _unlaunched_row(claim: ClaimFacts, catalogue: Catalogue) -> NodeRow:
    least, _ = unlaunched(claim, catalogue)
    spec = claim.spec or NodeClaimSpec()
    keys = {canonical_key(requirement.key) for requirement in spec.requirements or ()}
    decided = {key: listed_values(spec, key) for key in keys}
    labels = {key: values[0] for key, values in decided.items() if len(values) == 1}
    return NodeRow("", {**labels, **claim.labels}, tuple(claim.taints), least)


def _not_held(promised: Mapping[str, int], room: Room, at: int) -> Resources:
    """Return what the pods on the node do not use."""
    left = {
        name: max(0, units - int(room.allocatable(name)[at] - room.free(name)[at]))
        for name, units in promised.items()
        if name != PODS
    }
    if PODS in promised:
        left[PODS] = max(0, promised[PODS] - len(room.pods_on(at)))
    return left


def _present(daemons: "DaemonOverhead", room: Room, at: int) -> set[ObjectKey]:
    """Return the daemons that already run there: their pods name the node."""
    shapes = [room.shapes[number] for number in room.pods_on(at).values()]
    tied = {(shape.namespace, shape.requests) for shape in shapes if is_tied(shape)}
    return {key for key, shape in daemons.shapes.items() if (shape.namespace, shape.requests) in tied}


def is_tied(shape: PodShape) -> bool:
    """Whether the shape names its node, as the pods of daemons do."""
    return any(term.fields for term in shape.node_terms or ())


class DaemonOverhead:
    """Resources that daemons will use on nodes where they do not run yet."""

    def __init__(self, shapes: Mapping[ObjectKey, PodShape] | None = None) -> None:
        self.shapes: dict[ObjectKey, PodShape] = dict(shapes or {})
        self._runs: dict[tuple[frozenset[tuple[str, str]], tuple[Taint, ...]], tuple[ObjectKey, ...]] = {}

    def put(self, key: ObjectKey, shape: PodShape) -> bool:
        """Add a daemon; return whether it changed."""
        if self.shapes.get(key) == shape:
            return False
        self.shapes[key] = shape
        self._runs.clear()
        return True

    def remove(self, key: ObjectKey) -> bool:
        self._runs.clear()
        return self.shapes.pop(key, None) is not None

    def less(self, row: NodeRow, present: Collection[ObjectKey]) -> NodeRow:
        """Return the row minus the requests of daemons that belong there and are not `present`."""
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
        keys = self._runs.get((named, row.taints))
        if keys is None:
            nodes = snapshot_of([row]).nodes
            keys = tuple(key for key, shape in self.shapes.items() if bool(admitted(nodes, shape)[0]))
            self._runs[named, row.taints] = keys
        return keys


def _take(left: Resources, amounts: Mapping[str, int]) -> None:
    for name, units in amounts.items():
        if name in left:
            left[name] = max(0, left[name] - units)
