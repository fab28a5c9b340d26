"""`karpool get moves`: the ledger of consolidation: what was moved, what it saved, whom it disturbed."""

import asyncio
from collections.abc import Iterable
from typing import Any

import click

from karpool.cli.cluster_source import connect
from karpool.cli.inspect.listing_options import ListingOptions, show_listing
from karpool.cli.options.cluster import ClusterOptions, connection_options
from karpool.cli.options.parameters import with_options
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import note, pluralize
from karpool.consolidation.execution.controller import ConsolidatorSettings
from karpool.consolidation.execution.move_history import cost_of, saved_by, saved_by_all
from karpool.consolidation.execution.options import STOP_NAMESPACE
from karpool.consolidation.execution.plan_application import executor_of
from karpool.consolidation.execution.record import MovePhase, MoveRecord, PlanBound
from karpool.model import durations
from karpool.model.kubernetes.times import rfc3339

_NODES_SHOWN = 3
_LEAST = 5e-5  # dollars: less is nothing in four places


def to_json(record: MoveRecord, cost: float | None = None, saved: float | None = None) -> dict[str, Any]:
    """`cost` and `saved`: see `cost_of` and `saved_by`."""
    move = record.move
    return {
        "name": record.name,
        "phase": str(record.phase),
        "kind": str(move.kind),
        "reason": str(move.reason),
        "attempt": record.attempt,
        "nodes": list(move.names),
        "kept": list(record.kept),
        "newNodes": list(dict.fromkeys(record.arrived)),
        "extraNodes": list(record.extra_nodes),
        "score": move.score,
        "predictedSavingsPerHour": move.savings_per_hour,
        "realisedSavingsPerHour": record.realised,
        "costDollars": cost,
        "savedDollars": saved,
        "podsDisturbed": record.disturbed,
        "podsRedisturbed": record.redisturbed,
        "began": rfc3339(record.created),
        "phaseSince": rfc3339(record.since),
        **({} if record.bound is None else {"planCertificate": _certificate(record.bound)}),
        "ended": None if record.ended is None else rfc3339(record.ended),
        "why": {"code": record.reason, "message": record.message},
    }


def _certificate(bound: PlanBound) -> dict[str, Any]:
    return {
        "plannedSavingsPerHour": bound.planned_per_hour,
        "possibleSavingsPerHour": bound.possible_per_hour,
        "at": rfc3339(bound.at),
    }


def moves_listing(records: Iterable[MoveRecord], now: float, cluster: str = "") -> Listing:
    listed = list(records)
    costs = {record.name: cost_of(record, listed, now) for record in listed}
    done = [record for record in listed if record.phase is MovePhase.DONE]
    measured = [record for record in done if record.realised is not None]
    predicted = sum(move_record.move.savings_per_hour for move_record in measured)
    realised = sum(record.realised or 0.0 for record in measured)
    sums = f"${realised:z.4f} of ${predicted:z.4f} per hour realised"
    spent = sum(cost or 0.0 for cost in costs.values())
    paid = f"; new nodes cost ${spent:z.4f} before they saved anything" if spent else ""
    saved = saved_by_all(listed, now)
    where = f" in {cluster}" if cluster else ""
    return Listing(
        "MoveList",
        "move",
        _TITLES,
        [
            ListedItem(
                record.name,
                to_json(record, costs[record.name], saved_by(record, listed, now)),
                _row(record, now, (costs[record.name], saved_by(record, listed, now))),
                [
                    ",".join(dict.fromkeys((*record.arrived, *record.extra_nodes))),
                    _of_possible(record),
                    record.message,
                ],
            )
            for record in listed
        ],
        ["NEW NODES", "PLAN OF POSSIBLE", "WHY"],
        {**({"cluster": cluster} if cluster else {}), "savedDollars": saved},
        [
            f"{pluralize(len(done), 'move')} done{where}: {sums}{paid}",
            f"up to now the bill is ${abs(saved):.4f} {'higher' if saved < -_LEAST else 'lower'} than without"
            " these moves",
        ],
        f"no moves{where}",
    )


_TITLES = (
    "MOVE",
    "PHASE",
    "AGE",
    "KIND",
    "NODES",
    "SCORE",
    "PREDICTED $/H",
    "REALISED $/H",
    "COST $",
    "SAVED $",
    "PODS",
    "AGAIN",
)


def _row(record: MoveRecord, now: float, dollars: Iterable[float | None]) -> list[str]:
    """`dollars`: what it cost and what it saved."""
    move = record.move
    nodes = ",".join(move.names[:_NODES_SHOWN]) + ("" if len(move.names) <= _NODES_SHOWN else ",...")
    return [
        record.name.rpartition("-")[2],
        str(record.phase),
        durations.show(float(int(max(0.0, now - record.created)))),
        str(move.kind),
        nodes,
        "-" if move.score is None else f"{move.score:.2f}",
        f"{move.savings_per_hour:z.4f}",
        "-" if record.realised is None else f"{record.realised:z.4f}",
        *("-" if amount is None else f"{amount:z.4f}" for amount in dollars),
        str(record.disturbed or move.disturbed),
        str(record.redisturbed),
    ]


def _of_possible(record: MoveRecord) -> str:
    """What a plan saved of what any could have: that of the newest certificate, and how old that was."""
    bound = record.bound
    if bound is None or bound.share is None:
        return "-"
    age = float(int(record.created - bound.at))
    return f"{bound.share:.0%}" + (f" ({durations.show(age)} before)" if age >= 1 else "")


@click.command(epilog="Example: karpool get moves --context prod -o wide")
@click.option(
    "-n", "--namespace", default=STOP_NAMESPACE, show_default=True, help="Namespace of the records."
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Show the records of all namespaces.")
@click.option("--active", is_flag=True, help="Show only active moves.")
@with_options(ListingOptions, "listing")
@connection_options
def moves(
    cluster: ClusterOptions, namespace: str, all_namespaces: bool, active: bool, listing: ListingOptions
) -> None:
    """List consolidation moves: active, done, rolled back and rejected, the newest last."""
    problems: list[str] = []

    def look() -> Listing:
        records, problems[:], now, name = asyncio.run(
            _read(cluster, "" if all_namespaces else namespace, active)
        )
        return moves_listing(records, now, name)

    show_listing(look, listing)
    for problem in problems:
        note(f"skipped: {problem}")


async def _read(
    cluster: ClusterOptions, namespace: str, active: bool
) -> tuple[list[MoveRecord], list[str], float, str]:
    async with connect(cluster) as client:
        executor = executor_of(client, ConsolidatorSettings(namespace=namespace))
        records = await executor.records(active=active)
        return records, list(map(str, executor.unreadable)), client.clock.now(), client.name
