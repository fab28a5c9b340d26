"""Whole clusters on manual time: what grows, what is refused, what falls back, what is kept."""

import asyncio
import traceback
from collections import Counter
from typing import Any

import pytest

from karpool.model.karpenter.objects import CAPACITY_TYPE, NODEPOOL
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODECLAIMS, NODEPOOLS
from karpool.model.kubernetes.node import ZONE
from karpool_fleet.clusters.fleet_file import StaticNodes
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.clusters.strict_file import FleetError
from tests.fleet.living import budget, claims, deployment, nodes, play, pods, pool, ready, until


@pytest.mark.long
def test_a_thousand_pods_come_and_go() -> None:
    async def story(cluster: LiveCluster) -> None:
        async def all_ready() -> bool:
            return await ready(cluster, "web") == 1000

        async def empty() -> bool:
            return not await pods(cluster) and not await nodes(cluster)

        assert await until(all_ready, within=300)
        assert len(cluster.cloud.instances) == len(await nodes(cluster)) == len(await claims(cluster)) > 0

        await cluster.embedded.client("admin").scale(DEPLOYMENTS, "web", 0, namespace="default")
        assert await until(empty, within=1200)
        assert not cluster.cloud.instances
        assert not await claims(cluster)

    play(story, pool("general", category=["c", "m"]), deployment("web", 1000), consolidation=True)


def test_limits_are_reached_and_never_passed() -> None:
    async def story(cluster: LiveCluster) -> None:
        await asyncio.sleep(300)
        held = await cluster.embedded.client("reader").get(NODEPOOLS, "general")

        assert await ready(cluster, "web") < 40
        assert sum(int(node.status.capacity["cpu"]) for node in await nodes(cluster)) <= 8  # type: ignore[index,arg-type]
        assert int(held["status"]["resources"]["cpu"]) <= 8
        waiting = [pod for pod in await pods(cluster) if not pod.spec.node_name]
        assert waiting
        assert all(
            condition.reason == "Unschedulable"
            for pod in waiting
            for condition in pod.status.conditions or ()
            if condition.type == "PodScheduled"
        )

    limits = {"cpu": "8"}
    play(story, pool("general", limits=limits, type=["c7i.large", "c7i.xlarge"]), deployment("web", 40))


def test_a_stock_out_turns_to_the_next_pool_and_back() -> None:
    async def story(cluster: LiveCluster) -> None:
        out = cluster.cloud.stock_out("c7i.*")

        async def served() -> bool:
            return await ready(cluster, "web") == 6

        client = cluster.embedded.client("admin")
        await client.create(DEPLOYMENTS, deployment("web", 6))
        assert await until(served, within=600)
        assert {node.labels[NODEPOOL] for node in await nodes(cluster)} == {"fallback"}
        assert cluster.cloud.refusals > 0

        out.end()
        await asyncio.sleep(200)  # the memory of the stock-out is three minutes long
        await client.create(DEPLOYMENTS, deployment("more", 20))
        assert await until(lambda: _is_ready(cluster, "more", 20), within=600)
        assert "first" in {node.labels[NODEPOOL] for node in await nodes(cluster)}

    first, fallback = pool("first", weight=10, type=["c7i.xlarge"]), pool("fallback", type=["m7i.xlarge"])
    play(story, first, fallback)


async def _is_ready(cluster: LiveCluster, name: str, replicas: int) -> bool:
    return await ready(cluster, name) == replicas


@pytest.mark.long
def test_zone_spread_is_kept_while_nodes_are_bought() -> None:
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }

    async def story(cluster: LiveCluster) -> Counter[str]:
        assert await until(lambda: _is_ready(cluster, "web", 31), within=600)
        zones = {node.name: node.labels[ZONE] for node in await nodes(cluster)}
        return Counter(zones[pod.spec.node_name] for pod in await pods(cluster))

    counts = play(
        story,
        pool("general", category=["c", "m"]),
        deployment("web", 31, topologySpreadConstraints=[spread]),
    )
    assert sorted(counts.values()) == [10, 10, 11]


