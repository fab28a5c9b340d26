"""Leaders that stand still for longer than their lease, in turn: who lost the lease writes nothing more."""

import asyncio

import pytest

from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import Company, company
from tests.chaos.replicas import Fencing, double
from tests.chaos.story import day, report

STANDSTILL = 40.0  # a lease lasts 15 s


async def pause_leaders(at: Company, fencing: Fencing) -> None:
    while True:
        await asyncio.sleep(35)
        paused = [
            (cluster, fencing.holder(cluster, name))
            for cluster, name in at.controllers
            if name != "estimator"
        ]
        for cluster, leader in paused:
            at.cluster(cluster).faults.pause(leader)
        try:
            await asyncio.sleep(STANDSTILL)
        finally:
            for cluster, leader in paused:
                at.cluster(cluster).faults.resume(leader)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_whoever_lost_the_lease_writes_nothing_more_and_the_other_goes_on() -> None:
    async def story() -> Fencing:
        async with company() as at:
            fencing = await double(at)
            await asyncio.sleep(20)
            trouble = asyncio.ensure_future(pause_leaders(at, fencing))
            await day(at)
            trouble.cancel()
            at.jury.schedulers = None  # ours are not among those it knows
            assert await at.until(at.is_calm, within=2400, every=15), report(at)
            assert not at.jury.violations, report(at)
            return fencing

    fencing = run_manual(story())
    assert not fencing.violations, "\n".join(fencing.violations)
    both = [writer for writer in fencing.writers if writer[1].endswith("-2")]
    assert both, f"the lease changed hands, and so did the work: {fencing.writers}"
