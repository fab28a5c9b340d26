"""What new nodes hold, as schedulers are told: sets of components, and room beside what is promised."""

import asyncio

import pytest

from karpool.model.kubernetes.api_resources import CRDS, DEPLOYMENTS, NODEOVERLAYS, NODEPOOLS, REPLICASETS
from karpool.wire.proto import estimator_pb2 as pb
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from tests.estimator.serving import World, node, pod, serving
from tests.fleet.living import pool

FLAGS = {
    "node_capacity_providers": ["karpenter"],
    "region": "us-east-1",
    "feature_gates": "SchedulingOvercommitProtection=true",
}


async def world(*pools):
    world = World()
    for crd in bundled_crds(KARPENTER):
        await world.client.create(CRDS, crd)
    for each in pools:
        await world.create(NODEPOOLS, each)
    return world


def amounts(cpu, memory, gpu=""):
    named = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": gpu} if gpu else {})}
    return {name: pb.Quantity(string=text).SerializeToString() for name, text in named.items()}


def component(replicas, *request):
    needs = pb.ComponentReplicaRequirements(resource_request_bytes=amounts(*request))
    return pb.Component(name=f"c{replicas}", replicas=replicas, replica_requirements=needs)


def sets(*components, **more):
    return pb.MaxAvailableComponentSetsRequest(cluster="member1", components=components, **more)


def replicas(*request, assumed=()):
    needs = pb.ReplicaRequirements(resource_request_bytes=amounts(*request))
    promised = [pb.AssumedWorkload(namespace="default", components=[each]) for each in assumed]
    return pb.MaxAvailableReplicasRequest(
        cluster="member1", replica_requirements=needs, assumed_workloads=promised
    )


GPU = ("4", "16Gi", "1")
KINDS = {"category": ["g", "p"]}, {"type": ["g5.48xlarge"]}, {"type": ["g5.12xlarge"]}


@pytest.mark.parametrize("kinds", KINDS)
async def test_a_pytorch_job_of_one_master_and_its_workers_counts_by_gpus(kinds):
    made = await world(pool("gpu", limits={"nvidia.com/gpu": "16"}, **kinds))
    async with serving(made.transport, **FLAGS) as estimator:
        asked = {workers: sets(component(1, *GPU), component(workers, *GPU)) for workers in (3, 9, 15, 16)}
        answers = {workers: await estimator.sets(request) for workers, request in asked.items()}
        assert answers == {3: 4, 9: 1, 15: 1, 16: 0}
        assert await estimator.sets(sets(component(4, *GPU))) == answers[3]


FLINK = component(1, "1", "1Gi"), component(4, "2", "2Gi")


@pytest.mark.parametrize(
    ("kinds", "least", "most"),
    [
        ({"type": ["m5.4xlarge"]}, 20, 20),  # 12 machines with 15 cores for pods each
        ({"type": ["m5.8xlarge"]}, 20, 20),
        ({"category": ["c", "m", "r"]}, 20, 22),
    ],
)
async def test_a_flink_deployment_shares_nodes_between_its_managers(kinds, least, most):
    made = await world(pool("general", limits={"cpu": "200"}, **kinds))
    async with serving(made.transport, **FLAGS) as estimator:
        assert least <= await estimator.sets(sets(*FLINK)) <= most


async def test_promised_sets_are_packed_with_the_sets_that_are_asked_for():
    made = await world(pool("general", limits={"cpu": "200"}, type=["m5.4xlarge"]))
    async with serving(made.transport, **FLAGS) as estimator:
        for promised in (0, 1, 5, 19, 20):
            assumed = [pb.AssumedWorkload(namespace="default", components=FLINK)] * promised
            left = await estimator.sets(sets(*FLINK, assumed_workloads=assumed))
            assert 20 - promised - 1 <= left <= 20 - promised


@pytest.mark.long
@pytest.mark.parametrize("bindings", [0, 1, 7, 50, 197, 198, 300])
async def test_promises_of_the_same_size_cost_exactly_as_many_replicas(bindings):
    made = await world(pool("general", limits={"cpu": "200"}, category=["c", "m", "r"]))
    web = "1", "1Gi"
    async with serving(made.transport, **FLAGS) as estimator:
        whole = await estimator.replicas(replicas(*web))
        assert whole == 198
        promised = [component(1, *web)] * bindings
        assert await estimator.replicas(replicas(*web, assumed=promised)) == max(0, whole - bindings)


async def test_promises_of_another_size_cost_the_room_they_take():
    """12 machines with 15 cores for pods each: what two of 7 cores take of one is 14."""
    made = await world(pool("general", limits={"cpu": "200"}, type=["m5.4xlarge"]))
    async with serving(made.transport, **FLAGS) as estimator:
        for large, small in ((0, 180), (1, 173), (2, 166), (3, 159), (24, 12)):
            promised = [component(1, "7", "1Gi")] * large
            assert await estimator.replicas(replicas("1", "1Gi", assumed=promised)) == small


