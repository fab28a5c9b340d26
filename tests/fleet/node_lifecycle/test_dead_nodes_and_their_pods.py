"""Nodes that stop answering become unreachable, drive out their pods, and go with their machines."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from karpool.kube.errors import NotFound
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import TERMINATION_FINALIZER
from karpool.model.kubernetes.api_resources import EVENTS, NODES, PODS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.taints import Taint, Toleration
from karpool_fleet.cloud.cloud import Cloud, CloudOffer, CloudSettings, Instance
from karpool_fleet.cloud.delays import constant
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kube_controllers.node_lifecycle import (
    NOT_READY,
    UNREACHABLE,
    node_lifecycle,
    stay_seconds,
    taints_for,
)
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet

SMALL = InstanceType(
    name="small",
    requirements={},
    capacity={"cpu": 4000, "memory": 16 << 30, "pods": 50},
    allocatable={"cpu": 3900, "memory": 15 << 30, "pods": 50},
    offerings=(Offering("a", "on-demand", 1.0),),
)
QUICK = {"register": constant(5), "ready": constant(5), "pull": constant(0), "start": constant(0)}
Story = Callable[["Scene"], Awaitable[Any]]


class Scene:
    def __init__(self, cluster: EmbeddedCluster, cloud: Cloud) -> None:
        self.cluster, self.cloud, self.client = cluster, cloud, cluster.client("admin")

    async def buy(self) -> Instance:
        offer = CloudOffer("small", "a", "on-demand")
        instance = await self.cloud.launch([offer], tags={"claim": "c"}, labels={})
        await asyncio.sleep(20)
        return instance

    async def node(self, name: str) -> Node:
        return await self.client.get(NODES, name, into=Node)

    async def taints(self, name: str) -> set[tuple[str, str]]:
        return {(taint.key, taint.effect) for taint in (await self.node(name)).spec.taints or ()}

    async def pod(self, name: str, node: str, tolerations: list[dict[str, Any]] | None = None) -> None:
        spec = {"containers": [{"name": "c", "image": "app"}], "tolerations": tolerations or []}
        await self.client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        await self.client.bind(name, node, namespace="default")

    async def leaving(self) -> set[str]:
        return {pod.name for pod in (await self.client.list(PODS, into=Pod)).items if pod.is_terminating}


def play(story: Story, **kubelet_settings: Any) -> Any:
    async def main() -> Any:
        clock = LoopClock()
        instant = CloudSettings(launch=constant(0), terminate=constant(0))
        cloud = Cloud(Catalogue("test", "here", [SMALL]), clock, Random(1), instant)
        async with EmbeddedCluster("east", clock=clock) as cluster:
            cluster.add("kubelet", kubelet(cloud, KubeletSettings(**{**QUICK, **kubelet_settings})))
            cluster.add("node-lifecycle", node_lifecycle(cloud))
            return await story(Scene(cluster, cloud))

    return run_manual(main())


UNREACHABLE_TAINTS = {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}


def test_a_node_that_starts_is_not_ready_and_then_free_of_taints() -> None:
    async def story(scene: Scene) -> list[set[tuple[str, str]]]:
        instance = await scene.cloud.launch([CloudOffer("small", "a", "on-demand")], tags={}, labels={})
        await asyncio.sleep(7)
        starting = await scene.taints(instance.id)
        await asyncio.sleep(7)
        return [starting, await scene.taints(instance.id)]

    assert play(story) == [{(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}, set()]


def test_a_node_whose_machine_is_gone_becomes_unknown_after_the_grace_period_and_is_deleted() -> None:
    async def story(scene: Scene) -> None:
        instance = await scene.buy()
        await scene.cloud.terminate(instance.id)
        await asyncio.sleep(38)
        assert (await scene.node(instance.id)).is_ready

        await asyncio.sleep(5)
        with pytest.raises(NotFound):
            await scene.node(instance.id)
        reasons = {event["reason"] for event in (await scene.client.list(EVENTS)).items}
        assert reasons == {"NodeNotReady", "DeletingNode"}

    play(story)


def test_a_node_of_karpenter_is_left_to_karpenter() -> None:
    async def story(scene: Scene) -> None:
        instance = await scene.buy()
        finalizers = {"metadata": {"finalizers": [TERMINATION_FINALIZER]}}
        await scene.client.patch(NODES, instance.id, finalizers)
        await scene.cloud.terminate(instance.id)
        await asyncio.sleep(600)

        node = await scene.node(instance.id)
        assert node.metadata.deletion_timestamp is None
        ready = condition(node.status.conditions, "Ready")
        assert ready is not None and (ready.status, ready.reason) == ("Unknown", "NodeStatusUnknown")
        assert await scene.taints(instance.id) == UNREACHABLE_TAINTS

    play(story)


def test_pods_leave_an_unreachable_node_when_they_tolerate_it_no_longer() -> None:
    async def story(scene: Scene) -> list[set[str]]:
        instance = await scene.buy()
        await scene.client.patch(NODES, instance.id, {"metadata": {"finalizers": [TERMINATION_FINALIZER]}})
        short = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        always = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}
        await scene.pod("plain", instance.id)
        await scene.pod("short", instance.id, [short])
        await scene.pod("daemon", instance.id, [always])
        await asyncio.sleep(10)
        await scene.cloud.terminate(instance.id)
        seen = []
        for wait in (60, 20, 240, 40, 600):
            await asyncio.sleep(wait)
            seen.append(await scene.leaving())
        return seen

    assert play(story) == [set(), {"short"}, {"short"}, {"short", "plain"}, {"short", "plain"}]


def test_a_silent_kubelet_makes_its_node_unreachable_and_a_heartbeat_brings_it_back() -> None:
    async def story(scene: Scene) -> list[tuple[bool, set[tuple[str, str]]]]:
        await scene.client.create(NODES, {"metadata": {"name": "static"}})
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        await scene.client.patch(NODES, "static", {"status": status}, subresource="status")
        seen = []

        async def look(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(((await scene.node("static")).is_ready, await scene.taints("static")))

        await look(300)
        scene.cluster.faults.pause("kubelet")
        await look(35)
        await look(30)
        scene.cluster.faults.resume("kubelet")
        await look(60)
        return seen

    alive: tuple[bool, set[tuple[str, str]]] = (True, set())
    assert play(story, heartbeat_seconds=10.0) == [alive, alive, (False, UNREACHABLE_TAINTS), alive]


def test_a_pod_stays_when_the_node_comes_back_in_time() -> None:
    async def story(scene: Scene) -> set[str]:
        await scene.client.create(NODES, {"metadata": {"name": "static"}})
        await scene.pod("web", "static")
        for status in ("True", "False"):
            conditions = [{"type": "Ready", "status": status}]
            patch = {"status": {"conditions": conditions}}
            await scene.client.patch(NODES, "static", patch, how="strategic", subresource="status")
            await asyncio.sleep(200)
        assert (NOT_READY, "NoExecute") in await scene.taints("static")
        patch = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await scene.client.patch(NODES, "static", patch, how="strategic", subresource="status")
        await asyncio.sleep(2000)
        assert await scene.taints("static") == set()
        return await scene.leaving()

    assert play(story) == set()


def test_other_peoples_taints_are_kept_and_drive_out_at_once() -> None:
    async def story(scene: Scene) -> tuple[set[tuple[str, str]], set[str]]:
        instance = await scene.buy()
        await scene.pod("web", instance.id)
        await asyncio.sleep(5)
        taint = {"key": "maintenance", "value": "soon", "effect": "NoExecute"}
        await scene.client.patch(NODES, instance.id, {"spec": {"taints": [taint]}})
        scene.cluster.faults.pause("kubelet")
        await asyncio.sleep(1)
        return await scene.taints(instance.id), await scene.leaving()

    assert play(story) == ({("maintenance", "NoExecute")}, {"web"})


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_it_ends_the_same(number: int, when: str) -> None:
    async def story(scene: Scene) -> tuple[set[tuple[str, str]], set[str]]:
        instance = await scene.buy()
        await scene.client.patch(NODES, instance.id, {"metadata": {"finalizers": [TERMINATION_FINALIZER]}})
        await scene.pod("web", instance.id)
        await asyncio.sleep(5)
        scene.cluster.faults.crash_at_write("node-lifecycle", number, when=when)
        await scene.cloud.terminate(instance.id)
        for _ in range(3):
            await asyncio.sleep(400)
            scene.cluster.components.start("node-lifecycle")
        return await scene.taints(instance.id), await scene.leaving()

    assert play(story) == (UNREACHABLE_TAINTS, {"web"})


EVICTS = Taint(key=UNREACHABLE, effect="NoExecute")


@pytest.mark.parametrize(
    ("taints", "tolerations", "seconds"),
    [
        pytest.param([EVICTS], [], 300, id="the default"),
        pytest.param([Taint(key="x", effect="NoExecute")], [], 0, id="no default for other taints"),
        pytest.param([EVICTS], [Toleration(operator="Exists")], math.inf, id="tolerates everything"),
        pytest.param(
            [EVICTS],
            [
                Toleration(operator="Exists", toleration_seconds=9),
                Toleration(key=UNREACHABLE, operator="Exists", toleration_seconds=5),
            ],
            5,
            id="the shortest counts",
        ),
        pytest.param([EVICTS], [Toleration(operator="Exists", toleration_seconds=-3)], 0, id="never below"),
    ],
)
def test_how_long_a_pod_may_stay(taints: list[Taint], tolerations: list[Toleration], seconds: float) -> None:
    assert stay_seconds(taints, tolerations, 300) == seconds


def test_a_node_that_is_ready_has_none_of_our_taints() -> None:
    assert taints_for("True") == ()
    assert {taint.key for taint in taints_for("False")} == {NOT_READY}
    assert {taint.key for taint in taints_for("Unknown")} == {UNREACHABLE}
