"""A binding that waits is tried again when only an estimator sees new room."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest

from karpool.cluster import kinds
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.market import Market
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.serving import room_watch
from karpool.estimator.serving.room_watch import RoomWatch
from karpool.estimator.serving.service import EstimatorService
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import CRDS, NODEPOOLS
from karpool.scheduler.controller import room_follower
from karpool.scheduler.controller.room_follower import RoomFollower
from karpool.scheduler.estimates.estimate_cache import RoomSilence
from karpool.wire.proto import room_pb2
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from tests.estimator.pictures import Told
from tests.estimator.serving import World
from tests.estimator.serving import serving as estimating
from tests.fleet.living import pool
from tests.scheduler.acting import AGGREGATED, binding, staged
from tests.scheduler.estimators import Server, asking, says
from tests.scheduler.placing import binding as parsed_binding
from tests.scheduler.placing import cluster as member

FLAGS = {"cluster_name": "member1", "node_capacity_providers": ["karpenter"], "region": "us-east-1"}


@asynccontextmanager
async def member_with_pool(limit):
    """One member without a node, whose pool may launch machines of two cores."""
    world = World()
    for crd in bundled_crds(KARPENTER):
        await world.client.create(CRDS, crd)
    await world.create(NODEPOOLS, pool("general", limits={"cpu": limit}, type=["m5.large"]))
    async with staged() as stage, estimating({"member1": world.transport}, **FLAGS) as estimator:

        async def address(_):
            return [f"127.0.0.1:{estimator.port}"]

        await stage.join("member1", 0)
        async with asking({}, resolver=address) as clients, stage.scheduling(asker=clients) as scheduler:
            yield stage, world, scheduler


async def is_unschedulable(stage, name):
    return (await stage.condition(name))[1] == "Unschedulable"


async def test_raised_limits_wake_who_waits():
    async with member_with_pool("0") as (stage, world, _):
        await stage.create(binding("one", 2, how=AGGREGATED))
        await stage.until(lambda: is_unschedulable(stage, "one"))

        await world.client.patch(NODEPOOLS, "general", {"spec": {"limits": {"cpu": "100"}}})

        # Left alone it would be tried again after five minutes.
        await asyncio.wait_for(stage.until_placed("one"), 30)


async def test_a_pool_that_is_added_wakes_who_waits():
    async with member_with_pool("0") as (stage, world, _):
        await stage.create(binding("one", 2, how=AGGREGATED))
        await stage.until(lambda: is_unschedulable(stage, "one"))

        await world.create(NODEPOOLS, pool("second", limits={"cpu": "100"}, type=["m5.large"]))

        await asyncio.wait_for(stage.until_placed("one"), 30)


# The estimator's side


class Stopped(RealClock):
    """Nobody waits for time, and it passes all the same."""

    def __init__(self):
        self.at = 1000.0

    def now(self):
        return self.at

    def monotonic(self):
        return self.at

    async def sleep(self, seconds):
        self.at += seconds
        await asyncio.sleep(0)


def told(clock, limits=None, failures=None):
    provider = SimpleNamespace(aspects=KarpenterProvider.aspects, failures=failures or LaunchFailures())
    picture = Told(provider, Market(region="us-east-1"), now=clock.now())
    picture.put(kinds.NODEPOOLS, raw_pool(limits or {"cpu": "10"}))
    return picture


def raw_pool(limits, **status):
    return {"metadata": {"name": "p"}, "spec": {"template": {"spec": {}}, "limits": limits}, **status}


async def test_the_first_question_is_answered_at_once_and_the_second_waits():
    clock = Stopped()
    watch = RoomWatch(told(clock).cluster, clock)
    generation = await watch.beyond(0)
    begun = clock.at

    assert await watch.beyond(generation) == generation
    assert clock.at - begun >= room_watch.HOLD_SECONDS


@pytest.mark.parametrize(
    ("limits", "grows"),
    [({"cpu": "11"}, True), ({}, True), ({"cpu": "10"}, False), ({"cpu": "10", "memory": "1Gi"}, True)],
)
async def test_what_happened_in_between_is_told(limits, grows):
    """When in doubt it is told: another limit may mean more."""
    clock = Stopped()
    picture = told(clock)
    watch = RoomWatch(picture.cluster, clock)
    generation = await watch.beyond(0)

    picture.put(kinds.NODEPOOLS, raw_pool(limits, status={"nodes": 3}))

    assert (await watch.beyond(generation) != generation) is grows


async def test_a_failure_that_is_forgiven_is_told_when_it_is_due():
    clock = Stopped()
    failures = LaunchFailures(recovery_seconds=20.0)
    picture = told(clock, failures=failures)
    failures.failed("p", LaunchReason.LAUNCH_FAILED, clock.now(), "no quota")
    watch = RoomWatch(picture.cluster, clock)
    generation, begun = await watch.beyond(0), clock.at

    assert await watch.beyond(generation) != generation
    assert 19.9 <= clock.at - begun <= 21


async def test_pods_that_come_and_go_wake_nobody():
    clock = Stopped()
    picture = told(clock)
    watch = RoomWatch(picture.cluster, clock)
    generation = await watch.beyond(0)
    picture.put(kinds.PODS, {"metadata": {"name": "x", "namespace": "d"}, "spec": {"containers": []}})

    assert await watch.beyond(generation) == generation


class Aborted(Exception):
    pass


class Call:
    def invocation_metadata(self):
        return ()

    def peer(self):
        return "test"

    async def abort(self, code, details=""):
        raise Aborted(code, details)


def service(cluster, clock, **options):
    one = SimpleNamespace(name="m", not_ready=lambda: None, rooms=RoomWatch(cluster, clock))
    return EstimatorService({"m": one}, None, clock=clock, **options)


async def test_callers_that_wait_are_bounded_and_others_still_answered():
    waiting = service(told(Stopped()).cluster, RealClock(), watchers_max=2)
    request = room_pb2.AwaitRoomRequest(cluster="m")
    first = room_pb2.AwaitRoomResponse.FromString(
        await waiting.await_room(request.SerializeToString(), Call())
    )
    request.seen = first.generation
    parked = [
        asyncio.ensure_future(waiting.await_room(request.SerializeToString(), Call())) for _ in range(2)
    ]
    await asyncio.sleep(0)

    with pytest.raises(Aborted) as caught:
        await waiting.await_room(request.SerializeToString(), Call())
    assert caught.value.args[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    for task in parked:
        task.cancel()
    await asyncio.gather(*parked, return_exceptions=True)
    assert await waiting.await_room(b"\x0a\x01m", Call())  # a place is free again


@pytest.mark.long
@pytest.mark.parametrize("data", [b"\xff", b"", b"\x0a\x05other"])
async def test_requests_that_cannot_be_served_are_refused(data):
    with pytest.raises(Aborted):
        await service(told(Stopped()).cluster, RealClock()).await_room(data, Call())


# The scheduler's side


class News:
    """Answers in turn; then nothing more comes."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    async def await_room(self, cluster, seen):
        self.seen.append(seen)
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)