async def test_those_who_ask_are_told_what_is_there_and_what_the_rest_costs():
    made = await world(
        pool("general", limits={"cpu": "200"}, type=["m5.4xlarge"]), pool("endless", type=["m5.large"])
    )
    await made.add(node("here", cpu="4", memory="16Gi"))
    async with serving(made.transport, **FLAGS) as estimator:

        async def parts(**more):
            request = replicas("1", "1Gi")
            request.MergeFrom(pb.MaxAvailableReplicasRequest(**more))
            data = await estimator.raw("MaxAvailableReplicas", request.SerializeToString())
            answer = pb.MaxAvailableReplicasResponse.FromString(data)
            return answer.max_replicas, answer.parts if answer.HasField("parts") else None

        total, nothing = await parts()
        assert nothing is None  # Karmada's schedulers see Karmada's fields
        again, told = await parts(wants_parts=True)
        assert (again, told.existing, told.unlimited) == (total, 4, True)
        assert 0.01 < told.price_per_hour < 0.2
        promised = pb.AssumedWorkload(namespace="default", components=[component(3, "1", "1Gi")])
        less, told = await parts(wants_parts=True, assumed_workloads=[promised])
        assert (less, told.existing) == (total - 3, 1)


def waits(name, owner, reason="Unschedulable"):
    status = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}],
    }
    return pod(name, "1", metadata={"ownerReferences": [owner]}, status=status)


WEB = pb.WorkloadReference(api_version="apps/v1", kind="Deployment", name="web", desired=[6])


@pytest.mark.long
@pytest.mark.parametrize("created", [0, 1, 4, 6])
@pytest.mark.parametrize("judged", [0, 1, 4, 6])
async def test_a_promised_replica_costs_one_before_and_after_its_pod_is_there(created, judged):
    """Not yet created, created and not yet looked at, found to be without a node: it is one replica."""
    made = await world(pool("general", limits={"cpu": "40"}, type=["m5.large"]))
    owner = await made.workload(REPLICASETS, "web-1", await made.workload(DEPLOYMENTS, "web"))
    for number in range(created):
        reason = "Unschedulable" if number < judged else "SchedulingGated"
        await made.add(waits(f"web-{number}", owner, reason))
    promise = pb.AssumedWorkload(namespace="default", components=[component(6, "1", "0")], workload=WEB)
    request = pb.MaxAvailableReplicasRequest(
        cluster="member1",
        replica_requirements=pb.ReplicaRequirements(resource_request_bytes=amounts("1", "0")),
        assumed_workloads=[promise],
    )
    async with serving(made.transport, **FLAGS) as estimator:
        assert await estimator.replicas(request) == 20 - 6
        for workload in (pb.AssumedWorkload(namespace="default", components=promise.components), promise):
            several = [component(1, "1", "0"), component(2, "1", "0")]
            asked = sets(*several, assumed_workloads=[workload])
            counted_twice = min(created, judged) if not workload.HasField("workload") else 0
            assert await estimator.sets(asked) == (20 - 6 - counted_twice) // 3


async def test_pods_that_others_wait_for_are_no_part_of_a_promise():
    made = await world(pool("general", limits={"cpu": "40"}, type=["m5.large"]))
    stranger = await made.workload(REPLICASETS, "other-1", await made.workload(DEPLOYMENTS, "other"))
    await made.add(*(waits(f"other-{number}", stranger) for number in range(3)))
    promise = pb.AssumedWorkload(namespace="default", components=[component(6, "1", "0")], workload=WEB)
    request = replicas("1", "0")
    request.assumed_workloads.append(promise)
    async with serving(made.transport, **FLAGS) as estimator:
        assert await estimator.replicas(request) == 20 - 6 - 3


async def test_a_pod_to_which_admission_added_a_sidecar_is_the_promised_one():
    made = await world(pool("general", limits={"cpu": "40"}, type=["m5.large"]))
    owner = await made.workload(REPLICASETS, "web-1", await made.workload(DEPLOYMENTS, "web"))
    await made.add(
        *(
            {
                **waits(f"web-{number}", owner),
                "spec": {
                    "containers": [
                        {"name": name, "image": "i", "resources": {"requests": {"cpu": cpu}}}
                        for name, cpu in (("app", "1"), ("proxy", "500m"))
                    ]
                },
            }
            for number in range(6)
        )
    )
    promise = pb.AssumedWorkload(namespace="default", components=[component(6, "1", "0")], workload=WEB)
    request = replicas("1", "0")
    request.assumed_workloads.append(promise)
    async with serving(made.transport, **FLAGS) as estimator:
        assert await estimator.replicas(request) == 14  # six machines hold one of these each


async def test_an_overlay_changes_what_a_new_node_holds_and_costs():
    made = await world(pool("general", limits={"nodes": "3"}, type=["m5.large"]))
    wanted = (("cpu", "100m"), ("example.com/slots", "1"))
    needs = {name: pb.Quantity(string=text).SerializeToString() for name, text in wanted}
    asked = pb.MaxAvailableReplicasRequest(
        cluster="member1",
        wants_parts=True,
        replica_requirements=pb.ReplicaRequirements(resource_request_bytes=needs),
    )
    async with serving(made.transport, **FLAGS) as estimator:

        async def answer():
            data = await estimator.raw("MaxAvailableReplicas", asked.SerializeToString())
            found = pb.MaxAvailableReplicasResponse.FromString(data)
            return found.max_replicas, found.parts.price_per_hour

        assert await answer() == (0, 0.0)
        slots = {"capacity": {"example.com/slots": "4"}}
        for name, part in (("price", {"price": "8.00"}), ("slots", slots)):
            spec = {"requirements": [], **part}
            await made.create(NODEOVERLAYS, {"metadata": {"name": name}, "spec": spec})
        async with asyncio.timeout(30):
            while await answer() != (12, 2.0):  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.05)
