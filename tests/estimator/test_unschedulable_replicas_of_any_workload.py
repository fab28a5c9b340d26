"""GetUnschedulableReplicas: Karmada's answers for Deployments, and the same for everything else."""

import grpc
import pytest

from karpool.estimator.serving.unschedulable import comparable_template
from karpool.model.kubernetes.api_resources import (
    CRDS,
    DEPLOYMENTS,
    JOBS,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from karpool.model.kubernetes.times import rfc3339
from karpool.wire.proto import estimator_pb2 as pb
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.estimator.serving import World, pod, serving

WIDGETS = ApiResource("example.com", "v1", "widgets", "Widget")
CRD = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"plural": "widgets", "kind": "Widget"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
FIVE_MINUTES = 300


def waiting(world, name, owner=None, *, age=600, reason="Unschedulable", labels=None):
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "lastTransitionTime": rfc3339(world.clock.now() - age),
    }
    meta = {"labels": labels or {}}
    if owner:
        meta["ownerReferences"] = [owner]
    return pod(name, metadata=meta, status={"phase": "Pending", "conditions": [condition]})


def named(resource, name):
    return {"api_version": resource.api_version, "kind": resource.kind, "namespace": "default", "name": name}


@pytest.fixture
def world():
    return World()


async def counted(world, resource, name, threshold=FIVE_MINUTES, **flags):
    async with serving(world.transport, **flags) as estimator:
        return await estimator.unschedulable(threshold, **named(resource, name))


async def test_a_deployments_pods_count_by_its_newest_replica_set(world):
    app = {"app": "web"}
    owner = await world.workload(DEPLOYMENTS, "web")
    now = await world.workload(REPLICASETS, "web", owner)
    before = await world.workload(
        REPLICASETS,
        "web-old",
        owner,
        selector={"matchLabels": app},
        template={"metadata": {"labels": app}, "spec": {"containers": [{"name": "c", "image": "old"}]}},
    )
    await world.add(
        waiting(world, "one", now, labels=app),
        waiting(world, "two", now, labels=app),
        waiting(world, "fresh", now, age=10, labels=app),
        waiting(world, "gated", now, reason="SchedulingGated", labels=app),
        waiting(world, "outdated", before, labels=app),
        waiting(world, "stranger", labels=app),
    )

    assert await counted(world, DEPLOYMENTS, "web") == 2
    assert await counted(world, DEPLOYMENTS, "web", threshold=0) == 3
    assert await counted(world, DEPLOYMENTS, "web", threshold=-5) == 3


@pytest.mark.parametrize("resource", [STATEFULSETS, JOBS], ids=str)
async def test_pods_of_other_workloads_count_too(world, resource):
    owner = await world.workload(resource, "db")
    other = await world.workload(resource, "cache")
    await world.add(waiting(world, "db-0", owner), waiting(world, "cache-0", other))

    assert await counted(world, resource, "db") == 1


async def test_a_custom_resource_owns_pods_through_any_chain(world):
    await world.client.create(CRDS, CRD)
    widget = await world.workload(WIDGETS, "w")
    deployment = await world.workload(DEPLOYMENTS, "w-front", widget)
    replica_set = await world.workload(REPLICASETS, "w-front-1", deployment)
    job = await world.workload(JOBS, "w-init", widget)
    await world.add(
        waiting(world, "front", replica_set),
        waiting(world, "init", job),
        waiting(world, "own", widget),
        waiting(world, "stranger"),
    )

    assert await counted(world, WIDGETS, "w") == 3
    assert await counted(world, WIDGETS, "w", feature_gates="AllAlpha=true") == 3


async def test_a_workload_that_is_not_there_is_an_error(world):
    async with serving(world.transport) as estimator:
        for resource, words in (
            (DEPLOYMENTS, 'deployments.apps "gone" not found'),
            (WIDGETS, 'widgets.example.com "gone" not found'),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                await estimator.unschedulable(FIVE_MINUTES, **named(resource, "gone"))
            assert refused.value.code() is grpc.StatusCode.UNKNOWN
            assert refused.value.details() == words


async def test_no_resource_is_an_error(world):
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            request = pb.UnschedulableReplicasRequest(cluster="member1").SerializeToString()
            await estimator.raw("GetUnschedulableReplicas", request)

    assert refused.value.details() == "resource is nil"


async def test_kinds_can_be_limited_to_those_of_karmada(world):
    await world.workload(STATEFULSETS, "db")
    async with serving(world.transport, unschedulable_kinds=("Deployment",)) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.unschedulable(FIVE_MINUTES, **named(STATEFULSETS, "db"))

    assert refused.value.details() == "kind(StatefulSet) of workload(default/db) is not supported"


@pytest.mark.parametrize(
    "reference",
    [
        {"api_version": "../../v1", "kind": "Pod", "namespace": "default", "name": "x"},
        {"api_version": "apps/v1", "kind": "Deployment", "namespace": "..", "name": "x"},
        {"api_version": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "a/b"},
        {"api_version": "", "kind": "", "namespace": "", "name": ""},
    ],
)
async def test_no_reference_leaves_its_path(world, reference, monkeypatch):
    paths = []
    handle = ApiServer.handle

    async def noted(server, request, *rest):
        paths.append(request.path)
        return await handle(server, request, *rest)

    monkeypatch.setattr(ApiServer, "handle", noted)
    async with serving(world.transport) as estimator:
        with pytest.raises(grpc.RpcError) as refused:
            await estimator.unschedulable(FIVE_MINUTES, **reference)

    assert refused.value.code() is grpc.StatusCode.UNKNOWN
    assert not any(".." in path or "a/b" in path for path in paths)


def test_templates_that_mean_the_same_are_equal():
    def template(**container):
        labels = {"app": "web", "pod-template-hash": "1"}
        return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", **container}]}}

    plain = template(resources={"requests": {"cpu": "1"}})
    spelled = template(resources={"requests": {"cpu": "1000m"}}, args=[], env=None)
    spelled["metadata"] = {"labels": {"app": "web"}, "creationTimestamp": None}
    assert comparable_template(plain) == comparable_template(spelled)
    assert comparable_template(plain) != comparable_template(template(resources={"requests": {"cpu": "2"}}))
    assert comparable_template(None) == comparable_template({})
