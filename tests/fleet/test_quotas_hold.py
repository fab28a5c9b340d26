"""ResourceQuotas are never exceeded, and what they show as used is what is there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import Denied, KubeError
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    PODS,
    PRIORITYCLASSES,
    PVCS,
    REPLICASETS,
    RESOURCEQUOTAS,
)
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kube_controllers.quota import EmbeddedQuotas, enforce_quotas
from karpool_fleet.workloads import workload_components
from tests.fleet.workloads.acting import workload


def pod(name: str, cpu: str = "1", *, limit: str = "", gpus: int = 0, spec: Object | None = None) -> Object:
    requests: Object = {"cpu": cpu} if cpu else {}
    limits: Object = {"cpu": limit} if limit else {}
    if gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(gpus)
    resources = {"requests": requests, "limits": limits}
    containers = [{"name": "main", "image": "x", "resources": resources}]
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": containers, **(spec or {})},
    }


def quota(name: str = "q", **spec: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def with_quotas(story: Callable[[Client, EmbeddedQuotas, EmbeddedCluster], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            return await story(cluster.client("admin"), enforce_quotas(cluster.server), cluster)

    return run_manual(run())


async def tried(admin: Client, *objects: Object) -> list[str]:
    """Names of those that were let in."""
    let_in = []
    for each in objects:
        try:
            await admin.create(PODS, each)
            let_in.append(each["metadata"]["name"])
        except Denied:
            pass
    return let_in


async def shown(admin: Client, cluster: EmbeddedCluster, name: str = "q") -> Object:
    await cluster.server.settle()
    return dict((await admin.get(RESOURCEQUOTAS, name, namespace="default"))["status"]["used"])


def test_the_refusal_names_the_quota_and_the_amounts() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> str:
        await admin.create(RESOURCEQUOTAS, quota("team", hard={"requests.cpu": "1500m", "pods": "10"}))
        await admin.create(PODS, pod("a"))
        with pytest.raises(Denied) as refused:
            await admin.create(PODS, pod("b"))
        return str(refused.value)

    message = with_quotas(story)
    assert "403" in message
    assert "exceeded quota: team" in message
    assert "requested: requests.cpu=1" in message
    assert "used: requests.cpu=1" in message
    assert "limited: requests.cpu=1500m" in message
    assert "pods=" not in message


def test_room_comes_back_when_a_pod_is_deleted_or_ends() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> list[list[str]]:
        await admin.create(RESOURCEQUOTAS, quota(hard={"cpu": "2"}))
        seen = [await tried(admin, pod("a"), pod("b"), pod("c"))]
        await admin.delete(PODS, "a", namespace="default")
        seen.append(await tried(admin, pod("d"), pod("e")))
        ended = {"status": {"phase": "Succeeded"}}
        await admin.patch(PODS, "b", ended, namespace="default", subresource="status")
        return [*seen, await tried(admin, pod("f"), pod("g"))]

    assert with_quotas(story) == [["a", "b"], ["d"], ["f"]]


def test_extended_resources_limits_and_counts_are_held() -> None:
    async def story(
        admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster
    ) -> tuple[list[str], Object]:
        hard = {"requests.nvidia.com/gpu": "4", "limits.cpu": "3", "count/pods": "10"}
        await admin.create(RESOURCEQUOTAS, quota(hard=hard))
        names = await tried(
            admin,
            pod("two", limit="1", gpus=2),
            pod("three", limit="1", gpus=3),
            pod("more", limit="1", gpus=2),
            pod("cpus", limit="2"),
        )
        return names, await shown(admin, cluster)

    names, used = with_quotas(story)
    assert names == ["two", "more"]
    assert used == {"requests.nvidia.com/gpu": "4", "limits.cpu": "2", "count/pods": "2"}


def test_a_container_must_state_what_a_quota_limits() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> str:
        await admin.create(RESOURCEQUOTAS, quota(hard={"limits.cpu": "3"}))
        with pytest.raises(Denied) as refused:
            await admin.create(PODS, pod("a"))
        return str(refused.value)

    assert "must specify limits.cpu for: main" in with_quotas(story)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"scopes": ["BestEffort"]}, ["best"]),
        ({"scopes": ["NotBestEffort"]}, ["plain", "timed", "high"]),
        ({"scopes": ["Terminating"]}, ["timed"]),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, ["plain", "high"]),
        ({"scopeSelector": [("PriorityClass", "In", ["high"])]}, ["high"]),
        ({"scopeSelector": [("PriorityClass", "NotIn", ["high"])]}, ["plain", "best", "timed"]),
        ({"scopeSelector": [("PriorityClass", "Exists", None)]}, ["high"]),
    ],
)
def test_scopes_choose_the_pods(spec: Object, expected: list[str]) -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> list[str]:
        chosen = dict(spec)
        if "scopeSelector" in chosen:
            expressions = [
                {"scopeName": scope, "operator": operator, **({"values": values} if values else {})}
                for scope, operator, values in chosen["scopeSelector"]
            ]
            chosen["scopeSelector"] = {"matchExpressions": expressions}
        await admin.create(RESOURCEQUOTAS, quota(hard={"pods": "0"}, **chosen))
        high = {"metadata": {"name": "high"}, "value": 10}
        await admin.create(PRIORITYCLASSES, high)
        everyone = [
            pod("plain"),
            pod("best", ""),
            pod("timed", spec={"activeDeadlineSeconds": 5}),
            pod("high", spec={"priorityClassName": "high"}),
        ]
        let_in = await tried(admin, *everyone)
        return [each["metadata"]["name"] for each in everyone if each["metadata"]["name"] not in let_in]

    assert with_quotas(story) == expected


def test_other_objects_and_storage_count_too() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> tuple[int, Object]:
        hard = {"count/configmaps": "2", "requests.storage": "5Gi", "persistentvolumeclaims": "9"}
        await admin.create(RESOURCEQUOTAS, quota(hard=hard))
        refused = 0
        for number in range(3):
            claim = {
                "metadata": {"name": f"c{number}", "namespace": "default"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            }
            for resource, obj in ((PVCS, claim), (CONFIGMAPS, {"metadata": claim["metadata"]})):
                try:
                    await admin.create(resource, obj)
                except Denied:
                    refused += 1
        return refused, await shown(admin, cluster)

    refused, used = with_quotas(story)
    assert refused == 2
    assert used == {"count/configmaps": "2", "requests.storage": "4Gi", "persistentvolumeclaims": "2"}


def test_many_clients_at_once_cannot_exceed_it() -> None:
    async def story(
        admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster
    ) -> tuple[int, Object, int]:
        await admin.create(RESOURCEQUOTAS, quota(hard={"pods": "10", "cpu": "7"}))
        clients = [cluster.client(f"client-{number}") for number in range(40)]
        creates = (client.create(PODS, pod(f"p{n}")) for n, client in enumerate(clients))
        results = await asyncio.gather(*creates, return_exceptions=True)
        let_in = sum(not isinstance(result, BaseException) for result in results)
        return let_in, await shown(admin, cluster), len((await admin.list(PODS)).items)

    assert with_quotas(story) == (7, {"pods": "7", "cpu": "7"}, 7)


def test_a_dry_run_uses_nothing() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> Object:
        await admin.create(RESOURCEQUOTAS, quota(hard={"pods": "1"}))
        for number in range(3):
            body = msgspec.json.encode(pod(f"p{number}"))
            await admin.rest.call("POST", PODS.collection("default"), query=[("dryRun", "All")], body=body)
        return await shown(admin, cluster)

    assert with_quotas(story) == {"pods": "0"}


def test_a_replica_set_fills_what_the_quota_leaves_and_says_why_it_stops() -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> Object:
        await admin.create(RESOURCEQUOTAS, quota(hard={"pods": "3"}))
        for name, build in workload_components().items():
            cluster.add(name, build)
        await admin.create(REPLICASETS, workload(replicas=5))
        await asyncio.sleep(5)
        full = (await admin.get(REPLICASETS, "web", namespace="default"))["status"]
        await admin.patch(RESOURCEQUOTAS, "q", {"spec": {"hard": {"pods": "9"}}}, namespace="default")
        await asyncio.sleep(120)
        return {"full": full, "later": (await admin.get(REPLICASETS, "web", namespace="default"))["status"]}

    seen = with_quotas(story)
    assert seen["full"]["replicas"] == 3
    (condition,) = seen["full"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("ReplicaFailure", "FailedCreate")
    assert "exceeded quota: q" in condition["message"]
    assert seen["later"]["replicas"] == 5
    assert "conditions" not in seen["later"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 9), st.sampled_from(["", "500m", "1", "2500m"])),
        st.tuples(st.just("delete"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("end"), st.integers(0, 9), st.sampled_from(["Succeeded", "Failed"])),
        st.tuples(st.just("quota"), st.integers(1, 6), st.sampled_from(["BestEffort", "NotBestEffort", ""])),
    ),
    max_size=25,
)


async def step(admin: Client, what: str, number: int, how: str) -> None:
    name = f"p{number}"
    match what:
        case "create":
            await admin.create(PODS, pod(name, how))
        case "delete":
            await admin.delete(PODS, name, namespace="default")
        case "end":
            status = {"status": {"phase": how}}
            await admin.patch(PODS, name, status, namespace="default", subresource="status")
        case "quota":
            scopes = {"scopes": [how]} if how else {}
            await admin.create(
                RESOURCEQUOTAS, quota(how.lower() or "all", hard={"pods": f"{number}"}, **scopes)
            )


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_used_is_always_the_sum_over_living_pods(steps: list[tuple[str, int, str]]) -> None:
    async def story(admin: Client, quotas: EmbeddedQuotas, cluster: EmbeddedCluster) -> None:
        await admin.create(RESOURCEQUOTAS, quota("cpu", hard={"pods": "5", "count/pods": "8"}))
        for what, number, how in steps:
            try:
                await step(admin, what, number, how)
            except KubeError:
                continue
            pods = (await admin.list(PODS)).items
            alive = [each for each in pods if each["status"]["phase"] not in ("Succeeded", "Failed")]
            assert quotas.used("default", "cpu") == {"pods": len(alive), "count/pods": len(pods)}
            assert len(alive) <= 5
            assert len(pods) <= 8
            await cluster.server.settle()
            for item in (await admin.list(RESOURCEQUOTAS)).items:
                effort = [each for each in alive if in_scope(each, item["spec"].get("scopes"))]
                assert item["status"]["used"]["pods"] == str(len(effort))

    with_quotas(story)


def in_scope(each: Object, scopes: list[str] | None) -> bool:
    best = not each["spec"]["containers"][0]["resources"].get("requests")
    return not scopes or scopes == (["BestEffort"] if best else ["NotBestEffort"])
