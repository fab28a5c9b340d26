"""What the scheduler writes to bindings, when it looks at them, and when it leaves them alone."""

import asyncio
import json
from time import perf_counter

import pytest

from karpool.manager.feature_gates import scheduler_gates
from karpool.model.kubernetes.api_resources import CLUSTERS, RESOURCEBINDINGS
from karpool.scheduler.controller.controller import SchedulerSettings
from karpool.scheduler.controller.metrics import SchedulerMetrics
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.estimates.estimate_cache import EstimatorReply
from tests.scheduler.acting import (
    AGGREGATED,
    DUPLICATED,
    DYNAMIC,
    binding,
    condition,
    exists,
    play,
    targets,
)

PLACEMENT = "policy.karmada.io/applied-placement"


def writes(stage, component="scheduler"):
    return stage.control.faults.writes.get(component, 0)


def test_a_result_is_signed_as_the_rest_of_karmada_expects():
    async def story(stage):
        await stage.join("m1", 10)
        await stage.join("m2", 20)
        async with stage.scheduling():
            await stage.create(binding("web", 12))
            await stage.until_placed("web")
            return await stage.get("web"), await stage.events("ScheduleBindingSucceed")

    found, events = play(story)
    assert targets(found) == {"m1": 4, "m2": 8}
    status = found["status"]
    assert status["schedulerObservedGeneration"] == found["metadata"]["generation"]
    assert status["lastScheduledTime"]
    assert condition(found) == ("True", "Success", "Binding has been scheduled successfully.")
    assert json.loads(found["metadata"]["annotations"][PLACEMENT]) == {"replicaScheduling": DYNAMIC}
    # On the binding and on its template.
    assert events == ["Binding has been scheduled successfully. Result: {m1:4, m2:8}"] * 2


def test_steps_of_decisions_take_no_longer_than_all_of_it(monkeypatch):
    steps, began = [], perf_counter()
    monkeypatch.setattr(SchedulerMetrics, "step", lambda self, step, seconds: steps.append((step, seconds)))

    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4))
            await stage.until_placed("web")

    play(story)
    assert {step for step, _ in steps} >= {"Filter", "AssignReplicas"}
    assert all(0 <= seconds <= perf_counter() - began for _, seconds in steps)


def test_a_cluster_resource_binding_is_placed_too():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("crd", 0, how=None, namespace="", replicaRequirements=None))
            await stage.until(lambda: _is_signed(stage, "crd", ""))
            return await stage.get("crd", ""), await stage.events("ScheduleBindingSucceed")

    found, events = play(story)
    assert found["spec"]["clusters"] == [{"name": "m1"}]
    assert events[0] == "Binding has been scheduled successfully. Result {m1:0}"


async def _is_signed(stage, name, namespace="default"):
    return condition(await stage.get(name, namespace))[0] == "True"


@pytest.mark.parametrize("how", [DYNAMIC, AGGREGATED, DUPLICATED, None], ids=str)
def test_a_second_pass_over_an_unchanged_binding_writes_nothing(how):
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4, how=how))
            await stage.until_placed("web")
            await asyncio.sleep(30)
        before = writes(stage)
        async with stage.scheduling(component="second"):  # a restart looks at everything again
            await asyncio.sleep(30)
            await stage.admin.patch(CLUSTERS, "m1", {"metadata": {"labels": {"zone": "a"}}})
            await asyncio.sleep(30)
        return before, writes(stage), writes(stage, "second")

    before, after, second = play(story)
    assert before == after
    assert second == 0


def test_only_its_own_bindings_are_touched():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(
                binding("other", scheduler="default-scheduler"),
                binding("carrier", labels={"app": "x"}),
                binding("frozen", suspension={"scheduling": True}),
                binding("ours"),
            )
            await stage.until_placed("ours")
            await asyncio.sleep(5)
            before = [await stage.result(name) for name in ("other", "carrier", "frozen")]
            await stage.patch("frozen", {"spec": {"suspension": {"scheduling": False}}})
            await stage.until_placed("frozen")
            return before, await stage.result("frozen")

    assert play(story) == ([{}, {}, {}], {"m1": 1})


