"""What an unmodified karmada-scheduler reads of a cluster: nodes that are there, and nodes that could be."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.karmada.member_cluster import read_cluster
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, NODEPOOLS
from karpool.scheduler.estimates.estimator_client import EstimatorUnreachable, UnknownMethod
from karpool.scheduler.summaries.summary_writer import (
    ClusterSummaryWriter,
    DesiredSummary,
    SummaryMetrics,
    SummarySettings,
)
from karpool.wire.client_protocol import CapacitySummary
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from tests.estimator.serving import World, node, pod, serving
from tests.fleet.living import pool
from tests.scheduler.acting import play, staged
from tests.scheduler.estimators import Server, asking, says
from tests.scheduler.placing import cluster as member

GIB = 1 << 30
HERE = {"cpu": 4000, "memory": 16 * GIB, "pods": 110}
COULD = {"cpu": 60_000, "memory": 240 * GIB, "pods": 400}
CAPACITY = CapacitySummary(HERE, {"cpu": 1500, "pods": 3}, COULD)


class Source:
    """Says what it is told to, by cluster."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    async def summary(self, cluster):
        self.asked.append(cluster.name)
        answer = self.answers.get(cluster.name)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise EstimatorUnreachable("nobody is there")
        return answer


@asynccontextmanager
async def writing(stage, source, *, registry=None, **settings):
    client = stage.control.client("cluster-summary")
    chosen = SummarySettings(**settings)
    manager = Manager.of(
        client, lambda environment: ClusterSummaryWriter(environment, source, chosen), component="summary"
    )
    stop = Stop()
    running = asyncio.create_task(manager.run(stop))
    try:
        yield manager
    finally:
        stop.set()
        await running


async def shown(stage, name="m1"):
    return read_cluster(await stage.admin.get(CLUSTERS, name)).summary


async def shows(stage, cores, name="m1"):
    summary = await shown(stage, name)
    return summary is not None and summary.free("cpu") == cores * 1000


def test_what_could_come_is_added_to_what_is_there():
    async def story(stage):
        await stage.join("m1", 0, resourceModels=[])
        await stage.report("m1", 7, used=2, waiting=1)
        models = [{"grade": 1, "count": 2}]
        patch = {"status": {"resourceSummary": {"allocatableModelings": models}}}
        await stage.admin.patch(CLUSTERS, "m1", patch, subresource="status")
        async with writing(stage, Source(m1=CAPACITY)):
            await stage.until(lambda: shows(stage, 62.5))
        raw = (await stage.admin.get(CLUSTERS, "m1"))["status"]
        assert raw["resourceSummary"] == {
            "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "510"},
            "allocated": {"cpu": "1500m", "pods": "3"},
        }
        assert raw["apiEnablements"]  # what others wrote is theirs

    play(story)


def test_what_somebody_else_writes_is_put_right_at_once():
    async def story(stage):
        await stage.join("m1", 0)
        async with writing(stage, Source(m1=CAPACITY), interval_seconds=100) as manager:
            await stage.until(lambda: shows(stage, 62.5))
            for _ in range(3):
                await stage.report("m1", 4)
                await stage.until(lambda: shows(stage, 62.5), seconds=2)
            writes = manager.runnable._metrics.writes
            assert writes.labels("m1", "overwritten")._value.get() == 3
            assert writes.labels("m1", "changed")._value.get() == 1

    play(story)


def test_a_summary_that_is_right_is_left_alone():
    async def story(stage):
        await stage.join("m1", 0)
        async with writing(stage, Source(m1=CAPACITY), interval_seconds=1):
            await stage.until(lambda: shows(stage, 62.5))
            before = (await stage.admin.get(CLUSTERS, "m1"))["metadata"]["resourceVersion"]
            await asyncio.sleep(30)
            after = (await stage.admin.get(CLUSTERS, "m1"))["metadata"]["resourceVersion"]
        assert before == after

    play(story)


def test_what_a_silent_estimator_vouched_for_is_taken_back():
    async def story(stage):
        await stage.join("m1", 0)
        source = Source(m1=CAPACITY)
        async with writing(stage, source, withdraw_seconds=60):
            await stage.until(lambda: shows(stage, 62.5))
            source.answers = {}
            await asyncio.sleep(50)
            assert await shows(stage, 62.5)
            await asyncio.sleep(20)
            assert await shows(stage, 2.5)  # nodes that are there stay
            source.answers = {"m1": CAPACITY}
            await stage.until(lambda: shows(stage, 62.5), seconds=10)

    play(story)


