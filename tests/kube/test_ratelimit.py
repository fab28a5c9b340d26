import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.transport.backoff import Backoff
from karpool.kube.transport.rate_limit import TokenBucket
from karpool_fleet.clusters.clock import LoopClock
from tests.kube.virtual import virtually


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 3, width=16), min_size=1, max_size=40), st.integers(1, 10), st.integers(1, 5))
def test_no_span_of_time_sees_more_than_burst_plus_rate(gaps, qps, burst):
    async def scenario():
        clock = LoopClock()
        bucket = TokenBucket(qps, burst, clock)
        passed = []

        async def one():
            await bucket.acquire()
            passed.append(clock.monotonic())

        async with asyncio.TaskGroup() as group:
            for gap in gaps:
                group.create_task(one())
                await asyncio.sleep(gap)
        return passed

    passed = virtually(scenario())
    assert len(passed) == len(gaps)
    # Manual time moves on a grid of about a microsecond: two readings may be off by one tick each.
    rounding = qps * 2e-6 + 1e-9
    for i, start in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= burst + qps * (passed[j] - start) + rounding


def test_a_cancelled_waiter_gives_its_token_back():
    async def scenario():
        clock = LoopClock()
        bucket = TokenBucket(1, 1, clock)
        await bucket.acquire()
        waiter = asyncio.ensure_future(bucket.acquire())
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        await bucket.acquire()
        return clock.monotonic()

    assert virtually(scenario()) == pytest.approx(1.0)


def test_a_token_is_taken_at_once_or_not():
    async def scenario():
        bucket = TokenBucket(0.5, 2, LoopClock())
        now = [bucket.try_acquire() for _ in range(3)]
        await asyncio.sleep(2)
        return now, bucket.try_acquire(), bucket.try_acquire()

    assert virtually(scenario()) == ([True, True, False], True, False)


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_a_bucket_that_never_fills_is_refused(qps, burst):
    with pytest.raises(ValueError, match="qps"):
        TokenBucket(qps, burst, LoopClock())


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_stay_between_half_and_the_whole(failures, draw):
    backoff = Backoff(first=0.5, limit=30)

    delay = backoff.delay(failures, draw)

    whole = min(30, 0.5 * 2 ** min(max(failures, 1) - 1, 10))
    assert whole / 2 <= delay <= whole
