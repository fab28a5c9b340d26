"""A cluster that is half counted looks emptier than it is: until all of it is, there is no answer."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from karpool.kube.errors import ApiUnreachable
from karpool.wire.proto import estimator_pb2 as pb
from tests.estimator.serving import World, asks, eventually, node, pod, serving


class Slow:
    """A transport that lets lists of one kind through one page at a time."""

    def __init__(self, inner, plural):
        self._inner, self._plural = inner, plural
        self._pages = asyncio.Semaphore(0)
        self.asked = asyncio.Event()

    def let_through(self, pages=1):
        for _ in range(pages):
            self._pages.release()

    async def request(self, request, *, timeout=None):
        if request.path.endswith(f"/{self._plural}"):
            self.asked.set()
            await self._pages.acquire()
        return await self._inner.request(request, timeout=timeout)

    def stream(self, request, *, timeout=None):
        return self._inner.stream(request, timeout=timeout)

    async def close(self):
        await self._inner.close()


class Dead:
    async def request(self, request, *, timeout=None):
        raise ApiUnreachable("no route to host", sent=False)

    @asynccontextmanager
    async def stream(self, request, *, timeout=None):
        raise ApiUnreachable("no route to host", sent=False)
        yield

    async def close(self):
        pass


@pytest.fixture
async def world():
    world = World()
    await world.add(node("a"), *(pod(f"p{number}", node="a") for number in range(3)))
    return world


@pytest.mark.parametrize("plural", ["nodes", "pods"])
async def test_no_answer_until_every_page_was_read(world, plural, monkeypatch):
    monkeypatch.setattr("karpool.estimator.serving.member.PAGE_SIZE", 1)
    slow = Slow(world.transport, plural)
    pages = 1 if plural == "nodes" else 3
    async with serving(slow, wait=False) as estimator:
        for _ in range(pages):
            await slow.asked.wait()
            with pytest.raises(grpc.RpcError) as refused:
                await estimator.replicas(asks())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "were not listed yet" in refused.value.details()
            slow.asked.clear()
            slow.let_through()
        await estimator.counted()
        assert await estimator.replicas(asks()) == 1


async def test_every_method_waits(world):
    async with serving(Slow(world.transport, "pods"), wait=False) as estimator:
        calls = (
            estimator.sets(pb.MaxAvailableComponentSetsRequest(cluster="member1")),
            estimator.unschedulable(api_version="apps/v1", kind="Deployment", namespace="d", name="x"),
            estimator.explain(),
        )
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_wrong_cluster_is_wrong_before_anything_is_counted(world):
    async with serving(Slow(world.transport, "pods"), wait=False) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.replicas(asks("other"))

    assert refused.value.code() is grpc.StatusCode.UNKNOWN


async def test_health_says_not_serving_until_counted(world):
    slow = Slow(world.transport, "pods")
    async with serving(slow, wait=False) as estimator:
        health = health_pb2_grpc.HealthStub(estimator.channel)

        async def status():
            return (await health.Check(health_pb2.HealthCheckRequest())).status

        assert await status() == health_pb2.HealthCheckResponse.NOT_SERVING
        slow.let_through(3)
        await estimator.counted()
        async with asyncio.timeout(10):
            async for told in health.Watch(health_pb2.HealthCheckRequest()):
                if told.status == health_pb2.HealthCheckResponse.SERVING:
                    break


async def test_one_of_many_clusters_that_is_not_counted_cannot_tell(world):
    """An error would cost the caller the answers of all the others."""
    clusters = {"slow": Slow(world.transport, "pods"), "quick": world.transport}
    async with serving(clusters, wait=False, fleet=True) as estimator:
        await eventually(lambda: not estimator.members["quick"].not_ready())
        assert await estimator.replicas(asks("slow")) == -1
        assert await estimator.replicas(asks("quick")) == 1
        assert estimator.not_ready() is not None


@pytest.mark.long
async def test_one_of_many_clusters_that_is_dead_holds_up_nobody(world):
    clusters = {"dead": Dead(), "quick": world.transport}
    async with serving(clusters, wait=False, fleet=True) as estimator:
        await eventually(lambda: not estimator.not_ready())
        assert await estimator.replicas(asks("dead")) == -1
        assert await estimator.replicas(asks("quick")) == 1


async def test_a_cluster_not_heard_of_for_too_long_cannot_tell(world, monkeypatch):
    async with serving(world.transport, max_staleness="10m") as estimator:
        assert await estimator.replicas(asks()) == 1
        monkeypatch.setattr(estimator.members["member1"], "staleness", lambda: 601.0)
        assert await estimator.replicas(asks()) == -1