@pytest.mark.parametrize("silence", [EstimatorUnreachable("nobody"), UnknownMethod("another make")])
def test_clusters_nobody_speaks_for_are_left_to_karmada(silence):
    async def story(stage):
        await stage.join("m1", 9)
        await stage.join("m2", 0)
        async with writing(stage, Source(m1=silence, m2=CAPACITY)):
            await stage.until(lambda: shows(stage, 62.5, "m2"))
            assert await shows(stage, 9)

    play(story)


def test_clusters_come_and_go():
    async def story(stage):
        source = Source(m1=CAPACITY, m2=CAPACITY)
        async with writing(stage, source, interval_seconds=1):
            await stage.join("m1", 0)
            await stage.until(lambda: shows(stage, 62.5))
            await stage.join("m2", 0)
            await stage.until(lambda: shows(stage, 62.5, "m2"))
            await stage.admin.delete(CLUSTERS, "m1")
            await asyncio.sleep(5)
            source.asked.clear()
            await asyncio.sleep(5)
            assert set(source.asked) == {"m2"}

    play(story)


def test_a_refused_write_is_tried_again():
    async def story(stage):
        await stage.join("m1", 0)
        stage.control.faults.fail("cluster-summary", status=500, method="PATCH", path="/clusters", times=3)
        async with writing(stage, Source(m1=CAPACITY), interval_seconds=1):
            await stage.until(lambda: shows(stage, 62.5))

    play(story)


def test_names_that_are_gone_are_taken_out():
    before = read_cluster(
        {"status": {"resourceSummary": {"allocatable": {"cpu": "1", "nvidia.com/gpu": "8"}}}}
    ).summary
    patch = DesiredSummary({"cpu": 2000}, {}).patch(before)["status"]["resourceSummary"]
    assert patch["allocatable"] == {"cpu": "2", "nvidia.com/gpu": None}


def test_metrics_of_a_cluster_that_is_gone_are_gone():
    registry = CollectorRegistry()
    metrics = SummaryMetrics(registry)
    metrics.writes.labels("m1", "changed").inc()
    metrics.forget("m1")
    metrics.forget("never seen")
    assert registry.get_sample_value("karpool_cluster_summary_writes_total", {"cluster": "m1"}) is None


# Over gRPC

FLAGS = {"cluster_name": "m1", "node_capacity_providers": ["karpenter"], "region": "us-east-1"}


async def test_an_estimator_tells_what_is_there_and_what_its_pools_could_launch():
    world = World()
    for crd in bundled_crds(KARPENTER):
        await world.client.create(CRDS, crd)
    await world.create(NODEPOOLS, pool("general", limits={"cpu": "8"}, type=["m5.large"]))
    await world.add(node("a", cpu="4", memory="16Gi"), pod("web", node="a"))
    async with serving({"m1": world.transport}, **FLAGS) as estimator:

        async def address(_):
            return [f"127.0.0.1:{estimator.port}"]

        async with asking({}, resolver=address) as clients:
            found = await clients.summary(member("m1"))
    assert found.allocatable["cpu"] == 4000
    assert found.allocated["cpu"] == 1000
    assert found.allocated["pods"] == 1
    assert 7000 < found.potential["cpu"] <= 8000  # of four machines, less what they keep for themselves
    assert found.potential["pods"] > 0


async def test_one_of_another_make_and_one_that_is_not_there_are_told_apart():
    async with asking({"m1": Server(says(3)), "m2": None}) as clients:
        with pytest.raises(UnknownMethod):
            await clients.summary(member("m1"))
        with pytest.raises(EstimatorUnreachable):
            await clients.summary(member("m2"))


async def test_a_cluster_that_pulls_can_be_left_out():
    server = Server(says(3))
    async with asking({"m1": server}, asks_pull_clusters=False) as clients:
        with pytest.raises(EstimatorUnreachable, match="Pull mode"):
            await clients.summary(replace(member("m1"), sync_mode="Pull"))
    assert server.requests == []


async def test_the_writer_shows_what_an_estimator_says():
    world = World()
    for crd in bundled_crds(KARPENTER):
        await world.client.create(CRDS, crd)
    await world.create(NODEPOOLS, pool("general", limits={"cpu": "8"}, type=["m5.large"]))
    async with staged() as stage, serving({"m1": world.transport}, **FLAGS) as estimator:
        await stage.join("m1", 0)

        async def address(_):
            return [f"127.0.0.1:{estimator.port}"]

        async with asking({}, resolver=address) as clients, writing(stage, clients, interval_seconds=0.2):
            await stage.until(lambda: has_room(stage))
            await world.client.delete(NODEPOOLS, "general")
            await stage.until(lambda: shows(stage, 0))


async def has_room(stage):
    summary = await shown(stage)
    return summary is not None and summary.free("cpu") > 7000
