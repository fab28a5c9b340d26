"""Which questions the JSON API answers: one table, for routing and for its description.

Every answer says which areas it is made from, so that it is made again only when one of
them changed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from karpool.dashboard.api import views
from karpool.dashboard.pages.collector import FleetCollector
from karpool.dashboard.server.change_notifier import ViewArea

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
    return "" if given["namespace"] == "-" else given["namespace"]


_CLUSTER = EndpointParameter("cluster", "Name of the cluster.")
_NODE_AREAS = (ViewArea.FLEET, ViewArea.CONSOLIDATION)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        f"{PREFIX}/fleet",
        "Clusters and their pools: requested, promised, free, what could be launched, and prices.",
        views.FleetOverview,
        lambda fleet, given: fleet.fleet(),
        (ViewArea.FLEET, ViewArea.PROMISES),
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
        "Replicas that were placed and are not known to have landed.",
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
        lambda fleet, given: fleet.consolidation(),
        (ViewArea.CONSOLIDATION,),
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
        lambda fleet, given: fleet.events(),
        (ViewArea.EVENTS,),
    ),
)