class Amounts:
    def __init__(self, *amounts):
        self.amounts = list(amounts)

    async def estimated(self, binding, cluster):
        return self.amounts.pop(0) if self.amounts else None


async def followed(news, amounts=(), waiting=None):
    woken = []
    bindings = [parsed_binding(1)] if waiting is None else waiting
    follower = RoomFollower(
        news,
        Amounts(*amounts),
        Stopped(),
        clusters=lambda: [member("m1")],
        waiting=lambda: bindings,
        room_in=woken.extend,
    )
    follower.look()
    for _ in range(50):
        await asyncio.sleep(0)
    await follower.close()
    return woken


async def test_each_new_generation_wakes_once():
    news = News(7, 7, 7, 8)
    assert await followed(news) == ["m1", "m1"]
    assert news.seen == [0, 7, 7, 7, 8]


async def test_nobody_is_asked_while_nothing_waits():
    news = News(7)
    assert await followed(news, waiting=[]) == []
    assert news.seen == []


async def test_one_of_another_make_is_asked_now_and_then_and_wakes_when_its_answer_grows():
    news = News(*[RoomSilence.NOT_OURS] * 5)
    assert await followed(news, amounts=(0, 3, 3, None, 4)) == ["m1", "m1"]
    assert room_follower.POLL_SECONDS >= 10


async def test_one_that_cannot_be_reached_is_tried_again():
    assert await followed(News(RoomSilence.UNREACHABLE, 3)) == ["m1"]


async def test_one_without_the_method_and_one_that_is_not_there_are_told_apart():
    """Karmada's own estimator has no such method."""
    async with asking({"m1": Server(says(3)), "m2": None}) as clients:
        assert await clients.await_room(member("m1"), 0) is RoomSilence.NOT_OURS
        assert await clients.await_room(member("m2"), 0) is RoomSilence.UNREACHABLE
