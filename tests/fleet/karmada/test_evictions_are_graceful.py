"""A cluster is left when its taints demand it, and emptied when its replacement is well."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import (
    CLUSTERS,
    DEPLOYMENTS,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
)
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karmada.members.eviction import assess
from karpool_fleet.karmada.members.taint_manager import Unsigned, evict_in
from karpool_fleet.karmada.propagation.bindings import evict, keeps_works_in
from karpool_fleet.karmada.propagation.names import APPLIED_PLACEMENT
from tests.fleet.karmada.acting import Fleet, deploy, fleet, until

NOW = 1_000_000.0


def binding(
    *tasks: Object, clusters: Sequence[str] = ("east",), health: str = "Healthy", observed: int = 3
) -> Object:
    return {
        "metadata": {"name": "b", "generation": 3},
        "spec": {"clusters": [{"name": name} for name in clusters], "gracefulEvictionTasks": list(tasks)},
        "status": {
            "schedulerObservedGeneration": observed,
            "aggregatedStatus": [{"clusterName": name, "health": health} for name in clusters],
        },
    }


def task(age: float = 10.0, **fields: Any) -> Object:
    return {"fromCluster": "west", "creationTimestamp": rfc3339(NOW - age), **fields}


@pytest.mark.parametrize(
    ("state", "kept", "check_in"),
    [
        pytest.param(binding(task()), 0, None, id="the replacement is healthy"),
        pytest.param(binding(task(), health="Unhealthy"), 1, 590.0, id="it is not"),
        pytest.param(binding(task(), health="Unknown"), 1, 590.0, id="nobody knows"),
        pytest.param(binding(task(), observed=2), 1, 590.0, id="the scheduler has not seen it"),
        pytest.param(binding(task(601.0), health="Unhealthy"), 0, None, id="the time is over"),
        pytest.param(
            binding(task(gracePeriodSeconds=5), health="Unhealthy"), 0, None, id="its own time is over"
        ),
        pytest.param(binding(task(9999.0, suppressDeletion=True)), 1, None, id="a person must decide"),
        pytest.param(binding(task(suppressDeletion=False), health="Unhealthy"), 0, None, id="and has"),
        pytest.param(binding({"fromCluster": "west"}), 1, 0.0, id="a task begins with its time"),
        pytest.param(binding(), 0, None, id="no task"),
    ],
)
def test_a_task_goes_on_until(state: Object, kept: int, check_in: float | None) -> None:
    result = assess(state, 600.0, NOW)
    assert len(result.kept) == kept
    assert result.check_in == check_in
    assert all(each["creationTimestamp"] for each in result.kept)


def tainted(*taints: Object) -> Object:
    return {"metadata": {"name": "west"}, "spec": {"taints": list(taints)}}


def signed(*tolerations: Object) -> Object:
    placement = {"clusterTolerations": list(tolerations)}
    return {"metadata": {"name": "b", "annotations": {APPLIED_PLACEMENT: json.dumps(placement)}}}


DRIVING = {"key": "k", "effect": "NoExecute", "timeAdded": rfc3339(NOW - 100)}


@pytest.mark.parametrize(
    ("taints", "tolerations", "wait"),
    [
        pytest.param([{"key": "k", "effect": "NoSchedule"}], [], None, id="NoSchedule drives nobody out"),
        pytest.param([DRIVING], [], 0.0, id="nothing tolerated"),
        pytest.param([DRIVING], [{"key": "other", "operator": "Exists"}], 0.0, id="another tolerated"),
        pytest.param([DRIVING], [{"key": "k", "operator": "Exists"}], None, id="tolerated for ever"),
        pytest.param(
            [DRIVING], [{"key": "k", "operator": "Exists", "tolerationSeconds": 300}], 200.0, id="for a time"
        ),
        pytest.param(
            [DRIVING], [{"key": "k", "operator": "Exists", "tolerationSeconds": 30}], 0.0, id="no longer"
        ),
        pytest.param(
            [DRIVING, {"key": "j", "effect": "NoExecute"}],
            [{"key": "k", "operator": "Exists"}],
            0.0,
            id="one of two",
        ),
    ],
)
def test_a_binding_leaves_a_tainted_cluster(
    taints: list[Object], tolerations: list[Object], wait: float | None
) -> None:
    assert evict_in(tainted(*taints), signed(*tolerations), NOW) == wait


def test_a_binding_that_no_scheduler_signed_is_not_judged() -> None:
    with pytest.raises(Unsigned, match="applied-placement"):
        evict_in(tainted(DRIVING), {"metadata": {"name": "b"}}, NOW)


@given(
    st.lists(st.sampled_from("abcd"), unique=True),
    st.sampled_from("abcd"),
    st.sampled_from(["Directly", "Gracefully"]),
)
def test_an_evicted_cluster_is_a_task_and_no_target(names: list[str], cluster: str, mode: str) -> None:
    spec: Object = {"clusters": [{"name": name, "replicas": 2} for name in names]}

    patch = evict(spec, cluster, {"purgeMode": mode, "producer": "x", "reason": "y"})

    if cluster not in names:
        assert patch is None
        return
    assert patch is not None
    after = {**spec, **patch}
    assert [each["name"] for each in after["clusters"] or []] == [each for each in names if each != cluster]
    assert [(each["fromCluster"], each["replicas"]) for each in after["gracefulEvictionTasks"]] == [
        (cluster, 2)
    ]
    # Only a graceful leave keeps the work until the task ends.
    assert (cluster in keeps_works_in(after)) is (mode == "Gracefully")


def in_one(spec: Object, clusters: Sequence[str]) -> list[Object]:
    """Everything into the last cluster that takes it: west while it does, then east."""
    return [{"name": cluster, "replicas": spec.get("replicas", 0)} for cluster in clusters[-1:]]


async def taint(world: Fleet, cluster: str) -> None:
    taints = [{"key": "maintenance", "effect": "NoExecute"}]
    await world.admin.patch(CLUSTERS, cluster, {"spec": {"taints": taints}})


@pytest.mark.long
def test_a_tainted_cluster_is_emptied_after_its_replacement_is_healthy() -> None:
    async def story() -> None:
        async with fleet("east", "west", decide=in_one) as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            overlap = 0

            async def moved() -> bool:
                nonlocal overlap
                replicas, found = await world.replicas(), await world.binding("web-deployment")
                if replicas == {"east": 4, "west": 4}:
                    overlap += 1
                    assert found["spec"]["gracefulEvictionTasks"][0]["fromCluster"] == "west"
                    assert found["spec"]["gracefulEvictionTasks"][0]["reason"] == "TaintUntolerated"
                return replicas == {"east": 4}

            await taint(world, "west")
            await until(moved)
            assert overlap > 0, "the old copy must outlive the decision"
            after = await world.binding("web-deployment")
            assert after["spec"]["clusters"] == [{"name": "east", "replicas": 4}]
            assert "gracefulEvictionTasks" not in after["spec"]
            ready = (await world.at("east").get(DEPLOYMENTS, "web", namespace="default"))["status"]
            assert ready["readyReplicas"] == 4

    run_manual(story())


def test_the_old_copy_stays_while_the_replacement_is_not_healthy_until_the_time_is_over() -> None:
    async def story() -> list[dict[str, int]]:
        seen = []
        async with fleet("east", "west", decide=in_one) as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            await world.clusters["east"].components.crash("lifegiver")  # new pods stay pending
            await taint(world, "west")
            await asyncio.sleep(300)
            seen.append(await world.replicas())
            await asyncio.sleep(400)
            seen.append(await world.replicas())
        return seen

    assert run_manual(story()) == [{"east": 4, "west": 4}, {"east": 4}]


def test_a_direct_purge_does_not_wait() -> None:
    async def story() -> dict[str, int]:
        async with fleet("east", "west", decide=in_one) as world:
            await deploy(world, 4, failover={"cluster": {"purgeMode": "Directly"}})
            await asyncio.sleep(10)
            await world.clusters["east"].components.crash("lifegiver")
            await taint(world, "west")
            await asyncio.sleep(5)
            return await world.replicas()

    assert run_manual(story()) == {"east": 4}


def test_tolerations_of_the_placement_hold_a_binding() -> None:
    async def story() -> tuple[dict[str, int], dict[str, int]]:
        async with fleet("east", "west", lively=False) as world:
            held = [{"key": "maintenance", "operator": "Exists", "tolerationSeconds": 120}]
            placement = {"replicaScheduling": {}, "clusterTolerations": held}
            await deploy(world, 4, placement=placement, failover={"cluster": {"purgeMode": "Directly"}})
            await asyncio.sleep(10)
            taints = [
                {
                    "key": "maintenance",
                    "effect": "NoExecute",
                    "timeAdded": rfc3339(world.control.clock.now()),
                }
            ]
            await world.admin.patch(CLUSTERS, "west", {"spec": {"taints": taints}})
            await asyncio.sleep(110)
            before = await world.replicas()
            await asyncio.sleep(20)
            return before, await world.replicas()

    assert run_manual(story()) == ({"east": 2, "west": 2}, {"east": 4})


def test_a_cluster_taken_from_the_result_is_emptied_at_once() -> None:
    async def story() -> tuple[dict[str, int], list[Object]]:
        async with fleet("east", "west") as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            patch = {"spec": {"placement": {"clusterAffinity": {"clusterNames": ["east"]}}}}
            await world.admin.patch(PROPAGATIONPOLICIES, "web", patch, namespace="default")
            await asyncio.sleep(5)
            return await world.replicas(), await world.works("west")

    assert run_manual(story()) == ({"east": 4}, [])


def test_an_empty_result_removes_the_workload_everywhere() -> None:
    def nowhere_later(spec: Object, clusters: Sequence[str]) -> list[Object]:
        return [] if spec.get("replicas") == 1 else [{"name": cluster, "replicas": 2} for cluster in clusters]

    async def story() -> tuple[dict[str, int], dict[str, int]]:
        async with fleet("east", "west", decide=nowhere_later, lively=False) as world:
            await deploy(world, 4)
            await asyncio.sleep(5)
            before = await world.replicas()
            await world.admin.scale(DEPLOYMENTS, "web", 1, namespace="default")
            await asyncio.sleep(5)
            assert "clusters" not in (await world.binding("web-deployment"))["spec"]
            return before, await world.replicas()

    assert run_manual(story()) == ({"east": 2, "west": 2}, {})


def test_a_task_that_suppresses_deletion_waits_for_a_person() -> None:
    async def story() -> tuple[dict[str, int], dict[str, int]]:
        async with fleet("east", "west") as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            found = await world.binding("web-deployment")
            waiting = {"producer": "me", "reason": "Testing", "purgeMode": "Never", "suppressDeletion": True}
            patch = evict(found["spec"], "west", waiting)
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", {"spec": patch}, namespace="default")
            await asyncio.sleep(1200)
            before = await world.replicas()
            found = await world.binding("web-deployment")
            tasks = [{**found["spec"]["gracefulEvictionTasks"][0], "suppressDeletion": False}]
            confirmed = {"spec": {"gracefulEvictionTasks": tasks}}
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", confirmed, namespace="default")
            await asyncio.sleep(5)
            return before, await world.replicas()

    # Once the task is gone the cluster may be chosen again, and is.
    assert run_manual(story()) == ({"east": 4, "west": 2}, {"east": 2, "west": 2})


def test_deleting_a_template_in_the_middle_of_an_eviction_leaves_nothing() -> None:
    async def story() -> dict[str, int]:
        async with fleet("east", "west", decide=in_one) as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            await world.clusters["east"].components.crash("lifegiver")
            await taint(world, "west")
            await asyncio.sleep(2)
            assert (await world.replicas()) == {"east": 4, "west": 4}
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(10)
            return await world.replicas()

    assert run_manual(story()) == {}