def test_a_claim_drains_within_the_budget_of_its_pods() -> None:
    async def story(cluster: LiveCluster) -> None:
        assert await until(lambda: _is_ready(cluster, "web", 4), within=300)
        client = cluster.embedded.client("admin")
        victim = (await claims(cluster))[0]
        least = 4
        await client.delete(NODECLAIMS, victim.name)
        for _ in range(600):
            await asyncio.sleep(1)
            least = min(least, await ready(cluster, "web"))
            if victim.name not in {claim.name for claim in await claims(cluster)}:
                break

        assert least >= 3
        assert victim.name not in {claim.name for claim in await claims(cluster)}
        assert await until(lambda: _is_ready(cluster, "web", 4), within=300)

    play(story, pool("general", type=["c7i.large"]), deployment("web", 4), budget("web", minAvailable=3))


def test_a_budget_that_allows_nothing_keeps_the_node() -> None:
    async def story(cluster: LiveCluster) -> None:
        assert await until(lambda: _is_ready(cluster, "web", 2), within=300)
        client = cluster.embedded.client("admin")
        victim = (await claims(cluster))[0]

        await client.delete(NODECLAIMS, victim.name)
        await asyncio.sleep(1800)
        assert await ready(cluster, "web") == 2
        assert victim.name in {claim.name for claim in await claims(cluster)}

    play(story, pool("general", type=["c7i.xlarge"]), deployment("web", 2), budget("web", maxUnavailable=0))


def test_a_reclaimed_spot_node_is_replaced() -> None:
    async def story(cluster: LiveCluster) -> None:
        assert await until(lambda: _is_ready(cluster, "web", 6), within=300)
        node = (await nodes(cluster))[0]
        assert node.labels[CAPACITY_TYPE] == "spot"

        cluster.cloud.interrupt(node.name)
        await asyncio.sleep(300)

        assert node.name not in {each.name for each in await nodes(cluster)}
        assert node.name not in cluster.cloud.instances
        assert await until(lambda: _is_ready(cluster, "web", 6), within=300)

    play(story, pool("general", category=["c"], capacity=["spot"]), deployment("web", 6))


def test_a_gpu_pod_waits_for_its_devices() -> None:
    async def story(cluster: LiveCluster) -> None:
        assert await until(lambda: _is_ready(cluster, "train", 1), within=600)
        (node,) = await nodes(cluster)
        assert (node.status.allocatable or {})["nvidia.com/gpu"] == "1"

    wanted = deployment("train", 1)
    wanted["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    play(story, pool("gpu", type=["g6.xlarge"]), wanted)


def test_quota_refuses_pods_and_the_rest_runs() -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "default"},
        "spec": {"hard": {"requests.cpu": "2"}},
    }

    async def story(cluster: LiveCluster) -> int:
        await asyncio.sleep(300)
        return await ready(cluster, "web")

    assert play(story, quota, pool("general", category=["c"]), deployment("web", 10)) == 4


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        pytest.param({"region": "moon-1"}, "'moon-1'", id="a region without a catalogue"),
        pytest.param({"zones": ["us-east-1z"]}, "'us-east-1z'", id="a zone that is not there"),
        pytest.param({"nodes": [StaticNodes(type="m99.huge")]}, "'m99.huge'", id="an unknown type"),
        pytest.param({"files": ["../secret.yaml"]}, "'../secret.yaml'", id="a file outside the folder"),
    ],
)
def test_what_there_is_not_is_refused(spec: dict[str, Any], value: str) -> None:
    async def story(cluster: LiveCluster) -> None:
        raise AssertionError("it must not start")

    with pytest.raises((FleetError, ExceptionGroup)) as caught:
        play(story, **spec)

    assert value in "".join(traceback.format_exception(caught.value))
