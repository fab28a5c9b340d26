"""A ReplicaSet has the pods it asks for, whatever happens to them or to its controller."""

import asyncio

import pytest

from karpool.model.kubernetes.api_resources import PODS, REPLICASETS
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.clusters.clock import run_manual
from tests.fleet.workloads.acting import Onlooker, active, get, living, pods, set_phase, until, workload

CONTROLLER = "replicaset-controller"


def is_owned_by(pod: Pod, kind: str) -> bool:
    return any(owner.kind == kind for owner in pod.metadata.owner_references or ())


def test_scaled_to_fifty_and_back_to_five() -> None:
    async def story() -> list[tuple[int, dict[str, object]]]:
        seen = []
        async with living() as (_, admin):
            await admin.create(REPLICASETS, workload(replicas=0))
            for size in (50, 5):
                await admin.scale(REPLICASETS, "web", size, namespace="default")
                await asyncio.sleep(10)
                seen.append((len(await pods(admin)), (await get(admin, REPLICASETS, "web"))["status"]))
        return seen

    (many, full), (few, small) = run_manual(story())
    assert (many, few) == (50, 5)
    assert full["readyReplicas"] == full["availableReplicas"] == full["replicas"] == 50
    assert small["replicas"] == 5
    assert small["observedGeneration"] == 3


def test_a_pod_that_is_deleted_or_fails_is_replaced() -> None:
    async def story() -> tuple[set[str], set[str]]:
        async with living() as (_, admin):
            await admin.create(REPLICASETS, workload(replicas=3))
            await asyncio.sleep(5)
            before = [pod.name for pod in await pods(admin)]
            await admin.delete(PODS, before[0], namespace="default")
            await set_phase(admin, "default", before[1], "Failed")
            await asyncio.sleep(5)
            return set(before), {pod.name for pod in await active(admin)}

    before, after = run_manual(story())
    assert len(after) == 3
    assert len(after & before) == 1


def test_an_orphan_that_matches_is_adopted_and_one_that_stops_matching_is_released() -> None:
    async def story() -> tuple[list[Pod], list[Pod]]:
        async with living() as (_, admin):
            stray = {"metadata": {"name": "stray", "namespace": "default", "labels": {"app": "web"}}}
            await admin.create(PODS, stray | {"spec": workload()["spec"]["template"]["spec"]})
            await asyncio.sleep(3)
            await admin.create(REPLICASETS, workload(replicas=2))
            await asyncio.sleep(5)
            adopted = await pods(admin)
            await admin.patch(PODS, "stray", {"metadata": {"labels": {"app": "other"}}}, namespace="default")
            await asyncio.sleep(5)
            return adopted, [*await pods(admin), *await pods(admin, "other")]

    adopted, after = run_manual(story())
    assert len(adopted) == 2
    assert all(is_owned_by(pod, "ReplicaSet") for pod in adopted)
    assert sorted(is_owned_by(pod, "ReplicaSet") for pod in after) == [False, True, True]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_it_ends_with_the_same_pods_and_never_has_more(when: str) -> None:
    async def story(kill_at: int) -> tuple[bool, int, list[str]]:
        most = 0

        def look(held: list[Pod]) -> None:
            nonlocal most
            most = max(most, sum(not pod.is_terminating for pod in held))

        async with living() as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, look))
            fault = cluster.faults.crash_at_write(CONTROLLER, kill_at, when=when)
            await admin.create(REPLICASETS, workload(replicas=6))
            await asyncio.sleep(1.5)
            await admin.scale(REPLICASETS, "web", 2, namespace="default")
            await asyncio.sleep(5)
            died = not cluster.components.is_running(CONTROLLER)
            cluster.components.start(CONTROLLER)
            await asyncio.sleep(10)
            status = (await get(admin, REPLICASETS, "web"))["status"]
            fault.end()
            return died, most, [str(len(await pods(admin))), str(status["readyReplicas"])]

    for kill_at in range(1, 40):
        died, most, end = run_manual(story(kill_at))
        assert end == ["2", "2"], kill_at
        assert most <= 6, kill_at
        if not died:
            assert kill_at > 10
            return
    raise AssertionError("it never stops writing")


@pytest.mark.parametrize("lag", [0.5, 7.0])
def test_a_watch_that_lags_never_makes_it_create_too_many(lag: float) -> None:
    async def story() -> tuple[int, int]:
        async with living() as (cluster, admin):
            created: list[str] = []
            cluster.server.cluster.store.listeners.append(lambda event: _note_created(event, created))
            await asyncio.sleep(1)
            cluster.faults.late_events("informers", seconds=lag)
            await admin.create(REPLICASETS, workload(replicas=20))
            await asyncio.sleep(8 * lag)
            await cluster.components.crash(CONTROLLER)
            await admin.scale(REPLICASETS, "web", 30, namespace="default")
            cluster.components.start(CONTROLLER)
            await asyncio.sleep(20 * lag)
            return len(await pods(admin)), len(created)

    assert run_manual(story()) == (30, 30)


def _note_created(event: StoredEvent, created: list[str]) -> None:
    if event.type == "ADDED" and event.record.collection.group_resource == "pods":
        created.append(event.record.name)


def test_it_recovers_when_the_answers_to_its_writes_are_lost() -> None:
    async def story() -> int:
        async with living() as (cluster, admin):
            cluster.faults.delay(CONTROLLER, seconds=100.0, times=3)
            await admin.create(REPLICASETS, workload(replicas=5))

            async def complete() -> bool:
                status = (await get(admin, REPLICASETS, "web")).get("status") or {}
                return status.get("readyReplicas") == 5

            await until(complete, seconds=2000)
            return len(await pods(admin))

    assert run_manual(story()) == 5
