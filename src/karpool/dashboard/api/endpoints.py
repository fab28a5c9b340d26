"""The endpoints of the JSON API: one table, for routing and for the OpenAPI document.

Every endpoint names the areas that its answer depends on, so that an answer is rebuilt only when one of them
has changed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpool.dashboard.api import list_views, views
from karpool.dashboard.change_notifier import ViewArea
from karpool.dashboard.pages import cluster_table, gpus, move_ledger, node_table, waiting_pods
from karpool.dashboard.pages.collector import FleetCollector
from karpool.dashboard.pages.paging import LIMIT, LIMIT_MAX, ListQuery, list_query
from karpool.dashboard.pages.recent_events import EventChoice
from karpool.dashboard.pages.time_series import RANGES
from karpool.model.errors import Invalid

PREFIX = "/api/v1"
NAME_MAX = 253  # limit of Kubernetes
Parameters = Mapping[str, str]
Answer = views.ApiView | None  # None: not found


@dataclass(frozen=True, slots=True)
class EndpointParameter:
    name: str
    about: str
    in_path: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    about: str
    answers: type[views.ApiView]
    answer: Callable[[FleetCollector, Parameters], Answer | Awaitable[Answer]]
    areas: Sequence[ViewArea]
    parameters: tuple[EndpointParameter, ...] = ()

    @property
    def name(self) -> str:
        return "get" + self.answers.__name__


def _namespace(given: Parameters) -> str:
    namespace = given.get("namespace", "")
    return "" if namespace == "-" else namespace


def _seconds(given: Parameters, name: str) -> float | None:
    text = given.get(name, "")
    try:
        moment = float(text) if text else None
    except ValueError:
        moment = float("nan")
    if moment is not None and not 0 <= moment < 1e11:
        raise Invalid(name, text, "must be seconds since the epoch")
    return moment


def _chosen(given: Parameters) -> EventChoice:
    words = tuple(given.get("q", "").lower().split())
    return EventChoice(given.get("cluster", ""), given.get("type", ""), given.get("object", ""), words)


async def _time(fleet: FleetCollector, given: Parameters) -> Answer:
    begin, end = _seconds(given, "begin"), _seconds(given, "end")
    return await fleet.time(given.get("cluster", ""), given.get("range", "") or RANGES[0].name, begin, end)


def _asked(name: str, about: str) -> EndpointParameter:
    return EndpointParameter(name, about, in_path=False)


def _list(
    name: str,
    about: str,
    answers: type[views.ApiView],
    answer: Callable[[FleetCollector, ListQuery], Answer],
    *,
    columns: Iterable[str],
    areas: Sequence[ViewArea] = (ViewArea.FLEET,),
    more: tuple[EndpointParameter, ...] = (),
) -> Endpoint:
    """Return a list endpoint; the server filters, sorts and pages it."""
    sorts = tuple(columns)
    return Endpoint(
        f"{PREFIX}/{name}",
        about,
        answers,
        lambda fleet, given: answer(fleet, list_query(given, sorts)),
        areas,
        (
            _asked("q", "Words that must all occur in the name."),
            _asked("sort", f"One of {', '.join(sorts)}; a leading minus reverses the order."),
            _asked("offset", "Number of items to skip."),
            _asked("limit", f"Maximum number of items; default {LIMIT}, at most {LIMIT_MAX}."),
            *more,
        ),
    )


_CLUSTER = EndpointParameter("cluster", "Name of the cluster.")
_ONLY_CLUSTER = _asked("cluster", "Show only this cluster.")
_NODE_AREAS = (ViewArea.FLEET, ViewArea.CONSOLIDATION)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        f"{PREFIX}/fleet",
        "Clusters and their pools: requested, promised, free, what could be launched, and prices.",
        views.FleetOverview,
        lambda fleet, given: fleet.fleet(),
        (ViewArea.FLEET, ViewArea.PROMISES),
    ),
    _list(
        "clusters",
        "Clusters in pages, without their pools, and sums over the whole fleet.",
        list_views.ClusterList,
        lambda fleet, query: fleet.clusters(query),
        areas=(ViewArea.FLEET, ViewArea.PROMISES),
        columns=cluster_table.COLUMNS,
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}",
        "One cluster with its pools: use, launchable capacity, refusals.",
        list_views.ClusterDetail,
        lambda fleet, given: fleet.cluster(given["cluster"]),
        (ViewArea.FLEET, ViewArea.PROMISES, ViewArea.CONSOLIDATION),
        (_CLUSTER,),
    ),
    _list(
        "nodes",
        "Nodes of all clusters in pages.",
        list_views.FleetNodeList,
        lambda fleet, query: fleet.all_nodes(query),
        columns=node_table.COLUMNS,
        more=(_ONLY_CLUSTER, _asked("pool", "Show only this pool.")),
    ),
    _list(
        "waiting",
        "Pending pods, with the message of the scheduler.",
        list_views.WaitingPodList,
        lambda fleet, query: fleet.waiting(query),
        columns=waiting_pods.COLUMNS,
        more=(_ONLY_CLUSTER,),
    ),
    Endpoint(
        f"{PREFIX}/pods",
        "Why a pod is pending: existing nodes, launchable nodes, starting nodes.",
        list_views.PodDetails,
        lambda fleet, given: fleet.pod(given.get("cluster", ""), _namespace(given), given.get("name", "")),
        (ViewArea.FLEET, ViewArea.SCALE_UPS, ViewArea.EVENTS),
        (
            _asked("cluster", "Name of the cluster."),
            _asked("namespace", "Namespace of the pod."),
            _asked("name", "Name of the pod."),
        ),
    ),
    _list(
        "gpus",
        "All accelerators with model, holders and free share.",
        list_views.DeviceList,
        lambda fleet, query: fleet.gpus(query),
        columns=gpus.COLUMNS,
        more=(_ONLY_CLUSTER,),
    ),
    _list(
        "moves",
        "Finished, rolled back and active moves, with their savings until now.",
        list_views.MoveLedger,
        lambda fleet, query: fleet.moves(query),
        areas=(ViewArea.MOVES,),
        columns=move_ledger.COLUMNS,
        more=(_ONLY_CLUSTER,),
    ),
    Endpoint(
        f"{PREFIX}/search",
        "Clusters, pools, nodes, workloads and pods by words of their names.",
        list_views.SearchHits,
        lambda fleet, given: fleet.search(list_query(given, ())),
        (ViewArea.FLEET, ViewArea.PLACEMENTS),
        (_asked("q", "Words that must all occur in the name."),),
    ),
    Endpoint(
        f"{PREFIX}/time",
        "Cost, nodes, requested and free resources, pending pods, evictions and promises over time.",
        list_views.TimeSeries,
        _time,
        (ViewArea.TIME,),
        (
            _asked("range", f"One of {', '.join(known.name for known in RANGES)}."),
            _asked("cluster", "Name of a cluster; default: the whole fleet."),
            _asked("begin", "Seconds since the epoch."),
            _asked("end", "Seconds since the epoch."),
        ),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/nodes",
        "The nodes of one cluster.",
        views.NodeList,
        lambda fleet, given: fleet.nodes(given["cluster"], given.get("pool")),
        (ViewArea.FLEET,),
        (_CLUSTER, EndpointParameter("pool", "Show only nodes of this pool.", in_path=False)),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/nodes/{{node}}",
        "One node: its pods, and why it stays or is removed.",
        views.NodeDetail,
        lambda fleet, given: fleet.node(given["cluster"], given["node"]),
        _NODE_AREAS,
        (_CLUSTER, EndpointParameter("node", "Name of the node.")),
    ),
    Endpoint(
        f"{PREFIX}/placements",
        "Karmada's bindings: the replicas of each cluster, and the message of the scheduler.",
        views.PlacementList,
        lambda fleet, given: fleet.placements(),
        (ViewArea.PLACEMENTS, ViewArea.PROMISES),
    ),
    Endpoint(
        f"{PREFIX}/placements/{{namespace}}/{{name}}",
        "The decision about one binding now, step by step. Namespace `-`: a ClusterResourceBinding.",
        views.PlacementDetail,
        lambda fleet, given: fleet.placement(_namespace(given), given["name"]),
        (ViewArea.PLACEMENTS, ViewArea.PROMISES),
        (
            EndpointParameter("namespace", "Namespace of the binding, or -."),
            EndpointParameter("name", "Its name."),
        ),
    ),
    Endpoint(
        f"{PREFIX}/promises",
        "Replicas that are placed but not known to run on a node.",
        views.PromiseList,
        lambda fleet, given: fleet.promises(),
        (ViewArea.PROMISES,),
    ),
    Endpoint(
        f"{PREFIX}/scale-ups",
        "Nodes that were requested because workers found no device, as timelines.",
        views.ScaleUpList,
        lambda fleet, given: fleet.scale_ups(),
        (ViewArea.SCALE_UPS,),
    ),
    Endpoint(
        f"{PREFIX}/consolidation",
        "The plan of each cluster: approved and refused moves, and nodes that stay.",
        views.ConsolidationBoards,
        lambda fleet, given: fleet.consolidation(given.get("cluster", "")),
        (ViewArea.CONSOLIDATION,),
        (_ONLY_CLUSTER,),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/moves/{{move}}",
        "One move of the latest plan: its numbers, and where every pod would go.",
        views.MoveDetail,
        lambda fleet, given: fleet.move(given["cluster"], given["move"]),
        (ViewArea.CONSOLIDATION,),
        (_CLUSTER, EndpointParameter("move", "Its id.")),
    ),
    Endpoint(
        f"{PREFIX}/events",
        "The newest events of all clusters.",
        views.RecentEventList,
        lambda fleet, given: fleet.events(_chosen(given)),
        (ViewArea.EVENTS,),
        (
            _ONLY_CLUSTER,
            _asked("type", "Normal or Warning."),
            _asked("object", "Object of the events, like `Pod team/web-0`."),
            _asked("q", "Words that must all occur in object, reason, message or cluster."),
        ),
    ),
)
