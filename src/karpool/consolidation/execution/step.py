"""Computes the next step of an active move from its record and an observation.

Pure and level-triggered: `step` may be called at any time and any number of times. It returns a record to
store, or actions, or only a time to try again, so every action is recorded before it is done. Every action
may be repeated. Until the first NodeClaim is deleted a move can be rolled back, and is rolled back if
anything that it was decided on has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.consolidation.execution.node_marks import is_cordoned, is_marked, marked_by
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.execution.validation import command_timeout
from karpool.consolidation.planning.plan import SourceNode
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.node import Node
from karpool.provisioning.claims.node_readiness import readiness
from karpool.provisioning.placeholders.placeholder import Placeholder, PlaceholderState

CLOCK_SKEW_SECONDS = 60.0  # between successive leaders
MEASURE_SECONDS = 1200.0  # a saving that cannot be measured by then is not measured
# Objections that may pass by themselves: other moves end, pods come and go, an autoscaler adds capacity. They
# are worth waiting for once new nodes are paid for.
_PASSING = frozenset(
    (
        ConsolidationReason.PDB_BLOCKED,
        ConsolidationReason.POD_STARTING,
        ConsolidationReason.NOT_CONSOLIDATABLE,
        ConsolidationReason.NO_ROOM,
        ConsolidationReason.TOPOLOGY,
    )
)


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """`launch_seconds` None: as in Karpenter, 10 minutes to an hour by the number of nodes."""

    quiet_seconds: float = 15.0  # between decision and validation
    launch_seconds: float | None = None
    refusal_seconds: float = 30.0  # an autoscaler that refuses for this long is believed
    look_seconds: float = 120.0  # a move that could not be validated for this long is given up
    settle_seconds: float = 60.0  # after the nodes are gone, until savings are measured
    # Whether nodes to remove are cordoned while new ones are requested; see docs/benchmarks.md.
    cordons_early: bool = True


@dataclass(frozen=True, slots=True)
class MeasuredSavings:
    """The state of the cluster after a move's nodes are gone."""

    realised: float | None
    extra_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveObservation:
    """The current state of the objects of one record.

    `nodes` and `claims` were just read and hold what exists. `objections` None: the move was not validated
    yet; empty: there is no objection. `stop` ends the move in any phase: the switch, or a closed pool.
    `cordon_seen`: the view that gave the objections included the cordon.
    """

    waits_for: str = ""  # an active move that must end first
    nodes: Mapping[str, Node] = field(default_factory=dict)
    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    placeholders: Sequence[Placeholder] = ()
    stop: Infeasible[ConsolidationReason] | None = None
    objections: tuple[Infeasible[ConsolidationReason], ...] | None = None
    cordon_seen: bool = False
    owners: Mapping[str, int] = field(default_factory=dict)  # of the disturbed pods
    redisturbed: int = 0
    arrived_price: float | None = None
    measured: MeasuredSavings | None = None


@dataclass(frozen=True, slots=True)
class StoreRecord:
    record: MoveRecord


@dataclass(frozen=True, slots=True)
class MarkNode:
    node: Node
    cordon: bool = False


@dataclass(frozen=True, slots=True)
class UnmarkNode:
    node: Node


