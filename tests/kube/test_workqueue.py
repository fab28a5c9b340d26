import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.transport.backoff import Backoff
from karpool.kube.work_queue import QueueShutDown, Requeue, WorkQueue
from karpool_fleet.clusters.clock import LoopClock
from tests.kube.virtual import virtually


def queue_of(**settings):
    return WorkQueue(LoopClock(), chance=lambda: 1.0, **settings)


def test_a_key_added_many_times_is_handed_out_once():
    async def scenario():
        queue = queue_of()
        for _ in range(5):
            queue.add("a")
        first = await queue.get()
        return first, len(queue)

    assert virtually(scenario()) == ("a", 0)


def test_a_key_added_during_its_work_comes_back_afterwards():
    async def scenario():
        queue = queue_of()
        queue.add("a")
        await queue.get()
        queue.add("a")
        during = len(queue)
        queue.done("a")
        return during, len(queue)

    assert virtually(scenario()) == (0, 1)


def test_higher_priorities_come_first_and_equals_in_order():
    async def scenario():
        queue = queue_of()
        for key, priority in [("a", 0), ("b", 0), ("c", 5), ("b", 9)]:
            queue.add(key, priority=priority)
        return [await queue.get() for _ in range(3)]

    assert virtually(scenario()) == ["b", "c", "a"]


def test_the_earliest_delay_counts():
    async def scenario():
        queue, clock = queue_of(), LoopClock()
        queue.add_after("a", 30)
        queue.add_after("a", 10)
        queue.add_after("a", 20)
        await queue.get()
        queue.done("a")
        first = clock.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await queue.get()
        return first

    assert virtually(scenario()) == 10.0


def test_failures_back_off_per_key_until_forgotten():
    async def scenario():
        queue = queue_of(delays=Backoff(first=1, limit=5))
        a = [queue.add_failed("a") for _ in range(4)]
        b = queue.add_failed("b")
        queue.forget("a")
        return a, b, queue.add_failed("a")

    assert virtually(scenario()) == ([1, 2, 4, 5], 1, 1)


def test_a_raising_reconciler_is_called_again_and_others_are_served():
    async def scenario():
        queue, clock = queue_of(delays=Backoff(first=1, limit=60)), LoopClock()
        calls = []

        async def reconcile(key):
            calls.append((key, clock.monotonic()))
            if key == "bad" and len([k for k, _ in calls if k == "bad"]) < 3:
                raise RuntimeError("not yet")

        queue.add("bad")
        queue.add("good")
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run(reconcile))
            await asyncio.sleep(10)
            queue.shut_down()
        return calls, queue.failures("bad")

    assert virtually(scenario()) == ([("bad", 0), ("good", 0), ("bad", 1), ("bad", 3)], 0)


def test_a_reconciler_may_ask_to_come_back():
    async def scenario():
        queue, clock = queue_of(), LoopClock()
        times = []

        async def reconcile(key):
            times.append(clock.monotonic())
            return Requeue(after=30) if len(times) < 3 else None

        queue.add("a")
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run(reconcile, workers=3))
            await asyncio.sleep(1000)
            queue.shut_down()
        return times

    assert virtually(scenario()) == [0, 30, 60]


def test_shutting_down_finishes_what_waits_and_takes_nothing_more():
    async def scenario():
        queue = queue_of()
        queue.add("a")
        queue.add_after("later", 5)
        queue.shut_down()
        queue.add("b")
        first = await queue.get()
        with pytest.raises(QueueShutDown):
            await queue.get()
        return first

    assert virtually(scenario()) == "a"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "after", "wait"]), st.sampled_from("abc"), st.floats(0, 5, width=16)
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 4), st.lists(st.booleans(), max_size=30))
def test_no_key_is_worked_on_twice_at_once_and_none_is_forgotten(steps, workers, failures):
    async def scenario():
        queue = queue_of()
        working, seen = Counter(), Counter()
        wanted = {}  # key -> order of the latest wish
        served = {}  # key -> order when work last began
        order = 0
        outcomes = list(failures)

        async def reconcile(key):
            working[key] += 1
            assert working[key] == 1
            served[key] = order
            seen[key] += 1
            try:
                await asyncio.sleep(0.7)
                if outcomes and outcomes.pop():
                    raise RuntimeError
            finally:
                working[key] -= 1

        async with asyncio.TaskGroup() as group:
            group.create_task(queue.run(reconcile, workers=workers))
            for action, key, seconds in steps:
                order += 1
                if action == "wait":
                    await asyncio.sleep(seconds)
                    continue
                wanted[key] = order
                queue.add(key) if action == "add" else queue.add_after(key, seconds)
            await asyncio.sleep(1000)
            queue.shut_down()
        return wanted, served

    wanted, served = virtually(scenario())
    assert set(wanted) == set(served)
    assert all(served[key] >= wanted[key] for key in wanted)


def test_delays_that_an_earlier_one_replaced_do_not_pile_up():
    async def scenario():
        queue = queue_of()
        for number in range(5_000):
            queue.add_after("a", 100_000 - number)
            queue.add_after(number % 10, 10_000 - number)
        held = len(queue._later)
        await asyncio.sleep(95_002)
        return held, sorted(map(str, [await queue.get() for _ in range(11)]))

    held, handed_out = virtually(scenario())
    assert held < 200
    assert handed_out == sorted(["a", *map(str, range(10))])


def test_who_wants_to_come_back_in_a_month_is_asked_every_day():
    async def scenario():
        queue, clock, asked = queue_of(), LoopClock(), []
        start = clock.monotonic()

        async def reconcile(key):
            asked.append(round((clock.monotonic() - start) / 86_400, 3))
            if asked[-1] < 3.5:
                return Requeue(3.5 * 86_400 - (clock.monotonic() - start))
            queue.shut_down()
            return None

        queue.add("a")
        await queue.run(reconcile)
        return asked

    assert virtually(scenario()) == [0, 1, 2, 3, 3.5]