def test_scaling_changes_only_the_difference():
    async def story(stage):
        await stage.join("m1", 10)
        await stage.join("m2", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4))
            await stage.until_placed("web")
            results = [await stage.result("web")]
            for replicas in (8, 2):
                await stage.patch("web", {"spec": {"replicas": replicas}})
                await stage.until(lambda replicas=replicas: _sum_is(stage, "web", replicas))
                results.append(await stage.result("web"))
            return results

    first, up, down = play(story)
    assert first == {"m1": 2, "m2": 2}
    assert up == {"m1": 4, "m2": 4}
    assert down == {"m1": 1, "m2": 1}


async def _sum_is(stage, name, replicas):
    return sum((await stage.result(name)).values()) == replicas


def test_without_a_fitting_cluster_the_result_is_cleared_and_a_new_cluster_helps_at_once():
    async def story(stage):
        await stage.join("m1", 10, labels={"gpu": "no"})
        affinity = {"clusterAffinity": {"labelSelector": {"matchLabels": {"gpu": "no"}}}}
        async with stage.scheduling():
            await stage.create(binding("web", 4, placement=affinity))
            await stage.until_placed("web")
            affinity["clusterAffinity"]["labelSelector"]["matchLabels"]["gpu"] = "yes"
            await stage.patch("web", {"spec": {"placement": affinity}})
            await stage.until_said("web", "NoClusterFit")
            cleared = await stage.get("web")
            await stage.join("m2", 10, labels={"gpu": "yes"})
            await stage.until_placed("web", seconds=1)
            return cleared, await stage.result("web")

    cleared, found = play(story)
    assert "clusters" not in cleared["spec"]
    assert condition(cleared)[2].startswith("0/1 clusters are available: 1 cluster(s) did not match")
    assert found == {"m2": 4}


def test_freed_room_goes_to_those_who_wait_highest_priority_first():
    async def story(stage):
        await stage.join("m1", 2)
        async with stage.scheduling(SchedulerSettings(workers=1)):
            await stage.create(binding("first", 2))
            await stage.until_placed("first")
            await stage.create(
                binding("low", 2, priority=1), binding("high", 2, priority=9), binding("big", 50)
            )
            for name in ("low", "high", "big"):
                await stage.until_said(name, "Unschedulable")
            await stage.admin.delete(RESOURCEBINDINGS, "first-deployment", namespace="default")
            await stage.until_placed("high", seconds=1)
            return [await stage.result(name) for name in ("low", "high", "big")]

    assert play(story) == [{}, {"m1": 2}, {}]


def test_a_member_that_reports_room_wakes_those_who_wait():
    async def story(stage):
        await stage.join("m1", 4)
        await stage.report("m1", 4, used=4)
        async with stage.scheduling():
            await stage.create(binding("web", 3))
            await stage.until_said("web", "Unschedulable")
            await asyncio.sleep(10)
            await stage.report("m1", 4, used=1)
            await stage.until_placed("web", seconds=0.5)

    play(story)


def test_what_was_unschedulable_and_is_not_wanted_any_more_is_no_failure():
    async def story(stage):
        await stage.join("m1", 4)
        async with stage.scheduling():
            await stage.create(binding("web", 3))
            await stage.until_placed("web")
            await stage.patch("web", {"spec": {"replicas": 30}})
            await stage.until_said("web", "Unschedulable")
            kept = await stage.result("web")
            await stage.patch("web", {"spec": {"replicas": 3}})
            await stage.until_placed("web")
            return kept, await stage.get("web")

    kept, found = play(story)
    assert kept == {"m1": 3}
    assert found["status"]["schedulerObservedGeneration"] == found["metadata"]["generation"]


def test_what_fits_is_placed_at_once_and_the_rest_when_there_is_room():
    async def story(stage):
        await stage.join("m1", 4)
        async with stage.scheduling(SchedulerSettings(settings=SchedulingSettings(partial=True))):
            await stage.create(binding("web", 10))
            await stage.until_said("web", "Unschedulable")
            partly = await stage.get("web")
            await stage.join("m2", 20)
            await stage.until_placed("web")
            return partly, await stage.result("web")

    partly, whole = play(story)
    assert targets(partly) == {"m1": 4}
    assert partly["status"]["lastScheduledTime"]
    assert whole == {"m1": 4, "m2": 6}


