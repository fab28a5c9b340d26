"""The invariants are worth something only if each of them can be broken."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import (
    DEPLOYMENTS,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PDBS,
    PODS,
    RESOURCEQUOTAS,
)
from karpool.model.taints import Taint
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.cloud.cloud import Cloud, CloudOffer, CloudSettings
from karpool_fleet.cloud.delays import constant
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.fleet.invariants import (
    Judge,
    World,
    after_a_step,
    owners_exist,
    when_quiet,
    workloads_are_complete,
    world,
)
from tests.fleet.random_life import catalogue, pool

Object = dict[str, Any]
Story = Callable[[Client, Cloud], Awaitable[None]]
NODE: Object = {
    "metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "n", "disk": "ssd"}},
    "spec": {"taints": [{"key": "team", "value": "ml", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "2", "memory": "4Gi", "pods": "2"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
TOLERATION = {"key": "team", "operator": "Exists"}


def pod(name: str, cpu: str = "100m", **spec: Any) -> Object:
    container: Object = {"name": "c", "image": "c", "resources": {"requests": {"cpu": cpu}}}
    if port := spec.pop("port", 0):
        container["ports"] = [{"containerPort": 80, "hostPort": port}]
    owners = spec.pop("owners", None)
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "web"},
            **({"ownerReferences": owners} if owners else {}),
        },
        "spec": {"containers": [container], "tolerations": [TOLERATION], **spec},
    }


def judged(story: Story) -> str:
    """Everything that is found to be wrong in the end, or was on the way."""

    async def main() -> str:
        clock = LoopClock()
        settings = CloudSettings(launch=constant(0), terminate=constant(0))
        cloud = Cloud(catalogue(), clock, Random(0), settings)
        async with EmbeddedCluster("east", clock=clock, crds=bundled_crds(KARPENTER)) as cluster:
            judge, client = Judge(cluster.server), cluster.client("admin")
            node = await client.create(NODES, NODE)
            await client.patch(NODES, "n", {"status": NODE["status"]}, subresource="status")
            assert node["metadata"]["name"] == "n"
            await story(client, cloud)
            await cluster.server.settle()
            now = world(cluster.server, cloud)
            complete = workloads_are_complete(now, unless_labelled="may-wait")
            return "\n".join([*judge.violations, *after_a_step(now), *when_quiet(now), *complete])

    return run_manual(main())


async def place(client: Client, *pods: Object, node: str = "n") -> None:
    for each in pods:
        await client.create(PODS, each)
        await client.bind(each["metadata"]["name"], node, namespace="default")
        running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(
            PODS, each["metadata"]["name"], {"status": running}, namespace="default", subresource="status"
        )


APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def affine(operator: str, *values: str) -> Object:
    expression = {"key": "disk", "operator": operator, "values": list(values)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_a_calm_cluster_has_nothing_wrong() -> None:
    async def story(client: Client, cloud: Cloud) -> None:
        await place(
            client,
            pod("a", nodeSelector={"disk": "ssd"}, port=80),
            pod("b", affinity=affine("In", "ssd"), port=81),
        )

    assert judged(story) == ""


@pytest.mark.parametrize(
    ("pods", "complaint"),
    [
        ([pod("a", "3")], "3000 of cpu used, 2000 offered"),
        ([pod("a"), pod("b"), pod("c")], "3 of pods used, 2 offered"),
        ([pod("a", nodeSelector={"disk": "hdd"})], "selector asks for disk=hdd"),
        ([pod("a", affinity=affine("NotIn", "ssd"))], "node affinity is not satisfied"),
        ([pod("a", tolerations=[])], "taint team:NoSchedule is not tolerated"),
        ([pod("a", port=80), pod("b", port=80)], "same host port"),
        ([pod("a"), pod("b", affinity=APART)], "kept apart by anti-affinity"),
        ([pod("b", affinity=APART), pod("a")], "kept apart by anti-affinity"),
    ],
)
def test_a_pod_where_it_does_not_fit_is_seen(pods: list[Object], complaint: str) -> None:
    async def story(client: Client, cloud: Cloud) -> None:
        await place(client, *pods)

    assert complaint in judged(story)


def test_claims_beyond_the_limits_of_their_pool_are_seen() -> None:
    async def story(client: Client, cloud: Cloud) -> None:
        await client.create(NODEPOOLS, pool("p", ("small",), limits={"cpu": "3", "nodes": "1"}))
        for name in ("c1", "c2"):
            spec = pool("p", ("small",))["spec"]["template"]["spec"]
            requests = {"resources": {"requests": {"cpu": "2"}}}
            labels = {"karpenter.sh/nodepool": "p"}
            await client.create(
                NODECLAIMS, {"metadata": {"name": name, "labels": labels}, "spec": {**spec, **requests}}
            )

    found = judged(story)
    assert "pool p: 4000 of cpu claimed, the limit is 3000" in found
    assert "pool p: 2 of nodes claimed, the limit is 1" in found
    assert "claim c1 has no machine" in found


def test_a_quota_that_is_exceeded_is_seen() -> None:
    async def story(client: Client, cloud: Cloud) -> None:  # nobody enforces it here
        hard = {"pods": "1", "requests.cpu": "150m"}
        meta = {"name": "q", "namespace": "default"}
        await client.create(RESOURCEQUOTAS, {"metadata": meta, "spec": {"hard": hard}})
        await place(client, pod("a"), pod("b"))

    found = judged(story)
    assert "quota default/q: 2 of pods used, 1 allowed" in found
    assert "quota default/q: 200 of requests.cpu used, 150 allowed" in found


def test_an_eviction_that_breaks_a_budget_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karpool_fleet.apiserver.verbs.eviction._charge", lambda *args, **kwargs: None)

    async def story(client: Client, cloud: Cloud) -> None:
        await place(client, pod("a"), pod("b"))
        spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
        await client.create(PDBS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
        await asyncio.sleep(1)
        await client.evict("a", namespace="default")

    assert "evicting default/a leaves 1 of the 2 pods that budget default/p wants healthy" in judged(story)


def test_things_that_nobody_looks_after_are_seen() -> None:
    async def story(client: Client, cloud: Cloud) -> None:
        await place(client, pod("lost"), node="elsewhere")
        await cloud.launch([CloudOffer("small", "a", "spot")], tags={"claim": "x"}, labels={})
        machine = await cloud.launch(
            [CloudOffer("small", "a", "spot")],
            tags={},
            labels={},
            taints=[Taint(key="t", effect="NoSchedule")],
        )
        await client.create(
            NODES, {"metadata": {"name": "dead"}, "spec": {"providerID": machine.provider_id + "x"}}
        )

    found = judged(story)
    assert "pod default/lost is on node elsewhere, which is gone" in found
    assert "machine" in found and "has no claim" in found and "has no node" in found
    assert "node dead has no machine" in found
    assert "node dead is not ready" in found


def test_an_orphan_is_seen() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": True}
    parent = {"metadata": {"name": "r", "namespace": "default", "uid": "there"}}
    kept, orphan = (pod(uid, owners=[{**owner, "uid": uid}]) for uid in ("there", "gone"))
    for each in (kept, orphan):
        each["metadata"]["uid"] = each["metadata"]["name"] + "-pod"
    found = list(owners_exist(World({"pods": [kept, orphan], "replicasets.apps": [parent]})))
    assert found == ["pods default/gone: its owner ReplicaSet r is gone"]


def test_a_workload_without_all_its_pods_is_seen() -> None:
    async def story(client: Client, cloud: Cloud) -> None:
        labels = {"app": "web"}
        spec = {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod("x")["spec"]},
        }
        await client.create(DEPLOYMENTS, {"metadata": {"name": "web", "namespace": "default"}, "spec": spec})

    assert "deployments.apps default/web: 0 of 2 replicas are ready" in judged(story)
