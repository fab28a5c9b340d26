"""Which questions the JSON API answers: one table, for routing and for its description.

Every answer says which areas it is made from, so that it is made again only when one of
them changed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from karpool.dashboard import views
from karpool.dashboard.bell import Area
from karpool.dashboard.collector import Collector

PREFIX = "/api/v1"
NAME_MAX = 253  # of Kubernetes
Parameters = Mapping[str, str]
Answer = views.View | None  # None: there is no such thing


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    about: str
    in_path: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    path: str
    about: str
    answers: type[views.View]
    answer: Callable[[Collector, Parameters], Answer | Awaitable[Answer]]
    areas: Sequence[Area]
    parameters: tuple[Parameter, ...] = ()

    @property
    def name(self) -> str:
        return "get" + self.answers.__name__


def _namespace(given: Parameters) -> str:
    return "" if given["namespace"] == "-" else given["namespace"]


_CLUSTER = Parameter("cluster", "Name of the cluster.")
_NODE_AREAS = (Area.FLEET, Area.CONSOLIDATION)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        f"{PREFIX}/fleet",
        "Clusters and their pools: requested, promised, free, what could be launched, and prices.",
        views.Fleet,
        lambda fleet, given: fleet.fleet(),
        (Area.FLEET, Area.PROMISES),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/nodes",
        "The nodes of one cluster.",
        views.Nodes,
        lambda fleet, given: fleet.nodes(given["cluster"], given.get("pool")),
        (Area.FLEET,),
        (_CLUSTER, Parameter("pool", "Only nodes of this pool.", in_path=False)),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/nodes/{{node}}",
        "One node: its pods, and why it stays or goes.",
        views.NodeDetail,
        lambda fleet, given: fleet.node(given["cluster"], given["node"]),
        _NODE_AREAS,
        (_CLUSTER, Parameter("node", "Name of the node.")),
    ),
    Endpoint(
        f"{PREFIX}/placements",
        "Karmada's bindings: which replicas are where, and what the scheduler says.",
        views.Placements,
        lambda fleet, given: fleet.placements(),
        (Area.PLACEMENTS, Area.PROMISES),
    ),
    Endpoint(
        f"{PREFIX}/placements/{{namespace}}/{{name}}",
        "What would be decided about one binding now, step by step. Namespace `-`: a ClusterResourceBinding.",
        views.PlacementDetail,
        lambda fleet, given: fleet.placement(_namespace(given), given["name"]),
        (Area.PLACEMENTS, Area.PROMISES),
        (Parameter("namespace", "Namespace of the binding, or -."), Parameter("name", "Its name.")),
    ),
    Endpoint(
        f"{PREFIX}/promises",
        "Replicas that were placed and are not known to have landed.",
        views.Promises,
        lambda fleet, given: fleet.promises(),
        (Area.PROMISES,),
    ),
    Endpoint(
        f"{PREFIX}/scale-ups",
        "Nodes that were asked for because workers found no device, as timelines.",
        views.ScaleUps,
        lambda fleet, given: fleet.scale_ups(),
        (Area.SCALE_UPS,),
    ),
    Endpoint(
        f"{PREFIX}/consolidation",
        "A plan for each cluster: moves approved and refused, and the nodes that stay.",
        views.Consolidation,
        lambda fleet, given: fleet.consolidation(),
        (Area.CONSOLIDATION,),
    ),
    Endpoint(
        f"{PREFIX}/clusters/{{cluster}}/moves/{{move}}",
        "One move of the latest plan: its numbers, and where every pod would go.",
        views.MoveDetail,
        lambda fleet, given: fleet.move(given["cluster"], given["move"]),
        (Area.CONSOLIDATION,),
        (_CLUSTER, Parameter("move", "Its id.")),
    ),
    Endpoint(
        f"{PREFIX}/events",
        "The newest events of all clusters.",
        views.Happenings,
        lambda fleet, given: fleet.events(),
        (Area.EVENTS,),
    ),
)
