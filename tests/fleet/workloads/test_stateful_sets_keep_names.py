"""StatefulSets: stable names, in order, with volumes of their own, updated from the top down."""

import asyncio
from typing import Any

import pytest

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import PODS, PVCS, STATEFULSETS
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import run_manual
from tests.fleet.workloads.acting import Onlooker, get, living, pods, workload

CLAIM = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def stateful(**spec: Any) -> Object:
    return workload(serviceName="web", volumeClaimTemplates=[CLAIM], **spec)


async def images(admin: Client) -> dict[str, str]:
    return {pod.name: (pod.spec.containers or [])[0].image for pod in await pods(admin)}


async def set_image(admin: Client, image: str) -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
    await admin.patch(STATEFULSETS, "web", patch, how="strategic", namespace="default")


def test_pods_come_one_after_another_and_go_in_reverse() -> None:
    order: list[str] = []

    def look(held: list[Pod]) -> None:
        for pod in held:
            for step in (f"+{pod.name}", f"-{pod.name}" if pod.is_terminating else f"+{pod.name}"):
                if step not in order:
                    order.append(step)

    async def story() -> tuple[Object, list[str], list[str]]:
        async with living() as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, look))
            await admin.create(STATEFULSETS, stateful(replicas=3))
            await asyncio.sleep(10)
            status = (await get(admin, STATEFULSETS, "web"))["status"]
            await admin.scale(STATEFULSETS, "web", 0, namespace="default")
            await asyncio.sleep(10)
            claims = sorted(each["metadata"]["name"] for each in (await admin.list(PVCS)).items)
            return status, claims, [pod.name for pod in await pods(admin)]

    status, claims, left = run_manual(story())
    assert order == ["+web-0", "+web-1", "+web-2", "-web-2", "-web-1", "-web-0"]
    assert status["replicas"] == status["readyReplicas"] == status["currentReplicas"] == 3
    assert status["currentRevision"] == status["updateRevision"]
    assert claims == ["data-web-0", "data-web-1", "data-web-2"]
    assert left == []


def test_a_pod_comes_back_under_its_name_with_its_claim() -> None:
    async def story() -> tuple[str, str, list[str]]:
        async with living() as (_, admin):
            await admin.create(STATEFULSETS, stateful(replicas=2))
            await asyncio.sleep(10)
            before = await get(admin, PODS, "web-0")
            await admin.delete(PODS, "web-0", namespace="default")
            await asyncio.sleep(10)
            after = await get(admin, PODS, "web-0")
            volumes = [each["persistentVolumeClaim"]["claimName"] for each in after["spec"]["volumes"]]
            return before["metadata"]["uid"], after["metadata"]["uid"], volumes

    before, after, volumes = run_manual(story())
    assert before != after
    assert volumes == ["data-web-0"]


def test_parallel_pods_start_together() -> None:
    async def story() -> int:
        async with living() as (_, admin):
            await admin.create(STATEFULSETS, stateful(replicas=4, podManagementPolicy="Parallel"))
            await asyncio.sleep(0.5)
            return len(await pods(admin))

    assert run_manual(story()) == 4


def test_an_update_goes_from_the_top_down_to_the_partition_and_no_further() -> None:
    async def story() -> tuple[dict[str, str], dict[str, str], Object]:
        async with living() as (_, admin):
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
            await admin.create(STATEFULSETS, stateful(replicas=4, updateStrategy=strategy))
            await asyncio.sleep(15)
            await set_image(admin, "web:2")
            await asyncio.sleep(15)
            await admin.delete(PODS, "web-0", namespace="default")
            await asyncio.sleep(10)
            held = await images(admin)
            open_all = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
            await admin.patch(STATEFULSETS, "web", open_all, namespace="default")
            await asyncio.sleep(30)
            return held, await images(admin), (await get(admin, STATEFULSETS, "web"))["status"]

    held, after, status = run_manual(story())
    assert held == {"web-0": "web:1", "web-1": "web:1", "web-2": "web:2", "web-3": "web:2"}
    assert set(after.values()) == {"web:2"}
    assert status["currentRevision"] == status["updateRevision"]
    assert status["updatedReplicas"] == 4


@pytest.mark.long
def test_killed_after_any_write_it_ends_the_same() -> None:
    async def story(kill_at: int) -> tuple[bool, dict[str, str], int]:
        async with living() as (cluster, admin):
            cluster.faults.crash_at_write("statefulset-controller", kill_at, when="after")
            await admin.create(STATEFULSETS, stateful(replicas=2))
            await asyncio.sleep(8)
            await set_image(admin, "web:2")
            await asyncio.sleep(5)
            died = not cluster.components.is_running("statefulset-controller")
            cluster.components.start("statefulset-controller")
            await asyncio.sleep(30)
            status = (await get(admin, STATEFULSETS, "web"))["status"]
            return died, await images(admin), status["updatedReplicas"]

    for kill_at in range(1, 60):
        died, ends, updated = run_manual(story(kill_at))
        assert ends == {"web-0": "web:2", "web-1": "web:2"}, kill_at
        assert updated == 2, kill_at
        if not died:
            assert kill_at > 10
            return
    raise AssertionError("it never stops writing")


def test_the_status_tells_how_far_it_came_although_no_more_pods_may_be_created() -> None:
    async def story() -> Object:
        async with living() as (cluster, admin):
            await admin.create(STATEFULSETS, stateful(replicas=1))
            await asyncio.sleep(0.1)
            cluster.faults.fail("statefulset-controller", status=403, method="POST", path="/pods")
            await admin.scale(STATEFULSETS, "web", 3, namespace="default")
            await asyncio.sleep(60)
            return await get(admin, STATEFULSETS, "web")

    status = run_manual(story())["status"]
    assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (1, 1, 2)
