"""Every controller is killed before and after each of its writes, while all others go on working.

With the suite all of them die once on the same day, somewhere in the middle of what they do. The long profile
tries every write of every one of them, one at a time.
"""

from collections.abc import Mapping

import pytest

from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import KARMADA, Company, company
from tests.chaos.profile import LONG
from tests.chaos.story import calm, day, end_of_business, report

# Those that write, and a write somewhere in the middle of what each does on this day.
SOME = {
    (KARMADA, "scheduler"): 6,
    (KARMADA, "descheduler"): 1,
    ("grows", "consolidator"): 11,
    ("gpu", "gpu-scaler"): 17,
}


async def crashing(at: Company, when: str, numbers: Mapping[tuple[str, str], int]) -> list[int]:
    """How often each was hit."""
    faults = [
        at.cluster(cluster).faults.crash_at_write(name, number, when=when)
        for (cluster, name), number in numbers.items()
    ]
    keeper = at.keep_alive()
    try:
        await day(at)
        assert not at.jury.violations, report(at)
        await calm(at)
        await end_of_business(at)
        assert await at.until(at.is_calm, within=1800, every=30), report(at)
    finally:
        keeper.cancel()
    return [fault.hits for fault in faults]


def crash(when: str, numbers: Mapping[tuple[str, str], int]) -> list[int]:
    async def story() -> list[int]:
        async with company() as at:
            return await crashing(at, when, numbers)

    return run_manual(story())


def writes() -> dict[tuple[str, str], int]:
    """How many each makes on a day without faults."""

    async def story() -> dict[tuple[str, str], int]:
        async with company() as at:
            before = {each: at.cluster(each[0]).faults.writes.get(each[1], 0) for each in SOME}
            await day(at)
            await calm(at)
            return {each: at.cluster(each[0]).faults.writes[each[1]] - before[each] for each in SOME}

    return run_manual(story())


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["before", "after"] if LONG else ["after"])
def test_when_all_of_them_die_on_one_day_nothing_changes(when: str) -> None:
    assert crash(when, SOME) == [1] * len(SOME)


if LONG:

    @pytest.mark.timeout(7200)
    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("writer", SOME, ids=lambda writer: writer[1])
    def test_when_one_of_them_dies_at_any_write_nothing_changes(writer: tuple[str, str], when: str) -> None:
        for number in range(1, writes()[writer] + 1):
            assert crash(when, {writer: number}) == [1], f"{writer} has no write {number}"
