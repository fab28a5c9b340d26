"""Finds clusters, pools, nodes, workloads and pods of the whole fleet by words of their names."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from karpool.dashboard.api.list_views import SearchHit, SearchHits
from karpool.dashboard.api.views import FleetOverview
from karpool.dashboard.pages.node_table import NodeIndex
from karpool.dashboard.pages.paging import ListQuery

OF_A_KIND_MAX = 12  # as many as fit below the search field; a longer word matches fewer


@dataclass(frozen=True, slots=True)
class SearchedCluster:
    """The names of one cluster. `workloads` are top-level owners with their kind."""

    index: NodeIndex
    pods: Iterable[str] = ()  # without a node
    workloads: Iterable[str] = field(default_factory=tuple)


def search(
    fleet: FleetOverview,
    clusters: Iterable[SearchedCluster],
    placed: Iterable[str],
    query: ListQuery,
    now: float,
) -> SearchHits:
    """Return names that contain every word, limited per kind. `placed` are bindings of control planes."""
    if not query.words:
        return SearchHits(at=now, items=[])
    searched = list(clusters)
    kinds = (
        _clusters(fleet, query),
        _pools(fleet, query),
        _nodes(searched, query),
        _workloads(searched, placed, query),
        _pods(searched, query),
    )
    items: list[SearchHit] = []
    left_out = 0
    for hits in kinds:
        for number, hit in enumerate(hits):
            if number >= OF_A_KIND_MAX:
                left_out += 1
                break
            items.append(hit)
    return SearchHits(at=now, items=items, left_out=left_out)


def _clusters(fleet: FleetOverview, query: ListQuery) -> Iterator[SearchHit]:
    for row in fleet.clusters:
        if query.finds(row.name, row.region):
            yield SearchHit(kind="cluster", cluster=row.name, name=row.name, detail=row.region)


def _pools(fleet: FleetOverview, query: ListQuery) -> Iterator[SearchHit]:
    for row in fleet.clusters:
        for pool in row.pools:
            if pool.name and query.finds(pool.name):
                nodes = f"{pool.nodes} nodes"
                yield SearchHit(kind="pool", cluster=row.name, name=pool.name, detail=nodes)


def _nodes(clusters: Iterable[SearchedCluster], query: ListQuery) -> Iterator[SearchHit]:
    for searched in clusters:
        index = searched.index
        for row, text in enumerate(index.texts):
            if all(word in text for word in query.words):
                machine = index.view.machines[row]
                yield SearchHit(kind="node", cluster=index.cluster, name=machine.name, detail=machine.pool)


def _workloads(
    clusters: Iterable[SearchedCluster], placed: Iterable[str], query: ListQuery
) -> Iterator[SearchHit]:
    for binding in placed:
        if query.finds(binding):
            yield SearchHit(kind="placement", cluster="", name=binding)
    for searched in clusters:
        for workload in searched.workloads:
            if query.finds(workload):
                yield SearchHit(kind="workload", cluster=searched.index.cluster, name=workload)


def _pods(clusters: Iterable[SearchedCluster], query: ListQuery) -> Iterator[SearchHit]:
    for searched in clusters:
        cluster, view = searched.index.cluster, searched.index.view
        for key in searched.pods:
            if all(word in key for word in query.words):
                yield SearchHit(kind="pod", cluster=cluster, name=key, detail="waits for a node")
        for key, row in zip(view.pods.keys, view.pods.rows, strict=True):
            if all(word in key for word in query.words):  # names of pods are lower case
                yield SearchHit(kind="pod", cluster=cluster, name=key, detail=view.machines[row].name)
