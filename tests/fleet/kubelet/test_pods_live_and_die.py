"""Bound pods pull, start, become ready, end and stop as their kubelet's settings say."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.cloud.delays import constant
from karpool_fleet.clusters.clock import EPOCH, LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kubelet.kubelet import OUTCOME, RUN_SECONDS, KubeletSettings, kubelet
from karpool_fleet.kubelet.pod_status import is_ready

STEPS = KubeletSettings(pull=constant(10), start=constant(2), readiness=constant(5), stop=constant(4))

Story = Callable[[EmbeddedCluster], Awaitable[object]]


def play(story: Story) -> object:
    async def main() -> object:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            cluster.add("kubelet", kubelet(None, STEPS))
            await cluster.client("admin").create(NODES, {"metadata": {"name": "n1"}})
            return await story(cluster)

    return run_manual(main())


async def bound(
    cluster: EmbeddedCluster, name: str, annotations: dict[str, str] | None = None, **spec: Any
) -> None:
    pod = {
        "metadata": {"name": name, "namespace": "default", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "app:1"}], **spec},
    }
    await cluster.client("admin").create(PODS, pod)
    await cluster.client("scheduler").bind(name, "n1", namespace="default")


async def read(cluster: EmbeddedCluster, name: str) -> Pod:
    return await cluster.client("reader").get(PODS, name, namespace="default", into=Pod)


def test_the_first_pod_pulls_its_image_and_the_second_does_not() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        await bound(cluster, "first")
        await asyncio.sleep(11)
        pod = await read(cluster, "first")
        assert (pod.status.phase, is_ready(pod)) == ("Pending", False)
        assert parse_rfc3339(pod.status.start_time or "") == EPOCH

        await asyncio.sleep(2)
        pod = await read(cluster, "first")
        assert (pod.status.phase, is_ready(pod)) == ("Running", False)

        await asyncio.sleep(5)
        assert is_ready(await read(cluster, "first"))

        await bound(cluster, "second")
        await asyncio.sleep(3)
        assert (await read(cluster, "second")).status.phase == "Running"

    play(story)


@pytest.mark.parametrize(("outcome", "phase"), [("", "Succeeded"), ("Failed", "Failed")])
def test_a_pod_that_ends_ends_when_and_how_it_says(outcome: str, phase: str) -> None:
    async def story(cluster: EmbeddedCluster) -> list[str]:
        notes = {RUN_SECONDS: "60", OUTCOME: outcome}
        await bound(cluster, "job", notes, restartPolicy="Never")
        seen = []
        for _ in range(2):
            await asyncio.sleep(40)
            seen.append((await read(cluster, "job")).status.phase)
        return seen

    assert play(story) == ["Running", phase]


def test_a_deleted_pod_stops_within_its_grace() -> None:
    async def story(cluster: EmbeddedCluster) -> list[bool]:
        await bound(cluster, "web")
        await asyncio.sleep(60)
        await cluster.client("admin").delete(PODS, "web", namespace="default")
        gone = []
        for _ in range(2):
            await asyncio.sleep(3)
            try:
                await read(cluster, "web")
                gone.append(False)
            except NotFound:
                gone.append(True)
        return gone

    assert play(story) == [False, True]


def test_a_pod_that_never_becomes_ready_runs_on() -> None:
    async def story(cluster: EmbeddedCluster) -> tuple[str, bool]:
        await bound(cluster, "broken", {OUTCOME: "NeverReady"})
        await asyncio.sleep(3600)
        pod = await read(cluster, "broken")
        return pod.status.phase, is_ready(pod)

    assert play(story) == ("Running", False)
