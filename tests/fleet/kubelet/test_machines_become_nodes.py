"""A bought machine registers, becomes ready and offers its devices, in that order and no sooner."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from karpool.kube.errors import NotFound
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.kubernetes.api_resources import NODES
from karpool.model.kubernetes.node import Node
from karpool.model.taints import Taint
from karpool_fleet.cloud.cloud import Cloud, CloudOffer, CloudSettings, Instance
from karpool_fleet.cloud.delays import constant
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet

GPU = InstanceType(
    name="gpu-1",
    requirements={},
    capacity={"cpu": 4000, "memory": 16 << 30, "pods": 50, "nvidia.com/gpu": 1},
    allocatable={"cpu": 3900, "memory": 15 << 30, "pods": 50, "nvidia.com/gpu": 1},
    offerings=(Offering("a", "on-demand", 1.0),),
)
OFFER = CloudOffer("gpu-1", "a", "on-demand")
STEPS = KubeletSettings(register=constant(20), ready=constant(10), devices=constant(30))

Story = Callable[[EmbeddedCluster, Cloud], Awaitable[object]]


def play(story: Story) -> object:
    async def main() -> object:
        clock = LoopClock()
        instant = CloudSettings(launch=constant(0), terminate=constant(0))
        cloud = Cloud(Catalogue("test", "here", [GPU]), clock, Random(1), instant)
        async with EmbeddedCluster("east", clock=clock) as cluster:
            cluster.add("kubelet", kubelet(cloud, STEPS))
            return await story(cluster, cloud)

    return run_manual(main())


async def buy(cloud: Cloud) -> Instance:
    taint = Taint(key="karpenter.sh/unregistered", effect="NoExecute")
    return await cloud.launch([OFFER], tags={"claim": "c"}, labels={"pool": "gpu"}, taints=[taint])


async def node_of(cluster: EmbeddedCluster, instance: Instance) -> Node:
    return await cluster.client("reader").get(NODES, instance.id, into=Node)


def test_the_stages_follow_each_other() -> None:
    async def story(cluster: EmbeddedCluster, cloud: Cloud) -> None:
        instance = await buy(cloud)

        await asyncio.sleep(19)
        try:
            await node_of(cluster, instance)
            raise AssertionError("registered too early")
        except NotFound:
            pass

        await asyncio.sleep(2)
        node = await node_of(cluster, instance)
        assert not node.is_ready
        assert node.spec.provider_id == instance.provider_id
        assert node.labels["pool"] == "gpu"
        assert {taint.key for taint in node.spec.taints or ()} == {
            "karpenter.sh/unregistered",
            "node.kubernetes.io/not-ready",
        }

        await asyncio.sleep(10)
        node = await node_of(cluster, instance)
        assert node.is_ready
        assert [taint.key for taint in node.spec.taints or ()] == ["karpenter.sh/unregistered"]
        assert "nvidia.com/gpu" not in (node.status.allocatable or {})

        await asyncio.sleep(30)
        assert (await node_of(cluster, instance)).status.allocatable == {
            "cpu": "3900m",
            "memory": "15Gi",
            "pods": "50",
            "nvidia.com/gpu": "1",
        }

    play(story)


def test_a_machine_that_boots_badly_stays_where_it_is() -> None:
    async def story(cluster: EmbeddedCluster, cloud: Cloud) -> tuple[bool, bool]:
        cloud.boot_badly(becomes_ready=False)
        never_ready = await buy(cloud)
        await asyncio.sleep(3600)
        return (await node_of(cluster, never_ready)).is_ready, len(await list_nodes(cluster)) == 1

    assert play(story) == (False, True)


async def list_nodes(cluster: EmbeddedCluster) -> list[Node]:
    return (await cluster.client("reader").list(NODES, into=Node)).items


def test_a_machine_that_never_registers_has_no_node() -> None:
    async def story(cluster: EmbeddedCluster, cloud: Cloud) -> int:
        cloud.boot_badly(registers=False)
        await buy(cloud)
        await asyncio.sleep(3600)
        return len(await list_nodes(cluster))

    assert play(story) == 0


def test_a_slow_device_plugin_takes_as_long_as_it_was_told() -> None:
    async def story(cluster: EmbeddedCluster, cloud: Cloud) -> list[bool]:
        cloud.boot_badly(device_seconds=600)
        instance = await buy(cloud)
        seen = []
        for _ in range(2):
            await asyncio.sleep(400)
            seen.append("nvidia.com/gpu" in ((await node_of(cluster, instance)).status.allocatable or {}))
        return seen

    assert play(story) == [False, True]


def test_a_kubelet_killed_after_any_write_ends_in_the_same_state() -> None:
    async def story(cluster: EmbeddedCluster, cloud: Cloud, number: int) -> tuple[object, int]:
        fault = cluster.faults.crash_at_write("kubelet", number, when="after")
        instance = await buy(cloud)
        await asyncio.sleep(300)
        if fault.hits:
            cluster.components.start("kubelet")
            await asyncio.sleep(300)
        node = await node_of(cluster, instance)
        return (node.status.allocatable, node.is_ready, node.spec.taints), fault.hits

    undisturbed, _ = play(lambda cluster, cloud: story(cluster, cloud, 1000))  # type: ignore[misc]
    number, hits = 0, 1
    while hits:
        number += 1
        state, hits = play(lambda cluster, cloud, n=number: story(cluster, cloud, n))  # type: ignore[misc]
        assert state == undisturbed
    assert number > 3
