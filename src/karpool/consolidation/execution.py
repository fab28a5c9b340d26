"""One step of a move under way: from its record and what is seen to what is written or done next.

Pure and level-triggered: `step` may be called at any time and as often as anybody likes.
It gives either a record to store, or things to do, or nothing but a time to look again;
so whatever is done was written down before. Every action may be repeated. Until the
first NodeClaim is deleted a move can be rolled back, and is, whenever anything that
decided it has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpool.consolidation.marks import is_cordoned, is_marked, marked_by
from karpool.consolidation.plan import SourceNode, Why
from karpool.consolidation.record import Phase, Record
from karpool.consolidation.validation import command_timeout
from karpool.model.karpenter import NodeClaim
from karpool.model.node import Node
from karpool.provisioning.placeholders import Outlook, Placeholder
from karpool.provisioning.readiness import Lack, readiness

CLOCK_SKEW_SECONDS = 60.0  # between those who lead one after the other
MEASURE_SECONDS = 1200.0  # what cannot be measured by then is not


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
    """`launch_seconds` None: as upstream, from 10 minutes to an hour by the number of nodes."""

    quiet_seconds: float = 15.0  # between decision and validation
    launch_seconds: float | None = None
    refusal_seconds: float = 30.0  # an autoscaler that says no for so long means it
    look_seconds: float = 120.0  # a move that could not be looked at again for so long is given up
    settle_seconds: float = 60.0  # after the nodes are gone, until savings are measured


@dataclass(frozen=True, slots=True)
class Measured:
    """What the cluster looks like once a move's nodes are gone."""

    realised: float | None
    extra_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """What is seen, at this moment, of what one record is about.

    `nodes` and `claims` were just read and hold what exists. `objections` None: the move could not be
    looked at again yet; empty: nothing speaks against it. `stop` is what stops it whatever the phase:
    the switch, a closed pool. `cordon_seen`: whatever made the objections knew of the cordon.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    claims: Mapping[str, NodeClaim] = field(default_factory=dict)
    placeholders: Sequence[Placeholder] = ()
    stop: Why | None = None
    objections: tuple[Why, ...] | None = None
    cordon_seen: bool = False
    owners: Mapping[str, int] = field(default_factory=dict)  # of the pods that are disturbed
    redisturbed: int = 0
    arrived_price: float | None = None
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Store:
    record: Record


@dataclass(frozen=True, slots=True)
class Mark:
    node: Node
    cordon: bool = False


@dataclass(frozen=True, slots=True)
class Unmark:
    node: Node


@dataclass(frozen=True, slots=True)
class AskFor:
    """New nodes of the move, by number."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    placeholder: Placeholder


@dataclass(frozen=True, slots=True)
class Delete:
    source: SourceNode


Action = Mark | Unmark | AskFor | Withdraw | Delete


@dataclass(frozen=True, slots=True)
class Act:
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    until: float | None = None  # None: for something to change


Next = Store | Act | Wait


