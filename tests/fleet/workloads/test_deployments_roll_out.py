"""A Deployment reaches every new template within its bounds, remembers old ones, and cleans up."""

import asyncio
from typing import Any

import pytest

from karpool.kube.api.client import Client, Propagation
from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS, REPLICASETS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.fleet.workloads.acting import (
    Onlooker,
    active,
    get,
    living,
    pods,
    revisions,
    rollout_image,
    workload,
)

CONTROLLERS = ("deployment-controller", "replicaset-controller")


def rolling(surge: int | str, unavailable: int | str) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def is_ready(pod: Pod) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())


class Extremes:
    """The most pods and the fewest ready ones ever seen together."""

    def __init__(self) -> None:
        self.most, self.fewest = 0, 10**6
        self.watching = False

    def look(self, held: list[Pod]) -> None:
        if self.watching:
            alive = [pod for pod in held if not pod.is_terminating]
            self.most = max(self.most, len(alive))
            self.fewest = min(self.fewest, sum(map(is_ready, alive)))


def condition(obj: Object, kind: str) -> tuple[str, str]:
    found = next(each for each in obj["status"]["conditions"] if each["type"] == kind)
    return found["status"], found["reason"]


def test_scaled_from_nothing_to_fifty_to_five() -> None:
    async def story() -> list[tuple[int, int]]:
        seen = []
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=0))
            for size in (50, 5, 0):
                await admin.scale(DEPLOYMENTS, "web", size, namespace="default")
                await asyncio.sleep(10)
                status = (await get(admin, DEPLOYMENTS, "web"))["status"]
                seen.append((len(await pods(admin)), status.get("availableReplicas", 0)))
        return seen

    assert run_manual(story()) == [(50, 50), (5, 5), (0, 0)]


@pytest.mark.parametrize(
    ("surge", "unavailable", "most", "fewest"),
    [("25%", "25%", 13, 8), (0, 1, 10, 9), (3, 0, 13, 10), ("100%", "100%", 20, 0), (0, 0, 10, 9)],
)
def test_a_rolling_update_stays_within_its_bounds_at_every_event(
    surge: int | str, unavailable: int | str, most: int, fewest: int
) -> None:
    seen = Extremes()

    async def story() -> tuple[Object, dict[str, int], set[str]]:
        async with living() as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, seen.look))
            await admin.create(DEPLOYMENTS, workload(replicas=10, strategy=rolling(surge, unavailable)))
            await asyncio.sleep(10)
            seen.watching = True
            await rollout_image(admin, "web:2")
            await asyncio.sleep(60)
            images = {pod.spec.containers[0].image for pod in await pods(admin) if pod.spec.containers}
            return await get(admin, DEPLOYMENTS, "web"), await revisions(admin), images

    obj, sizes, images = run_manual(story())
    assert images == {"web:2"}
    assert sizes == {"1": 0, "2": 10}
    assert condition(obj, "Progressing") == ("True", "NewReplicaSetAvailable")
    assert condition(obj, "Available") == ("True", "MinimumReplicasAvailable")
    assert obj["status"]["updatedReplicas"] == obj["status"]["availableReplicas"] == 10
    assert "unavailableReplicas" not in obj["status"]
    assert seen.most <= most
    assert seen.fewest >= fewest


def test_recreate_waits_until_the_last_old_pod_has_gone() -> None:
    mixed = False

    def look(held: list[Pod]) -> None:
        nonlocal mixed
        images = {container.image for pod in held for container in pod.spec.containers or ()}
        mixed = mixed or len(images) > 1

    async def story() -> tuple[dict[str, int], int]:
        async with living(stop=20.0) as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, look))
            await admin.create(DEPLOYMENTS, workload(replicas=4, strategy={"type": "Recreate"}))
            await asyncio.sleep(10)
            await rollout_image(admin, "web:2")
            await asyncio.sleep(10)
            halfway = len(await active(admin))
            await asyncio.sleep(30)
            return await revisions(admin), halfway

    sizes, halfway = run_manual(story())
    assert sizes == {"1": 0, "2": 4}
    assert halfway == 0
    assert not mixed


def test_going_back_to_an_old_template_finds_its_replica_set_again() -> None:
    async def story() -> tuple[dict[str, int], str, int]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=3))
            await asyncio.sleep(5)
            for image in ("web:2", "web:1"):
                await rollout_image(admin, image)
                await asyncio.sleep(20)
            obj = await get(admin, DEPLOYMENTS, "web")
            revision = obj["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
            return await revisions(admin), revision, len((await admin.list(REPLICASETS)).items)

    sizes, revision, count = run_manual(story())
    assert sizes == {"2": 0, "3": 3}
    assert revision == "3"
    assert count == 2


def test_history_beyond_its_limit_is_deleted_oldest_first() -> None:
    async def story() -> dict[str, int]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=2, revisionHistoryLimit=2))
            for number in range(2, 7):
                await asyncio.sleep(20)
                await rollout_image(admin, f"web:{number}")
            await asyncio.sleep(20)
            return await revisions(admin)

    assert run_manual(story()) == {"4": 0, "5": 0, "6": 2}