@dataclass(frozen=True, slots=True)
class RequestNodes:
    """Request the new nodes of the move, by number."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WithdrawPlaceholder:
    placeholder: Placeholder


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    source: SourceNode


Action = MarkNode | UnmarkNode | RequestNodes | WithdrawPlaceholder | DeleteClaim


@dataclass(frozen=True, slots=True)
class RunActions:
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    until: float | None = None  # None: until something changes


Next = StoreRecord | RunActions | WaitUntil


def next_step(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    if record.since > now + CLOCK_SKEW_SECONDS and not record.phase.is_over:
        # The clock went back: waits start again instead of lasting as long as the jump.
        return StoreRecord(replace(record, since=now))
    match record.phase:
        case MovePhase.WAITING:
            return _waiting(record, world, settings, now)
        case MovePhase.ASKING:
            return _asking(record, world, settings, now)
        case MovePhase.CORDONING:
            return _cordoning(record, world, settings, now)
        case MovePhase.DELETING:
            return _deleting(record, world, settings, now)
        case MovePhase.SETTLING:
            return _settling(record, world, settings, now)
        case MovePhase.ROLLING_BACK:
            return _rolling_back(record, world, now)
    return WaitUntil()


def launch_deadline(record: MoveRecord, settings: ExecutionSettings) -> float:
    """The time by which new nodes must be ready."""
    seconds = settings.launch_seconds
    return record.since + (command_timeout(len(record.nodes)) if seconds is None else seconds)


def _waiting(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    # A placeholder of another move may have landed on the node: nothing was done yet.
    if why := world.stop or _missing(record, world) or _taken(_sources(record, world), record):
        return StoreRecord(record.to(MovePhase.REJECTED, now, why.reason, why.detail))
    due = record.since + settings.quiet_seconds
    if now < due:
        return WaitUntil(due)
    if world.waits_for:
        return WaitUntil()
    if world.objections is None:
        limit = due + settings.look_seconds
        if now < limit:
            return WaitUntil(limit)
        why = _not_looked_at(settings)
        return StoreRecord(record.to(MovePhase.REJECTED, now, why.reason, why.detail))
    if world.objections:
        why = world.objections[0]
        return StoreRecord(record.to(MovePhase.REJECTED, now, why.reason, why.detail))
    if record.replaces:
        return StoreRecord(record.to(MovePhase.ASKING, now, asked_at=now))
    return StoreRecord(record.to(MovePhase.CORDONING, now))


def _asking(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    if why := world.stop or _missing(record, world) or _refused(record, world, settings, now):
        return _back(record, now, why)
    early, sources = settings.cordons_early, _sources(record, world)
    is_ready = is_cordoned if early else is_marked
    if open_nodes := [node for node in sources if not is_ready(node, record.name)]:
        marks = RunActions(tuple(MarkNode(node, cordon=early) for node in open_nodes))
        return _marks(open_nodes, record, now) or marks
    present = {placeholder.index for placeholder in world.placeholders if placeholder.epoch == record.attempt}
    if missing := tuple(index for index in range(len(record.wanted)) if index not in present):
        return RunActions((RequestNodes(missing),))
    own = sorted(
        (placeholder for placeholder in world.placeholders if placeholder.epoch == record.attempt),
        key=_by_index,
    )
    # Capacity that became free elsewhere may take a placeholder whose node was already launched.
    coming = {placeholder.claim for placeholder in own if not placeholder.node}
    used = {placeholder.claim for placeholder in own if placeholder.node}
    unused = tuple(sorted({*record.unused, *coming} - used - {""}))
    if unused != record.unused:
        return StoreRecord(replace(record, unused=unused))
    places = [placeholder.node for placeholder in own]
    lacks = [lack for name in places if name and (lack := readiness(world.nodes.get(name), {}))]
    if lost := next((lack for lack in lacks if lack.reason is LaunchReason.NODE_GOING), None):
        return _back(record, now, Infeasible(ConsolidationReason.NEW_NODE_LOST, lost.detail))
    if lacks or not all(places):
        return WaitUntil(launch_deadline(record, settings))
    if record.arrived != (arrived := tuple(places)):
        return StoreRecord(replace(record, arrived=arrived))
    came = [world.nodes[name] for name in dict.fromkeys(arrived)]
    bare = [node for node in came if not is_marked(node, record.name)]
    if bare:
        return _marks(bare, record, now) or RunActions(tuple(MarkNode(node) for node in bare))
    deadline = launch_deadline(record, settings)
    if world.objections is None:
        return WaitUntil(deadline) if now < deadline else _back(record, now, _not_looked_at(settings))
    if world.objections:
        if _passes(world) and now < deadline:
            return WaitUntil(deadline)
        return _back(replace(record, arrived_price=world.arrived_price), now, world.objections[0])
    return StoreRecord(record.to(MovePhase.CORDONING, now, arrived_price=world.arrived_price))


def _cordoning(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    if why := world.stop or _missing(record, world) or _lost(record, world):
        return _back(record, now, why)
    limit = record.since + settings.look_seconds
    if now >= limit:
        return _back(record, now, _not_looked_at(settings))
    open_nodes = [node for node in _sources(record, world) if not is_cordoned(node, record.name)]
    if open_nodes:
        cordons = RunActions(tuple(MarkNode(node, cordon=True) for node in open_nodes))
        return _marks(open_nodes, record, now) or cordons
    if world.objections is None or not world.cordon_seen:
        return WaitUntil(limit)
    if world.objections:
        return WaitUntil(limit) if _passes(world) else _back(record, now, world.objections[0])
    if world.placeholders:
        # The capacity that placeholders reserve would be launched again for the pods that need it. Until now
        # it had to be kept from other pods.
        return _withdraw(world, limit)
    return StoreRecord(
        record.to(
            MovePhase.DELETING,
            now,
            deleted_at=now,
            owners=dict(world.owners),
            disturbed=sum(world.owners.values()),
            redisturbed=world.redisturbed,
        )
    )


def _deleting(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    going = [source for source in record.move.nodes if source.name not in record.kept]
    left = [source for source in going if _is_left(source, world)]
    if left:
        why = world.stop or _lost(record, world) or next(iter(world.objections or ()), None)
        if why is None and world.objections is not None:
            return RunActions(tuple(DeleteClaim(source) for source in left))
        limit = record.since + settings.look_seconds
        if why is None and now < limit:
            return WaitUntil(limit)
        why = why or _not_looked_at(settings)
        if len(left) == len(record.move.nodes):
            return _back(record, now, why)
        kept = (*record.kept, *(source.name for source in left))
        return StoreRecord(replace(record, kept=kept, reason=str(why.reason), message=why.detail))
    kept_nodes = [world.nodes[name] for name in record.kept if name in world.nodes]
    if stale := [node for node in kept_nodes if marked_by(node) == record.name]:
        return RunActions(tuple(UnmarkNode(node) for node in stale))
    if any(source.claim in world.claims and _is_same(source, world) for source in going):
        return WaitUntil()
    if any(source.name in world.nodes for source in going if _is_its_node(source, record, world)):
        return WaitUntil()
    if new := _marked(record.arrived, record, world):
        return RunActions(tuple(UnmarkNode(node) for node in new))
    return StoreRecord(record.to(MovePhase.SETTLING, now, record.reason, record.message, gone_at=now))


def _settling(record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float) -> Next:
    due = record.since + settings.settle_seconds
    if now < due:
        return WaitUntil(due)
    limit = record.since + max(settings.settle_seconds, MEASURE_SECONDS)
    if world.measured is None and now < limit:
        return WaitUntil(limit)
    measured = world.measured or MeasuredSavings(None)
    return StoreRecord(
        record.to(
            MovePhase.DONE,
            now,
            record.reason,
            record.message,
            realised=measured.realised,
            extra_nodes=measured.extra_nodes,
        )
    )


def _rolling_back(record: MoveRecord, world: MoveObservation, now: float) -> Next:
    if world.placeholders:
        return _withdraw(world, None)
    if marked := _marked(world.nodes, record, world):
        return RunActions(tuple(UnmarkNode(node) for node in marked))
    return StoreRecord(record.to(MovePhase.ROLLED_BACK, now, record.reason, record.message))


def _passes(world: MoveObservation) -> bool:
    """Whether all objections to the move may pass by themselves."""
    return all(objection.reason in _PASSING for objection in world.objections or ())


def _back(record: MoveRecord, now: float, why: Infeasible[ConsolidationReason]) -> StoreRecord:
    return StoreRecord(record.to(MovePhase.ROLLING_BACK, now, why.reason, why.detail))


def _not_looked_at(settings: ExecutionSettings) -> Infeasible[ConsolidationReason]:
    """The objection that the view is stale, so that the move cannot be validated."""
    return Infeasible(
        ConsolidationReason.TIMEOUT,
        f"the move could not be validated within {settings.look_seconds:g} s",
    )


def _withdraw(world: MoveObservation, until: float | None) -> Next:
    standing = [placeholder for placeholder in world.placeholders if placeholder.deleting_since is None]
    return RunActions(tuple(map(WithdrawPlaceholder, standing))) if standing else WaitUntil(until)


def _sources(record: MoveRecord, world: MoveObservation) -> list[Node]:
    return [world.nodes[name] for name in record.nodes]


def _marked(
    names: Sequence[str] | Mapping[str, Node], record: MoveRecord, world: MoveObservation
) -> list[Node]:
    nodes = [world.nodes[name] for name in names if name in world.nodes]
    return [node for node in nodes if marked_by(node) == record.name]


def _marks(nodes: Sequence[Node], record: MoveRecord, now: float) -> Next | None:
    why = _taken(nodes, record)
    return _back(record, now, why) if why is not None else None


def _taken(nodes: Sequence[Node], record: MoveRecord) -> Infeasible[ConsolidationReason] | None:
    """Refuse a node that another move has marked."""
    for node in nodes:
        other = marked_by(node)
        if other and other != record.name:
            about = f"node {node.name}"
            return Infeasible(ConsolidationReason.IN_QUEUE, f"{about} is part of {other}", about)
    return None


def _missing(record: MoveRecord, world: MoveObservation) -> Infeasible[ConsolidationReason] | None:
    """Refuse a node or claim that is gone, is being deleted, or was replaced."""
    for source in record.move.nodes:
        about = f"node {source.name}"
        claim, node = world.claims.get(source.claim), world.nodes.get(source.name)
        if claim is None or node is None:
            return Infeasible(ConsolidationReason.GONE, f"{about} no longer exists", about)
        if claim.metadata.uid != source.claim_uid:
            return Infeasible(
                ConsolidationReason.REPLACED, f"{about} has another NodeClaim than planned", about
            )
        if claim.is_deleting or node.metadata.deletion_timestamp is not None:
            return Infeasible(
                ConsolidationReason.DELETING, f"{about} is being deleted by another component", about
            )
    return None


def _lost(record: MoveRecord, world: MoveObservation) -> Infeasible[ConsolidationReason] | None:
    """Report a new node that arrived and is no longer ready."""
    for name in record.arrived:
        if lack := readiness(world.nodes.get(name), {}):
            return Infeasible(ConsolidationReason.NEW_NODE_LOST, lack.detail, f"node {name}")
    return None


def _refused(
    record: MoveRecord, world: MoveObservation, settings: ExecutionSettings, now: float
) -> Infeasible[ConsolidationReason] | None:
    deadline = launch_deadline(record, settings)
    if now >= deadline and not record.arrived:
        return Infeasible(
            ConsolidationReason.TIMEOUT, f"new nodes did not start within {deadline - record.since:g} s"
        )
    for placeholder in world.placeholders:
        if placeholder.epoch != record.attempt:
            continue
        if placeholder.outlook is PlaceholderState.ENDED:
            return Infeasible(
                ConsolidationReason.PLACEHOLDER_ENDED, f"{placeholder.key} ended: {placeholder.message}"
            )
        asked_for = now - max(placeholder.created, record.since)
        if placeholder.outlook is PlaceholderState.REFUSED and asked_for >= settings.refusal_seconds:
            return Infeasible(ConsolidationReason.STOCK_OUT, f"no node is available: {placeholder.message}")
    return None


def _by_index(placeholder: Placeholder) -> int:
    return placeholder.index


def _is_same(source: SourceNode, world: MoveObservation) -> bool:
    return world.claims[source.claim].metadata.uid == source.claim_uid


def _is_left(source: SourceNode, world: MoveObservation) -> bool:
    """Whether the claim of the node is still to be deleted."""
    claim = world.claims.get(source.claim)
    return claim is not None and _is_same(source, world) and not claim.is_deleting


def _is_its_node(source: SourceNode, record: MoveRecord, world: MoveObservation) -> bool:
    """Whether the node of that name is the planned one: only that one carries the mark of the move."""
    return marked_by(world.nodes[source.name]) == record.name if source.name in world.nodes else False
