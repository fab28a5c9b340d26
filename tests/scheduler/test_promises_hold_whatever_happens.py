"""Random lives of a control plane: nobody is ever given more than there is, and all settles in the end."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.errors import KubeError
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import RESOURCEBINDINGS
from karpool.scheduler.controller.controller import Scheduler, SchedulerSettings
from karpool.scheduler.promises.promise import PromiseLifetime
from tests.scheduler.acting import AGGREGATED, DYNAMIC, binding, condition, play, targets
from tests.scheduler.members import Estimators, Members

NAMES = [f"app{number}" for number in range(6)]

_delays = st.sampled_from([0.5, 1.0, 3.0, 7.0])
_operation = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.integers(1, 8), st.booleans()),
    st.tuples(st.just("scale"), st.sampled_from(NAMES), st.integers(0, 10)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 2.0, 20.0])),
    st.tuples(st.just("crash"), st.integers(1, 4), st.sampled_from(["before", "after"])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("fail"), st.sampled_from([409, 500, 0]), st.integers(1, 3)),
    st.tuples(st.just("lose"), st.integers(1, 5)),
    st.tuples(st.just("repeat"), st.integers(1, 5)),
    st.tuples(st.just("late"), st.integers(1, 5), st.sampled_from([0.5, 4.0])),
)
# Nobody, estimators that answer, and estimators of which every third, or every second, call finds nobody.
_estimators = st.sampled_from([None, 0, 3, 2])
_lives = st.tuples(
    st.lists(_operation, min_size=4, max_size=25),
    st.tuples(_delays, _delays, _delays, _delays),
    _estimators,
)


class Leader:
    """One scheduler at a time; a crash takes it away in the middle of whatever it does."""

    def __init__(self, stage, asker):
        self._stage = stage
        self._asker = asker
        self._faults = stage.control.faults
        self._faults.crash = lambda component: self.kill()
        self._task = None
        self._troubles = []
        self.scheduler = None

    def trouble(self, fault):
        self._troubles.append(fault)

    def end_of_trouble(self):
        """What was lost on a watch is found by the next list."""
        for fault in self._troubles:
            fault.end()
        self._faults.cut_watches("scheduler", expired=True)

    def start(self):
        if self._task is not None:
            return
        client = self._stage.control.client("scheduler")
        # Summaries come as late as every 7 seconds: nothing counts as settled by time alone.
        lifetime = PromiseLifetime(seconds=300.0, settle_seconds=60.0)
        options = SchedulerSettings(workers=4, lifetime=lifetime)
        manager = Manager.of(client, lambda environment: Scheduler(environment, options, asker=self._asker))
        self.scheduler = manager.runnable
        self._task = asyncio.create_task(manager.run())

    async def keep(self):
        """Whatever runs schedulers starts the next one."""
        while True:
            self.start()
            await asyncio.sleep(1)

    def kill(self):
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self):
        task = self._task
        self.kill()
        if task is not None:
            with suppress(asyncio.CancelledError):
                await task


async def _do(stage, leader, operation):
    what, *values = operation
    faults = stage.control.faults
    with suppress(KubeError):
        match what:
            case "create":
                name, replicas, together = values
                await stage.create(binding(name, replicas, how=AGGREGATED if together else DYNAMIC))
            case "scale":
                await stage.patch(values[0], {"spec": {"replicas": values[1]}})
            case "delete":
                name = f"{values[0]}-deployment"
                await stage.admin.delete(RESOURCEBINDINGS, name, namespace="default")
            case "wait":
                await asyncio.sleep(values[0])
            case "crash":
                faults.crash_at_write("scheduler", values[0], when=values[1])
            case "restart":
                leader.kill()
                leader.start()
            case "fail":
                leader.trouble(faults.fail("scheduler", status=values[0], method="PATCH", times=values[1]))
            case "lose":
                leader.trouble(faults.lose_events("scheduler", times=values[0]))
            case "repeat":
                leader.trouble(faults.repeat_events("scheduler", times=values[0]))
            case "late":
                leader.trouble(faults.late_events("scheduler", times=values[0], seconds=values[1]))


@pytest.mark.long
@settings(max_examples=12)
@given(_lives)
def test_nobody_gets_more_than_there_is_and_everything_settles(life):
    operations, delays, estimators = life

    async def story(stage):
        apply, bind, report, summarise = delays
        members = Members(
            stage,
            {"m1": 7, "m2": 5},
            apply_every=apply,
            bind_every=bind,
            report_every=report,
            summarise_every=summarise,
        )
        await members.join()
        leader = Leader(stage, None if estimators is None else Estimators(members, estimators))
        living = asyncio.gather(members.run(), leader.keep())
        for operation in operations:
            await _do(stage, leader, operation)
        await asyncio.sleep(10)
        leader.end_of_trouble()
        await asyncio.sleep(400)
        found = await stage.bindings()
        promised = list(leader.scheduler.view.ledger.promises())
        living.cancel()
        with suppress(asyncio.CancelledError):
            await living
        await leader.stop()
        return members, found, promised

    members, found, promised = play(story)
    assert members.overcommitted == []
    assert promised == []
    free = members.free()
    for each in found:
        missing = each["spec"].get("replicas", 0) - sum(targets(each).values())
        state = condition(each)
        if missing == 0:
            assert state[0] == "True", state
            assert each["status"]["schedulerObservedGeneration"] == each["metadata"]["generation"]
        else:
            assert missing > free, (missing, free)
            assert state[:2] == ("False", "Unschedulable")
    assert all(not member.waiting for member in members.members.values())
