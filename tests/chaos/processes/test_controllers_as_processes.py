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

# Kills and pauses by cast; four seeds of the long ones are 300 kills and 200 pauses.
LONG_PIECES = {"placing": (50, 34), "moving": (13, 8), "gpus": (12, 8)}
SHORT_PIECES = {"placing": (6, 4), "moving": (3, 2), "gpus": (3, 2)}
PIECES = [
    (cast, seed, *strokes)
    for seed in (range(FIRST, FIRST + 4) if LONG else (1,))
    for cast, strokes in (LONG_PIECES if LONG else SHORT_PIECES).items()
]


@pytest.mark.long
@pytest.mark.timeout(3600)  # processes, on a machine that may be busy; waiting costs nothing when all is well
@pytest.mark.parametrize(("cast", "seed", "kills", "pauses"), PIECES)
async def test_whatever_happens_to_processes_nothing_is_done_twice_lost_or_left(
    tmp_path: Path, cast: str, seed: int, kills: int, pauses: int
) -> None:
    figures, at = await play(tmp_path, seed, kills, pauses, cast=cast)
    assert not figures.wrong, "\n".join([*at.company.told, json.dumps(asdict(figures), indent=1)])
    assert sum(figures.kills.values()) == kills and sum(figures.pauses.values()) == pauses