def test_rescheduling_on_request_divides_anew_and_only_once():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 6))
            await stage.until_placed("web")
            await stage.landed("web", m1=6)
            await stage.join("m2", 10)
            await asyncio.sleep(60)
            await stage.report("m1", 10, used=6)
            before = await stage.result("web")
            await stage.patch("web", {"spec": {"rescheduleTriggeredAt": "2026-01-01T00:01:00Z"}})
            await asyncio.sleep(30)
            count = writes(stage)
            await asyncio.sleep(300)
            return before, await stage.result("web"), writes(stage) - count

    before, after, later = play(story)
    assert before == {"m1": 6}
    assert after == {"m1": 3, "m2": 3}
    assert later == 0


def test_workloads_that_must_not_meet_do_not_even_when_decided_together():
    async def story(stage):
        for name in ("m1", "m2"):
            await stage.join(name, 100)
        chosen = SchedulerSettings(
            gates=scheduler_gates("WorkloadAffinity=true"),
            settings=SchedulingSettings(workload_affinity=True),
        )
        one = [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": 1}]
        await stage.create(
            *(
                binding(
                    name,
                    2,
                    how=AGGREGATED,
                    placement={"spreadConstraints": one},
                    workloadAffinityGroups={"antiAffinityGroup": "app=db"},
                )
                for name in ("a", "b")
            )
        )
        async with stage.scheduling(chosen):
            await stage.until_placed("a", "b")
            return {*await stage.result("a"), *await stage.result("b")}

    assert play(story) == {"m1", "m2"}


def test_a_deleting_cluster_loses_its_replicas_to_others():
    async def story(stage):
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("web", 4))
            await stage.until_placed("web")
            await stage.join("m2", 10)
            finalizers = {"metadata": {"finalizers": ["karmada.io/cluster-controller"]}}
            await stage.admin.patch(CLUSTERS, "m1", finalizers)
            await stage.admin.delete(CLUSTERS, "m1")
            await stage.until(lambda: _goes_to(stage, "web", {"m2": 4}))

    play(story)


async def _goes_to(stage, name, wanted):
    return await stage.result(name) == wanted


def test_a_dry_run_says_what_it_would_do_and_writes_nothing():
    async def story(stage):
        await stage.join("m1", 10)
        decisions = []
        await stage.create(binding("web", 4), binding("big", 40))
        async with stage.scheduling(show=decisions.append):
            await asyncio.sleep(20)
        return decisions, writes(stage)

    decisions, written = play(story)
    assert written == 0
    assert {str(decision.binding): decision.shown_targets for decision in decisions} == {
        "default/web-deployment": "{m1:4}",
        "default/big-deployment": "{}",
    }


def test_a_deleted_binding_gives_its_promises_back():
    async def story(stage):
        await stage.join("m1", 4)
        async with stage.scheduling() as scheduler:
            await stage.create(binding("web", 4))
            await stage.until_placed("web")
            held = [promise.replicas for promise in scheduler.view.ledger.promises()]
            await stage.admin.delete(RESOURCEBINDINGS, "web-deployment", namespace="default")
            await asyncio.sleep(1)
            assert not await exists(stage, "web")
            return held, list(scheduler.view.ledger.promises())

    assert play(story) == ([4], [])


def test_nothing_is_refused_by_an_answer_that_was_kept():
    """Room that only an estimator knows of appears, within a moment and without any sign of it."""

    class OneAtATime:
        room, asked = 1, 0

        async def ask(self, cluster, asked, promises=(), about=""):
            self.asked += 1
            return EstimatorReply(self.room)

    async def story(stage):
        asker = OneAtATime()
        await stage.join("m1", 0)
        async with stage.scheduling(asker=asker):
            await stage.create(binding("first"))
            await stage.until_placed("first", seconds=1)
            assert asker.asked == 1
            asker.room = 5  # of which the promise to the first takes one off
            await stage.create(binding("second"))
            await stage.until_placed("second", seconds=1)
        return await stage.result("second")

    assert play(story) == {"m1": 1}
