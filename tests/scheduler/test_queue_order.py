"""Who is looked at next, and when those come back that could not be placed."""

import asyncio

import pytest

from karpool.kube.work_queue import QueueShutDown
from karpool.scheduler.controller.queue import BindingQueue
from karpool_fleet.clusters.clock import LoopClock, run_manual


def played(story):
    async def main():
        clock = LoopClock()
        return await story(BindingQueue(clock), clock)

    return run_manual(main())


async def taken(queue, number):
    keys = []
    for _ in range(number):
        keys.append(await queue.get())
        queue.done(keys[-1])
    return keys


def test_higher_priorities_come_first_then_who_came_first():
    async def story(queue, clock):
        for key, priority in (("a", 0), ("b", 5), ("c", 5), ("d", -1), ("e", 100)):
            queue.add(key, priority=priority)
        return await taken(queue, 5)

    assert played(story) == ["e", "b", "c", "a", "d"]


def test_without_the_gate_priorities_mean_nothing():
    async def main():
        queue = BindingQueue(LoopClock(), prioritized=False)
        for key, priority in (("a", 0), ("b", 5)):
            queue.add(key, priority=priority)
        return await taken(queue, 2)

    assert run_manual(main()) == ["a", "b"]


def test_failures_come_back_after_1_2_4_8_10_10_seconds():
    async def story(queue, clock):
        queue.add("a")
        waits = []
        for _ in range(6):
            start = clock.monotonic()
            await queue.get()
            waits.append(round(clock.monotonic() - start))
            queue.failed("a")
            queue.done("a")
        return waits

    assert played(story) == [0, 1, 2, 4, 8, 10]


def test_an_event_forgets_the_failures_before_it():
    async def story(queue, clock):
        for _ in range(3):
            queue.add("a")
            await queue.get()
            delay = queue.failed("a")
            queue.done("a")
        return delay

    assert played(story) == 1.0


def test_those_waiting_for_room_come_back_when_woken_by_priority_and_only_those_it_may_fit():
    async def story(queue, clock):
        for key, priority in (("low", 1), ("high", 9), ("other", 5)):
            queue.add(key, priority=priority)
        for _ in range(3):
            key = await queue.get()
            queue.unschedulable(key, queue.cycle, priority={"low": 1, "high": 9, "other": 5}[key])
            queue.done(key)
        assert queue.sizes() == {"active": 0, "backoff": 0, "unschedulable": 3}
        assert queue.wake(lambda key: key != "other") == 2
        return clock.monotonic(), await taken(queue, 2), queue.waiting()

    assert played(story) == (0.0, ["high", "low"], ["other"])


def test_room_that_appears_while_a_binding_is_looked_at_is_not_missed():
    async def story(queue, clock):
        queue.add("a")
        await queue.get()
        seen = queue.cycle
        queue.wake()
        queue.unschedulable("a", seen)
        queue.done("a")
        await queue.get()
        return clock.monotonic()

    assert played(story) == 0.0


def test_without_any_sign_of_room_five_minutes_pass():
    async def story(queue, clock):
        queue.add("a")
        await queue.get()
        queue.unschedulable("a", queue.cycle)
        queue.done("a")
        await queue.get()
        return clock.monotonic()

    assert played(story) == pytest.approx(300, abs=0.01)


def test_an_event_while_being_worked_on_brings_a_binding_back_with_its_new_priority():
    async def story(queue, clock):
        queue.add("a", priority=1)
        await queue.get()
        queue.add("b", priority=5)
        queue.add("a", priority=9)
        queue.done("a")
        return await taken(queue, 2)

    assert played(story) == ["a", "b"]


def test_after_shutting_down_nothing_more_is_begun():
    async def story(queue, clock):
        queue.add("a")
        queue.add("b")
        await queue.get()
        queue.shut_down()
        queue.done("a")
        with pytest.raises(QueueShutDown):
            async with asyncio.timeout(1):
                await queue.get()

    played(story)
