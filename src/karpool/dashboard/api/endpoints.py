"""Which questions the JSON API answers: one table, for routing and for its description.

Every answer says which areas it is made from, so that it is made again only when one of
them changed.
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
NAME_MAX = 253  # of Kubernetes
Parameters = Mapping[str, str]
Answer = views.ApiView | None  # None: there is no such thing


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
    """A list that is filtered, sorted and cut by the server."""
    sorts = tuple(columns)
    return Endpoint(
        f"{PREFIX}/{name}",
        about,
        answers,
        lambda fleet, given: answer(fleet, list_query(given, sorts)),
        areas,
        (
            _asked("q", "Words that all occur in what is looked for."),
            _asked("sort", f"One of {', '.join(sorts)}; a minus before it turns it round."),
            _asked("offset", "How many to pass over."),
            _asked("limit", f"How many to give, {LIMIT} if none is given, {LIMIT_MAX} at most."),
            *more,
        ),
    )


_CLUSTER = EndpointParameter("cluster", "Name of the cluster.")
_ONLY_CLUSTER = _asked("cluster", "Only of this cluster.")
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
        "One cluster with its pools: what fills it, what could be launched, what was refused.",
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
        more=(_ONLY_CLUSTER, _asked("pool", "Only of this pool.")),
    ),
    _list(
        "waiting",
        "Pods without a node, and what the scheduler said of each.",
        list_views.WaitingPodList,
        lambda fleet, query: fleet.waiting(query),
        columns=waiting_pods.COLUMNS,
        more=(_ONLY_CLUSTER,),
    ),
    Endpoint(
        f"{PREFIX}/pods",
        "Why one pod waits: what is against each node, what could be launched, what is on its way.",
        list_views.PodDetails,
        lambda fleet, given: fleet.pod(given.get("cluster", ""), _namespace(given), given.get("name", "")),
        (ViewArea.FLEET, ViewArea.SCALE_UPS, ViewArea.EVENTS),
        (
            _asked("cluster", "Name of the cluster."),
            _asked("namespace", "Namespace of the pod."),
            _asked("name", "Its name; without one, no pod is explained."),
        ),
    ),
    _list(
        "gpus",
        "Every accelerator: what it is, who holds how much of it, what is free.",
        list_views.DeviceList,
        lambda fleet, query: fleet.gpus(query),
        columns=gpus.COLUMNS,
        more=(_ONLY_CLUSTER,),
    ),
    _list(
        "moves",
        "Moves that were made, rolled back or are under way, and what they saved until now.",
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
        (_asked("q", "Words that all occur in a name."),),
    ),
    Endpoint(
        f"{PREFIX}/time",
        "Cost, nodes, what is requested and free, waiting pods, evictions and promises over time.",
        list_views.TimeSeries,
        _time,
        (ViewArea.TIME,),
        (
            _asked("range", f"One of {', '.join(known.name for known in RANGES)}."),
            _asked("cluster", "Of one cluster; else of the fleet."),
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
        (_CLUSTER, EndpointParameter("pool", "Only nodes of this pool.", in_path=False)),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/nodes/{{node}}",
        "One node: its pods, and why it stays or goes.",
        views.NodeDetail,
        lambda fleet, given: fleet.node(given["cluster"], given["node"]),
        _NODE_AREAS,
        (_CLUSTER, EndpointParameter("node", "Name of the node.")),
    ),
    Endpoint(
        f"{PREFIX}/placements",
        "Karmada's bindings: which replicas are where, and what the scheduler says.",
        views.PlacementList,
        lambda fleet, given: fleet.placements(),
        (ViewArea.PLACEMENTS, ViewArea.PROMISES),
    ),
    Endpoint(
        f"{PREFIX}/placements/{{namespace}}/{{name}}",
        "What would be decided about one binding now, step by step. Namespace `-`: a ClusterResourceBinding.",
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
        "Nodes that were asked for because workers found no device, as timelines.",
        views.ScaleUpList,
        lambda fleet, given: fleet.scale_ups(),
        (ViewArea.SCALE_UPS,),
    ),
    Endpoint(
        f"{PREFIX}/consolidation",
        "A plan for each cluster: moves approved and refused, and the nodes that stay.",
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
            _asked("object", "What they are about, as `Pod team/web-0`."),
            _asked("q", "Words that all occur in object, reason, message or cluster."),
        ),
    ),
)