def test_a_rollout_that_gets_nowhere_misses_its_deadline_and_keeps_the_old_pods() -> None:
    async def story() -> tuple[Object, int]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=4, progressDeadlineSeconds=60))
            await asyncio.sleep(10)
            template = {"metadata": {"labels": {"broken": "yes"}}}
            await admin.patch(DEPLOYMENTS, "web", {"spec": {"template": template}}, namespace="default")
            await asyncio.sleep(90)
            ready = sum(map(is_ready, await active(admin)))
            return await get(admin, DEPLOYMENTS, "web"), ready

    obj, ready = run_manual(story())
    assert condition(obj, "Progressing") == ("False", "ProgressDeadlineExceeded")
    assert condition(obj, "Available") == ("True", "MinimumReplicasAvailable")
    assert ready == 3


def test_a_paused_deployment_scales_but_does_not_roll() -> None:
    async def story() -> tuple[dict[str, int], tuple[str, str], dict[str, int]]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=2))
            await asyncio.sleep(5)
            await admin.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}}, namespace="default")
            await rollout_image(admin, "web:2")
            await admin.scale(DEPLOYMENTS, "web", 5, namespace="default")
            await asyncio.sleep(20)
            paused = await revisions(admin)
            why = condition(await get(admin, DEPLOYMENTS, "web"), "Progressing")
            await admin.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}}, namespace="default")
            await asyncio.sleep(30)
            return paused, why, await revisions(admin)

    paused, why, after = run_manual(story())
    assert paused == {"1": 5}
    assert why == ("Unknown", "DeploymentPaused")
    assert after == {"1": 0, "2": 5}


async def leftovers(admin: Client) -> tuple[int, ...]:
    return tuple([len((await admin.list(each)).items) for each in (DEPLOYMENTS, REPLICASETS, PODS)])


@pytest.mark.parametrize(
    ("policy", "expected"), [("Background", (0, 0, 0)), ("Foreground", (0, 0, 0)), ("Orphan", (0, 1, 3))]
)
def test_deletion_cascades_as_asked(policy: Propagation, expected: tuple[int, int, int]) -> None:
    async def story() -> tuple[int, ...]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=3))
            await asyncio.sleep(5)
            await admin.delete(DEPLOYMENTS, "web", namespace="default", propagation=policy)
            await asyncio.sleep(10)
            return await leftovers(admin)

    assert run_manual(story()) == expected


def test_a_deployment_adopts_what_an_orphaning_left() -> None:
    async def story() -> tuple[tuple[int, ...], set[str], set[str]]:
        async with living() as (_, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=3))
            await asyncio.sleep(5)
            before = {pod.name for pod in await pods(admin)}
            await admin.delete(DEPLOYMENTS, "web", namespace="default", propagation="Orphan")
            await asyncio.sleep(5)
            await admin.create(DEPLOYMENTS, workload(replicas=3))
            await asyncio.sleep(5)
            return await leftovers(admin), before, {pod.name for pod in await pods(admin)}

    counts, before, after = run_manual(story())
    assert counts == (1, 1, 3)
    assert before == after


@pytest.mark.long
@pytest.mark.parametrize("component", CONTROLLERS)
def test_killed_after_any_write_a_rollout_ends_the_same_and_stays_within_bounds(component: str) -> None:
    async def story(kill_at: int) -> tuple[bool, Any]:
        seen = Extremes()
        async with living() as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, seen.look))
            await admin.create(DEPLOYMENTS, workload(replicas=5, strategy=rolling(2, 1)))
            await asyncio.sleep(10)
            seen.watching = True
            cluster.faults.crash_at_write(component, kill_at, when="after")
            await rollout_image(admin, "web:2")
            await asyncio.sleep(20)
            died = not cluster.components.is_running(component)
            cluster.components.start(component)
            await asyncio.sleep(30)
            status = (await get(admin, DEPLOYMENTS, "web"))["status"]
            ends = (await revisions(admin), len(await pods(admin)), status["availableReplicas"])
            return died, (ends, seen.most <= 7, seen.fewest >= 4)

    for kill_at in range(1, 60):
        died, outcome = run_manual(story(kill_at))
        assert outcome == (({"1": 0, "2": 5}, 5, 5), True, True), kill_at
        if not died:
            assert kill_at > 5
            return
    raise AssertionError("it never stops writing")


@pytest.mark.parametrize("lag", [0.3, 5.0])
def test_a_watch_that_lags_does_not_break_the_bounds(lag: float) -> None:
    seen = Extremes()

    async def story() -> dict[str, int]:
        async with living() as (cluster, admin):
            await admin.create(DEPLOYMENTS, workload(replicas=6, strategy=rolling(1, 1)))
            await asyncio.sleep(10)
            cluster.server.cluster.store.listeners.append(lambda event: seen.look(_stored(cluster)))
            seen.watching = True
            cluster.faults.late_events("informers", seconds=lag)
            await rollout_image(admin, "web:2")
            await asyncio.sleep(120 * max(1.0, lag))
            return await revisions(admin)

    assert run_manual(story()) == {"1": 0, "2": 6}
    assert seen.most <= 7
    assert seen.fewest >= 5


def _stored(cluster: EmbeddedCluster) -> list[Pod]:
    """The pods as the server has them, whatever any watch has told."""
    records = cluster.server.cluster.store.collection("pods").records()
    return [decode(record.object(), Pod) for record in records]
