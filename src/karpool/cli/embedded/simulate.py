"""`karpool simulate`: a scenario played to its end in seconds, and what came of it."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Timer
from typing import Self

import click
import msgspec
import structlog
from click.shell_completion import CompletionItem

from karpool.cli.embedded import simulate_html, simulate_spread, simulate_svg
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.options.cluster import RegionParam, catalogue_option
from karpool.cli.output.listing import ListedItem, Listing, ListingForm, check_output, render_listing
from karpool.cli.output.text import columns, emit, machine, note, printable
from karpool.kube.clock import RealClock
from karpool.model.errors import Invalid
from karpool_fleet.simulation.engine import simulate as run
from karpool_fleet.simulation.figures import FIGURES, Result, document, shown, titled
from karpool_fleet.simulation.ready_scenarios import ready_scenarios, scenario_path
from karpool_fleet.simulation.replay import Replay, ReplayedChange, read_recording, read_snapshot
from karpool_fleet.simulation.scenario_file import Expectation, Named, Trace, check_scenario, read_scenario
from karpool_fleet.simulation.traces import check_traces

KIND = "SimulationReport"
REPORTS = ("table", "wide", "json", "yaml", "html", "svg")
# What a person looks at first; -o wide has all.
MAIN = (
    "cost",
    "billed",
    "billPredicted",
    "nodesMean",
    "nodesMost",
    "pods",
    "pendingP50",
    "pendingP95",
    "pendingEnd",
    "stuckMost",
    "stuckHours",
    "evictions",
    "lost",
    "cpuUse",
    "gpuUse",
    "placed",
    "moves",
    "scaleUps",
    "arrivalsRefused",
)
SHOW_AFTER_SECONDS = 2.0


@click.command(
    epilog="Examples: karpool simulate --list;  karpool simulate consolidation-policies;  "
    "karpool simulate trace --trace pods.csv.gz -o html > report.html;  karpool simulate my-scenario.yaml"
)
@click.argument(
    "scenario",
    required=False,
    type=click.Path(path_type=Path, dir_okay=False),
    shell_complete=lambda _context, _parameter, typed: _completed(typed),
)
@click.option(
    "--from-snapshot",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Start with the cluster in this snapshot, and simulate --duration (6h) under each policy.",
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Simulate a file of `karpool record` under each policy, and compare with the recording.",
)
@click.option("--list", "listing", is_flag=True, help="List the shipped scenarios and exit.")
@click.option(
    "-o",
    "--output",
    default="table",
    show_default=True,
    metavar=f"[{'|'.join(REPORTS)}]",
    help="Format of the report; with --list also the formats of lists, like name and csv.",
)
@click.option("--variant", "variants", multiple=True, help="Run only these variants. Default: all.")
@click.option(
    "--seed",
    "seeds",
    type=int,
    multiple=True,
    help="Override the seed; several seeds give means with their spread. Default: the seed of the scenario.",
)
@click.option("--duration", help="Override the duration, like 6h. Default: the duration of the scenario.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="CSV file of the (first) trace. Default: the file that the scenario names.",
)
@catalogue_option
@click.option(
    "--region",
    type=RegionParam(),
    default="",
    help="Region of the cluster of --from-snapshot or --replay. Default: the region in the file.",
)
@click.option(
    "--decisions",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the decision log to this file: JSON lines, the same bytes for the same seed.",
)
@click.option("--check", is_flag=True, help="Only validate the file.")
def simulate(
    scenario: Path | None,
    from_snapshot: Path | None,
    replay: Path | None,
    listing: bool,
    output: str,
    variants: tuple[str, ...],
    seeds: tuple[int, ...],
    duration: str | None,
    trace: Path | None,
    catalogue: Path | None,
    region: str,
    decisions: Path | None,
    check: bool,
) -> None:
    """Simulate clusters, autoscalers and all controllers: days take seconds.

    SCENARIO is a file, or the name of a shipped scenario (see --list). The report compares all variants of
    the scenario. --from-snapshot and --replay make the scenario from a file of a real cluster. The exit code
    is 1 if an expectation of the scenario fails.
    """
    _hush()
    _check_form(output, listing=listing)
    if listing:
        emit(render_listing(_scenarios(), ListingForm(output)))
        return
    if sum(source is not None for source in (scenario, from_snapshot, replay)) != 1:
        raise click.UsageError(
            "name a scenario file or a shipped scenario (see karpool simulate --list), or pass "
            "--from-snapshot or --replay"
        )
    if trace is not None and scenario is None:
        raise click.UsageError("--trace needs a scenario")
    if region and scenario is not None:
        raise click.UsageError(
            "--region needs --from-snapshot or --replay; a scenario file names its regions"
        )
    source: Replay | None = None
    if from_snapshot is not None:
        source = read_snapshot(from_snapshot, catalogue, region=region)
    elif replay is not None:
        source = read_recording(replay, catalogue, duration, region=region)
    scenario = scenario_path(scenario or from_snapshot or replay or Path())
    if source is None and not scenario.suffix and not scenario.exists():
        raise click.UsageError(
            f"{scenario} is neither a file nor a shipped scenario; see karpool simulate --list"
        )
    if len(set(seeds)) > 1 and output == "html":
        raise click.UsageError("--seed: several seeds need -o table, wide, json, yaml or svg")
    named_runs = source.named() if source is not None else read_scenario(scenario)
    runs = planned_runs(named_runs, scenario.parent, variants, seeds, duration, trace)
    if check:
        note(f"{scenario}: {', '.join(dict.fromkeys(named.name for named in runs))}: valid")
        return
    changes = source.changes if source is not None else ()
    results = [
        _played(named, scenario.parent, catalogue, changes, keep_log=decisions is not None) for named in runs
    ]
    if decisions is not None:
        _write(decisions, results)
    first = runs[0].scenario
    broken = [line for result in results for line in unmet(first.expect, result)]
    if source is not None:
        for text in source.notes:
            note(text)
        if source.recorded is not None and len(set(seeds)) < 2:
            results = [source.recorded, *results]
    emit(rendered(first.title or scenario.stem, first.description, results, broken, output))
    if broken:
        raise CommandFailed("not as expected: " + "; ".join(broken))


def planned_runs(
    named_runs: list[Named],
    folder: Path,
    variants: Sequence[str] = (),
    seeds: Sequence[int] = (),
    duration: str | None = None,
    trace: Path | None = None,
) -> list[Named]:
    """Every chosen variant with every seed, checked together with its traces."""
    chosen = _chosen(named_runs, variants)
    different: list[int | None] = list(dict.fromkeys(seeds))
    runs = [_changed(variant, seed, duration, trace) for seed in different or [None] for variant in chosen]
    for named in runs:
        check_traces(named.scenario, folder)
    return runs


def _completed(typed: str) -> list[CompletionItem]:
    names = [name for name, _ in ready_scenarios() if name.startswith(typed)]
    return [*map(CompletionItem, names), CompletionItem(typed, type="file")]


def _check_form(output: str, *, listing: bool) -> None:
    if listing:
        try:
            check_output(output)
        except Invalid as error:
            raise click.UsageError(str(error)) from None
    elif output not in REPORTS:
        raise click.BadParameter(f"{output!r} is not one of {', '.join(REPORTS)}", param_hint="--output")


def _scenarios() -> Listing:
    items = [
        ListedItem(name, {"name": name, "title": played.title}, (name, played.title))
        for name, played in ready_scenarios()
    ]
    return Listing("ScenarioList", "scenario", ("NAME", "PLAYS"), items)


def _hush() -> None:
    """Without -v only errors: what controllers warn of is what the scenario does to them."""
    parent = click.get_current_context().parent
    if parent is None or not parent.params.get("verbosity"):
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def _chosen(variants: list[Named], names: Sequence[str]) -> list[Named]:
    variant_names = [variant.name for variant in variants]
    for name in names:
        if name not in variant_names:
            raise click.UsageError(
                f"--variant: {name!r} is not in the scenario; there are {', '.join(variant_names)}"
            )
    return [named for named in variants if not names or named.name in names]


def _changed(named: Named, seed: int | None, duration: str | None, trace: Path | None) -> Named:
    scenario = named.scenario
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    if duration is not None:
        scenario = msgspec.structs.replace(scenario, duration=duration)
    if trace is not None:
        path = str(trace.absolute())  # resolved, a pipe would lose its name
        rest = scenario.traces
        first = msgspec.structs.replace(rest[0], file=path) if rest else Trace(file=path)
        scenario = msgspec.structs.replace(scenario, traces=[first, *rest[1:]])
    try:
        check_scenario(scenario)
    except Invalid as error:
        raise click.UsageError(str(error)) from None
    return Named(named.name, scenario)


def _played(
    named: Named,
    folder: Path,
    catalogue: Path | None,
    changes: Sequence[ReplayedChange],
    *,
    keep_log: bool,
) -> Result:
    clock = RealClock()
    start = clock.monotonic()
    with _Bar(named.name) as bar:
        result = run(
            named,
            folder=folder,
            progress=bar.show,
            reading=bar.reading,
            keep_log=keep_log,
            catalogue=catalogue,
            replayed=changes,
        )
    took = clock.monotonic() - start
    for text in result.notes:
        note(text)
    note(f"{named.name}: {named.scenario.duration} in {took:.1f} s, {result.seconds / took:,.0f} x real time")
    return result


class _Bar:
    """Drawn in a terminal, and only when it takes long enough to be worth looking at.

    Traces are read and a large fleet starts before time begins to pass, so a timer draws the bar when
    nobody else has by then.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._clock = RealClock()
        self._start = self._clock.monotonic()
        self._now = ("starting", 0)
        self._drawn: tuple[str, int] | None = None
        self._timer = Timer(SHOW_AFTER_SECONDS, self._draw)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *exit_: object) -> None:
        self._timer.cancel()
        self._timer.join()  # or it might draw once more
        if self._drawn is not None:
            click.echo("\r\x1b[K", err=True, nl=False)

    def show(self, share: float, doing: str = "") -> None:
        self._now = doing, int(share * 100)
        if self._now != self._drawn and self._clock.monotonic() - self._start >= SHOW_AFTER_SECONDS:
            self._draw()

    def reading(self, share: float) -> None:
        if share < 1:
            self.show(share, "reading traces")
        else:
            self.show(0.0, "starting")

    def _draw(self) -> None:
        if self.terminal():
            doing, percent = self._drawn = self._now
            label = printable(f"{self._label}: {doing}" if doing else self._label)
            click.echo(f"\r\x1b[K{label} [{'#' * (percent // 4):<25}] {percent:3d} %", err=True, nl=False)

    def terminal(self) -> bool:
        return sys.stderr.isatty()


