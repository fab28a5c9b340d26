"""`karpool explain scale-up NAME`: what waits, how far each node is, what failed, what comes next."""

from collections.abc import Iterator

import click

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.inspect.get_scale_ups import ScaleUpListing, age, document, list_scale_ups
from karpool.cli.options.cluster import ClusterOptions, cluster_options, output_option
from karpool.cli.output.text import columns, emit, machine, note, pluralize, printable
from karpool.gpu.records.scale_up_record import MEANS, ScaleUpRecord, ScaleUpState
from karpool.model import durations
from karpool.provisioning.candidates.attempts import ROUND_REST_SECONDS, CandidateHistory


def text(listing: ScaleUpListing, record: ScaleUpRecord) -> str:
    """Tables are many lines and clean already; every other line may hold what others wrote."""
    lines = ("\n".join(map(printable, line.split("\n"))) for line in _lines(listing, record))
    return "\n".join(lines)


def _lines(listing: ScaleUpListing, record: ScaleUpRecord) -> Iterator[str]:
    yield f"{record.name}: {record.key}"
    yield ""
    yield f"{record.state.value} for {age(listing.now, record.state_since)}: {MEANS[record.state]}"
    if record.reason or record.message:
        yield ": ".join(part for part in (record.reason, record.message) if part)
    seen_since = age(listing.now, record.first_seen)
    yield f"first seen {seen_since} ago, attempt {record.epoch}, round {record.round + 1}"
    yield from _next(listing, record)
    yield ""
    more = record.waiting - len(record.demand)
    named = ", ".join(record.demand) + (f" and {more} more" if more > 0 and record.demand else "")
    yield f"{pluralize(record.waiting, 'worker')} waiting" + (f": {named}" if named else "")
    if record.units:
        yield ""
        yield _units(listing, record)
    yield from _said(listing, record)
    if record.memory:
        yield ""
        yield _tried(listing, record)
    if record.bad_nodes:
        yield ""
        named = ", ".join(record.bad_nodes)
        yield f"nodes without devices: {named}; check the driver and the device plugin"


def _next(listing: ScaleUpListing, record: ScaleUpRecord) -> Iterator[str]:
    if record.state in (ScaleUpState.BACKOFF, ScaleUpState.EXHAUSTED) and record.next_attempt:
        wait = record.next_attempt - listing.now
        yield "the next attempt is due" if wait <= 0 else f"the next attempt follows in {_in(wait)}"
    if record.state is ScaleUpState.EXHAUSTED:
        yield f"between rounds it waits for {ROUND_REST_SECONDS / 60:g} minutes"


def _units(listing: ScaleUpListing, record: ScaleUpRecord) -> str:
    return columns(
        ("NODE ASKED FOR", "GPUS", "STAGE", "FOR", "CLAIM", "NODE", "RESERVED FOR", "CANDIDATE"),
        (
            (
                str(unit.index),
                str(unit.gpus),
                f"ended: {unit.ended}" if unit.ended else unit.stage.value,
                age(listing.now, unit.since),
                unit.claim or "-",
                unit.node or "-",
                str(len(unit.held)) if unit.held else "-",
                listing.words.get(unit.candidate, unit.candidate),
            )
            for unit in record.units
        ),
    )


def _said(listing: ScaleUpListing, record: ScaleUpRecord) -> Iterator[str]:
    said = [(unit.index, listing.said.get((record.name, unit.index))) for unit in record.active_units]
    quotes = [f"smart pod {index}: {words}" for index, words in said if words]
    if quotes:
        yield ""
        yield from quotes


def _tried(listing: ScaleUpListing, record: ScaleUpRecord) -> str:
    return columns(
        ("TRIED", "RESULT", "AGO", "TIMES", "AGAIN"),
        (
            (
                listing.words.get(key, key),
                tried.last.value,
                age(listing.now, tried.last_at),
                str(tried.count),
                _again(tried, record.round),
            )
            for key, tried in record.memory.items()
        ),
    )


def _again(tried: CandidateHistory, round_number: int) -> str:
    if tried.excluded:
        return "never"
    return "next round" if tried.round >= round_number else "yes"


def _in(seconds: float) -> str:
    return durations.show(float(round(seconds)))


@click.command("scale-up", epilog="Example: karpool explain scale-up scaleup-3f9c0a41d2b7e856")
@click.argument("name")
@output_option("text", "json", "yaml")
@cluster_options
def scale_up(cluster: ClusterOptions, name: str, output: str) -> None:
    """Show the state of a scale-up: waiting pods, requested nodes, failures, and the next step.

    NAME is the name of a ScaleUp from `karpool get scale-ups`.
    """
    listing = list_scale_ups(cluster)
    for problem in listing.problems:
        note(f"skipped: {problem}")
    record = next((up_record for up_record in listing.records if up_record.name == name), None)
    if record is None:
        raise CommandFailed(f"scale-up {name!r} does not exist; `karpool get scale-ups` lists all scale-ups")
    if output == "text":
        emit(text(listing, record))
    else:
        emit(machine("ScaleUpExplanation", document(listing, record), output))
