"""The shipped scenarios, found by name."""

from collections.abc import Iterator
from pathlib import Path

from karpool_fleet.simulation.scenario_file import Scenario, read_scenario

FOLDER = Path(__file__).parent.parent / "scenarios"


def ready_scenarios() -> Iterator[tuple[str, Scenario]]:
    """Yield every shipped scenario by name, with its first variant."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield path.stem, read_scenario(path)[0].scenario


def scenario_path(scenario: Path) -> Path:
    """Return the path of a scenario: a file of the user, or a shipped one by name."""
    shipped = FOLDER / f"{scenario.name}.yaml"
    named = len(scenario.parts) == 1 and not scenario.suffix and not scenario.exists()
    return shipped if named and shipped.is_file() else scenario
