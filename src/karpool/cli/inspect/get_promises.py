"""`karpool get promises`: room in member clusters that is given away and not taken yet."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import click

from karpool.cli.cluster_source import connect
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.inspect.listing_options import ListingOptions, NamespaceOptions, show_listing
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import join_names, note, pluralize
from karpool.kube.clock import Clock
from karpool.manager.options import Duration, Options, option
from karpool.model.documents import document_of
from karpool.scheduler.cycle.what_if import listed
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise import Promise, PromiseLifetime


@dataclass(frozen=True)
class PromisedBinding:
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class PromiseLine:
    """One promise. Seconds are rounded; `replicas` are in flight, of `desired` that shall run there."""

    binding: PromisedBinding
    cluster: str
    replicas: int
    promised: int
    desired: int
    components: dict[str, int]
    age_seconds: int
    expires_in_seconds: int


def lines(ledger: PromiseLedger, now: float) -> list[PromiseLine]:
    """What is in flight, by cluster, oldest first."""
    return [_line(promise, ledger.lifetime, now) for promise in ledger.promises() if promise.replicas]


def _line(promise: Promise, lifetime: PromiseLifetime, now: float) -> PromiseLine:
    key = promise.binding
    in_flight = promise.in_flight
    named = zip(promise.workload.names, in_flight, strict=True)
    return PromiseLine(
        PromisedBinding(key.kind, key.namespace, key.name),
        cluster=promise.cluster,
        replicas=sum(in_flight),
        promised=sum(promise.promised),
        desired=sum(promise.desired),
        components=dict(named) if len(in_flight) > 1 else {},
        age_seconds=round(now - promise.made_at),
        expires_in_seconds=max(0, round(promise.ends_at(lifetime) - now)),
    )


def promises_listing(lines: Iterable[PromiseLine], cluster: str = "") -> Listing:
    """`cluster` is the Karmada control plane that was asked."""
    shown = list(lines)
    replicas, clusters = sum(line.replicas for line in shown), len({line.cluster for line in shown})
    where = f", says {cluster}" if cluster else ""
    return Listing(
        "PromiseList",
        "promise",
        ("CLUSTER", "BINDING", "IN FLIGHT", "OF", "AGE", "EXPIRES IN"),
        [
            ListedItem(
                f"{line.cluster}/{line.binding}",
                document_of(line),
                (
                    line.cluster,
                    str(line.binding),
                    str(line.replicas),
                    str(line.desired),
                    f"{line.age_seconds}s",
                    f"{line.expires_in_seconds}s",
                ),
                namespace=line.binding.namespace,
            )
            for line in shown
        ],
        content={"context": cluster} if cluster else {},
        summary=[f"{pluralize(replicas, 'replica')} in {pluralize(clusters, 'cluster')}{where}"],
        empty=f"nothing is promised{where}",
    )


class PromiseOptions(Options, frozen=True):
    cluster_name: Annotated[str, option("Show only this member cluster. Default: all.")] = ""
    assumption_ttl_seconds: Annotated[
        Duration,
        option("Lifetime of a promise; use the value of the scheduler's flag.", flag="assumption-ttl"),
    ] = PromiseLifetime().seconds


@click.command(epilog="Example: karpool get promises --kubeconfig karmada.config --cluster-name member1")
@with_options(PromiseOptions, "options")
@with_options(NamespaceOptions, "places")
@with_options(ListingOptions, "listing")
@connection_options
def promises(
    cluster: ClusterOptions,
    options: PromiseOptions,
    places: NamespaceOptions,
    listing: ListingOptions,
) -> None:
    """List replicas of all schedulers that are placed but not known to run on a node.

    The list comes from the bindings of the Karmada API server, as a scheduler reads them at start. A running
    scheduler may know of more pods on nodes, from the estimators that it asks.
    """
    problems: list[str] = []

    def look() -> Listing:
        lines, members, problems[:], name = asyncio.run(_read(cluster, options.assumption_ttl_seconds))
        return promises_listing(_chosen(lines, members, options.cluster_name, places.namespace), name)

    show_listing(look, listing)
    for problem in problems:
        note(f"skipped: {problem}")


def _chosen(
    lines: Sequence[PromiseLine], members: Sequence[str], cluster_name: str, namespace: str
) -> list[PromiseLine]:
    if cluster_name and cluster_name not in {*members, *(line.cluster for line in lines)}:
        hint = (
            f"member clusters are {join_names(members)}" if members else "Karmada has no member clusters yet"
        )
        raise CommandFailed(f"--cluster-name: member cluster {cluster_name!r} does not exist; {hint}")
    return [
        line
        for line in lines
        if cluster_name in ("", line.cluster) and namespace in ("", line.binding.namespace)
    ]


async def _read(
    cluster: ClusterOptions, ttl_seconds: float
) -> tuple[list[PromiseLine], list[str], list[str], str]:
    """Promises, names of member clusters, what could not be read, and what the context is called."""
    async with connect(cluster) as client:
        view = await listed(client, PromiseLifetime(seconds=ttl_seconds))
        clock: Clock = client.clock
        assert view.ledger is not None
        skipped = [
            f"{version.head.key}: {version.problem}"
            for version in view.bindings.all()
            if version.problem is not None
        ]
        members = [member_cluster.name for member_cluster in view.clusters.all()]
        return lines(view.ledger, clock.monotonic()), members, skipped, client.name
