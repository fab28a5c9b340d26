"""The ledger of moves: what executed moves saved, which pods they disturbed, and how often. Pure.

The realised saving is the cost of the removed nodes less the cost of the new nodes: those that the move
requested, and those that were launched unplanned for its pods. Pods are identified by their controllers,
which outlive them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from karpool.consolidation.execution.options import KEEP_SECONDS
from karpool.consolidation.execution.record import MovePhase, MoveRecord
from karpool.consolidation.execution.step import MeasuredSavings
from karpool.consolidation.planning.plan import SourceNode
from karpool.consolidation.view import ClusterView, NodeRemoval
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.pod import Pod
from karpool.packing.new_nodes.pack_result import LaunchOption

AGAIN_SECONDS = 600.0  # pods that are disturbed twice within this time are counted
KEEP = 500  # number of finished records kept
LEAST_KEEP_SECONDS = 86400.0  # rates and node back-offs are computed from these records
_REST_SECONDS = {MovePhase.REJECTED: 30.0, MovePhase.ROLLED_BACK: 60.0}
_REST_AFTER_BUYING = 600.0  # a node that was launched and not used is not launched again soon
_REST_LONGEST = 3600.0
_OWNERS_REST_LONGEST = 6 * 3600.0  # pod placement rarely changes by itself: a few attempts a day are enough


class PodOwners:
    """The controller of every pod, by key; fed by an informer."""

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}

    def put(self, key: ObjectKey, pod: Pod) -> None:
        self._owner[str(key)] = owner_of(pod)

    def drop(self, key: ObjectKey) -> None:
        self._owner.pop(str(key), None)

    def of(self, pod: str) -> str:
        return self._owner.get(pod, "")


def owner_of(pod: Pod) -> str:
    """The uid of the pod's controller, or the pod's own uid."""
    for reference in pod.metadata.owner_references or ():
        if reference.controller:
            return reference.uid
    return pod.metadata.uid


def disturbances(records: Iterable[MoveRecord]) -> list[NodeRemoval]:
    """The node removals of the records, for disruption rates."""
    return [
        NodeRemoval(source.pool, source.name, record.deleted_at)
        for record in records
        if record.deleted_at is not None
        for source in record.move.nodes
        if source.name not in record.kept
    ]


def redisturbed(owners: Mapping[str, int], records: Iterable[MoveRecord], now: float) -> int:
    """Number of pods of these controllers that a move disturbed shortly before."""
    before: dict[str, int] = {}
    for record in records:
        if record.deleted_at is not None and now - AGAIN_SECONDS < record.deleted_at <= now:
            for owner, pods in record.owners.items():
                before[owner] = before.get(owner, 0) + pods
    return sum(min(pods, before.get(owner, 0)) for owner, pods in owners.items())


@dataclass(frozen=True, slots=True)
class RestingNode:
    record: MoveRecord
    until: float


def resting(records: Iterable[MoveRecord], now: float) -> dict[str, RestingNode]:
    """Nodes whose last move failed, and until when they are skipped. The back-off grows with each failure."""
    rests: dict[str, RestingNode] = {}
    for record in records:
        first = _REST_SECONDS.get(record.phase)
        if first is None or record.ended is None:
            continue
        if record.arrived:
            first = _REST_AFTER_BUYING
        until = record.ended + min(_REST_LONGEST, first * 2.0 ** min(record.attempt - 1, 10))
        for name in record.nodes:
            if until > now and (name not in rests or rests[name].until < until):
                rests[name] = RestingNode(record, until)
    return rests


def resting_owners(records: Iterable[MoveRecord], now: float) -> dict[str, RestingNode]:
    """Controllers whose pods did not land as planned, so that a node was launched for them.

    The same move would be planned again on other nodes and fail in the same way, because the scheduler
    chooses where pods land. The back-off grows with each failure.
    """
    failures: dict[str, list[MoveRecord]] = {}
    for record in sorted(records, key=lambda record: record.ended or 0.0):
        if record.phase is MovePhase.DONE and record.extra_nodes and record.ended is not None:
            for owner in record.owners:
                failures.setdefault(owner, []).append(record)
    rests: dict[str, RestingNode] = {}
    for owner, failed in failures.items():
        last = failed[-1]
        doubled = _REST_AFTER_BUYING * 2.0 ** min(len(failed) - 1, 10)
        until = (last.ended or 0.0) + min(_OWNERS_REST_LONGEST, doubled)
        if until > now:
            rests[owner] = RestingNode(last, until)
    return rests


def has_settled(record: MoveRecord, view: ClusterView, owners: PodOwners, now: float) -> bool:
    """Whether the result of the move can be measured: its pods have nodes again, or the wait is over."""
    if now - record.since >= AGAIN_SECONDS:
        return True
    return not any(owners.of(pod) in record.owners for pod in view.snapshot.pending)


def leftovers(records: Iterable[MoveRecord]) -> frozenset[str]:
    """Nodes launched for moves that were rolled back, and claims launched for moves that found other
    capacity.

    Without Karpool they would not exist, so removing them saves nothing.
    """
    kept = list(records)
    names = {name for record in kept if record.phase is MovePhase.ROLLED_BACK for name in record.arrived}
    return frozenset(names.union(*(record.unused for record in kept)))


def _is_leftover(source: SourceNode, own: Collection[str]) -> bool:
    return source.name in own or source.claim in own


def cost_of(record: MoveRecord, records: Iterable[MoveRecord], now: float) -> float | None:
    """Dollars paid for the new nodes of a move while they saved nothing; None if unknown.

    That is the time until the replaced nodes were gone or, for a move that was rolled back, until the new
    nodes were removed.
    """
    unused = _cost_of_unused(record, records, now)
    if not record.arrived or record.asked_at is None:
        return unused
    if record.arrived_price is None:
        return None
    end = record.gone_at if record.gone_at is not None else record.ended
    if record.phase is MovePhase.ROLLED_BACK:
        removed = [
            other.gone_at
            for other in records
            if other.gone_at is not None and not set(record.arrived).isdisjoint(other.going)
        ]
        end = max((end or record.since, *removed))
    paid = max(0.0, (now if end is None else end) - record.asked_at) / 3600.0
    return record.arrived_price * paid + unused


def _cost_of_unused(record: MoveRecord, records: Iterable[MoveRecord], now: float) -> float:
    """Cost of claims that were launched for the move and not used.

    The cost counts until one of our moves removed the claim, at that move's price; otherwise for the duration
    of the move, at the highest requested price.
    """
    if not record.unused or record.asked_at is None:
        return 0.0
    dearest = max((node.price_per_hour for node in record.move.new_nodes), default=0.0)
    ends = dict.fromkeys(record.unused, (dearest, now if record.ended is None else record.ended))
    for other in records:
        for source in other.move.nodes:
            if source.claim in ends and other.gone_at is not None and source.name not in other.kept:
                ends[source.claim] = (source.price_per_hour or dearest, other.gone_at)
    return sum(price * max(0.0, end - record.asked_at) / 3600.0 for price, end in ends.values())


def saved_by(record: MoveRecord, records: Iterable[MoveRecord], now: float) -> float | None:
    """Dollars saved until now: the bill without the move less the bill with it.

    Without the move its nodes would still exist. If a later move removes the new nodes of this one, the
    saving counts for the later move from then on, so that the sum over moves is right. None: not measured, or
    a price is unknown.
    """
    cost = cost_of(record, records, now)
    if cost is None:
        return None
    if record.phase is not MovePhase.DONE or record.gone_at is None:
        return -cost
    if record.realised is None:
        return None
    return record.realised * max(0.0, now - record.gone_at) / 3600.0 - cost


def saved_by_all(records: Collection[MoveRecord], now: float) -> float:
    """Dollars saved by all recorded moves whose saving is known."""
    return sum(saved_by(record, records, now) or 0.0 for record in records)


def measure(
    record: MoveRecord, records: Sequence[MoveRecord], view: ClusterView, owners: PodOwners
) -> MeasuredSavings:
    extra = tuple(_extra(record, records, view, owners))
    own = leftovers(records)
    gone = [source for source in record.move.nodes if source.name not in record.kept]
    if view.bill is not None:
        counted = [source for source in gone if not _is_leftover(source, own)]
        came = {*record.arrived, *(name for name, _ in extra)}
        return MeasuredSavings(_fall_of_bill(record, counted, came, view), tuple(name for name, _ in extra))
    prices = [0.0 if _is_leftover(source, own) else source.price_per_hour for source in gone]
    paid = [price for _, price in extra]
    if record.replaces:
        paid.append(record.arrived_price)
    saved = [price for price in prices if price is not None]
    spent = [price for price in paid if price is not None]
    names = tuple(name for name, _ in extra)
    if len(saved) < len(prices) or len(spent) < len(paid):
        return MeasuredSavings(None, names)
    return MeasuredSavings(sum(saved) - sum(spent), names)


def _fall_of_bill(
    record: MoveRecord, gone: Iterable[SourceNode], came: Collection[str], view: ClusterView
) -> float | None:
    """The fall of the bill by the move. Under a contract machines have no price of their own, so this is the
    bill with the removed and without the new nodes, less the current bill.
    """
    bill = view.bill
    assert bill is not None
    before = [
        bill.kind_of(source.pool, LaunchOption(source.instance_type, source.zone, source.capacity_type, None))
        for source in gone
    ]
    since = record.created - 1.0  # timestamps of objects are whole seconds
    after = [
        machine.billed
        for machine in view.machines
        if machine.name in came and machine.claim is not None and (machine.claim.created or since) >= since
    ]
    if None in before or None in after:
        return None
    without_us = bill.with_more(bill.without(bill.fleet, after), before)
    return bill.beyond(without_us) - bill.beyond(bill.fleet)


def _extra(
    record: MoveRecord, records: Sequence[MoveRecord], view: ClusterView, owners: PodOwners
) -> Iterator[tuple[str, float | None]]:
    """Nodes launched since the move began, without being planned, that run pods of its controllers."""
    began = record.deleted_at
    if began is None:
        return
    planned = {name for other in records for name in other.arrived}
    rivals = [
        move_record
        for move_record in records
        if move_record.name != record.name
        and move_record.deleted_at is not None
        and move_record.deleted_at < began
    ]
    for row, machine in enumerate(view.machines):
        made = machine.claim.created if machine.claim is not None else None
        # Timestamps of objects are whole seconds.
        if made is None or made < began - 1.0 or machine.name in planned:
            continue
        there = {owners.of(view.pods.keys[pod]) for pod in view.pods.on(row)}
        if not there & record.owners.keys():
            continue
        # Charged once: to the first move that may have caused it.
        if any(there & rival.owners.keys() and _was_under_way(rival, made) for rival in rivals):
            continue
        yield machine.name, machine.price_per_hour


def _was_under_way(record: MoveRecord, at: float) -> bool:
    began = record.deleted_at
    return began is not None and began - 1.0 <= at and (record.ended is None or at <= record.ended)


def to_forget(
    records: Iterable[MoveRecord], now: float, keep: int = KEEP, keep_seconds: float = KEEP_SECONDS
) -> list[MoveRecord]:
    """Finished records that are too old, or too many; the oldest first."""
    keep_seconds = max(keep_seconds, LEAST_KEEP_SECONDS)
    over = sorted(
        (record for record in records if record.phase.is_over),
        key=lambda record: record.ended or 0.0,
        reverse=True,
    )
    return [
        record
        for number, record in enumerate(over)
        if number >= keep or now - (record.ended or 0.0) > keep_seconds
    ]
