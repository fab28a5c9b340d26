"""Explains why one pod is pending: the scheduler's message, the obstacle on each node, and possible and
coming nodes.

Everything is derived from one snapshot without the pod itself (`CapacityReport` about one more such pod), so
that the pod is not in its own way. Pure; commands and the dashboard render the value.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from karpool.cluster.nodes.state_node import NodeStage
from karpool.cluster.pods.volume_store import PodVolume
from karpool.cluster.pods.waiting_store import waiting_since
from karpool.cluster.snapshot import Snapshot
from karpool.estimator.capacity import CapacityAnalyzer, CapacityPlace, CapacityReport, PlaceOutlook
from karpool.estimator.departures import Departures
from karpool.estimator.pending_demand import demands, largest_first, without_topology
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.providers.packed_capacity import IN_FLIGHT
from karpool.estimator.question import EstimateQuestion
from karpool.model.devices.request import UNREADABLE
from karpool.model.infeasible import Infeasible
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.model.kubernetes.event import KubeEvent
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.kubernetes.times import moment
from karpool.model.requirements import NodeTerm
from karpool.model.resources import show_amount
from karpool.packing.claim_room import free_beside_drivers
from karpool.packing.counting.count import fits
from karpool.packing.counting.first_fit import NodeFilling, PodGroup
from karpool.packing.dra.pod_claims import demand_of
from karpool.packing.fit_reasons import INSUFFICIENT, FitReason, explain_nodes
from karpool.packing.new_nodes.node_plan import PoolCapacity
from karpool.packing.tables.room import Room, snapshot_of
from karpool.wire.requests import ReplicasRequest

DEFAULT_SCHEDULER = "default-scheduler"
# Events are kept for an hour and repeat; the newest of each source and reason are enough.
_REMARKS_MAX = 6


class PodVerdict(StrEnum):
    RUNS = "has a node"
    ENDED = "has ended"
    LEAVING = "is being deleted"
    GATED = "is held by scheduling gates"
    WAITS_FOR_VOLUME = "waits for a volume"
    FITS = "fits on a node that exists"
    NODE_COMES = "waits for a node that is on its way"
    NODE_CAN_COME = "waits, and a new node would take it"
    CANNOT_TELL = "waits, and it cannot be told whether a new node would take it"
    NOWHERE = "fits nowhere, and no new node would take it"

    @property
    def has_place(self) -> bool:
        """Whether nothing has to be done about it."""
        return self not in (PodVerdict.NOWHERE, PodVerdict.GATED, PodVerdict.WAITS_FOR_VOLUME)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Nodes that do not fit the pod for one reason, and what would have to change. A node with several
    reasons is counted under each: all of them would have to change.
    """

    nodes: int
    reason: str  # kube-scheduler's plugin
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What one pool or node group would launch for the pod alone, or the obstacle."""

    name: str
    outlook: PlaceOutlook
    instance_types: tuple[str, ...] = ()
    price_per_hour: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodRemark:
    """A message about the pod: its condition, or an event."""

    said_by: str
    reason: str
    message: str
    at: float | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class ComingNode:
    """`expected_in_seconds`: by the start times of earlier nodes of the pool; None if there are none."""

    claim: str
    pool: str
    node: str
    stage: str
    age_seconds: float | None
    expected_in_seconds: float | None
    compared_with: int
    is_overdue: bool
    takes_pod: bool


@dataclass(frozen=True, slots=True)
class VolumeNote:
    claim: str
    volume: str
    is_ready: bool
    detail: str


@dataclass(frozen=True, slots=True)
class QuotaNote:
    """The remaining quota for the pod's requests."""

    quota: str
    resource: str
    left: int
    asked: int

    @property
    def detail(self) -> str:
        left, asked = show_amount(self.resource, max(self.left, 0)), show_amount(self.resource, self.asked)
        return f"{self.resource}: {left} left, one more such pod requests {asked}"


@dataclass(frozen=True, slots=True)
class PodExplanation:
    namespace: str
    name: str
    verdict: PodVerdict
    node: str
    waits_since: float | None
    remarks: tuple[PodRemark, ...]
    gates: tuple[str, ...]
    nodes: int  # that exist
    open_nodes: int  # that fit the pod
    obstacles: tuple[Obstacle, ...]
    offers: tuple[PoolOffer, ...]
    coming: tuple[ComingNode, ...]
    others_waiting: int
    volumes: tuple[VolumeNote, ...]
    resource_claims: tuple[str, ...]  # problems of its claims
    quotas: tuple[QuotaNote, ...]
    report: CapacityReport
    would_fit_without: Departures | None = None  # pods in the way; None: not searched, or it fits


