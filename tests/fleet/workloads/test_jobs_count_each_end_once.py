"""Jobs: as many successes as asked, each end counted once, and an honest verdict."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.api.client import Client, Propagation
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import JOBS, PODS, ListOptions
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.workloads.job_rules import FINALIZER, INDEX, parse_indexes, show_indexes
from tests.fleet.workloads.acting import get, living, template


def job(ends: str = "Succeeded", **spec: object) -> Object:
    body = template("work", **({"ends": ends} if ends else {}))
    body["spec"]["restartPolicy"] = "Never"
    return {"metadata": {"name": "work", "namespace": "default"}, "spec": {"template": body, **spec}}


async def pods(admin: Client) -> list[Pod]:
    return (await admin.list(PODS, ListOptions("default", "app=work"), into=Pod)).items


def conditions(obj: Object) -> dict[str, str]:
    return {each["type"]: each["reason"] for each in obj["status"]["conditions"] if each["status"] == "True"}


def test_it_runs_so_many_at_a_time_until_enough_have_succeeded() -> None:
    async def story() -> tuple[int, Object, list[Pod]]:
        async with living() as (_, admin):
            await admin.create(JOBS, job(parallelism=3, completions=7))
            await asyncio.sleep(1)
            first = len(await pods(admin))
            await asyncio.sleep(30)
            return first, await get(admin, JOBS, "work"), await pods(admin)

    first, obj, ended = run_manual(story())
    assert first == 3
    assert obj["status"]["succeeded"] == len(ended) == 7
    assert conditions(obj) == {"SuccessCriteriaMet": "CompletionsReached", "Complete": "CompletionsReached"}
    assert obj["status"]["completionTime"]
    assert obj["status"]["uncountedTerminatedPods"] == {}
    assert not any(FINALIZER in (pod.metadata.finalizers or ()) for pod in ended)


def test_it_gives_up_after_the_backoff_limit_with_growing_pauses() -> None:
    async def story() -> tuple[Object, float]:
        async with living() as (_, admin):
            await admin.create(JOBS, job("Failed", backoffLimit=2))
            await asyncio.sleep(20)
            early = (await get(admin, JOBS, "work"))["status"]["failed"]
            await asyncio.sleep(60)
            return await get(admin, JOBS, "work"), early

    obj, early = run_manual(story())
    assert early < 3
    assert obj["status"]["failed"] == 3
    assert conditions(obj)["Failed"] == "BackoffLimitExceeded"


def test_a_deadline_ends_it_and_its_pods() -> None:
    async def story() -> tuple[Object, list[Pod]]:
        async with living() as (_, admin):
            await admin.create(JOBS, job("", parallelism=2, completions=2, activeDeadlineSeconds=15))
            await asyncio.sleep(30)
            return await get(admin, JOBS, "work"), await pods(admin)

    obj, left = run_manual(story())
    assert conditions(obj)["Failed"] == "DeadlineExceeded"
    assert left == []


def test_indexes_are_each_completed_once() -> None:
    async def story() -> tuple[Object, list[str]]:
        async with living() as (_, admin):
            await admin.create(JOBS, job(parallelism=2, completions=5, completionMode="Indexed"))
            await asyncio.sleep(30)
            return await get(admin, JOBS, "work"), [pod.annotations[INDEX] for pod in await pods(admin)]

    obj, indexes = run_manual(story())
    assert obj["status"]["completedIndexes"] == "0-4"
    assert obj["status"]["succeeded"] == 5
    assert sorted(indexes) == ["0", "1", "2", "3", "4"]


def test_a_finished_job_goes_after_its_time_with_its_pods() -> None:
    async def story() -> tuple[bool, bool, int]:
        async with living() as (_, admin):
            await admin.create(JOBS, job(ttlSecondsAfterFinished=60))
            await asyncio.sleep(30)
            before = await exists(admin)
            await asyncio.sleep(60)
            return before, await exists(admin), len(await pods(admin))

    assert run_manual(story()) == (True, False, 0)


async def exists(admin: Client) -> bool:
    try:
        await get(admin, JOBS, "work")
    except NotFound:
        return False
    return True


def test_a_suspended_job_has_no_pods_until_it_goes_on() -> None:
    async def story() -> tuple[int, str, Object]:
        async with living() as (_, admin):
            await admin.create(JOBS, job(completions=2, suspend=True))
            await asyncio.sleep(10)
            waiting, why = len(await pods(admin)), conditions(await get(admin, JOBS, "work"))["Suspended"]
            await admin.patch(JOBS, "work", {"spec": {"suspend": False}}, namespace="default")
            await asyncio.sleep(20)
            return waiting, why, await get(admin, JOBS, "work")

    waiting, why, obj = run_manual(story())
    assert (waiting, why) == (0, "JobSuspended")
    assert "Complete" in conditions(obj)


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_deleting_a_running_job_leaves_no_pod_behind(policy: Propagation) -> None:
    async def story() -> int:
        async with living() as (_, admin):
            await admin.create(JOBS, job("", parallelism=3, completions=3))
            await asyncio.sleep(5)
            await admin.delete(JOBS, "work", namespace="default", propagation=policy)
            await asyncio.sleep(10)
            return len(await pods(admin))

    assert run_manual(story()) == 0


def test_pods_of_an_orphaning_job_can_be_deleted() -> None:
    async def story() -> int:
        async with living() as (_, admin):
            await admin.create(JOBS, job("", parallelism=2, completions=2))
            await asyncio.sleep(5)
            await admin.delete(JOBS, "work", namespace="default", propagation="Orphan")
            await asyncio.sleep(5)
            left = await pods(admin)
            assert len(left) == 2
            for pod in left:
                await admin.delete(PODS, pod.name, namespace="default")
            await asyncio.sleep(5)
            return len(await pods(admin))

    assert run_manual(story()) == 0


def test_a_pod_that_is_deleted_counts_as_failed_and_is_replaced() -> None:
    async def story() -> Object:
        async with living() as (_, admin):
            await admin.create(JOBS, job("", completions=1))
            await asyncio.sleep(5)
            await admin.delete(PODS, (await pods(admin))[0].name, namespace="default")
            await asyncio.sleep(10)
            return dict((await get(admin, JOBS, "work"))["status"])

    status = run_manual(story())
    assert status["failed"] == 1
    assert status["active"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_every_end_is_still_counted_once(when: str) -> None:
    async def story(kill_at: int) -> tuple[bool, int, int]:
        async with living() as (cluster, admin):
            cluster.faults.crash_at_write("job-controller", kill_at, when=when)
            await admin.create(JOBS, job(parallelism=2, completions=4))
            await asyncio.sleep(10)
            died = not cluster.components.is_running("job-controller")
            cluster.components.start("job-controller")
            await asyncio.sleep(40)
            obj = await get(admin, JOBS, "work")
            assert "Complete" in conditions(obj), obj["status"]
            return died, obj["status"]["succeeded"], len(await pods(admin))

    for kill_at in range(1, 80):
        died, succeeded, count = run_manual(story(kill_at))
        assert (succeeded, count) == (4, 4), kill_at
        if not died:
            assert kill_at > 10
            return
    raise AssertionError("it never stops writing")


@given(st.frozensets(st.integers(0, 60)))
def test_index_ranges_say_exactly_the_set(indexes: frozenset[int]) -> None:
    assert parse_indexes(show_indexes(indexes)) == indexes
