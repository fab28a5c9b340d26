"""`karpool top`: what nodes and pools hold, what is left, and what they cost."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from karpool.cli.cluster_source import load_cluster, unreadable_lines
from karpool.cli.inspect.listing_options import ListingOptions, in_a_terminal, show_listing
from karpool.cli.inspect.top_gpus import gpu_listing
from karpool.cli.options.cluster import (
    ClusterOptions,
    catalogue_option,
    cluster_options,
    contract_cluster_option,
    contract_option,
)
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import TABLE, WIDE, ListedItem, Listing
from karpool.cli.output.text import NONE, UNKNOWN, note, pluralize
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.cluster.market.fleet_bill import FleetBill
from karpool.cluster.snapshot import Snapshot
from karpool.kube.clock import RealClock
from karpool.model import resources
from karpool.model.catalogue.catalogue import capacity_type_of
from karpool.model.documents import camel_case, document_of
from karpool.model.kubernetes.meta import NO_LABELS
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool.provisioning.market_file import market_of

_ASPECTS = {
    "nodes": Aspect.OVERLAYS | Aspect.POOLS,
    "pools": Aspect.OVERLAYS | Aspect.POOLS,
    "gpus": Aspect.DEVICES | Aspect.DRA,
}


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
    list_price_per_hour: float | None = None
    nodes: int = 1
    unreadable_pods: int = 0  # nothing is free beside one
    labels: Mapping[str, str] = field(default_factory=dict)


def usage_of(snapshot: Snapshot) -> list[NodeUsage]:
    """One entry per node, in the order of the snapshot."""
    room = snapshot.room
    names = [name for name in room.resources if room.allocatable(name).any()]
    allocatable = {name: room.allocatable(name) for name in names}
    free = {name: room.free(name) for name in names}
    entries = []
    for row, state_node in enumerate(snapshot.nodes):
        labels = state_node.node.labels if state_node.node is not None else NO_LABELS
        pods = len(room.pods_on(row)) + state_node.blocked
        entries.append(
            NodeUsage(
                name=state_node.name,
                pool=state_node.pool,
                type=labels.get(INSTANCE_TYPE, ""),
                zone=labels.get(ZONE, ""),
                capacity_type=capacity_type_of(labels),
                requested={name: int(allocatable[name][row] - free[name][row]) for name in names},
                allocatable={name: int(allocatable[name][row]) for name in names},
                pods=pods,
                slots=pods + int(room.slots[row]),
                price_per_hour=state_node.price_per_hour,
                list_price_per_hour=state_node.list_price_per_hour,
                unreadable_pods=state_node.blocked,
                labels=labels,
            )
        )
    return entries


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
            list_price_per_hour=_sum(member.list_price_per_hour for member in members),
            unreadable_pods=sum(member.unreadable_pods for member in members),
        )
        for pool, members in sorted(groups.items())
    ]


def _money(price: float | None) -> str:
    return UNKNOWN if price is None else f"{price:.3f}"


def _described(entry: NodeUsage) -> list[str]:
    return [text or NONE for text in (entry.pool, entry.type, entry.zone, entry.capacity_type)]


@click.command(
    epilog="Examples: karpool top nodes --sort-by .pricePerHour;  karpool top nodes -l team=red -w"
)
@click.argument("what", type=click.Choice(["nodes", "pools", "gpus"]), default="nodes")
@catalogue_option
@contract_option
@contract_cluster_option
@with_options(ListingOptions, "listing")
@cluster_options
def top(
    what: str,
    catalogue: Path | None,
    contract: Path | None,
    contract_cluster: str,
    listing: ListingOptions,
    cluster: ClusterOptions,
) -> None:
    """Show nodes or pools: requests, allocatable, pods, and price per hour; or GPUs and their holders.

    Prices are list prices of the shipped catalogue, or those of --catalogue; "?" is an unknown price. With
    --contract, the output shows what each node adds to the bill beside its list price. `top nodes -w` in a
    terminal is a live view with bars; its last line names the keys.
    """

    problems: list[str] = []

    def look() -> Listing:
        market = market_of(catalogue, contract=contract, contract_cluster=contract_cluster)
        picture = Cluster(Aspect.NODECLAIMS | _ASPECTS[what], market=market)
        loaded = asyncio.run(load_cluster(cluster, picture))
        snapshot = picture.snapshot(RealClock().now() if loaded.as_of is None else loaded.as_of)
        problems[:] = (*loaded.problems, *snapshot.problems)
        if what == "gpus":
            return gpu_listing(snapshot, loaded.name)
        return usage_listing(snapshot, loaded.name, pools=what == "pools")

    drawn = listing.watch and listing.output in (TABLE, WIDE) and in_a_terminal()
    if what == "nodes" and drawn and cluster.snapshot is None:
        from karpool.cli.inspect.top_live import follow_nodes  # with a library that only this needs

        follow_nodes(
            cluster,
            Cluster(
                Aspect.NODECLAIMS,
                market=market_of(catalogue, contract=contract, contract_cluster=contract_cluster),
            ),
            partial(usage_listing, pools=False),
            listing.form,
            listing.watch_interval_seconds,
        )
        return
    show_listing(look, listing)
    for problem in problems:
        note(f"skipped: {problem}")


def usage_listing(snapshot: Snapshot, cluster: str, *, pools: bool) -> Listing:
    nodes = usage_of(snapshot)
    entries = by_pool(nodes, snapshot.pool_objects) if pools else nodes
    what = "pools" if pools else "nodes"
    market = snapshot.facts.market
    gaps = market.gaps()
    content: dict[str, Any] = {"cluster": cluster}
    content |= camel_case({"price_gaps": gaps}, old_keys=True)
    bill, uses = market.bill(), []
    total = _sum(node.price_per_hour for node in nodes)
    cost = f"${total:.3f} per hour" if total is not None else "the price of some nodes is unknown"
    if bill is not None:
        content["bill"] = document_of(bill.contract.bill(bill.fleet), old_keys=True)
        by_list = _sum(node.list_price_per_hour for node in nodes)
        cost = f"bill ${bill.per_hour(bill.own):.3f} per hour, by the list ${_money(by_list)}"
        uses = list(_uses(bill))
    pending = pluralize(len(snapshot.room.pending), "pod")
    about = f"{cluster}: {pluralize(len(nodes), 'node')}, {pending} pending, {cost}"
    shown, more = _resources_shown(entries)
    described = ["NODES"] if pools else ["POOL", "TYPE", "ZONE", "CAPACITY"]
    listed = bill is not None or bool(market.overlays)
    return Listing(
        "PoolUsageList" if pools else "NodeUsageList",
        "nodepool" if pools else "node",
        [
            "NAME",
            *described,
            *(name.upper() for name in shown),
            "PODS",
            *(["LIST $/H"] if listed else []),
            "$/H",
        ],
        [
            ListedItem(
                entry.name,
                document_of(entry, old_keys=True),
                [
                    entry.name,
                    *([str(entry.nodes)] if pools else _described(entry)),
                    *(_share(entry, name) for name in shown),
                    f"{entry.pods}/{entry.slots}",
                    *([_money(entry.list_price_per_hour)] if listed else []),
                    _money(entry.price_per_hour),
                ],
                [_share(entry, name) for name in more],
                entry.labels,
            )
            for entry in entries
        ],
        [name.upper() for name in more],
        content,
        [about, *uses, *(f"no price: {gap}" for gap in gaps), *unreadable_lines(snapshot)],
        f"no {what} in {cluster}",
    )


def _uses(bill: FleetBill) -> Iterator[str]:
    """How far commitments are used, with what clusters that are not seen here have of them."""
    others = {use.name: use.used for use in bill.contract.bill(bill.others).uses} if bill.others else {}
    for use in bill.contract.bill(bill.fleet).uses:
        amount = f"of {use.amount:.3f} {use.unit}"
        if use.name in others:
            yield f"{use.name}: {use.used:.3f} {amount} used, {others[use.name]:.3f} by other clusters alone"
        else:
            yield f"{use.name}: {use.used:.3f} {amount} used here"


def _sum(prices: Iterable[float | None]) -> float | None:
    total = 0.0
    for price in prices:
        if price is None:
            return None
        total += price
    return total


def _resources_shown(entries: list[NodeUsage]) -> tuple[list[str], list[str]]:
    """CPU and memory always, devices where there are any; and the others, for the wide form."""
    present = {name for entry in entries for name, units in entry.allocatable.items() if units}
    usual = [resources.CPU, resources.MEMORY]
    devices = sorted(name for name in present if name.endswith(("/gpu", ".com/gpu")))
    return [*usual, *devices], sorted(present - {*usual, *devices, resources.PODS})


def _share(entry: NodeUsage, name: str) -> str:
    allocatable = entry.allocatable.get(name, 0)
    if not allocatable:
        return NONE
    requested = entry.requested.get(name, 0)
    shown = f"{resources.show_rounded(name, requested)}/{resources.show_rounded(name, allocatable)}"
    return f"{shown} {round(100 * requested / allocatable)}%"
