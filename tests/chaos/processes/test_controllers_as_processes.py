"""Three replicas of each controller as processes, killed, stopped and cut off. Long with `make chaos`.

Nothing is over-committed, lost, left behind or done by two at any moment; in the end everybody has what
they asked for, and when they have left, everything that was bought is sold.
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.chaos.processes.campaign import play
from tests.chaos.profile import FIRST, LONG

# Together 300 kills and 200 pauses in the long profile.
LONG_PIECES = [
    (cast, seed, 25, 17) for seed in range(FIRST, FIRST + 4) for cast in ("placing", "moving", "gpus")
]
SHORT_PIECES = [(cast, 1, 5, 4) for cast in ("placing", "moving", "gpus")]


@pytest.mark.timeout(3600)  # processes, on a machine that may be busy; waiting costs nothing when all is well
@pytest.mark.parametrize(("cast", "seed", "kills", "pauses"), LONG_PIECES if LONG else SHORT_PIECES)
async def test_whatever_happens_to_processes_nothing_is_done_twice_lost_or_left(
    tmp_path: Path, cast: str, seed: int, kills: int, pauses: int
) -> None:
    figures, at = await play(tmp_path, seed, kills, pauses, cast=cast)
    assert not figures.wrong, "\n".join([*at.company.told, json.dumps(asdict(figures), indent=1)])
    assert sum(figures.kills.values()) == kills and sum(figures.pauses.values()) == pauses