def explain_pod(
    pod: Pod,
    shape: PodShape,
    snapshot: Snapshot,
    report: CapacityReport,
    *,
    now: float,
    offers: Mapping[str, PoolCapacity],
    volumes: Sequence[PodVolume] = (),
    events: Iterable[KubeEvent] = (),
) -> PodExplanation:
    """`snapshot` is without the pod, `report` is about one such pod, `offers` are those of each
    pool for it.
    """
    room = snapshot.room
    notes = tuple(map(_volume_note, volumes))
    coming = tuple(_coming(snapshot, shape, now))
    gates = tuple(gate.name for gate in pod.spec.scheduling_gates or ())
    open_nodes = int((fits(room, shape) > 0).sum()) if room.n else 0
    existing = report.places[0].room if report.places else 0
    scheduled = condition(pod.status.conditions, "PodScheduled")
    since = waiting_since(pod.status.conditions)
    return PodExplanation(
        namespace=pod.metadata.namespace,
        name=pod.name,
        verdict=_state_of(pod, gates, notes) or _outlook(existing, coming, report, snapshot),
        node=pod.spec.node_name,
        waits_since=None if pod.spec.node_name else _begin(pod, since),
        remarks=tuple(_remarks(pod, (scheduled.message or "") if scheduled is not None else "", events)),
        gates=gates,
        nodes=room.n,
        open_nodes=open_nodes if existing else 0,
        obstacles=obstacles(room, shape) if room.n else (),
        offers=tuple(
            _offer(place, offers.get(place.name))
            for place in report.places[1:]
            if not place.name.endswith(IN_FLIGHT)
        ),
        coming=coming,
        others_waiting=sum(waiting.key != _key(pod) for waiting in snapshot.waiting.values()),
        volumes=notes,
        resource_claims=tuple(_claims_in_the_way(pod, snapshot)),
        quotas=tuple(quota_notes(snapshot, pod.metadata.namespace, shape, pod.spec.priority_class_name)),
        report=report,
    )


def waiting_pod_explained(
    pod: Pod,
    needs: ReplicaRequirements,
    snapshot: Snapshot,
    analyzer: CapacityAnalyzer,
    karpenter: KarpenterProvider,
    *,
    now: float,
    volumes: Sequence[PodVolume] = (),
    events: Iterable[KubeEvent] = (),
) -> PodExplanation:
    """Compute the report for one more such pod, and explain it. `snapshot` is without the pod."""
    question = EstimateQuestion(ReplicasRequest("", needs), snapshot, topology=True)
    return explain_pod(
        pod,
        needs.shape,
        snapshot,
        analyzer.answer(question, 1),
        now=now,
        offers=offers_for(karpenter, snapshot, needs.shape),
        volumes=volumes,
        events=events,
    )


def offers_for(provider: KarpenterProvider, snapshot: Snapshot, shape: PodShape) -> dict[str, PoolCapacity]:
    """By place: what each NodePool would launch for one such pod if it were first."""
    new, alone = provider.moment(snapshot).new, without_topology(shape)
    offers: dict[str, PoolCapacity] = {}
    for pool in new.pools:
        others = [other.name for other in new.pools if other.name != pool.name]
        for offer in new.potential(alone, snapshot.usage, nodes_max=1, wanted=1, skip=others):
            offers[f"{provider.name}/{pool.name}"] = offer
    return offers


def _offer(place: CapacityPlace, offer: PoolCapacity | None) -> PoolOffer:
    types, price, reasons = place.instance_types, place.price_per_hour, place.reasons
    if place.room and offer is not None and offer.replicas:
        types, price, reasons = offer.instance_types, offer.price_per_hour, ()
    return PoolOffer(place.name, place.outlook, types, price, reasons)


def _key(pod: Pod) -> tuple[str, str]:
    return (pod.metadata.namespace, pod.name)


def _begin(pod: Pod, since: float | None) -> float | None:
    return since if since is not None and since > 0 else moment(pod.metadata.creation_timestamp)