def unmet(expected: Sequence[Expectation], result: Result) -> list[str]:
    """What was expected of this result and is not so, a line each."""
    lines = []
    for expectation in expected:
        if expectation.variant and expectation.variant != result.variant:
            continue
        value = result.figures[expectation.figure]
        low = expectation.least is not None and (value is None or value < expectation.least)
        high = expectation.most is not None and (value is None or value > expectation.most)
        if low or high:
            limit = f"at least {expectation.least:g}" if low else f"at most {expectation.most:g}"
            why = f" ({expectation.why})" if expectation.why else ""
            actual = shown(expectation.figure, value)
            lines.append(f"{result.variant}: {titled(expectation.figure)} is {actual}, not {limit}{why}")
    return lines


def _write(path: Path, results: Sequence[Result]) -> None:
    with path.open("wb") as file:
        for result in results:
            if len(results) > 1:
                file.write(msgspec.json.encode({"variant": result.variant, "seed": result.seed}) + b"\n")
            for line in result.log:
                file.write(line + b"\n")


def rendered(
    title: str, description: str, results: Sequence[Result], broken: Sequence[str], output: str
) -> str:
    several = len({result.seed for result in results if result.variant == results[0].variant}) > 1
    if output == "html":
        return simulate_html.report(title, description, results, broken)
    if output == "svg":
        draw = simulate_spread.picture if several else simulate_svg.picture
        return draw(title, results)
    if output in ("json", "yaml"):
        items = [document(result) for result in results]
        more = {"spread": simulate_spread.document(results)} if several else {}
        return machine(KIND, {"title": title, "items": items, **more, "unmet": list(broken)}, output)
    names = list(FIGURES) if output == "wide" else MAIN
    return columns(*(simulate_spread.table if several else table)(results, names))


def table(results: Sequence[Result], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """A row for each figure that any of the results has, a column for each result."""
    rows = []
    for name in names:
        values = [result.figures[name] for result in results]
        if any(values) or any(value is not None and name in _ALWAYS for value in values):
            rows.append([titled(name), *(shown(name, value) for value in values)])
    return ["FIGURE", *(result.variant.upper() for result in results)], rows


_ALWAYS = ("cost", "pods", "pendingP50", "pendingP95", "stuckMost", "evictions")
