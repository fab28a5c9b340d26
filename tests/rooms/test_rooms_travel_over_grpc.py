"""Estimators and copies as they run: over one stream, through changes, restarts and refusals."""

import asyncio
from contextlib import AsyncExitStack
from random import Random

import pytest

from karpool.model.karmada.binding import Binding, BindingKey, TargetCluster, WorkloadTemplate
from karpool.model.karmada.replica_requirements import requirements
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS, REPLICASETS
from karpool.rooms.publisher import RoomPublisher
from karpool.scheduler.estimates import room_keeper
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import ReplicasRequest
from tests.estimator.serving import World, eventually, node, pod, serving
from tests.rooms.following import following, scripted
from tests.rooms.worlds import RULES, LivingCluster, random_request
from tests.scheduler.estimators import Server, says

PROTECTED = {"feature_gates": "SchedulingOvercommitProtection=true,ResourceQuotaEstimate=true"}
ONE_CPU = ReplicasRequest("", requirements({"cpu": "1"}), wants_parts=True)


async def worlds(*names):
    made = {}
    for number, name in enumerate(names):
        made[name] = World()
        for index in range(2 + number):
            await made[name].add(node(f"{name}-{index}", labels={"pool": "ab"[index % 2]}))
        await made[name].add(pod("first", node=f"{name}-0"))
    return made


def transports(made):
    return {name: world.transport for name, world in made.items()}


async def test_many_clusters_travel_over_one_stream_and_answer_as_they_do():
    made = await worlds("m1", "m2", "m3")
    async with (
        serving(transports(made), fleet=True, **PROTECTED) as estimator,
        following(dict.fromkeys(made, estimator.port)) as follower,
    ):
        await eventually(lambda: follower.is_current(*made))
        random = Random(5)
        for _ in range(30):
            request = random_request(random)
            for name in made:
                assert follower.local(request, name) == await follower.asked(request, name)
        assert follower.keeper.streams == 1


async def test_a_pod_that_comes_is_in_the_copy_a_moment_later():
    made = await worlds("m1")
    async with (
        serving(transports(made), cluster_name="m1") as estimator,
        following({"m1": estimator.port}) as follower,
    ):
        await eventually(lambda: follower.is_current("m1"))
        assert follower.local(ONE_CPU, "m1")[0] == 7
        await made["m1"].add(pod("second", cpu="3", node="m1-1"))
        await eventually(lambda: follower.local(ONE_CPU, "m1")[0] == 4)
        over = {"status": {"phase": "Succeeded"}}
        await made["m1"].client.patch(PODS, "second", over, namespace="default", subresource="status")
        await eventually(lambda: follower.local(ONE_CPU, "m1")[0] == 7)


def placed(name, replicas):
    return Binding(
        key=BindingKey("ResourceBinding", "default", name),
        template=WorkloadTemplate("apps/v1", "Deployment", "default", name),
        replicas=replicas,
        requirements=requirements({"cpu": "1"}),
        generation=1,
    )


async def test_a_promise_is_taken_off_at_once_and_not_twice_when_its_pods_come():
    made = await worlds("m1")
    ledger = PromiseLedger()
    async with (
        serving(transports(made), cluster_name="m1", **PROTECTED) as estimator,
        following({"m1": estimator.port}, ledger) as follower,
    ):
        await eventually(lambda: follower.is_current("m1"))
        assert follower.local(ONE_CPU, "m1")[0] == 7
        ledger.promise(placed("web", 3), (TargetCluster("m1", 3),), 0.0)
        assert follower.local(ONE_CPU, "m1")[0] == 4

        owner = await made["m1"].workload(DEPLOYMENTS, "web")
        by = await made["m1"].workload(REPLICASETS, "web-1", owner)
        for number in range(2):
            await made["m1"].add(pod(f"web-{number}", node="m1-1", metadata={"ownerReferences": [by]}))

        def seen():
            follower.local(ONE_CPU, "m1")
            return [promise.replicas for promise in ledger.promises("m1")] == [1]

        await eventually(seen)
        assert follower.local(ONE_CPU, "m1")[0] == 4