def _state_of(pod: Pod, gates: Sequence[str], volumes: Sequence[VolumeNote]) -> PodVerdict | None:
    """The verdict that does not depend on nodes; None for a pod that needs one."""
    if pod.is_terminal:
        return PodVerdict.ENDED
    if pod.is_terminating:
        return PodVerdict.LEAVING
    if pod.spec.node_name:
        return PodVerdict.RUNS
    if gates:
        return PodVerdict.GATED
    waits = any(not volume.is_ready for volume in volumes)
    return PodVerdict.WAITS_FOR_VOLUME if waits else None


def _outlook(
    existing: int, coming: Sequence[ComingNode], report: CapacityReport, snapshot: Snapshot
) -> PodVerdict:
    if existing:
        return PodVerdict.FITS
    in_flight = any(place.room for place in report.places if place.name.endswith(IN_FLIGHT))
    if in_flight or any(node.takes_pod for node in coming):
        return PodVerdict.NODE_COMES
    if any(place.room for place in report.places[1:]):
        return PodVerdict.NODE_CAN_COME
    unknown = report.is_unknown or snapshot.region_is_missing
    return PodVerdict.CANNOT_TELL if unknown else PodVerdict.NOWHERE


# Obstacles on existing nodes

_PASSING_TAINTS = ("node.kubernetes.io/not-ready", "node.cloudprovider.kubernetes.io/uninitialized")
_REMEDIES: Mapping[FitReason, str] = {
    FitReason.NODE_UNSCHEDULABLE: "uncordon them to use them",
    FitReason.TAINT_TOLERATION: "add a toleration to the pod, or remove the taint",
    FitReason.NODE_RESOURCES_FIT: "free it there: other pods use it",
    FitReason.NODE_AFFINITY: "change the pod's nodeSelector or node affinity, or label nodes so",
    FitReason.NODE_PORTS: "use another host port, or stop the pod that has it",
    FitReason.VOLUME_BINDING: "see its volumes",
    FitReason.POD_TOPOLOGY_SPREAD: "allow a larger maxSkew or ScheduleAnyway, or add nodes where few are",
    FitReason.INTER_POD_AFFINITY: "relax the pod affinity or anti-affinity, or move the pods it is about",
    FitReason.DYNAMIC_RESOURCES: "free such a device, or request another class",
}


def _remedy(refusal: Infeasible[FitReason]) -> str:
    if refusal.reason is FitReason.TAINT_TOLERATION and any(key in refusal.detail for key in _PASSING_TAINTS):
        return "wait: it is removed when the node is ready"
    if refusal.reason is FitReason.DYNAMIC_RESOURCES and "does not compile" in refusal.detail:
        return "correct the selector of its claim or class"
    if refusal.reason is FitReason.DYNAMIC_RESOURCES and refusal.detail.startswith("pool "):
        return "check the ResourceSlices of the driver"
    if refusal.reason is FitReason.NODE_RESOURCES_FIT and UNREADABLE in refusal.detail:
        return "correct the request of the pod"
    return _REMEDIES.get(refusal.reason, "")


def obstacles(room: Room, shape: PodShape) -> tuple[Obstacle, ...]:
    """Obstacles, the largest group first. Nodes that are too small are distinguished from full ones."""
    groups = [
        Obstacle(refusal.count, refusal.reason.value, refusal.detail, _remedy(refusal))
        for refusal in explain_nodes(room, shape, all_causes=True)
        if not refusal.detail.startswith(INSUFFICIENT)
    ]
    for resource, units in shape.requests:
        free, offered = free_beside_drivers(room, resource), room.allocatable(resource)
        short, small = free < units, offered < units
        asked = show_amount(resource, units)
        for nodes, what, remedy in (
            (short & small, f"too little {resource} even when empty", "request less, or use larger nodes"),
            (short & ~small, f"{resource} is used by other pods", "free capacity there, or request less"),
        ):
            if nodes.any():
                column = offered if nodes[small].any() else free
                largest = show_amount(resource, int(column[nodes].max()))
                has = "the largest has" if column is offered else "most free"
                detail = f"{what} ({has} {largest}, asked {asked})"
                groups.append(Obstacle(int(nodes.sum()), FitReason.NODE_RESOURCES_FIT.value, detail, remedy))
    return tuple(sorted(groups, key=lambda group: (-group.nodes, group.detail)))


# Coming nodes


