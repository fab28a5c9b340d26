"""Whatever goes wrong around all controllers at once: everybody is served in the end, and nothing is left.

With the suite the kinds come several at a time; in the long profile each comes alone too.
"""

import asyncio

import pytest

from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import FIXED_NODES, Company, company
from tests.chaos.profile import LONG
from tests.chaos.story import calm, day, end_of_business, report
from tests.chaos.weather import KINDS, under

TOGETHER = (
    (
        *("stale reads", "conflicts", "crashes at writes", "unavailable"),
        *("late events", "repeated events", "clock jumps", "no connection"),
    ),
    (
        *("lost events", "lost answers", "pauses", "too many requests"),
        *("hanging member", "cut watches", "server errors", "crashes"),
    ),
)
DAY = 86_400
ALONE = tuple((kind,) for kind in KINDS) if LONG else ()


def named(kinds: tuple[str, ...]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{kinds[0]} and more"


async def a_day_under(at: Company, *kinds: str) -> None:
    async with under(at, *kinds):
        await day(at)
        assert not at.jury.violations, report(at)
    await calm(at)
    await end_of_business(at)
    assert await at.until(lambda: all_is_gone(at), within=1800, every=30), report(at)


async def all_is_gone(at: Company) -> bool:
    """The nodes that were bought are sold, too: nothing holds them."""
    left = {name: len(at.jury.world(name).nodes) for name in at.fleet.clusters}
    return left == {"fixed": FIXED_NODES, "grows": 0, "gpu": 0} and await at.is_calm()


def test_every_kind_is_tried() -> None:
    assert sorted(kind for kinds in TOGETHER for kind in kinds) == sorted(KINDS)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kinds", [*TOGETHER, *ALONE], ids=lambda kinds: kinds[0] if len(kinds) == 1 else f"{kinds[0]} and more"
)
def test_everybody_is_served_and_nothing_is_left(kinds: tuple[str, ...]) -> None:
    async def story() -> Company:
        async with company() as at:
            await a_day_under(at, *kinds)
            return at

    at = run_manual(story())
    assert at.jury.placements.written >= 4, "the scheduler had something to do"
    assert at.jury.budgets["grows"].deletions + at.jury.budgets["gpu"].deletions > 0, "and the consolidator"
    assert at.jury.judges["gpu"].bindings >= 2, "and the GPU scaler"


# Before anything; as a pod is bound; while moves are asked for, cordoned, deleted; during a stock-out.
MOMENTS = (0, 12, 130, 150, 160, 165, 170, 180, 200, 275, 370) if LONG else (160,)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_clock_that_goes_back_a_day_for_good_holds_nobody_up(moment: int) -> None:
    """But for nodes whose last pod came "tomorrow": until then Karpenter does not let them go."""

    async def story() -> None:
        async with company() as at:
            jump = asyncio.get_running_loop().call_later(moment, at.clock.jump, -DAY)
            await day(at)
            assert not at.jury.violations, report(at)
            await calm(at)
            await end_of_business(at)
            assert await at.until(at.is_calm, within=900, every=30), report(at)
            at.clock.jump(DAY)  # time goes by
            assert await at.until(lambda: all_is_gone(at), within=900, every=30), report(at)
            assert jump.when() < at.clock.monotonic()
            assert at.jury.budgets["grows"].deletions > 0

    run_manual(story())


@pytest.mark.long
@pytest.mark.timeout(300)
def test_while_one_member_hangs_the_others_are_served() -> None:
    async def story() -> None:
        async with company() as at:
            hung = [at.cluster("grows").faults.hang(name) for name in ("estimator", "consolidator")]
            await at.place("web", 6)
            await at.ask_for_gpu("infer")

            async def served() -> bool:
                ready = at.jury.judges["fixed"].bindings >= 6 and at.jury.judges["gpu"].bindings >= 1
                return ready and not [each for each in at.jury.when_calm() if "waits" in each]

            assert await at.until(served, within=180), report(at)
            assert sum(fault.hits for fault in hung) > 0
            for fault in hung:
                fault.end()
            await asyncio.sleep(60)
            assert not at.jury.violations, report(at)

    run_manual(story())
