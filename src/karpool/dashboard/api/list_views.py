"""Paged answers: the server filters and sorts, so that only visible rows are sent.

`matched` is the number of rows that match the query, `total` the number of all rows; `items` begin at
`offset`.
"""

from typing import Annotated

import msgspec

from karpool.dashboard.api.views import (
    Amounts,
    ApiView,
    ClusterRow,
    ListPrice,
    Moment,
    NodeSummary,
    Price,
)


class PagedView(ApiView, frozen=True):
    at: Moment
    matched: int
    total: int
    offset: int


# Clusters and nodes


class ShownFile(ApiView, frozen=True):
    """The file that is shown instead of live clusters. `takenAt` is null if the file has no time."""

    name: str
    taken_at: Moment | None = None


class ClusterList(PagedView, frozen=True):
    """Clusters without their pools, which `/clusters/{cluster}` has.

    Sums are over the whole fleet, not the query.
    """

    items: list[ClusterRow]
    nodes: int
    pods: int
    pending: int
    amounts: Amounts
    price_per_hour: Price
    list_price_per_hour: ListPrice
    unpriced: int
    promised_replicas: int
    file: ShownFile | None = None


class NamespaceUse(ApiView, frozen=True):
    """Requests of the pods of a namespace, or of a controller in it."""

    name: str
    pods: int
    requests: dict[str, int]


class ClusterDetail(ApiView, frozen=True):
    """One cluster with its pools: what uses it, what could be launched, and what was refused."""

    at: Moment
    cluster: ClusterRow
    filled_by: list[NamespaceUse]
    filled_by_left_out: int
    launchable: list[str]
    refused: list[str]


class FleetNode(ApiView, frozen=True):
    cluster: str
    node: NodeSummary


class FleetNodeList(PagedView, frozen=True):
    items: list[FleetNode]


# Pending pods


class WaitingPodRow(ApiView, frozen=True):
    """A pending pod. `reason` is a short reason; `said` is the scheduler's message on the pod."""

    cluster: str
    namespace: str
    name: str
    workload: str
    requests: dict[str, int]
    reason: str
    said: str
    gates: list[str]
    since: Moment | None = None
    nominated_node: str = ""


class CountedReason(ApiView, frozen=True):
    reason: str
    pods: int


class WaitingPodList(PagedView, frozen=True):
    items: list[WaitingPodRow]
    reasons: Annotated[
        list[CountedReason], msgspec.Meta(description="of all matching items, the largest first")
    ]


class ObstacleRow(ApiView, frozen=True):
    nodes: int
    reason: str
    detail: str
    remedy: str


class OfferRow(ApiView, frozen=True):
    """What a pool or node group would launch for the pod, or why it would not."""

    pool: str
    outlook: str
    instance_types: list[str]
    price_per_hour: Price | None
    reasons: list[str]


class ComingNodeRow(ApiView, frozen=True):
    claim: str
    pool: str
    node: str
    stage: str
    age_seconds: float | None
    expected_in_seconds: float | None
    is_overdue: bool
    takes_pod: bool


class PodDetail(ApiView, frozen=True):
    """Why one pod is pending, or its node. The first sentence of `why` is the next step."""

    cluster: str
    namespace: str
    name: str
    verdict: str
    why: list[str]
    said: list[str]
    obstacles: list[ObstacleRow]
    offers: list[OfferRow]
    coming: list[ComingNodeRow]
    volumes: list[str]
    others: list[str]
    node: str = ""
    waits_since: Moment | None = None
    nodes: int = 0
    open_nodes: int = 0


class PodDetails(ApiView, frozen=True):
    """The requested pod; empty if the request names none."""

    at: Moment
    items: list[PodDetail]


# GPUs


class DeviceHolderRow(ApiView, frozen=True):
    pod: str
    units: int = 0
    memory_bytes: int = 0
    tflops_milli: int = 0


class DeviceRow(ApiView, frozen=True):
    """A device. `freeUnits` null: shared without limit; `freeMemoryBytes` null: not known."""

    cluster: str
    node: str
    device: str
    model: str
    memory_bytes: int | None
    handed_out_by: str
    form: str
    profile: str
    shareable: bool
    resource: str
    holders: list[DeviceHolderRow]
    holders_left_out: int
    free_units: int | None
    free_memory_bytes: int | None
    unstable: bool


class CountedModel(ApiView, frozen=True):
    model: str
    devices: int
    held: Annotated[int, msgspec.Meta(description="devices with a holder")]


class DeviceList(PagedView, frozen=True):
    items: list[DeviceRow]
    models: list[CountedModel]
    problems: list[str]


# Completed moves


class LedgerRow(ApiView, frozen=True):
    """A move from its record. Dollars are up to now; null: not measured, or a price is not known."""

    cluster: str
    name: str
    phase: str
    kind: str
    nodes: list[str]
    nodes_left_out: int
    new_nodes: list[str]
    extra_nodes: list[str]
    kept: list[str]
    score: float | None
    predicted_savings_per_hour: Price
    realised_savings_per_hour: Price | None
    cost_dollars: float | None
    saved_dollars: float | None
    pods_disturbed: int
    pods_redisturbed: int
    attempt: int
    began: Moment
    since: Moment
    ended: Moment | None
    why: list[str]


class MoveLedger(PagedView, frozen=True):
    items: list[LedgerRow]
    saved_dollars: float
    predicted_savings_per_hour: Price
    realised_savings_per_hour: Price
    done: int
    rolled_back: int
    under_way: int
    problems: list[str]


# Search


class SearchHit(ApiView, frozen=True):
    """`kind`: cluster, pool, node, workload, placement or pod."""

    kind: str
    cluster: str
    name: str
    detail: str = ""


class SearchHits(ApiView, frozen=True):
    at: Moment
    items: list[SearchHit]
    left_out: Annotated[int, msgspec.Meta(description="minimum number of further items")] = 0


# Time


class TimeSeries(ApiView, frozen=True):
    """Samples of one cluster, or of the whole fleet (`cluster` empty).

    A null means that no sample was taken.
    """

    at: Moment
    cluster: str
    begin: Moment
    end: Moment
    step_seconds: float
    times: list[Moment]
    series: dict[str, list[float | None]]
    units: dict[str, str]
    remarks: list[str] = msgspec.field(default_factory=list)
