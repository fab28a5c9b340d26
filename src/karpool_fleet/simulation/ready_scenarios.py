"""The scenarios that are shipped: found by name, wherever Karpool is installed."""

from collections.abc import Iterator
from pathlib import Path

from karpool_fleet.simulation.scenario_file import Scenario, read_scenario

FOLDER = Path(__file__).parent.parent / "scenarios"


def ready_scenarios() -> Iterator[tuple[str, Scenario]]:
    """Every shipped scenario by name, as its first variant has it."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield path.stem, read_scenario(path)[0].scenario


def scenario_path(scenario: Path) -> Path:
    """The file that is meant: one of your own, or a shipped one by its name."""
    shipped = FOLDER / f"{scenario.name}.yaml"
    named = len(scenario.parts) == 1 and not scenario.suffix and not scenario.exists()
    return shipped if named and shipped.is_file() else scenario