def _coming(snapshot: Snapshot, shape: PodShape, now: float) -> Iterable[ComingNode]:
    expected = snapshot.expected()
    if not expected:
        return
    own = without_topology(shape)
    filling = NodeFilling(snapshot_of([node.row for node in expected]), topology=False)
    for demand in demands(snapshot, snapshot.leaving, now):
        if largest_first(demand.shape) <= largest_first(own):  # pods that Karpenter places before it
            filling.place(PodGroup(demand.shape, demand.pods))
    takes = fits(filling.snapshot(), own)
    started = start_seconds(snapshot)
    claims = {claim.name: claim for claim in snapshot.claims}
    stages = {
        joined.claim.name: joined.stage
        for joined in (*snapshot.facts.joined.values(), *snapshot.facts.claims.values())
        if joined.claim is not None
    }
    for row, node in enumerate(expected):
        claim = claims.get(node.claim)
        created = claim.created if claim is not None else None
        times = started.get(node.pool, ())
        yield ComingNode(
            claim=node.claim,
            pool=node.pool,
            node=node.twin,
            stage=stages.get(node.claim, NodeStage.LAUNCHING).value,
            age_seconds=None if created is None else max(0.0, now - created),
            expected_in_seconds=(
                None if created is None or not times else max(0.0, created + median(times) - now)
            ),
            compared_with=len(times),
            is_overdue=node.deadline is not None and now >= node.deadline,
            takes_pod=bool(takes[row] > 0),
        )


def start_seconds(snapshot: Snapshot) -> dict[str, list[float]]:
    """By pool: how long its nodes took from claim to initialised, as far as it is known."""
    times: dict[str, list[float]] = {}
    for claim in snapshot.claims:
        if claim.created is not None and claim.initialized_at and claim.initialized_at >= claim.created:
            times.setdefault(claim.pool, []).append(claim.initialized_at - claim.created)
    return times


# Volumes, claims, quotas


def _volume_note(volume: PodVolume) -> VolumeNote:
    if volume.waits:
        return VolumeNote(volume.claim, volume.volume, False, volume.waits)
    where = " and ".join(_alternatives(terms) for terms in volume.terms if terms)
    if volume.is_bound:
        detail = f"bound to {volume.volume}" + (f", which can be used where {where}" if where else "")
    else:
        detail = "is bound when the pod has a node" + (f", where {where}" if where else "")
    return VolumeNote(volume.claim, volume.volume, True, detail)


def _alternatives(terms: Sequence[NodeTerm]) -> str:
    return " or ".join(
        " and ".join(f"{key} {values}" for key, values in (*term.labels, *term.fields)) for term in terms
    )


def _claims_in_the_way(pod: Pod, snapshot: Snapshot) -> Iterable[str]:
    if not pod.spec.resource_claims:
        return
    if snapshot.room.dra is None:
        yield "DRA devices are not known here"
        return
    refused = demand_of(snapshot.room.dra, pod).refused
    if refused:
        yield refused


def quota_notes(
    snapshot: Snapshot, namespace: str, shape: PodShape, priority_class: str = ""
) -> Iterable[QuotaNote]:
    """Quotas that do not admit one more such pod."""
    asked = dict(shape.requests)
    for quota in snapshot.quotas(namespace):
        if quota.applies_to(priority_class):
            for resource, left in quota.free.items():
                if asked.get(resource, 0) > 0 and left < asked[resource]:
                    yield QuotaNote(quota.name, resource, left, asked[resource])


# Conditions and events


def _remarks(pod: Pod, said: str, events: Iterable[KubeEvent]) -> Iterable[PodRemark]:
    """The condition first, which kubectl describe shows last; then the newest events."""
    if said and not pod.spec.node_name:
        yield PodRemark(pod.spec.scheduler_name or DEFAULT_SCHEDULER, "Unschedulable", said)
    newest: dict[tuple[str, str], KubeEvent] = {}
    for event in events:
        involved = event.involved_object
        if involved.kind != "Pod" or (involved.uid and pod.metadata.uid not in ("", involved.uid)):
            continue
        kept = newest.get((event.said_by, event.reason))
        if kept is None or (event.at or 0.0) >= (kept.at or 0.0):
            newest[event.said_by, event.reason] = event
    for event in sorted(newest.values(), key=lambda event: -(event.at or 0.0))[:_REMARKS_MAX]:
        if event.message != said:
            yield PodRemark(event.said_by, event.reason, event.message, event.at, event.count or 1)