@pytest.mark.long
async def test_a_restart_is_asked_through_and_then_followed_again(monkeypatch):
    monkeypatch.setattr(room_keeper, "_BACKOFF_SECONDS", (0.01,))
    made = await worlds("m1", "m2")
    ports = {}
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        estimator = await first.enter_async_context(serving(transports(made), fleet=True))
        ports.update(dict.fromkeys(made, estimator.port))
        follower = await second.enter_async_context(following(ports))
        await eventually(lambda: follower.is_current(*made))
        await first.aclose()
        await eventually(lambda: not follower.is_current("m1") and not follower.is_current("m2"))
        assert follower.local(ONE_CPU, "m1") is None

        estimator = await second.enter_async_context(serving(transports(made), fleet=True))
        ports.update(dict.fromkeys(made, estimator.port))
        await eventually(lambda: follower.is_current(*made))
        assert follower.local(ONE_CPU, "m1") == await follower.asked(ONE_CPU, "m1")


async def test_a_copy_is_taken_up_again_without_the_whole(monkeypatch):
    monkeypatch.setattr(room_keeper, "_BACKOFF_SECONDS", (0.01,))
    made = await worlds("m1")
    async with (
        serving(transports(made), cluster_name="m1") as estimator,
        following({"m1": estimator.port}) as follower,
    ):
        await eventually(lambda: follower.is_current("m1"))
        bases = []
        apply = follower.rooms.apply
        monkeypatch.setattr(
            follower.rooms, "apply", lambda change: (bases.append(change.base), apply(change))
        )
        next(iter(follower.keeper._streams.values()))._call.cancel()
        await made["m1"].add(pod("second", cpu="3", node="m1-1"))
        await eventually(lambda: bases and follower.is_current("m1"))
        await eventually(lambda: follower.local(ONE_CPU, "m1")[0] == 4)
        assert 0 not in bases


async def test_other_makes_are_asked_as_always():
    server = Server(says(3))
    await server.start()
    try:
        async with following({"m1": server.port}) as follower:
            await eventually(lambda: follower.rooms.why_asked("m1"))
            assert follower.rooms.why_asked("m1") == "its estimator has no room stream"
            assert follower.local(ONE_CPU, "m1") is None
    finally:
        await server.stop()


async def test_a_cluster_whose_answers_are_more_than_nodes_is_asked(monkeypatch):
    made = await worlds("m1")
    flags = {"node_capacity_providers": ["cluster-autoscaler"], "cluster_name": "m1"}
    async with (
        serving(transports(made), **flags) as estimator,
        following({"m1": estimator.port}) as follower,
    ):
        await eventually(lambda: "NodeAutoscalerEstimator" in follower.rooms.why_asked("m1"))
        assert follower.local(ONE_CPU, "m1") is None


async def test_a_cluster_that_is_not_counted_yet_has_no_room():
    made = await worlds("m1", "m2")
    async with serving(transports(made), fleet=True) as estimator:
        informers = estimator.members["m2"].informers
        listed, informers.not_ready = informers.not_ready, lambda: "pods are being listed"
        async with following(dict.fromkeys(made, estimator.port)) as follower:
            await eventually(lambda: follower.is_current("m1") and follower.rooms.why_asked("m2"))
            assert follower.rooms.why_asked("m2") == "pods are being listed"
            assert not follower.is_current("m2")
            informers.not_ready = listed
            await eventually(lambda: follower.is_current("m2"))


def whole(name="m1", seed=1):
    living = LivingCluster(Random(seed), name)
    publisher = RoomPublisher(RULES)
    state = publisher.publish(living.cluster.snapshot(0.0))
    return (
        living,
        publisher,
        state,
        [pb.RoomFrame(patch=part) for part in publisher.parts(name, None, state, {})],
    )


def delta(living, publisher, state):
    living.add_pod()
    living.live()
    after = publisher.publish(living.cluster.snapshot(0.0))
    (patch,) = publisher.parts(living.name, state, after, {})
    return patch


def gap(patch):
    patch.base += 1
    patch.sequence += 1


def other_epoch(patch):
    patch.epoch += 1


def absurd_nodes(patch):
    patch.nodes = 4_000_000_000


def cut_number(patch):
    patch.columns[0].values = patch.columns[0].values[:-1]


def row_beyond(patch):
    patch.columns[0].rows = (10**6).to_bytes(4, "little")
    patch.columns[0].values = bytes(8)


def negative(patch):
    patch.columns[0].values = b"\xff" * len(patch.columns[0].values)


def unknown_kind(patch):
    patch.columns.add(kind=77, values=b"0000")


def unknown_code(patch):
    patch.columns.add(kind=pb.LABEL, key="pool", values=(99_999).to_bytes(4, "little"))


def unknown_taints(patch):
    patch.columns.add(kind=pb.TAINTS, values=(99).to_bytes(4, "little"))


