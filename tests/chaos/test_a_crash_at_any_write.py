"""Every controller is killed before and after each of its writes, while all others go on working.

With the suite a few writes of each are tried, spread over the day; the long profile tries every one.
"""

from functools import cache

import pytest

from karpool.fleet.clock import run_manual
from tests.chaos.company import KARMADA, Company, company
from tests.chaos.profile import LONG
from tests.chaos.story import calm, day, end_of_business, report

# Those that write. What the others write, and when, is theirs; the numbers are found by counting.
WRITERS = ((KARMADA, "scheduler"), (KARMADA, "descheduler"), ("grows", "consolidator"), ("gpu", "gpu-scaler"))
# Somewhere in the middle of what each does on this day.
SOME = {"scheduler": (6,), "descheduler": (1,), "consolidator": (11,), "gpu-scaler": (17,)}


async def crashing(at: Company, cluster: str, name: str, number: int, when: str) -> int:
    """How often it was hit."""
    fault = at.cluster(cluster).faults.crash_at_write(name, number, when=when)
    keeper = at.keep_alive()
    try:
        await day(at)
        assert not at.jury.violations, report(at)
        await calm(at)
        await end_of_business(at)
        assert await at.until(at.is_calm, within=1800, every=30), report(at)
    finally:
        keeper.cancel()
    return fault.hits


@cache
def writes() -> dict[tuple[str, str], int]:
    """How many each makes on a day without faults."""

    async def story() -> dict[tuple[str, str], int]:
        async with company() as at:
            before = {each: at.cluster(each[0]).faults.writes.get(each[1], 0) for each in WRITERS}
            await day(at)
            await calm(at)
            return {each: at.cluster(each[0]).faults.writes[each[1]] - before[each] for each in WRITERS}

    return run_manual(story())


def tried(writer: tuple[str, str]) -> tuple[int, ...]:
    return tuple(range(1, writes()[writer] + 1)) if LONG else SOME[writer[1]]


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer[1])
def test_changes_nothing(writer: tuple[str, str]) -> None:
    for position, number in enumerate(tried(writer)):
        for when in ("before", "after") if LONG else (("before", "after")[(position + number) % 2],):

            async def story(number: int = number, when: str = when) -> int:
                async with company() as at:
                    return await crashing(at, *writer, number, when)

            assert run_manual(story()) == 1, f"{writer} has no write {number}"
