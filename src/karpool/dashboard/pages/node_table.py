"""The table of all nodes of the fleet. Only the rows of the requested page are built."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

from karpool.cluster.nodes.state_node import StateNode
from karpool.consolidation.view import ClusterView
from karpool.dashboard.api.list_views import FleetNode, FleetNodeList
from karpool.dashboard.api.views import NodeSummary
from karpool.dashboard.pages.fleet_map import node_row, resources_of
from karpool.dashboard.pages.paging import ListQuery, in_order, page_of
from karpool.model import resources
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE


@dataclass(frozen=True, slots=True)
class NodeIndex:
    """Search texts of the nodes of one version of a cluster, in the order of its rows."""

    cluster: str
    view: ClusterView
    texts: Sequence[str]

    @property
    def n(self) -> int:
        return len(self.texts)

    def has(self, words: Sequence[str]) -> bool:
        """Whether some node matches all words."""
        return any(all(word in text for word in words) for text in self.texts)


def node_index(cluster: str, view: ClusterView) -> NodeIndex:
    return NodeIndex(cluster, view, [_text(cluster, machine) for machine in view.machines])


def _text(cluster: str, machine: StateNode) -> str:
    labels = machine.labels
    texts = (machine.name, machine.pool, labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), cluster)
    return "\n".join(texts).lower()


_Place = tuple[NodeIndex, int]  # the index of a cluster, and a row in it
ORDERS_HELD = 8  # as many as the different lists that people view at a time


def _machine(place: _Place) -> StateNode:
    return place[0].view.machines[place[1]]


def _share(resource: str) -> Callable[[_Place], float | None]:
    def share(place: _Place) -> float | None:
        room = place[0].view.snapshot
        whole = int(room.allocatable(resource)[place[1]])
        return 1.0 - int(room.free(resource)[place[1]]) / whole if whole else None

    return share


COLUMNS: Mapping[str, Callable[[_Place], Any]] = {
    "name": lambda place: _machine(place).name,
    "cluster": lambda place: (place[0].cluster, _machine(place).name),
    "pool": lambda place: (_machine(place).pool, _machine(place).name),
    "type": lambda place: _machine(place).labels.get(INSTANCE_TYPE) or None,
    "zone": lambda place: _machine(place).labels.get(ZONE) or None,
    "price": lambda place: _machine(place).price_per_hour,
    "pods": lambda place: len(place[0].view.snapshot.pods_on(place[1])),
    "cpu": _share(resources.CPU),
    "memory": _share(resources.MEMORY),
}


class NodeOrders:
    """Caches which nodes a query selects, and in which order, while the clusters do not change.

    So the pages of a list of 100,000 nodes are not filtered and sorted again each time.
    """

    def __init__(self) -> None:
        self._orders: dict[ListQuery, tuple[tuple[NodeIndex, ...], Sequence[_Place]]] = {}

    def places(self, indexes: Sequence[NodeIndex], query: ListQuery) -> Sequence[_Place]:
        question = replace(query, offset=0, limit=0)
        of_indexes, places = self._orders.pop(question, ((), ()))
        if len(of_indexes) != len(indexes) or any(map(is_not, of_indexes, indexes)):
            places = _places(indexes, query)
        while len(self._orders) >= ORDERS_HELD:
            del self._orders[next(iter(self._orders))]
        self._orders[question] = tuple(indexes), places
        return places


def _places(indexes: Iterable[NodeIndex], query: ListQuery) -> Sequence[_Place]:
    places = [
        (index, row)
        for index in indexes
        if query.cluster in ("", index.cluster)
        for row in (range(index.n) if not (query.words or query.pool) else _chosen(index, query))
    ]
    return in_order(places, query, COLUMNS)


def _chosen(index: NodeIndex, query: ListQuery) -> Iterator[int]:
    for row, text in enumerate(index.texts):
        if query.pool in ("", index.view.machines[row].pool) and all(word in text for word in query.words):
            yield row


def node_table(
    indexes: Sequence[NodeIndex], query: ListQuery, now: float, orders: NodeOrders | None = None
) -> FleetNodeList:
    """Return the nodes by cluster and row, unless the query sorts by a column."""
    places = (orders or NodeOrders()).places(indexes, query)
    return FleetNodeList(
        at=now,
        items=[
            FleetNode(cluster=index.cluster, node=_summary(index.view, row))
            for index, row in page_of(places, query)
        ],
        matched=len(places),
        total=sum(index.n for index in indexes),
        offset=query.offset,
    )


def _summary(view: ClusterView, row: int) -> NodeSummary:
    names, room = resources_of(view), view.snapshot
    whole = {name: int(room.allocatable(name)[row]) for name in names}
    used = {name: whole[name] - int(room.free(name)[row]) for name in names}
    return node_row(view.machines[row], used, whole, len(room.pods_on(row)))
