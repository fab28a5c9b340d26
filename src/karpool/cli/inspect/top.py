"""`karpool top`: what nodes and pools hold, what is left, and what they cost."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from karpool.cli.cluster_source import LoadedCluster, load_cluster
from karpool.cli.options.cluster import ClusterOptions, catalogue_option, cluster_options, output_option
from karpool.cli.output.text import columns, machine, note, pluralize
from karpool.cluster.changes import PutDropSink
from karpool.cluster.market.market import Market
from karpool.kube.watched import WatchedKind
from karpool.model import resources
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.catalogue.files import load_shipped, shipped_regions
from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL, NodePool
from karpool.model.kubernetes.api_resources import NODEPOOLS
from karpool.model.kubernetes.node import INSTANCE_TYPE, REGION, ZONE
from karpool.packing.tables.room import Room
from karpool.provisioning.market_file import market_of

UNKNOWN = "?"
NONE = "-"


@dataclass(frozen=True)
class NodeUsage:
    """One line of the table. Amounts are in Kubernetes units; the price is USD per hour, None if unknown."""

    name: str
    pool: str
    type: str
    zone: str
    capacity_type: str
    requested: dict[str, int]
    allocatable: dict[str, int]
    pods: int
    slots: int
    price_per_hour: float | None
    nodes: int = 1


def usage_of(snapshot: Room, catalogues: dict[str, Catalogue]) -> list[NodeUsage]:
    """One entry per node, in the order of the snapshot."""
    names = [name for name in snapshot.resources if snapshot.allocatable(name).any()]
    allocatable = {name: snapshot.allocatable(name) for name in names}
    free = {name: snapshot.free(name) for name in names}
    labels = {key: _values(snapshot, key) for key in (NODEPOOL, INSTANCE_TYPE, ZONE, CAPACITY_TYPE, REGION)}
    held = [len(snapshot.pods_on(row)) for row in range(snapshot.n)]
    return [
        NodeUsage(
            name=snapshot.names[row],
            pool=labels[NODEPOOL][row],
            type=labels[INSTANCE_TYPE][row],
            zone=labels[ZONE][row],
            capacity_type=labels[CAPACITY_TYPE][row],
            requested={name: int(allocatable[name][row] - free[name][row]) for name in names},
            allocatable={name: int(allocatable[name][row]) for name in names},
            pods=held[row],
            slots=held[row] + int(snapshot.slots[row]),
            price_per_hour=_price(catalogues, {key: values[row] for key, values in labels.items()}),
        )
        for row in range(snapshot.n)
    ]


def by_pool(nodes: Iterable[NodeUsage], pools: Iterable[str] = ()) -> list[NodeUsage]:
    """The same, summed per pool, also for `pools` without nodes; one unknown price makes a sum unknown."""
    groups: dict[str, list[NodeUsage]] = defaultdict(list, {pool: [] for pool in pools})
    for node in nodes:
        groups[node.pool].append(node)
    return [
        NodeUsage(
            name=pool or NONE,
            pool=pool,
            type="",
            zone="",
            capacity_type="",
            nodes=len(members),
            requested=resources.total(member.requested for member in members),
            allocatable=resources.total(member.allocatable for member in members),
            pods=sum(member.pods for member in members),
            slots=sum(member.slots for member in members),
            price_per_hour=_sum(member.price_per_hour for member in members),
        )
        for pool, members in sorted(groups.items())
    ]


def table(entries: list[NodeUsage], *, pools: bool, wide: bool) -> str:
    shown = _resources_shown(entries, wide=wide)
    about = ["NODES"] if pools else ["POOL", "TYPE", "ZONE", "CAPACITY"]
    return columns(
        ["NAME", *about, *(name.upper() for name in shown), "PODS", "$/H"],
        (
            [
                entry.name,
                *([str(entry.nodes)] if pools else _described(entry)),
                *(_share(entry, name) for name in shown),
                f"{entry.pods}/{entry.slots}",
                UNKNOWN if entry.price_per_hour is None else f"{entry.price_per_hour:.3f}",
            ]
            for entry in entries
        ),
    )


def _described(entry: NodeUsage) -> list[str]:
    return [text or NONE for text in (entry.pool, entry.type, entry.zone, entry.capacity_type)]


@click.command(epilog="Example: karpool top nodes --context prod -o wide")
@click.argument("what", type=click.Choice(["nodes", "pools"]), default="nodes")
@catalogue_option
@output_option("table", "wide", "json", "yaml")
@cluster_options
def top(what: str, catalogue: Path | None, output: str, cluster: ClusterOptions) -> None:
    """Show nodes or pools: requested of allocatable, pods, and price per hour.

    Prices are list prices of the shipped catalogue, or those of --catalogue; "?" is a price that is not
    known.
    """
    market = market_of(catalogue) if catalogue is not None else None
    pools: set[str] = set()
    sink = PutDropSink[NodePool](lambda key, _: pools.add(key.name), lambda key: pools.discard(key.name))
    watches = [WatchedKind(NODEPOOLS, NodePool, sink, optional=True)] if what == "pools" else []
    loaded = asyncio.run(load_cluster(cluster, watches))
    click.echo(render(loaded, what, output, market, pools))
    for problem in loaded.problems:
        note(f"skipped: {problem}")


def render(
    loaded: LoadedCluster, what: str, output: str, market: Market | None = None, pools: Iterable[str] = ()
) -> str:
    snapshot = loaded.state.snapshot()
    catalogues = None if market is None else {market.region: market.catalogue}
    nodes = usage_of(snapshot, _catalogues(snapshot) if catalogues is None else catalogues)
    entries = nodes if what == "nodes" else by_pool(nodes, pools)
    if output in ("json", "yaml"):
        items: list[dict[str, Any]] = [asdict(entry) for entry in entries]
        return machine("NodeUsageList" if what == "nodes" else "PoolUsageList", {"items": items}, output)
    if not entries:
        return f"no {what}"
    total = _sum(node.price_per_hour for node in nodes)
    cost = f"${total:.3f} per hour" if total is not None else "price of some nodes unknown"
    shown = table(entries, pools=what == "pools", wide=output == "wide")
    pending = pluralize(len(snapshot.pending), "pod")
    return f"{shown}\n\n{pluralize(snapshot.n, 'node')}, {pending} pending, {cost}"


def _catalogues(snapshot: Room) -> dict[str, Catalogue]:
    """The shipped catalogues of the regions that nodes are in."""
    regions = snapshot.label(REGION).values
    return {region: load_shipped(region) for region in regions if region in shipped_regions()}


def _values(snapshot: Room, key: str) -> list[str]:
    label = snapshot.label(key)
    return [label.values[code] if code >= 0 else "" for code in label.codes.tolist()]


def _price(catalogues: dict[str, Catalogue], labels: dict[str, str]) -> float | None:
    catalogue = catalogues.get(labels[REGION])
    if catalogue is None:
        return None
    return catalogue.price(labels[INSTANCE_TYPE], labels[ZONE], labels[CAPACITY_TYPE] or "on-demand")


def _sum(prices: Iterable[float | None]) -> float | None:
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return total


def _resources_shown(entries: list[NodeUsage], *, wide: bool) -> list[str]:
    """CPU and memory always, devices where there are any, everything when wide."""
    present = {name for entry in entries for name, units in entry.allocatable.items() if units}
    usual = [resources.CPU, resources.MEMORY]
    devices = sorted(name for name in present if name.endswith(("/gpu", ".com/gpu")))
    rest = sorted(present - {*usual, *devices, resources.PODS}) if wide else []
    return [*usual, *devices, *rest]


def _share(entry: NodeUsage, name: str) -> str:
    allocatable = entry.allocatable.get(name, 0)
    if not allocatable:
        return NONE
    requested = entry.requested.get(name, 0)
    shown = f"{_short(name, requested)}/{_short(name, allocatable)}"
    return f"{shown} {round(100 * requested / allocatable)}%"


def _short(name: str, units: int) -> str:
    """Rounded for reading; `-o json` has the exact numbers."""
    if name == resources.CPU:
        return f"{units / 1000:.3g}"
    if name in (resources.MEMORY, resources.EPHEMERAL_STORAGE):
        return f"{units / 2**30:.3g}Gi"
    return str(units)
