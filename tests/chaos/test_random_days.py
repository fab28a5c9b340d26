"""Whatever people, clouds and the weather do in whatever order: what must hold holds, and order returns."""

import pytest

from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import Company, company
from tests.chaos.profile import FIRST, LIVES
from tests.chaos.random_company import Days
from tests.chaos.story import calm, report

SEEDS = range(FIRST, FIRST + LIVES) if LIVES else (1,)
STEPS = 40 if LIVES else 8


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds(seed: int) -> None:
    async def story() -> Company:
        async with company(seed) as at:
            days = Days(at, seed)
            for _ in range(STEPS):
                await days.step()
            days.end()
            at.tell("all trouble is over")
            await calm(at, within=5400)
            await days.leave()
            assert await at.until(at.is_calm, within=3600, every=30), report(at)
            return at

    assert run_manual(story()).jury.placements.written > 0