def step(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    if record.since > now + CLOCK_SKEW_SECONDS and not record.phase.is_over:
        # The clock went back: what is waited for begins anew, instead of lasting as long as the jump.
        return Store(replace(record, since=now))
    match record.phase:
        case Phase.WAITING:
            return _waiting(record, world, settings, now)
        case Phase.ASKING:
            return _asking(record, world, settings, now)
        case Phase.CORDONING:
            return _cordoning(record, world, settings, now)
        case Phase.DELETING:
            return _deleting(record, world, settings, now)
        case Phase.SETTLING:
            return _settling(record, world, settings, now)
        case Phase.ROLLING_BACK:
            return _rolling_back(record, world, now)
    return Wait()


def launch_deadline(record: Record, settings: ExecutionSettings) -> float:
    """When new nodes must be there."""
    given = settings.launch_seconds
    return record.since + (command_timeout(len(record.nodes)) if given is None else given)


def _waiting(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    if why := world.stop or _missing(record, world):
        return Store(record.to(Phase.REJECTED, now, why.code, why.message))
    due = record.since + settings.quiet_seconds
    if now < due:
        return Wait(due)
    if world.objections is None:
        limit = due + settings.look_seconds
        if now < limit:
            return Wait(limit)
        why = _not_looked_at(settings)
        return Store(record.to(Phase.REJECTED, now, why.code, why.message))
    if world.objections:
        why = world.objections[0]
        return Store(record.to(Phase.REJECTED, now, why.code, why.message))
    return Store(record.to(Phase.ASKING if record.replaces else Phase.CORDONING, now))


def _asking(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    if why := world.stop or _missing(record, world) or _refused(record, world, settings, now):
        return _back(record, now, why)
    if unmarked := [node for node in _sources(record, world) if not is_marked(node, record.name)]:
        return _marks(unmarked, record, now) or Act(tuple(Mark(node) for node in unmarked))
    present = {each.index for each in world.placeholders if each.epoch == record.attempt}
    if missing := tuple(index for index in range(len(record.wanted)) if index not in present):
        return Act((AskFor(missing),))
    own = sorted((each for each in world.placeholders if each.epoch == record.attempt), key=_by_index)
    places = [each.node for each in own]
    states = [readiness(world.nodes.get(name), {}) for name in places if name]
    if lost := next((each for each in states if each.lack is Lack.LIFE), None):
        return _back(record, now, Why("new_node_lost", lost.message))
    if not all(places) or not all(each.is_ready for each in states):
        return Wait(launch_deadline(record, settings))
    if record.arrived != (arrived := tuple(places)):
        return Store(replace(record, arrived=arrived))
    came = [world.nodes[name] for name in dict.fromkeys(arrived)]
    bare = [node for node in came if not is_marked(node, record.name)]
    if bare:
        return _marks(bare, record, now) or Act(tuple(Mark(node) for node in bare))
    if world.objections is None:
        return Wait()
    if world.objections:
        return _back(record, now, world.objections[0])
    return Store(record.to(Phase.CORDONING, now, arrived_price=world.arrived_price))


def _cordoning(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    if why := world.stop or _missing(record, world) or _lost(record, world):
        return _back(record, now, why)
    limit = record.since + settings.look_seconds
    if now >= limit:
        return _back(record, now, _not_looked_at(settings))
    open_nodes = [node for node in _sources(record, world) if not is_cordoned(node, record.name)]
    if open_nodes:
        cordons = Act(tuple(Mark(node, cordon=True) for node in open_nodes))
        return _marks(open_nodes, record, now) or cordons
    if world.placeholders:
        # Room that they hold would be bought a second time for the pods that need it.
        return _withdraw(world, limit)
    if world.objections is None or not world.cordon_seen:
        return Wait(limit)
    if world.objections:
        return _back(record, now, world.objections[0])
    return Store(
        record.to(
            Phase.DELETING,
            now,
            deleted_at=now,
            owners=dict(world.owners),
            disturbed=sum(world.owners.values()),
            redisturbed=world.redisturbed,
        )
    )


def _deleting(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    going = [source for source in record.move.nodes if source.name not in record.kept]
    left = [source for source in going if _is_left(source, world)]
    if left:
        why = world.stop or _lost(record, world) or next(iter(world.objections or ()), None)
        if why is None and world.objections is not None:
            return Act(tuple(Delete(source) for source in left))
        limit = record.since + settings.look_seconds
        if why is None and now < limit:
            return Wait(limit)
        why = why or _not_looked_at(settings)
        if len(left) == len(record.move.nodes):
            return _back(record, now, why)
        kept = (*record.kept, *(source.name for source in left))
        return Store(replace(record, kept=kept, reason=why.code, message=why.message))
    kept_nodes = [world.nodes[name] for name in record.kept if name in world.nodes]
    if stale := [node for node in kept_nodes if marked_by(node) == record.name]:
        return Act(tuple(Unmark(node) for node in stale))
    if any(source.claim in world.claims and _is_same(source, world) for source in going):
        return Wait()
    if any(source.name in world.nodes for source in going if _is_its_node(source, record, world)):
        return Wait()
    if new := _marked(record.arrived, record, world):
        return Act(tuple(Unmark(node) for node in new))
    return Store(record.to(Phase.SETTLING, now, record.reason, record.message, gone_at=now))


def _settling(record: Record, world: World, settings: ExecutionSettings, now: float) -> Next:
    due = record.since + settings.settle_seconds
    if now < due:
        return Wait(due)
    limit = record.since + max(settings.settle_seconds, MEASURE_SECONDS)
    if world.measured is None and now < limit:
        return Wait(limit)
    measured = world.measured or Measured(None)
    return Store(
        record.to(
            Phase.DONE,
            now,
            record.reason,
            record.message,
            realised=measured.realised,
            extra_nodes=measured.extra_nodes,
        )
    )


def _rolling_back(record: Record, world: World, now: float) -> Next:
    if world.placeholders:
        return _withdraw(world, None)
    if marked := _marked(world.nodes, record, world):
        return Act(tuple(Unmark(node) for node in marked))
    return Store(record.to(Phase.ROLLED_BACK, now, record.reason, record.message))


def _back(record: Record, now: float, why: Why) -> Store:
    return Store(record.to(Phase.ROLLING_BACK, now, why.code, why.message))


def _not_looked_at(settings: ExecutionSettings) -> Why:
    """The view that says whether anything has changed is not kept up to date by the server."""
    return Why("timeout", f"the move could not be looked at again within {settings.look_seconds:g} s")


def _withdraw(world: World, until: float | None) -> Next:
    standing = [each for each in world.placeholders if each.deleting_since is None]
    return Act(tuple(map(Withdraw, standing))) if standing else Wait(until)


def _sources(record: Record, world: World) -> list[Node]:
    return [world.nodes[name] for name in record.nodes]


def _marked(names: Sequence[str] | Mapping[str, Node], record: Record, world: World) -> list[Node]:
    found = [world.nodes[name] for name in names if name in world.nodes]
    return [node for node in found if marked_by(node) == record.name]


def _marks(nodes: Sequence[Node], record: Record, now: float) -> Next | None:
    """A node that another move has marked is not ours to take."""
    for node in nodes:
        other = marked_by(node)
        if other and other != record.name:
            why = Why("in_queue", f"node {node.name} is part of {other}", f"node {node.name}")
            return _back(record, now, why)
    return None


def _missing(record: Record, world: World) -> Why | None:
    """A node or claim that is gone, goes, or is another one by now."""
    for source in record.move.nodes:
        about = f"node {source.name}"
        claim, node = world.claims.get(source.claim), world.nodes.get(source.name)
        if claim is None or node is None:
            return Why("gone", f"{about} does not exist any more", about)
        if claim.metadata.uid != source.claim_uid:
            return Why("replaced", f"{about} has another NodeClaim than planned", about)
        if claim.is_deleting or node.metadata.deletion_timestamp is not None:
            return Why("deleting", f"{about} is being deleted by somebody else", about)
    return None


def _lost(record: Record, world: World) -> Why | None:
    """A new node that came and does not serve any more."""
    for name in record.arrived:
        state = readiness(world.nodes.get(name), {})
        if not state.is_ready:
            return Why("new_node_lost", state.message, f"node {name}")
    return None


def _refused(record: Record, world: World, settings: ExecutionSettings, now: float) -> Why | None:
    deadline = launch_deadline(record, settings)
    if now >= deadline:
        return Why("timeout", f"new nodes did not come within {deadline - record.since:g} s")
    for each in world.placeholders:
        if each.epoch != record.attempt:
            continue
        if each.outlook is Outlook.ENDED:
            return Why("placeholder_ended", f"{each.key} ended: {each.message}")
        asked_for = now - max(each.created, record.since)
        if each.outlook is Outlook.REFUSED and asked_for >= settings.refusal_seconds:
            return Why("stock_out", f"no node can be had: {each.message}")
    return None


def _by_index(placeholder: Placeholder) -> int:
    return placeholder.index


def _is_same(source: SourceNode, world: World) -> bool:
    return world.claims[source.claim].metadata.uid == source.claim_uid


def _is_left(source: SourceNode, world: World) -> bool:
    """Whether its claim is still to be deleted."""
    claim = world.claims.get(source.claim)
    return claim is not None and _is_same(source, world) and not claim.is_deleting


def _is_its_node(source: SourceNode, record: Record, world: World) -> bool:
    """Whether the node of that name is the one that was planned: then it carries our mark."""
    return marked_by(world.nodes[source.name]) == record.name if source.name in world.nodes else False
