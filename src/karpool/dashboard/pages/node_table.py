"""Nodes of the whole fleet as a table. Only the rows of the page that was asked for are made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """Of one version of a cluster: what nodes are found by, in the order of its rows."""

    cluster: str
    view: ClusterView
    texts: Sequence[str]

    @property
    def n(self) -> int:
        return len(self.texts)

    def has(self, words: Sequence[str]) -> bool:
        """Whether some node is found by all of these."""
        return any(all(word in text for word in words) for text in self.texts)


def node_index(cluster: str, view: ClusterView) -> NodeIndex:
    return NodeIndex(cluster, view, [_text(cluster, machine) for machine in view.machines])


def _text(cluster: str, machine: StateNode) -> str:
    labels = machine.labels
    texts = (machine.name, machine.pool, labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, ""), cluster)
    return "\n".join(texts).lower()


_Place = tuple[NodeIndex, int]  # of a node: its cluster, and its row there


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


def node_table(indexes: Iterable[NodeIndex], query: ListQuery, now: float) -> FleetNodeList:
    """By cluster, in the order of its rows, unless a column was asked for."""
    places: list[_Place] = []
    total = 0
    for index in indexes:
        total += index.n
        if query.cluster and index.cluster != query.cluster:
            continue
        places += ((index, row) for row in range(index.n) if _is_chosen(index, row, query))
    rows = page_of(in_order(places, query, COLUMNS), query)
    return FleetNodeList(
        at=now,
        items=[FleetNode(cluster=index.cluster, node=_summary(index.view, row)) for index, row in rows],
        matched=len(places),
        total=total,
        offset=query.offset,
    )


def _is_chosen(index: NodeIndex, row: int, query: ListQuery) -> bool:
    if query.pool and index.view.machines[row].pool != query.pool:
        return False
    return all(word in index.texts[row] for word in query.words)


def _summary(view: ClusterView, row: int) -> NodeSummary:
    names, room = resources_of(view), view.snapshot
    whole = {name: int(room.allocatable(name)[row]) for name in names}
    used = {name: whole[name] - int(room.free(name)[row]) for name in names}
    return node_row(view.machines[row], used, whole, len(room.pods_on(row)))
