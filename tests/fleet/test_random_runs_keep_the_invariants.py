"""Whatever happens to a cluster, what must hold holds at every step; and when it ends, order returns.

A few seeds run with the suite. `KARPOOL_SOAK=200` (or `make soak`) runs that many longer lives;
`KARPOOL_SOAK_FROM` says with which seed to begin, so that one that failed can be had again.
"""

import asyncio
import os

import pytest

from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karpenter.settings import KarpenterSettings
from tests.fleet.invariants import when_quiet, workloads_are_complete, world
from tests.fleet.random_life import MAY_WAIT, Life, alive

QUIET_SECONDS = 3600.0
SOAK = int(os.environ.get("KARPOOL_SOAK", "0"))
FIRST = int(os.environ.get("KARPOOL_SOAK_FROM", "0"))
SEEDS = range(FIRST, FIRST + SOAK) if SOAK else (1, 2, 4)
STEPS = 120 if SOAK else 25


def live(seed: int, steps: int) -> Life:
    async def main() -> Life:
        async with alive(seed, KarpenterSettings(consolidates=seed % 2 == 1)) as life:
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


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds(seed: int) -> None:
    life = live(seed, STEPS)
    assert life.judge.bindings > 0
