"""The table of clusters, and one cluster in full: what uses it, what could be launched, what was refused."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.view import ClusterView
from karpool.dashboard.api.list_views import ClusterDetail, ClusterList, NamespaceUse, ShownFile
from karpool.dashboard.api.views import ClusterRow, FleetOverview, PoolRow
from karpool.dashboard.pages.move_sentences import counted
from karpool.dashboard.pages.paging import ListQuery, in_order, page_of
from karpool.model import resources
from karpool.packing.new_nodes.offerings import StockOut

FILLED_BY_MAX = 12  # as many as people read
REFUSED_MAX = 20


def _share(row: ClusterRow, resource: str) -> float | None:
    amount = row.amounts.get(resource)
    return amount.requested / amount.allocatable if amount is not None and amount.allocatable else None


COLUMNS: Mapping[str, Callable[[ClusterRow], Any]] = {
    "name": lambda row: row.name,
    "region": lambda row: row.region or None,
    "nodes": lambda row: row.nodes,
    "pods": lambda row: row.pods,
    "waiting": lambda row: row.pending,
    "promised": lambda row: row.promised_replicas,
    "price": lambda row: row.price_per_hour,
    "cpu": lambda row: _share(row, resources.CPU),
    "memory": lambda row: _share(row, resources.MEMORY),
}


def cluster_table(
    fleet: FleetOverview,
    query: ListQuery,
    has_node: Callable[[str], bool] = lambda cluster: False,
    file: ShownFile | None = None,
) -> ClusterList:
    """Return the table. Words match name, region, provider, pools, and nodes (`has_node`)."""
    matching = [
        row
        for row in fleet.clusters
        if query.finds(row.name, row.region, row.provider, *(pool.name for pool in row.pools))
        or has_node(row.name)
    ]
    rows = in_order(matching, query, COLUMNS)
    return ClusterList(
        at=fleet.at,
        items=[msgspec.structs.replace(row, pools=[]) for row in page_of(rows, query)],
        matched=len(matching),
        total=len(fleet.clusters),
        offset=query.offset,
        nodes=fleet.nodes,
        pods=fleet.pods,
        pending=fleet.pending,
        amounts=fleet.amounts,
        price_per_hour=fleet.price_per_hour,
        list_price_per_hour=fleet.list_price_per_hour,
        unpriced=fleet.unpriced,
        promised_replicas=fleet.promised_replicas,
        file=file,
    )


@dataclass(frozen=True, slots=True)
class ClusterTraces:
    """Facts about a cluster in addition to its row. `plan` is None until there is one."""

    view: ClusterView | None = None
    plan: ConsolidationPlan | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    stock_outs: tuple[StockOut, ...] = ()


def cluster_detail(row: ClusterRow, traces: ClusterTraces, now: float) -> ClusterDetail:
    uses = _uses(traces.view) if traces.view is not None else []
    return ClusterDetail(
        at=now,
        cluster=row,
        filled_by=uses[:FILLED_BY_MAX],
        filled_by_left_out=max(0, len(uses) - FILLED_BY_MAX),
        launchable=list(_launchable(row)),
        refused=list(_refused(row, traces)),
    )


def _uses(view: ClusterView) -> list[NamespaceUse]:
    """Return the requests by namespace, the largest CPU first."""
    pods: dict[str, int] = defaultdict(int)
    amounts: dict[str, dict[str, int]] = defaultdict(dict)
    shapes = view.snapshot.shapes
    for key, shape in zip(view.pods.keys, view.pods.shapes.tolist(), strict=True):
        namespace = key.partition("/")[0]
        pods[namespace] += 1
        resources.add(amounts[namespace], dict(shapes[shape].requests))
    uses = [
        NamespaceUse(name=name, pods=number, requests=amounts[name]) for name, number in sorted(pods.items())
    ]
    return sorted(uses, key=lambda use: -use.requests.get(resources.CPU, 0))


def _launchable(row: ClusterRow) -> Iterator[str]:
    if not row.watched:
        yield "unknown: the cluster is not watched, and Karmada's summary does not contain it"
        return
    pools = [pool for pool in row.pools if pool.name]
    if not pools:
        yield "nothing: it has no NodePool that could add nodes"
    for pool in pools:
        yield f"{pool.name}: {_potential(pool)}"


def _potential(pool: PoolRow) -> str:
    amounts = {name: amount.potential for name, amount in pool.amounts.items()}
    if not pool.ready or not any(left is None or left > 0 for left in amounts.values()):
        return f"nothing at the moment ({pool.why[0]})" if pool.why else "nothing at the moment"
    limited = [
        f"{resources.show_amount(name, left)} {name}" for name, left in amounts.items() if left is not None
    ]
    return f"up to {', '.join(limited)}" if limited else "no limits: as much as the cloud sells"


def _refused(row: ClusterRow, traces: ClusterTraces) -> Iterator[str]:
    said = False
    for pool, why in sorted(traces.failures.items()):
        said = True
        yield f"pool {pool} does not deliver: {why}"
    for stock_out in traces.stock_outs[:REFUSED_MAX]:
        said = True
        what = (stock_out.instance_type, stock_out.zone, stock_out.capacity_type)
        yield f"out of stock: {', '.join(part for part in what if part)}"
    if row.pending:
        said = True
        yield f"{counted(row.pending, 'pod')} pending; see the view Waiting"
    plan = traces.plan
    if plan is not None and plan.rejected:
        said = True
        first = f"; the first: {plan.rejected[0].why[0].sentence()}" if plan.rejected[0].why else ""
        yield f"{counted(len(plan.rejected), 'move')} of the plan refused{first}"
    if not said:
        yield "nothing: no pool failed, nothing was out of stock, no pod waits"
