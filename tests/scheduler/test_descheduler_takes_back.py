"""Replicas that cannot start go elsewhere, and do not come straight back."""

import asyncio

import pytest

from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.scheduler.cycle.cool_down import ANNOTATION
from karpool.scheduler.descheduler.descheduler import Descheduler, DeschedulerSettings
from karpool.scheduler.estimates.estimate_cache import EstimatorReply
from tests.scheduler.acting import AGGREGATED, DUPLICATED, DYNAMIC, binding, play, targets


class Stuck:
    """Estimators that say how many replicas of anything wait, by cluster; those not named do not answer."""

    def __init__(self, **counts):
        self.counts = counts
        self.asked = []

    async def unschedulable(self, cluster, resource, threshold_seconds):
        self.asked.append((cluster, resource.kind, threshold_seconds))
        if cluster not in self.counts:
            return EstimatorReply(None, "no answer within 3 s")
        return EstimatorReply(self.counts[cluster])


async def _deschedule(stage, asks, **options):
    descheduler = Manager.of(
        stage.control.client("descheduler"),
        lambda environment: Descheduler(environment, asks, DeschedulerSettings(**options)),
    )
    stop = Stop()
    running = asyncio.create_task(descheduler.run(stop))
    await asyncio.sleep(1)
    stop.set()
    await running


def _reported(**ready):
    items = [
        {"clusterName": member, "applied": True, "status": {"replicas": count[0], "readyReplicas": count[1]}}
        for member, count in ready.items()
    ]
    return {"status": {"aggregatedStatus": items}}


async def _placed(stage, name="web", how=DYNAMIC, **more):
    await stage.create(binding(name, 10, how=how, **more))
    await stage.until_placed(name)


def test_what_cannot_start_is_taken_back_and_goes_to_another_cluster():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await _placed(stage)
            await stage.patch("web", _reported(m1=(10, 6)), subresource="status")
            await stage.join("m2", 10)
            asks = Stuck(m1=4)
            await _deschedule(stage, asks)
            await stage.until(lambda: _sums_to(stage, 10))
            return await stage.get("web"), asks.asked, await stage.events("DescheduleBindingSucceed")

    found, asked, events = play(story)
    assert targets(found) == {"m1": 6, "m2": 4}
    assert asked == [("m1", "Deployment", 300.0)]
    said = "Binding has been descheduled, 4 replica(s) in cluster(m1), 4 total descheduled replica(s)"
    assert events == [said, said]


async def _sums_to(stage, replicas):
    return sum((await stage.result("web")).values()) == replicas


def test_a_cluster_is_left_alone_while_it_cools_down_and_not_for_ever():
    async def story(stage):
        await stage.join("m1", 20)
        async with stage.scheduling():
            await _placed(stage)
            await stage.patch("web", _reported(m1=(10, 6)), subresource="status")
            await _deschedule(stage, Stuck(m1=4), cool_down_seconds=100.0)
            await asyncio.sleep(60)
            during = await stage.result("web"), (await stage.condition("web"))[1]
            await asyncio.sleep(60)
            return during, await stage.result("web")

    during, after = play(story)
    assert during == ({"m1": 6}, "Unschedulable")
    assert after == {"m1": 10}


def test_an_emptied_entry_goes_and_running_replicas_stay():
    async def story(stage):
        await stage.join("m1", 5)
        await stage.join("m2", 5)
        async with stage.scheduling():
            await _placed(stage)
        await stage.patch("web", _reported(m1=(5, 0), m2=(5, 4)), subresource="status")
        await _deschedule(stage, Stuck(m1=5, m2=3))
        return await stage.get("web")

    found = play(story)
    assert targets(found) == {"m2": 4}
    assert set(found["metadata"]["annotations"]) >= {ANNOTATION}


@pytest.mark.parametrize(
    ("how", "options", "spec"),
    [
        pytest.param(DUPLICATED, {}, {}, id="duplicated"),
        pytest.param(AGGREGATED, {"schedulers": ("default-scheduler",)}, {}, id="another scheduler's"),
        pytest.param(AGGREGATED, {}, {"suspension": {"scheduling": True}}, id="suspended"),
    ],
)
def test_some_are_not_its_business(how, options, spec):
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await _placed(stage, how=how)
        await stage.patch("web", {"spec": spec})
        await stage.patch("web", _reported(m1=(10, 6)), subresource="status")
        asks = Stuck(m1=4)
        await _deschedule(stage, asks, **options)
        return targets(await stage.get("web")), asks.asked

    assert play(story) == ({"m1": 10}, [])


def test_an_estimator_that_does_not_answer_costs_nobody_anything():
    async def story(stage):
        await stage.join("m1", 5)
        await stage.join("m2", 5)
        async with stage.scheduling():
            await _placed(stage)
        await stage.patch("web", _reported(m1=(5, 2), m2=(5, 2)), subresource="status")
        await _deschedule(stage, Stuck(m2=3))
        return targets(await stage.get("web"))

    assert play(story) == {"m1": 5, "m2": 2}


def test_a_dry_run_only_says_what_it_would_take():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await _placed(stage)
        await stage.patch("web", _reported(m1=(10, 6)), subresource="status")
        taken = []
        descheduler = Manager.of(
            stage.control.client("descheduler"),
            lambda environment: Descheduler(environment, Stuck(m1=4), show=taken.append),
        )
        stop = Stop()
        running = asyncio.create_task(descheduler.run(stop))
        await asyncio.sleep(1)
        stop.set()
        await running
        return taken, targets(await stage.get("web")), stage.control.faults.writes.get("descheduler", 0)

    (taken,), result, writes = play(story)
    assert taken.changes[0].taken_back == 4
    assert result == {"m1": 10}
    assert writes == 0
