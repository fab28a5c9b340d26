"""Whatever happens to a cluster, what must hold holds at every step; and when it ends, order returns.

A few seeds run with the suite. `KARPOOL_SOAK=200` (or `make soak`) runs that many longer lives;
`KARPOOL_SOAK_FROM` says with which seed to begin, so that one that failed can be had again.
"""

import asyncio
import os

import pytest

from karpool.fleet.clock import run_manual
from tests.fleet.invariants import when_quiet, workloads_are_complete, world
from tests.fleet.random_life import MAY_WAIT, Life, alive

QUIET_SECONDS = 3600.0
SOAK = int(os.environ.get("KARPOOL_SOAK", "0"))
FIRST = int(os.environ.get("KARPOOL_SOAK_FROM", "0"))


def live(seed: int, steps: int) -> Life:
    async def main() -> Life:
        async with alive(seed) as life:
            for _ in range(steps):
                await life.step()
            await life.heal()
            await asyncio.sleep(QUIET_SECONDS)
            life.check()
            now = world(life.cluster.server, life.cloud)
            found = when_quiet(now) + list(workloads_are_complete(now, unless_labelled=MAY_WAIT))
            assert not found, life.report(found)
            return life

    return run_manual(main())


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_short_life(seed: int) -> None:
    life = live(seed, 25)
    assert life.judge.bindings > 0


@pytest.mark.skipif(
    not SOAK, reason="takes long; set KARPOOL_SOAK to the number of lives, as `make soak` does"
)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SOAK))
def test_a_long_life(seed: int) -> None:
    live(seed, 120)
