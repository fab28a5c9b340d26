"""Changes a view for planning and validation according to the active moves.

Nodes of other moves are shown as leaving: they count against budgets, and their pods take their planned
places before other pods. A move that is being rolled back takes no nodes. Nodes launched for a move are
protected: they stay, and may receive pods. Placeholders are not part of the view. Marks that a move wrote on
its own nodes do not count against it. Pure.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from karpool.cluster.changes import ChangeSink, ObjectChange
from karpool.cluster.nodes.node_facts import ClaimFacts, NodeFacts
from karpool.cluster.nodes.state_node import StateNode
from karpool.cluster.pods.disruption_store import EVICTABLE
from karpool.consolidation.execution.node_marks import PROTECTED
from karpool.consolidation.execution.record import MovePhase, MoveRecord, PlaceholderRequest
from karpool.consolidation.execution.validation import promised_by, validate_all
from karpool.consolidation.planning.plan import Move, ReplacementNode
from karpool.consolidation.policy.budgets import permission
from karpool.consolidation.policy.candidates import read_pools
from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.consolidation.policy.settings import PlanSettings
from karpool.consolidation.view import ClusterView
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CAPACITY_TYPE, DO_NOT_DISRUPT, NODEPOOL
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import AffinityTerm, PodShape
from karpool.model.requirements import ValueSet, combined
from karpool.model.resources import CPU, MEMORY, PODS, add
from karpool.model.taints import Toleration
from karpool.packing.new_nodes.narrowing import alternatives
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.smart_pod import placeholder_of

_PINNED = frozenset((NODEPOOL, INSTANCE_TYPE, ZONE, CAPACITY_TYPE, HOSTNAME))
# Share of the catalogue's capacity that is requested: real machines have a few percent less.
_WHOLE = 0.9
_SAME_PRICE = 1e-9  # dollars per hour
_APART_MAX = 50  # bounds the size of record and pod; the last validation notices what is left out
# Objections that must not stop a move that is half done: the rest cannot be judged like the whole.
_OF_WHOLE_MOVES = frozenset(
    (
        ConsolidationReason.SCORE,
        ConsolidationReason.SMALL_SAVING,
        ConsolidationReason.BILL_DOES_NOT_FALL,
        ConsolidationReason.NOT_CHEAPER,
        ConsolidationReason.METHOD_DISABLED,
    )
)


class PlaceholderFilter:
    """Forwards all pods except the placeholders of moves."""

    def __init__(self, sink: ChangeSink[Pod], namespace: str) -> None:
        self._sink, self._namespace = sink, namespace

    def apply(self, changes: Sequence[ObjectChange[Pod]], /) -> None:
        self._sink.apply([change for change in changes if not self._is_placeholder(change)])

    def _is_placeholder(self, change: ObjectChange[Pod]) -> bool:
        return change.object is not None and is_placeholder_of_a_move(
            change.key, change.object, namespace=self._namespace
        )


def is_placeholder_of_a_move(key: ObjectKey, pod: Pod, *, namespace: str) -> bool:
    """Whether the pod is a placeholder: it reserves capacity for pods that still run elsewhere."""
    if key.namespace != namespace:
        return False
    placeholder = placeholder_of(pod, namespace)
    return placeholder is not None and placeholder.purpose is RequestPurpose.REPLACEMENT


def snapshot_with_moves(
    view: ClusterView,
    records: Iterable[MoveRecord],
    looked_at: Collection[str] = (),
    coming: Collection[str] = (),
) -> ClusterView:
    """Return the view with the effects of active moves.

    `looked_at`: names of the records that are being validated; their nodes are shown as present. `coming`:
    nodes with a placeholder of a move that still waits for other nodes.
    """
    taken: set[str] = set()  # and whose pods need a place
    kept: set[str] = set()
    promised: dict[str, str] = {}
    own: set[str] = set()
    new: set[str] = set(coming)
    for record in records:
        if record.phase.is_over:
            continue
        if record.phase is not MovePhase.SETTLING:
            new.update(record.arrived)
        promised |= promised_by(record.move, record.arrived)
        if record.name in looked_at:
            own.update(record.going)
        elif record.phase is MovePhase.ROLLING_BACK or (looked_at and record.phase is MovePhase.WAITING):
            # Its pods stay, or it is validated later, before it does anything.
            kept.update(record.going)
        elif record.phase.takes_nodes:
            taken.update(record.going)
    if not taken and not kept and not own and not new:
        return view
    machines = [_shown(machine, taken, own, new) for machine in view.machines]
    in_flight = frozenset((*view.in_flight, *taken, *kept))
    return replace(view, machines=machines, in_flight=in_flight, promised=promised)


def _shown(machine: StateNode, taken: set[str], own: set[str], new: set[str]) -> StateNode:
    node, claim = machine.node, machine.claim
    if node is None:
        return machine
    if node.name in taken and claim is not None and not machine.is_leaving:
        return replace(machine, claim=msgspec.structs.replace(claim, is_deleting=True))
    if node.name in own and node.annotations.get(PROTECTED) == "true":
        return replace(machine, node=_annotated(node, None))
    if node.name in new:
        return replace(machine, node=_annotated(node, "true"))
    return machine


def _annotated(node: NodeFacts, value: str | None) -> NodeFacts:
    annotations = {key: text for key, text in node.annotations.items() if key != DO_NOT_DISRUPT}
    if value is not None:
        annotations[DO_NOT_DISRUPT] = value
    return msgspec.structs.replace(node, annotations=annotations)


def closed_pools(
    view: ClusterView, settings: PlanSettings, now: float
) -> dict[str, Infeasible[ConsolidationReason]]:
    """Pools from which no node may be removed now, whatever the budgets allow."""
    rules = read_pools(view, settings)
    closed = {
        name: Infeasible(
            ConsolidationReason.NODEPOOL_UNREADABLE,
            f"nodepool {name}: {pool_rules.problem}",
            f"nodepool {name}",
        )
        for name, pool_rules in rules.items()
        if pool_rules.problem
    }
    readable = {name: pool_rules.settings for name, pool_rules in rules.items() if not pool_rules.problem}
    for name, allowance in permission(view, settings, readable, now).pools.items():
        if allowance.closed:
            closed[name] = allowance.closed[0]
    return closed


def is_looked_at(
    record: MoveRecord, now: float, quiet_seconds: float, claim: Callable[[str], ClaimFacts | None]
) -> bool:
    """Whether the next step of the record needs its move to be validated."""
    match record.phase:
        case MovePhase.WAITING:
            return now >= record.since + quiet_seconds
        case MovePhase.ASKING:
            return bool(record.arrived)
        case MovePhase.CORDONING:
            return True
        case MovePhase.DELETING:
            claims = [claim(source.claim) for source in record.move.nodes if source.name not in record.kept]
            return any(facts is not None and not facts.is_deleting for facts in claims)
        case _:
            return False


def objections(
    view: ClusterView,
    records: Sequence[MoveRecord],
    looked_at: Collection[str],
    settings: PlanSettings,
    now: float,
    *,
    coming: Collection[str] = (),
) -> dict[str, tuple[Infeasible[ConsolidationReason], ...]]:
    """Return the objections to each record's move.

    Records are validated in order of phase, most advanced first, then by age. Each is validated on top of the
    earlier ones that may go on, so that one of two conflicting moves succeeds.
    """
    chosen = [record for record in records if record.name in looked_at]
    chosen.sort(key=lambda record: (-_FURTHEST.index(record.phase), record.created, record.name))
    if not chosen:
        return {}
    seen = snapshot_with_moves(view, records, frozenset(record.name for record in chosen), coming)
    moves = {record.name: left_of(record, seen) for record in chosen}
    results = validate_all(
        [move for move in moves.values() if move.nodes],
        seen,
        settings,
        now,
        arrived={record.move.id: record.arrived for record in chosen},
        targets=_receiving(records, seen),
        begun=[record.move.id for record in chosen if record.phase in _BEGUN],
    )
    objections_of: dict[str, tuple[Infeasible[ConsolidationReason], ...]] = {}
    for record in chosen:
        move = moves[record.name]
        why = results.get(move.id, ())
        if len(move.nodes) < len(record.nodes):
            why = tuple(objection for objection in why if objection.reason not in _OF_WHOLE_MOVES)
        objections_of[record.name] = why or tuple(_overruled(move, seen))
    return objections_of


def _receiving(records: Iterable[MoveRecord], view: ClusterView) -> list[str]:
    """Nodes that receive pods of moves. New pods make them young; this must not block the next move."""
    under_way = [record for record in records if not record.phase.is_over]
    named = {name for record in under_way for name in promised_by(record.move, record.arrived).values()}
    named.update(name for record in under_way for name in record.arrived)
    return [
        machine.name
        for machine in view.machines
        if machine.name in named
        and not machine.is_leaving
        and machine.name not in view.in_flight
        and machine.is_initialized
    ]


def _overruled(move: Move, view: ClusterView) -> Iterable[Infeasible[ConsolidationReason]]:
    """Pods that Karpenter would evict against their disruption budget.

    It does so on a node with a terminationGracePeriod if more pods go than the budget allows at once.
    """
    pods, going = view.pods, Counter[int]()
    for source in move.nodes:
        row = view.snapshot.find(source.name)
        claim = view.machines[row].claim if row is not None else None
        if row is not None and claim is not None and claim.has_grace_period:
            going.update(int(pods.budget[pod]) for pod in pods.on(row) if pods.flags[pod] & EVICTABLE)
    for number, pods_of in going.items():
        if number >= 0 and pods_of > view.budgets[number].disruptions_allowed:
            budget = view.budgets[number]
            about = f"poddisruptionbudget {budget.namespace}/{budget.name}"
            message = f"{pods_of} pods of {about} would go, {budget.disruptions_allowed} may, and the "
            yield Infeasible(
                ConsolidationReason.PDB_DEADLINE,
                f"{message}terminationGracePeriod of the nodes does not wait",
                about,
            )


_FURTHEST = (MovePhase.WAITING, MovePhase.ASKING, MovePhase.CORDONING, MovePhase.DELETING)
_BEGUN = frozenset((MovePhase.CORDONING, MovePhase.DELETING))


def left_of(record: MoveRecord, view: ClusterView) -> Move:
    """The rest of the move: without nodes that are already leaving, and with the new nodes that arrived."""
    move = record.move
    if record.phase is MovePhase.DELETING:
        staying = {machine.name for machine in view.machines if not machine.is_leaving}
        names = {source.name for source in move.nodes if source.name in staying} - set(record.kept)
        move = replace(
            move,
            nodes=tuple(source for source in move.nodes if source.name in names),
            pods=tuple(pod for pod in move.pods if pod.source in names),
        )
    if record.arrived:
        move = replace(move, new_nodes=tuple(_bought(record, view)))
    return move


def _bought(record: MoveRecord, view: ClusterView) -> Iterable[ReplacementNode]:
    """The arrived nodes at their real price, which may differ from the plan."""
    prices = _prices_of_new(record, view)
    by_name = {machine.name: machine for machine in view.machines if machine.name in record.arrived}
    for planned, name in zip(record.move.new_nodes, record.arrived, strict=False):
        machine = by_name.get(name)
        price = prices.pop(name, 0.0)  # two new nodes may be the same node
        if machine is None or machine.node is None or price is None:
            yield planned
            continue
        labels = machine.node.labels
        type_, zone, kind = (labels.get(key, "") for key in (INSTANCE_TYPE, ZONE, CAPACITY_TYPE))
        yield replace(planned, options=(LaunchOption(type_, zone, kind, price),))


def _prices_of_new(record: MoveRecord, view: ClusterView) -> dict[str, float | None]:
    """Prices of the arrived nodes by name. A node that existed before costs nothing extra."""
    prices: dict[str, float | None] = dict.fromkeys(record.arrived)
    for machine in view.machines:
        if machine.name in prices:
            made = machine.claim.created if machine.claim is not None else None
            # Timestamps of objects are whole seconds.
            is_new = made is None or made >= record.created - 1.0
            prices[machine.name] = machine.price_per_hour if is_new else 0.0
    return prices


def arrived_price(record: MoveRecord, view: ClusterView) -> float | None:
    """Price per hour of all arrived nodes; None if one is unknown."""
    prices = list(_prices_of_new(record, view).values())
    paid = [price for price in prices if price is not None]
    return sum(paid) if len(paid) == len(prices) else None


def wanted_of(move: Move, view: ClusterView) -> tuple[PlaceholderRequest, ...]:
    """For each new node: the sum of its pods' requests, and the taints of its pool."""
    shape_of: dict[str, int] = {}
    pods = view.pods
    for source in move.nodes:
        row = view.snapshot.find(source.name)
        if row is not None:
            shape_of |= {pods.keys[pod]: int(pods.shapes[pod]) for pod in pods.on(row)}
    return tuple(
        _wanted(node, Counter(shape_of[key] for key in node.pods if key in shape_of), view)
        for node in move.new_nodes
    )


