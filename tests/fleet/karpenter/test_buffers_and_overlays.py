"""Room that buffers keep, and types as overlays describe them."""

import asyncio

import pytest

from karpool.model.kubernetes.api_resources import (
    CAPACITYBUFFERS_BETA,
    NODEOVERLAYS,
    NODES,
    PODS,
    PODTEMPLATES,
)
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool_fleet.karpenter.settings import KarpenterSettings
from tests.fleet.karpenter.acting import Stage, play, pod

ON = KarpenterSettings(consolidates=True)
ANY = {"budgets": [{"nodes": "100%"}], "consolidateAfter": "0s"}
FUSE = "example.com/fuse"


async def keep_room(stage: Stage, replicas: int, cpu: str = "1500m") -> None:
    template = {"metadata": {"name": "spare", "namespace": "default"}, "template": pod("spare", cpu=cpu)}
    await stage.admin.create(PODTEMPLATES, template)
    spec = {"podTemplateRef": {"name": "spare"}, "replicas": replicas}
    buffer = {"metadata": {"name": "spare", "namespace": "default"}, "spec": spec}
    await stage.admin.create(CAPACITYBUFFERS_BETA, buffer)


async def overlay(stage: Stage, name: str, types: list[str], **spec: object) -> None:
    requirements = [{"key": INSTANCE_TYPE, "operator": "In", "values": types}]
    body = {"metadata": {"name": name}, "spec": {"requirements": requirements, **spec}}
    await stage.admin.create(NODEOVERLAYS, body)


async def types(stage: Stage) -> list[str]:
    return sorted(node.labels[INSTANCE_TYPE] for node in await stage.nodes())


def test_a_buffer_buys_nodes_that_are_not_empty_and_pods_use_them_at_once() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("small",), disruption=ANY)
        await keep_room(stage, 2)
        await asyncio.sleep(900)
        assert await types(stage) == ["small", "small"]  # without a pod, and still there
        before = stage.now
        await stage.pods(1, cpu="1500m")
        await stage.all_run(1)
        assert stage.now - before < 10  # nobody had to wait for a machine
        await asyncio.sleep(600)
        assert await types(stage) == ["small"] * 3  # the room that was used is bought again
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(600)
        assert await types(stage) == ["small"] * 2
        await stage.admin.delete(CAPACITYBUFFERS_BETA, "spare", namespace="default")
        await stage.empty(seconds=900)

    play(story, settings=ON)


def test_limits_bind_buffers_too() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("small",), limits={"cpu": "4"})
        await keep_room(stage, 5)
        await asyncio.sleep(300)
        assert await types(stage) == ["small"] * 2

    play(story)


@pytest.mark.parametrize(
    ("price", "bought"), [({}, "small"), ({"price": "5"}, "medium"), ({"priceAdjustment": "-50%"}, "small")]
)
def test_the_cheapest_type_by_overlays_is_bought(price: dict[str, str], bought: str) -> None:
    async def story(stage: Stage) -> None:
        await overlay(stage, "deal", ["small"], **price)
        await stage.pool(types=("small", "medium"))
        await stage.pods(1)
        await stage.all_run(1)
        assert await types(stage) == [bought]

    play(story)


def test_of_two_overlays_the_heavier_counts() -> None:
    async def story(stage: Stage) -> None:
        await overlay(stage, "dear", ["small"], price="5", weight=10)
        await overlay(stage, "cheap", ["small"], price="0.01", weight=20)
        await stage.pool(types=("small", "medium"))
        await stage.pods(1)
        await stage.all_run(1)
        assert await types(stage) == ["small"]

    play(story)


def test_a_resource_of_an_overlay_is_bought_and_is_there() -> None:
    async def story(stage: Stage) -> None:
        await overlay(stage, "fuse", ["medium"], capacity={FUSE: 2})
        await stage.pool(types=("small", "medium"))
        wish = pod("web-000")
        wish["spec"]["containers"][0]["resources"]["requests"][FUSE] = "1"
        wish["spec"]["containers"][0]["resources"]["limits"] = {FUSE: "1"}
        await stage.admin.create(PODS, wish)
        await stage.all_run(1)
        (node,) = (await stage.admin.list(NODES)).items
        assert node["metadata"]["labels"][INSTANCE_TYPE] == "medium"
        assert node["status"]["allocatable"][FUSE] == "2"

    play(story)


def test_a_node_that_an_overlay_makes_dear_is_replaced() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("small", "medium"), disruption=ANY)
        await stage.pods(1)
        await stage.all_run(1)
        assert await types(stage) == ["small"]
        await overlay(stage, "dear", ["small"], price="9")

        async def replaced() -> bool:
            return await types(stage) == ["medium"]

        await stage.until(replaced, seconds=1800)

    play(story, settings=ON)


@pytest.mark.parametrize("operator", ["In", "NotIn"])
def test_nothing_is_bought_for_a_pod_that_speaks_of_host_names(operator: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        entry = {"key": "kubernetes.io/hostname", "operator": operator, "values": ["n1"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [entry]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        await stage.pods(1, affinity=affinity)
        await asyncio.sleep(120)
        assert not await stage.claims()
        (event,) = await stage.events("FailedScheduling")
        assert "kubernetes.io/hostname is not allowed" in event["message"]

    play(story)
