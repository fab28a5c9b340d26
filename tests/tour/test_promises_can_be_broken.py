"""Without the controller that keeps a promise the tour says so: what it looks at is not there by itself."""

from pathlib import Path

import pytest

from karpool_fleet.tour.chapter import ChapterOutcome
from karpool_fleet.tour.stage import TourStage
from karpool_fleet.tour.tour import CHAPTERS, play
from tests.tour.fleets import on_stage

DEAF = {
    "karmada": ("scheduler", "descheduler"),
    "oregon": ("gpu-scaler", "consolidator"),
    "ireland": ("gpu-scaler", "consolidator"),
    "tokyo": ("gpu-scaler", "consolidator"),
}


@pytest.mark.long
def test_nothing_is_kept_by_a_fleet_without_controllers(tmp_path: Path) -> None:
    async def story(stage: TourStage) -> list[ChapterOutcome]:
        servers = stage.fleet.api_servers
        for cluster, names in DEAF.items():
            for name in names:
                await servers[cluster].components.crash(name)
        try:
            return await play(stage)
        finally:
            for cluster, names in DEAF.items():
                for name in names:
                    servers[cluster].components.start(name)

    outcomes = on_stage(tmp_path, story)

    assert len(outcomes) == len(CHAPTERS)
    assert [outcome.chapter.name for outcome in outcomes if outcome.kept] == []
    assert [outcome.chapter.name for outcome in outcomes if outcome.error] == []