def _wanted(node: ReplacementNode, shapes: Mapping[int, int], view: ClusterView) -> PlaceholderRequest:
    table = view.snapshot.shapes
    asked: dict[str, int] = {}
    for shape, number in shapes.items():
        add(asked, {name: units * number for name, units in table[shape].requests})
    if not asked:  # its pods are gone; validation reports it
        asked = {name: units for name, units in node.requests.items() if name != PODS}
    for name, units in _whole_node(node, view).items():
        asked[name] = max(asked.get(name, 0), units)
    zones: tuple[str, ...] = ()
    if any(_is_tied(table[shape]) for shape in shapes):
        zones = tuple(dict.fromkeys(choice.zone for choice in node.options if choice.zone))
    types: tuple[str, ...] = ()
    if view.bill is not None:
        # Karpenter launches the cheapest type by its own prices and would leave the commitment unused. The
        # move would not save what was planned, and would be planned again.
        least = node.price_per_hour + _SAME_PRICE
        cheapest = [choice for choice in node.options if (choice.price_per_hour or 0.0) <= least]
        types = tuple(dict.fromkeys(choice.instance_type for choice in cheapest))
        zones = tuple(dict.fromkeys(choice.zone for choice in cheapest if choice.zone))
    own = [table[shape] for shape in shapes]
    labels, apart = _asked_of_node(own), _apart(own)
    return PlaceholderRequest(asked, _tolerations(view, node), zones, labels, apart, types)


