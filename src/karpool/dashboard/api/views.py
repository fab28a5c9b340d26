"""The structs of the JSON API: one for each answer.

`openapi` describes these structs, the page shows them, and scripts may read them. Amounts are in Kubernetes
units (milli-CPU, bytes, counts), money is USD per hour, times are seconds since the epoch. `why` holds
sentences for people, the most important first. Texts come from clusters and may be hostile: a client must
escape them.
"""

from typing import Annotated

import msgspec

Fraction = Annotated[float, msgspec.Meta(description="a share: 0 is nothing, 1 is all")]
Moment = Annotated[float, msgspec.Meta(description="seconds since the epoch")]
Price = Annotated[
    float, msgspec.Meta(description="effective price in USD per hour: what it adds to the bill")
]
ListPrice = Annotated[float, msgspec.Meta(description="list price in USD per hour")]


class ApiView(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Base of all answers."""


# Fleet


class ResourceAmount(ApiView, frozen=True):
    """Amounts of one resource.

    `promised` is reserved and not used yet. `potential` is what an autoscaler may still add; null without a
    limit.
    """

    allocatable: int
    requested: int
    promised: int = 0
    potential: int | None = 0


Amounts = dict[str, ResourceAmount]


class PoolRow(ApiView, frozen=True):
    name: Annotated[str, msgspec.Meta(description="empty: nodes that belong to no pool")]
    nodes: int
    amounts: Amounts
    price_per_hour: Price
    list_price_per_hour: ListPrice = 0.0
    unpriced: int = 0
    policy: str = ""
    weight: int = 0
    ready: bool = True
    coming: Annotated[int, msgspec.Meta(description="claims without a node yet")] = 0
    why: list[str] = []


class ClusterRow(ApiView, frozen=True):
    """A cluster. `watched` false: known only from its summary in Karmada."""

    name: str
    watched: bool
    nodes: int
    pods: int
    pending: int
    amounts: Amounts
    price_per_hour: Price
    list_price_per_hour: ListPrice = 0.0
    unpriced: int = 0
    is_control_plane: bool = False
    ready: bool | None = None
    region: str = ""
    provider: str = ""
    promised_replicas: int = 0
    heard_seconds_ago: Annotated[float | None, msgspec.Meta(description="null while updates arrive")] = None
    not_ready: Annotated[str, msgspec.Meta(description="data that has not been read yet, and why")] = ""
    pools: list[PoolRow] = []
    why: list[str] = []
    problems: list[str] = []
    problems_left_out: int = 0


class FleetOverview(ApiView, frozen=True):
    """All clusters, their pools, and sums over all of them."""

    at: Moment
    clusters: list[ClusterRow]
    nodes: int
    pods: int
    pending: int
    amounts: Amounts
    price_per_hour: Price
    list_price_per_hour: ListPrice
    unpriced: int
    promised_replicas: int


class NodeSummary(ApiView, frozen=True, omit_defaults=True):
    name: str
    pool: str
    type: str
    zone: str
    requested: dict[str, int]
    allocatable: dict[str, int]
    pods: int
    price_per_hour: Price | None = None
    list_price_per_hour: ListPrice | None = None
    capacity_type: str = ""
    ready: bool = True
    cordoned: bool = False
    leaving: bool = False


class NodeList(ApiView, frozen=True):
    cluster: str
    at: Moment
    items: list[NodeSummary]
    left_out: Annotated[int, msgspec.Meta(description="nodes beyond those listed")] = 0


class PodRow(ApiView, frozen=True):
    name: str
    requested: dict[str, int]
    cost: Annotated[float, msgspec.Meta(description="disruption cost of moving it")]


class NodeDetail(ApiView, frozen=True):
    """One node: its pods, and why it stays or is removed."""

    cluster: str
    node: NodeSummary
    verdict: Annotated[str, msgspec.Meta(description="goes, could go, stays, or unknown")]
    why: list[str]
    pods: list[PodRow]
    pods_left_out: int
    labels: dict[str, str]
    taints: list[str]
    conditions: list[str]
    claim: str = ""


# Placements


class ClusterShare(ApiView, frozen=True):
    cluster: str
    replicas: int
    ready: int | None = None
    promised: int = 0


class PlacementRow(ApiView, frozen=True):
    kind: str
    namespace: str
    name: str
    template: str
    replicas: int
    shares: list[ClusterShare]
    state: Annotated[str, msgspec.Meta(description="placed, waiting, failed, suspended or unreadable")]
    reason: str
    message: str
    scheduler: str
    strategy: str
    since: Moment | None = None


class PlacementList(ApiView, frozen=True):
    at: Moment
    items: list[PlacementRow]
    left_out: int = 0


class DecisionStep(ApiView, frozen=True):
    """One step of a decision, with the lines that explain it."""

    title: str
    lines: list[str]


class PlacementDetail(ApiView, frozen=True):
    """The decision that would be made now, step by step, without executing it."""

    placement: PlacementRow
    verdict: str
    due: bool
    why: str
    steps: list[DecisionStep]
    asked_estimators: bool


# Promises


class PromiseRow(ApiView, frozen=True):
    cluster: str
    kind: str
    namespace: str
    name: str
    replicas: Annotated[int, msgspec.Meta(description="in flight")]
    promised: int
    desired: int
    requests: dict[str, int]
    age_seconds: float
    expires_in_seconds: float
    why: list[str]


class PromiseList(ApiView, frozen=True):
    at: Moment
    lifetime_seconds: float
    items: list[PromiseRow]
    left_out: int = 0


# Scale-ups


class TimelineStep(ApiView, frozen=True):
    """A step. `state`: done, now, waiting or failed. `at` is its time, or null if it is not known."""

    name: str
    state: str
    at: Moment | None = None
    detail: str = ""


class UnitTimeline(ApiView, frozen=True):
    index: int
    candidate: str
    steps: list[TimelineStep]
    smart_pod: str = ""
    claim: str = ""
    node: str = ""
    ended: str = ""


class TriedRow(ApiView, frozen=True):
    candidate: str
    result: str
    times: int
    at: Moment
    again: str


class ScaleUpRow(ApiView, frozen=True):
    cluster: str
    name: str
    demand: str
    pool: str
    model: str
    state: str
    means: str
    since: Moment
    first_seen: Moment
    waiting: int
    waiting_pods: list[str]
    attempt: int
    round: int
    over: bool
    units: list[UnitTimeline]
    units_left_out: int
    tried: list[TriedRow]
    why: list[str]
    next_attempt: Moment | None = None
    ended_at: Annotated[
        float | None,
        msgspec.Meta(description="when its record was deleted; only observed scale-ups are kept"),
    ] = None


class ScaleUpList(ApiView, frozen=True):
    at: Moment
    items: list[ScaleUpRow]
    left_out: int = 0
    problems: list[str] = []


# Consolidation


class MovePoint(ApiView, frozen=True):
    """A move, made or refused. Fractions are of the pool with the worst score; null without a score."""

    id: str
    kind: str
    nodes: list[str]
    nodes_left_out: int
    pools: list[str]
    into: list[str]
    approved: bool
    savings_per_hour: Price
    disruption: float
    pods: Annotated[int, msgspec.Meta(description="pods that are disrupted")]
    savings_fraction: Fraction | None
    disruption_fraction: Fraction | None
    score: float | None
    threshold: float | None
    why: list[str]


class PodDestination(ApiView, frozen=True):
    """The destination of a pod of a move."""

    pod: str
    source: str
    to: str
    cost: float


class MoveDetail(ApiView, frozen=True):
    """One move, and the destination of every pod on its nodes."""

    cluster: str
    move: MovePoint
    pods: list[PodDestination]
    pods_left_out: int


class KeptNodeRow(ApiView, frozen=True):
    node: str
    pool: str
    price_per_hour: Price | None
    why: list[str]


class PoolBoard(ApiView, frozen=True):
    name: str
    policy: str
    k: int | None
    nodes: int
    cost_per_hour: Price
    allowed: dict[str, int]
    why: list[str]


class ConsolidationBoard(ApiView, frozen=True):
    """A plan for one cluster, for viewing only: the dashboard does not execute it."""

    cluster: str
    made_at: Moment
    points: list[MovePoint]
    points_left_out: int
    approved: int
    refused: int
    held: list[KeptNodeRow]
    held_left_out: int
    pools: list[PoolBoard]
    nodes_before: int
    nodes_after: int
    price_before: Price
    price_after: Price
    list_price_before: ListPrice | None
    list_price_after: ListPrice | None
    pods_disturbed: int
    stopped: str
    notes: list[str]


class ConsolidationBoards(ApiView, frozen=True):
    at: Moment
    boards: list[ConsolidationBoard]
    pending: Annotated[list[str], msgspec.Meta(description="clusters whose first plan is being made")]


# Events


class RecentEvent(ApiView, frozen=True):
    cluster: str
    at: Moment
    type: str
    reason: str
    object: str
    message: str
    count: int
    source: str


class RecentEventList(ApiView, frozen=True):
    at: Moment
    items: list[RecentEvent]
    left_out: int = 0


class ProblemDetails(ApiView, frozen=True):
    """RFC 9457, application/problem+json."""

    title: str
    status: int
    detail: str
