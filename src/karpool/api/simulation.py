"""Runs scenarios from Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from karpool.api.answers import CommandAnswer, KarpoolError
from karpool.api.waiting import outside_loops, own_errors


@dataclass(frozen=True, repr=False)
class SimulationAnswer(CommandAnswer):
    """Figures of every variant and seed: its rows. `unmet` are the failed expectations of the scenario."""

    unmet: tuple[str, ...]

    def figure(self, name: str) -> dict[str, float | None]:
        """Return one figure by variant, for the first seed."""
        values: dict[str, float | None] = {}
        for row in self.table:
            if name not in row:
                raise KarpoolError(f"there is no figure {name!r}; there are {', '.join(list(row)[2:])}")
            values.setdefault(row["variant"], row[name])
        return values


def simulate(
    scenario: str | PathLike[str],
    *,
    variants: Sequence[str] = (),
    seeds: Sequence[int] = (),
    duration: str | None = None,
    trace: str | PathLike[str] | None = None,
    catalogue: str | PathLike[str] | None = None,
) -> SimulationAnswer:
    """Run a scenario file, or a shipped scenario by name, as `karpool simulate` does."""
    from karpool.cli.embedded import simulate as command  # needs the embedded clusters, which are optional
    from karpool_fleet.simulation.engine import simulate as run
    from karpool_fleet.simulation.ready_scenarios import scenario_path
    from karpool_fleet.simulation.scenario_file import read_scenario

    traced, priced = (Path(path) if path is not None else None for path in (trace, catalogue))
    with own_errors():
        path = scenario_path(Path(scenario))
        runs = command.planned_runs(read_scenario(path), path.parent, variants, seeds, duration, traced)
        results = [outside_loops(partial(run, named, folder=path.parent, catalogue=priced)) for named in runs]
    first = runs[0].scenario
    unmet = tuple(line for result in results for line in command.unmet(first.expect, result))
    text, document = (
        command.rendered(first.title or path.stem, first.description, results, unmet, form)
        for form in ("wide", "json")
    )
    rows: tuple[dict[str, Any], ...] = tuple(
        {"variant": result.variant, "seed": result.seed, **result.figures} for result in results
    )
    return SimulationAnswer(text, document, rows, unmet)
