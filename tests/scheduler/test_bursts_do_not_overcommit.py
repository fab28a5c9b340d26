"""Room is given once: in a burst, over a crash at any write, over a change of leaders."""

import asyncio
from contextlib import suppress

import pytest

from karpool.kube.lease_timing import LeaseTiming
from karpool.kube.leases import LeaseElector
from karpool.manager.feature_gates import scheduler_gates
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import NAMESPACES, RESOURCEBINDINGS
from karpool.scheduler.controller.controller import Scheduler, SchedulerSettings
from tests.scheduler.acting import AGGREGATED, DYNAMIC, binding, condition, play, targets
from tests.scheduler.members import Members

ONE_CLUSTER = {"spreadConstraints": [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]}


def given(bindings):
    total = {}
    for each in bindings:
        for name, replicas in targets(each).items():
            total[name] = total.get(name, 0) + replicas
    return total


def test_of_two_deployments_created_together_exactly_one_gets_the_room_for_one():
    async def story(stage):
        await stage.join("m1", 4)
        async with stage.scheduling():
            await asyncio.gather(*(stage.create(binding(name, 3, how=AGGREGATED)) for name in ("a", "b")))
            await asyncio.sleep(5)
            return [condition(await stage.get(name))[0] for name in ("a", "b")], await stage.bindings()

    states, bindings = play(story)
    assert sorted(states) == ["False", "True"]
    assert given(bindings) == {"m1": 3}


def test_without_protection_both_are_placed():
    async def story(stage):
        await stage.join("m1", 4)
        chosen = SchedulerSettings(gates=scheduler_gates("SchedulingOvercommitProtection=false"))
        async with stage.scheduling(chosen):
            await stage.create(binding("a", 3), binding("b", 3))
            await stage.until_placed("a", "b")
            return await stage.bindings()

    bindings = play(story)
    assert given(bindings) == {"m1": 6}
    assert not any("karpool.dev/promises" in (each["metadata"].get("annotations") or {}) for each in bindings)


@pytest.mark.parametrize("how", [DYNAMIC, AGGREGATED], ids=["dynamic", "aggregated"])
def test_a_burst_fills_the_clusters_to_the_brim_and_not_further(how):
    async def story(stage):
        for number in range(4):
            await stage.join(f"m{number}", 10)
        async with stage.scheduling():
            await stage.create(*(binding(f"app{number}", 2, how=how) for number in range(30)))
            await asyncio.sleep(20)
            return await stage.bindings()

    bindings = play(story)
    assert sum(given(bindings).values()) == 40
    assert all(count <= 10 for count in given(bindings).values())
    assert sum(1 for each in bindings if condition(each)[1] == "Unschedulable") == 10


def _crashing(stage):
    """A scheduler that can be killed; it is not told."""
    holder = {}

    def start():
        client = stage.control.client("scheduler")
        holder["task"] = asyncio.create_task(Manager.of(client, Scheduler).run())

    def kill(_component="scheduler"):
        holder["task"].cancel()

    stage.control.faults.crash = kill
    return start, kill, holder


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("write", range(1, 7))
def test_killed_at_any_write_then_a_burst_nothing_is_given_twice(write, when):
    async def story(stage):
        members = Members(stage, {"m1": 6, "m2": 6}, apply_every=5.0, bind_every=9.0, summarise_every=10.0)
        await members.join()
        start, kill, holder = _crashing(stage)
        living = asyncio.create_task(members.run())
        stage.control.faults.crash_at_write("scheduler", write, when=when)
        start()
        await stage.create(*(binding(f"first{number}", 2) for number in range(3)))
        await asyncio.sleep(3)
        if holder["task"].done():
            start()
        await stage.create(*(binding(f"burst{number}", 2) for number in range(6)))
        await asyncio.sleep(120)
        kill()
        living.cancel()
        for task in (living, holder["task"]):
            with suppress(asyncio.CancelledError, ExceptionGroup):
                await task
        return members.overcommitted, await stage.bindings()

    overcommitted, bindings = play(story)
    assert overcommitted == []
    placed = [each for each in bindings if condition(each)[0] == "True"]
    assert len(placed) == 6
    assert all(sum(targets(each).values()) == 2 for each in placed)
    assert all(each["status"]["lastScheduledTime"] for each in placed)


def test_a_change_of_leaders_loses_no_promise():
    """Two with one lease: the first is cut off, the second takes over and finds what was promised."""

    async def story(stage):
        await stage.admin.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
        await stage.join("m1", 6)

        def contender(name):
            client = stage.control.client(name)
            elector = LeaseElector(
                client, "karpool-scheduler", namespace="karmada-system", timing=LeaseTiming(15, 10, 2)
            )

            async def led(leadership):
                await Manager.of(client, Scheduler, check=leadership.check).run()

            return asyncio.create_task(elector.run(led))

        first = contender("one")
        await asyncio.sleep(1)
        await stage.create(binding("a", 4))
        await stage.until_placed("a")
        second = contender("two")
        await asyncio.sleep(3)
        stage.control.faults.pause("one")
        await stage.create(binding("b", 4), binding("c", 2))
        await asyncio.sleep(40)
        stage.control.faults.resume("one")
        await asyncio.sleep(20)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        return await stage.bindings(), stage.control.faults.writes

    bindings, writes = play(story)
    assert given(bindings) == {"m1": 6}
    assert {each["metadata"]["name"]: condition(each)[0] for each in bindings} == {
        "a-deployment": "True",
        "b-deployment": "False",
        "c-deployment": "True",
    }
    assert writes["two"] > 0


def test_scaling_by_one_costs_others_one():
    async def story(stage):
        await stage.join("m1", 20)
        async with stage.scheduling():
            await stage.create(binding("big", 10))
            await stage.until_placed("big")
            await stage.landed("big", m1=10)
            await stage.report("m1", 20, used=10)
            await asyncio.sleep(60)
            await stage.patch("big", {"spec": {"replicas": 11}})
            await asyncio.sleep(2)
            await stage.create(binding("rest", 9, how=AGGREGATED, placement=ONE_CLUSTER))
            await stage.until_placed("rest")
            return await stage.bindings()

    assert given(play(story)) == {"m1": 20}


def test_promises_whose_pods_never_come_are_given_up_after_their_time():
    async def story(stage):
        await stage.join("m1", 4)
        async with stage.scheduling():
            await stage.create(binding("lost", 4))
            await stage.until_placed("lost")
            await stage.create(binding("waiting", 3))
            await asyncio.sleep(290)
            before = condition(await stage.get("waiting"))[1]
            await asyncio.sleep(20)
            return before, condition(await stage.get("waiting"))[0]

    assert play(story) == ("Unschedulable", "True")


def test_other_schedulers_workloads_on_their_way_count_too():
    async def story(stage):
        await stage.join("m1", 4)
        other = binding("theirs", 3, scheduler="default-scheduler", clusters=[{"name": "m1", "replicas": 3}])
        await stage.create(other)
        async with stage.scheduling():
            await stage.create(binding("ours", 3))
            await stage.until_said("ours", "Unschedulable")
            await stage.admin.delete(RESOURCEBINDINGS, "theirs-deployment", namespace="default")
            await stage.until_placed("ours", seconds=1)

    play(story)