def _whole_node(node: ReplacementNode, view: ClusterView) -> dict[str, int]:
    """Nearly the capacity that every planned type has besides daemons.

    A placeholder of the size of the pods would fit into capacity that the plan uses for other pods, and no
    node would be launched.
    """
    types = view.offerings.for_pool(view.pools[node.pool]).types if node.pool in view.pools else ()
    planned = {choice.instance_type for choice in node.options}
    sizes = [candidate.allocatable for candidate in types if candidate.name in planned]
    if len(sizes) != len(planned):
        return {}
    daemons = Counter[str]()
    for shape in view.daemons:
        daemons.update(dict(shape.requests))
    least = {name: min(size.get(name, 0) for size in sizes) - daemons[name] for name in (CPU, MEMORY)}
    return {name: int(units * _WHOLE) for name, units in least.items() if units > 0}


def _asked_of_node(shapes: Iterable[PodShape]) -> dict[str, ValueSet]:
    """The node requirements of pods that have no alternative terms; zones and the like are pinned anyway."""
    asked = (alternatives(dict(shape.node_selector), shape.node_terms) for shape in shapes)
    requirements = combined(*(choices[0] for choices in asked if len(choices) == 1))
    return {key: values for key, values in requirements.items() if key not in _PINNED}


def _apart(shapes: Iterable[PodShape]) -> tuple[AffinityTerm, ...]:
    """The anti-affinity terms of these pods by host.

    Larger domains are covered by the zones: the pods still run at their old place while the node is
    requested.
    """
    terms = [term for shape in shapes for term in shape.anti_affinity if term.topology_key == HOSTNAME]
    terms += (
        AffinityTerm(spread.selector, HOSTNAME, frozenset((shape.namespace,)))
        for shape in shapes
        for spread in shape.spreads
        if spread.required and spread.topology_key == HOSTNAME
    )
    return tuple(dict.fromkeys(terms))[:_APART_MAX]


def _is_tied(shape: PodShape) -> bool:
    """Whether the zone of the node may matter to the pod. Prices do not matter: types are chosen by the price
    of their costliest zone.
    """
    return bool(
        shape.has_topology
        or shape.volume_terms
        or shape.node_terms is not None
        or any(key == ZONE for key, _ in shape.node_selector)
    )


def _tolerations(view: ClusterView, node: ReplacementNode) -> tuple[Toleration, ...]:
    pool = view.pools.get(node.pool)
    if pool is None:
        return ()
    return tuple(Toleration(key=taint.key, operator="Exists", effect=taint.effect) for taint in pool.taints)
