"""Embedded clusters run on real, scaled or manual time through the loop alone."""

import asyncio
import time

import pytest

from karpool_fleet.clusters.clock import EPOCH, LoopClock, ScaledLoop, Stalled, run_manual, run_scaled

ROUNDING = 1e-6  # of sums of seconds since the machine was started


def test_a_manual_day_passes_in_the_order_of_its_timers() -> None:
    clock, seen = LoopClock(), list[tuple[float, str]]()

    async def wake(name: str, after: float) -> None:
        await clock.sleep(after)
        seen.append((clock.now() - EPOCH, name))

    async def day() -> None:
        await asyncio.gather(wake("evening", 64_800), wake("morning", 21_600), wake("noon", 43_200))

    run_manual(day())

    assert seen == [(21_600, "morning"), (43_200, "noon"), (64_800, "evening")]


def test_timeouts_follow_manual_time() -> None:
    clock = LoopClock()

    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3_600):
                await asyncio.Event().wait()
        return clock.monotonic()

    assert run_manual(story()) == 3_600


def test_a_stalled_run_says_so_instead_of_hanging() -> None:
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match="no timer is set"):
        run_manual(wait_for_nobody())


def test_a_jump_moves_the_wall_clock_and_not_the_durations() -> None:
    clock = LoopClock()

    async def story() -> tuple[float, float]:
        wall, steady = clock.now(), clock.monotonic()
        clock.jump(-7_200)
        await clock.sleep(10)
        return clock.now() - wall, clock.monotonic() - steady

    assert run_manual(story()) == (-7_190, 10)


def test_scaled_time_reports_scaled_seconds() -> None:
    clock = LoopClock()

    async def story() -> float:
        start = clock.monotonic()
        await clock.sleep(60)
        return clock.monotonic() - start

    assert run_scaled(story(), speed=10_000) >= 60


def test_work_takes_no_scaled_time() -> None:
    clock = LoopClock()

    async def story() -> tuple[float, float]:
        # The real clock is read outside the scaled one on both sides, so a
        # pause between two reads can only lengthen what the real one says.
        real, scaled = time.monotonic(), clock.monotonic()
        sum(range(300_000))
        worked = clock.monotonic() - scaled
        return worked, time.monotonic() - real

    worked, took = run_scaled(story(), speed=10_000)

    assert worked <= took + ROUNDING


def test_the_speed_of_a_scaled_loop_may_be_changed() -> None:
    async def story() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ScaledLoop)
        loop.speed = 100_000
        await asyncio.sleep(100)
        return loop.speed

    assert run_scaled(story(), speed=1) == 100_000


def test_timers_that_are_almost_at_the_same_time_do_not_hold_the_clock() -> None:
    async def wait(until: float) -> int:
        loop, looks = asyncio.get_running_loop(), 0
        while loop.time() < until:
            woken = asyncio.Event()
            loop.call_at(until, woken.set)
            await woken.wait()
            await asyncio.sleep(0)
            looks += 1
            assert looks < 100
        return looks

    async def story() -> list[int]:
        return await asyncio.gather(*(wait(6000.1 + number * 3e-10) for number in range(1, 4)))

    assert run_manual(story()) == [1, 1, 1]