def long_text(patch):
    patch.columns.add(kind=pb.LABEL, key="pool", strings=["x" * 1000])


def wrong_sum(patch):
    patch.checksum ^= 1


def quota_of_nothing(patch):
    quotas = patch.quotas.add(namespace="default").quotas.add(name="q")
    quotas.free["cpu"].units = "NaN"


def quota_of_too_much(patch):
    patch.quotas.add(namespace="default").quotas.add(name="q").free["cpu"].units = "9" * 5000


SPOILT = [
    gap,
    other_epoch,
    absurd_nodes,
    cut_number,
    row_beyond,
    negative,
    unknown_kind,
    unknown_code,
    unknown_taints,
    long_text,
    wrong_sum,
    quota_of_nothing,
    quota_of_too_much,
]


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
async def test_a_change_that_cannot_be_costs_its_cluster_the_copy_and_nobody_else(spoil):
    living, publisher, state, frames = whole("m1")
    *_, others = whole("m2", seed=2)
    patch = delta(living, publisher, state)
    spoil(patch)
    async with (
        scripted(*others, *frames, pb.RoomFrame(patch=patch), clusters=2) as server,
        following({"m1": server.port, "m2": server.port}) as follower,
    ):
        await eventually(lambda: follower.rooms.why_asked("m1").startswith("refused"))
        assert follower.local(ONE_CPU, "m1") is None
        assert follower.rooms.copies.get("m1") is None
        assert follower.is_current("m2") and follower.local(ONE_CPU, "m2") is not None


async def test_a_lost_copy_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(room_keeper, "_BACKOFF_SECONDS", (0.0,))
    living, publisher, state, frames = whole("m1")
    patch = delta(living, publisher, state)
    gap(patch)
    beat = pb.RoomFrame(beat=pb.RoomBeat())
    async with (
        scripted(*frames, pb.RoomFrame(patch=patch), beat) as server,
        following({"m1": server.port}) as follower,
    ):
        await eventually(lambda: any(room.anew for request in server.requests for room in request.rooms))
        assert not follower.is_current("m1")


async def test_deltas_in_the_wrong_order_or_twice_are_refused():
    living, publisher, state, frames = whole("m1")
    first = delta(living, publisher, state)
    async with (
        scripted(*frames, pb.RoomFrame(patch=first), pb.RoomFrame(patch=first)) as server,
        following({"m1": server.port}) as follower,
    ):
        await eventually(lambda: follower.rooms.why_asked("m1").startswith("refused"))
        assert not follower.is_current("m1")


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\xff\xff"],
        [pb.RoomFrame(hello=pb.RoomHello(protocol=2, instance="x"))],
        [pb.RoomFrame(beat=pb.RoomBeat())],
        [],
    ],
    ids=["no message", "another version", "no greeting", "silence"],
)
async def test_a_stream_that_begins_otherwise_is_not_followed(frames, monkeypatch):
    monkeypatch.setattr(room_keeper, "_HELLO_SECONDS", 0.05)
    async with scripted(*frames, hello=False) as server, following({"m1": server.port}) as follower:
        await eventually(lambda: follower.rooms.why_asked("m1"))
        assert not follower.is_current("m1")


async def test_a_late_copy_does_not_count_until_it_is_heard_of_again():
    *_, frames = whole("m1")
    async with (
        scripted(*frames) as server,
        following({"m1": server.port}, max_age_seconds=0.05) as follower,
    ):
        await eventually(lambda: follower.rooms.state("m1") == "late")
        assert follower.local(ONE_CPU, "m1") is None
        assert follower.rooms.why_asked("m1").startswith("its room stream was silent")
        copy = follower.rooms.copies.get("m1")
        follower.rooms.beat("m1", copy.epoch, copy.sequence + 1, 0.0)
        assert not follower.is_current("m1")
        follower.rooms.beat("m1", copy.epoch, copy.sequence, 0.0)
        assert follower.is_current("m1")


async def test_a_cluster_that_goes_is_forgotten():
    made = await worlds("m1", "m2")
    async with (
        serving(transports(made), fleet=True) as estimator,
        following(dict.fromkeys(made, estimator.port)) as follower,
    ):
        await eventually(lambda: follower.is_current(*made))
        follower.keeper.keep(["m2"])
        assert follower.rooms.copies.get("m1") is None
        await asyncio.sleep(0)
        await eventually(lambda: follower.is_current("m2"))
