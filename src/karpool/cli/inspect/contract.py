"""`karpool contract`: what a contract file says holds now, and the machines of a cluster for others."""

import asyncio
from math import isfinite
from pathlib import Path

import click
import yaml

from karpool.cli.cluster_source import load_cluster
from karpool.cli.options.cluster import ClusterOptions, catalogue_option, cluster_options, output_option
from karpool.cli.output.text import NONE, columns, emit, machine, note
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.clock import RealClock
from karpool.model.contracts.contract import Commitment, Discount, Term
from karpool.model.contracts.written_machines import written_machines
from karpool.model.kubernetes.times import rfc3339
from karpool.provisioning.market_file import contract_of, market_of

_FILE = click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group(epilog="Example: karpool contract check contract.yaml")
def contract() -> None:
    """Check a contract file, and print the machines of a cluster for the contract files of others."""


@contract.command(epilog="Example: karpool contract check contract.yaml")
@_FILE
@output_option("table", "json", "yaml")
def check(file: Path, output: str) -> None:
    """Check a contract file: what applies now, when entries start and end, and what is paid in any case."""
    now = RealClock().now()
    written = contract_of(file)
    in_force = written.at(now)
    paid = in_force.bill({}).per_hour
    agreements: list[Discount | Commitment] = [*written.discounts, *written.commitments]
    items = [
        {
            "name": agreement.name,
            "kind": "discount" if isinstance(agreement, Discount) else agreement.kind.value,
            "amount": _amount(agreement),
            "holds": agreement.term.holds(now),
            "start": _moment(agreement.term.start),
            "end": _moment(agreement.term.end),
        }
        for agreement in agreements
    ]
    if output in ("json", "yaml"):
        emit(machine("ContractCheck", {"items": items, "committedPerHour": paid}, output))
        return
    rows = [
        [item["name"], item["kind"], item["amount"], _state(agreement.term, now), item["start"], item["end"]]
        for item, agreement in zip(items, agreements, strict=True)
    ]
    emit(columns(["NAME", "KIND", "AMOUNT", "NOW", "FROM", "UNTIL"], [list(map(str, row)) for row in rows]))
    elsewhere = sum(sum(fleet.values()) for fleet in written.elsewhere.values())
    emit(f"\n{file.name}: ${paid:.3f} per hour is paid in any case; {elsewhere} machines of other clusters")


@contract.command(epilog="Example: karpool contract machines contract.yaml --name south --context south")
@_FILE
@click.option("--name", required=True, help="Name of this cluster in the contract files of the others.")
@catalogue_option
@cluster_options
def machines(file: Path, name: str, catalogue: Path | None, cluster: ClusterOptions) -> None:
    """Print the machines of a cluster as an `elsewhere` entry for the contract files of other clusters."""
    picture = Cluster(Aspect.NODECLAIMS | Aspect.OVERLAYS, market=market_of(catalogue, contract=file))
    loaded = asyncio.run(load_cluster(cluster, picture))
    snapshot = picture.snapshot(RealClock().now() if loaded.as_of is None else loaded.as_of)
    fleet = picture.market.contracted.own
    emit(yaml.safe_dump({"elsewhere": {name: written_machines(fleet)}}, sort_keys=False).rstrip())
    for gap in picture.market.gaps():
        note(f"left out, no price: {gap}")
    for problem in (*loaded.problems, *snapshot.problems):
        note(f"skipped: {problem}")


def _amount(agreement: Discount | Commitment) -> str:
    if isinstance(agreement, Discount):
        return f"{100 * agreement.fraction:g} %"
    return f"{agreement.amount:g} {agreement.unit.value}"


def _moment(seconds: float) -> str:
    return rfc3339(seconds) if isfinite(seconds) else NONE


def _state(term: Term, now: float) -> str:
    if term.holds(now):
        return "holds"
    return "to come" if now < term.start else "ended"
