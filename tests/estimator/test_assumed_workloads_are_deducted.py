"""Overcommit protection on the server's side: what was promised is not there any more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.estimator.question import EstimateQuestion, group_of
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, JOBS, NODES, REPLICASETS
from karpool.packing.counting.first_fit import PodGroup as Group
from karpool.packing.tables.node_table import NodeRow
from karpool.packing.tables.room import snapshot_of
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import AssumedWorkload, ReplicasRequest
from tests.estimator.pictures import in_room
from tests.estimator.serving import World, asks, eventually, node, pod, serving
from tests.packing.deducting import deduct

GATE = {"feature_gates": "SchedulingOvercommitProtection=true"}


def component(replicas, cpu="1"):
    amounts = {"cpu": pb.Quantity(string=cpu).SerializeToString()}
    wanted = pb.ComponentReplicaRequirements(resource_request_bytes=amounts)
    return pb.Component(name="c", replicas=replicas, replica_requirements=wanted)


def promised(*components, **workload):
    reference = pb.WorkloadReference(**workload) if workload else None
    return pb.AssumedWorkload(namespace="default", components=components, workload=reference)


@pytest.fixture
async def world():
    world = World()
    await world.add(node("a"), node("b"))
    return world


async def test_promises_are_deducted_first_fit(world):
    request = asks(cpu="2", assumed_workloads=[promised(component(3))])
    async with serving(world.transport, **GATE) as estimator:
        assert await estimator.replicas(request) == 2


async def test_without_the_gate_they_are_ignored(world):
    request = asks(cpu="2", assumed_workloads=[promised(component(3))])
    async with serving(world.transport) as estimator:
        assert await estimator.replicas(request) == 4


async def test_pods_that_are_on_nodes_already_are_not_deducted_again(world):
    deployment = {"api_version": "apps/v1", "kind": "Deployment", "name": "web"}
    owner = await world.workload(DEPLOYMENTS, "web")
    by = await world.workload(REPLICASETS, "web-1", owner)
    for number in range(2):
        await world.add(pod(f"web-{number}", node="a", metadata={"ownerReferences": [by]}))
    await world.add(pod("stranger", node="b"))

    async with serving(world.transport, **GATE) as estimator:
        # 8 cores, 3 taken by pods, 1 of the 3 promised replicas still to come.
        assert await estimator.replicas(asks(assumed_workloads=[promised(component(3), **deployment)])) == 4
        # A promise without reference is deducted in full, as a Go scheduler expects.
        assert await estimator.replicas(asks(assumed_workloads=[promised(component(3))])) == 2
        # The same name in another group is another workload.
        other = deployment | {"api_version": "example.com/v1"}
        assert await estimator.replicas(asks(assumed_workloads=[promised(component(3), **other)])) == 2


async def test_pods_bound_to_two_components_are_told_apart_by_what_they_ask(world):
    job = await world.workload(JOBS, "train")
    await world.add(
        pod("leader", cpu="2", node="a", metadata={"ownerReferences": [job]}),
        pod("worker", cpu="1", node="a", metadata={"ownerReferences": [job]}),
    )
    reference = {"api_version": "batch/v1", "kind": "Job", "name": "train"}
    request = asks(assumed_workloads=[promised(component(1, "2"), component(3, "1"), **reference)])
    async with serving(world.transport, **GATE) as estimator:
        assert await estimator.replicas(request) == 3


async def test_an_owner_index_follows_pods_that_come_and_go(world):
    job = await world.workload(JOBS, "train")
    reference = {"api_version": "batch/v1", "kind": "Job", "name": "train"}
    request = asks(assumed_workloads=[promised(component(2), **reference)])
    async with serving(world.transport, **GATE) as estimator:
        assert await estimator.replicas(request) == 6
        await world.add(pod("one", node="a", metadata={"ownerReferences": [job]}))
        snapshot = estimator.members["member1"].cluster.room.snapshot
        await eventually(lambda: len(snapshot().bound.node) == 1)
        assert await estimator.replicas(request) == 6
        await world.client.delete(NODES, "b")
        await eventually(lambda: snapshot().n == 1)
        assert await estimator.replicas(request) == 2


async def test_of_a_workload_that_grows_only_the_replicas_to_come_are_deducted(world):
    job = await world.workload(JOBS, "train")
    for number in range(3):
        await world.add(pod(f"old-{number}", node="a", metadata={"ownerReferences": [job]}))
    reference = {"api_version": "batch/v1", "kind": "Job", "name": "train", "desired": [5]}
    # Three run, two are promised: 8 cores, 3 taken, 2 to come.
    request = asks(assumed_workloads=[promised(component(2), **reference)])
    async with serving(world.transport, **GATE) as estimator:
        assert await estimator.replicas(request) == 3
        await world.add(pod("new", node="b", metadata={"ownerReferences": [job]}))
        snapshot = estimator.members["member1"].cluster.room.snapshot
        await eventually(lambda: len(snapshot().bound.node) == 4)
        assert await estimator.replicas(request) == 3


async def test_the_answer_says_what_of_each_promise_is_there(world):
    job = await world.workload(JOBS, "train")
    await world.add(
        pod("on-a-node", node="a", metadata={"ownerReferences": [job]}),
        pod("waits", metadata={"ownerReferences": [job]}),
    )
    reference = {"api_version": "batch/v1", "kind": "Job", "name": "train"}
    request = asks(assumed_workloads=[promised(component(3)), promised(component(3), **reference)])

    async with serving(world.transport, **GATE) as estimator:
        data = await estimator.raw("MaxAvailableReplicas", request.SerializeToString())
        told = [
            (list(each.bound), each.waiting)
            for each in pb.MaxAvailableReplicasResponse.FromString(data).arrived
        ]
        assert told == [([], 0), ([1], 1)]
    async with serving(world.transport) as estimator:
        data = await estimator.raw("MaxAvailableReplicas", request.SerializeToString())
        assert not pb.MaxAvailableReplicasResponse.FromString(data).arrived


shapes = st.builds(
    lambda cpu, replicas: Component("c", replicas, requirements({"cpu": str(cpu)})),
    st.integers(1, 5),
    st.integers(0, 6),
)
workloads = st.lists(
    st.builds(lambda parts: AssumedWorkload("d", tuple(parts)), st.lists(shapes, max_size=3)), max_size=4
)
clusters = st.lists(st.integers(0, 9), max_size=5)


def cluster(cores):
    return snapshot_of(
        [
            NodeRow(f"n{index}", allocatable={"cpu": each * 1000, "pods": 6})
            for index, each in enumerate(cores)
        ]
    )


@settings(max_examples=150)
@given(clusters, workloads)
def test_what_is_deducted_and_what_is_left_is_the_promise(cores, assumed):
    snapshot = cluster(cores)
    groups = [[group_of(each) for each in workload.components] for workload in assumed]

    found = in_room(snapshot).assume(groups)

    plain = deduct(snapshot, groups, topology=False)
    assert found.room.free("cpu").tolist() == plain.free("cpu").tolist()
    assert found.room.slots.tolist() == plain.slots.tolist()
    asked = sum(group.replicas for each in groups for group in each)
    left = sum(group.replicas for each in found.left for group in each)
    placed = int(snapshot.slots.sum() - found.room.slots.sum())
    assert placed + left == asked


@pytest.mark.long
@settings(max_examples=150)
@given(clusters, workloads, workloads, st.integers(1, 4))
def test_more_promises_never_leave_more_room(cores, some, more, cpu):
    request = ReplicasRequest("c", requirements({"cpu": str(cpu)}))
    snapshot = cluster(cores)

    before = EstimateQuestion(request, in_room(snapshot), some).existing
    after = EstimateQuestion(request, in_room(snapshot), [*some, *more]).existing

    assert after <= before <= EstimateQuestion(request, in_room(snapshot)).existing


def test_questions_about_room_do_not_fill_the_table_of_shapes():
    snapshot = cluster([8])
    before = len(snapshot.shapes)
    for cpu in range(1, 50):
        room = in_room(snapshot).assume([[Group(requirements({"cpu": f"{cpu}m"}).shape, 1)]]).room
        assert room.free("cpu").tolist() == [8000 - cpu]

    assert len(snapshot.shapes) == before
