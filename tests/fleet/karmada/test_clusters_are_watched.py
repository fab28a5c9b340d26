"""Cluster objects tell what members have, take work only while they are well, and leave in order."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.model import resources
from karpool.model.kubernetes.api_resources import (
    CLUSTERS,
    CRDS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    PODS,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
    WORKS,
    ObjectKey,
)
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karmada.members.members import JoinedMember, default_models, join
from karpool_fleet.karmada.members.summary import Models, SummaryBuilder
from karpool_fleet.karmada.propagation.names import execution_space
from tests.fleet.karmada.acting import Fleet, condition, deploy, deployment, fleet, policy
from tests.fleet.karmada.test_templates_reach_members import CRD


def taints(cluster: Object) -> list[tuple[str, str]]:
    found = cluster["spec"].get("taints") or []
    return [(each["key"].partition("/")[2], each["effect"]) for each in found]


def pod(name: str, *, node: str = "", cpu: str = "1", memory: str = "1Gi", phase: str = "Running") -> Object:
    requests = {"cpu": cpu, "memory": memory}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "c", "resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": phase},
    }


def test_a_member_that_joins_becomes_ready_and_tells_what_it_has() -> None:
    async def story() -> tuple[Object, Object]:
        async with fleet("east", lively=False, region="eu", zones=("a", "b"), provider="acme") as world:
            there = world.at("east")
            await there.create(PODS, pod("bound", node="node-a", cpu="3", memory="8Gi"))
            await there.create(PODS, pod("waiting", cpu="500m"))
            await asyncio.sleep(11)
            return await world.cluster("east"), await world.admin.get(NAMESPACES, execution_space("east"))

    cluster, _ = run_manual(story())
    spec, status = cluster["spec"], cluster["status"]
    assert (spec["syncMode"], spec["region"], spec["zones"], spec["provider"]) == (
        "Push",
        "eu",
        ["a", "b"],
        "acme",
    )
    assert condition(cluster, "Ready") == ("True", "ClusterReady")
    assert condition(cluster, "CompleteAPIEnablements") == ("True", "Complete")
    assert taints(cluster) == []
    assert status["kubernetesVersion"].startswith("v1.")
    apps = next(each for each in status["apiEnablements"] if each["groupVersion"] == "apps/v1")
    assert {"name": "deployments", "kind": "Deployment"} in apps["resources"]
    assert status["nodeSummary"] == {"totalNum": 1, "readyNum": 1}
    summary = status["resourceSummary"]
    assert summary["allocatable"] == {"cpu": "16", "memory": "64Gi", "pods": "110"}
    assert summary["allocated"] == {"cpu": "3", "memory": "8Gi", "pods": "1"}
    assert summary["allocating"] == {"cpu": "500m", "memory": "1Gi", "pods": "1"}
    # 13 cores and 56 GiB are free: grade 4 by cores, 3 by memory.
    assert [each["grade"] for each in summary["allocatableModelings"] if each["count"]] == [3]


def test_the_default_grades_are_those_of_upstream() -> None:
    floors = [[each["min"] for each in model["ranges"]] for model in default_models()]
    assert floors == [
        ["0", "0"],
        ["1", "4Gi"],
        ["2", "16Gi"],
        ["4", "32Gi"],
        ["8", "64Gi"],
        ["16", "128Gi"],
        ["32", "256Gi"],
        ["64", "512Gi"],
        ["128", "1024Gi"],
    ]


def test_a_kind_that_a_member_learns_is_listed() -> None:
    async def story() -> list[str]:
        async with fleet("east", lively=False) as world:
            await asyncio.sleep(11)
            await world.at("east").create(CRDS, CRD)
            await asyncio.sleep(11)
            status = (await world.cluster("east"))["status"]
            return [each["groupVersion"] for each in status["apiEnablements"]]

    assert "example.com/v1" in run_manual(story())


def test_between_two_looks_the_summary_is_old() -> None:
    async def story() -> list[str]:
        async with fleet("east", lively=False) as world:
            await asyncio.sleep(11)
            seen = []
            await world.at("east").create(PODS, pod("a", node="node-a"))
            for _ in range(2):
                summary = (await world.cluster("east"))["status"]["resourceSummary"]
                seen.append(summary.get("allocated", {}).get("cpu", "0"))
                await asyncio.sleep(10)
            return seen

    assert run_manual(story()) == ["0", "1"]


def test_an_idle_member_costs_no_writes() -> None:
    async def story() -> tuple[str, str]:
        async with fleet("east", lively=False) as world:
            await asyncio.sleep(30)
            before = (await world.cluster("east"))["metadata"]["resourceVersion"]
            await asyncio.sleep(600)
            return before, (await world.cluster("east"))["metadata"]["resourceVersion"]

    before, after = run_manual(story())
    assert before == after


@pytest.mark.parametrize(("fault", "reason"), [(0, "ClusterNotReachable"), (503, "ClusterNotReady")])
def test_a_member_that_fails_is_not_ready_after_the_threshold_and_ready_again_after_another(
    fault: int, reason: str
) -> None:
    async def story() -> list[tuple[tuple[str, str], list[tuple[str, str]]]]:
        seen: list[tuple[tuple[str, str], list[tuple[str, str]]]] = []

        async def look() -> None:
            cluster = await world.cluster("east")
            seen.append((condition(cluster, "Ready"), taints(cluster)))

        async with fleet("east", lively=False) as world:
            await asyncio.sleep(20)
            cut = world.clusters["east"].faults.fail("karmada", status=fault, path="readyz")
            await asyncio.sleep(20)
            await look()
            await asyncio.sleep(25)
            await look()
            cut.end()
            await asyncio.sleep(15)
            await look()
            await asyncio.sleep(35)
            await look()
        return seen

    assert run_manual(story()) == [
        (("True", "ClusterReady"), []),
        (("False", reason), [("not-ready", "NoSchedule")]),
        (("False", reason), [("not-ready", "NoSchedule")]),
        (("True", "ClusterReady"), []),
    ]


def test_taints_of_others_are_left_alone() -> None:
    async def story() -> list[tuple[str, str]]:
        async with fleet("east", lively=False) as world:
            own = [{"key": "team/x", "effect": "NoExecute"}]
            await world.admin.patch(CLUSTERS, "east", {"spec": {"taints": own}})
            world.clusters["east"].faults.fail("karmada", status=0)
            await asyncio.sleep(60)
            return taints(await world.cluster("east"))

    assert run_manual(story()) == [("x", "NoExecute"), ("not-ready", "NoSchedule")]


def test_a_cluster_nobody_can_reach_is_not_ready() -> None:
    async def story() -> Object:
        async with fleet("east", lively=False) as world:
            await join(world.admin, JoinedMember("nowhere", world.clusters["east"].client))
            await asyncio.sleep(5)
            return await world.cluster("nowhere")

    cluster = run_manual(story())
    assert condition(cluster, "Ready") == ("False", "StatusCollectionFailed")
    assert taints(cluster) == [("not-ready", "NoSchedule")]


def test_work_waits_for_a_member_to_come_back() -> None:
    async def story() -> tuple[dict[str, int], dict[str, int]]:
        async with fleet("east", lively=False) as world:
            await asyncio.sleep(11)
            cut = world.clusters["east"].faults.fail("karmada", status=0)
            await asyncio.sleep(60)
            await deploy(world, 3, placement={"clusterAffinity": {"clusterNames": ["east"]}})
            # The stand-in keeps away from tainted clusters; a person insists.
            await world.control.components.crash("scheduler")
            await asyncio.sleep(5)
            result = {"spec": {"clusters": [{"name": "east", "replicas": 3}]}}
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", result, namespace="default")
            await asyncio.sleep(60)
            before = await world.replicas()
            cut.end()
            await asyncio.sleep(60)
            return before, await world.replicas()

    assert run_manual(story()) == ({}, {"east": 3})


def test_a_member_that_hangs_does_not_hold_the_others_up() -> None:
    async def story() -> tuple[int, int]:
        async with fleet("east", "west", lively=False) as world:
            await asyncio.sleep(11)
            world.clusters["west"].faults.hang("karmada")
            kind = [{"apiVersion": "apps/v1", "kind": "Deployment"}]
            await world.admin.create(PROPAGATIONPOLICIES, policy(resourceSelectors=kind))
            for number in range(30):
                await world.admin.create(DEPLOYMENTS, deployment(f"web-{number}", 2))
            await asyncio.sleep(2)
            found = [(await world.at(name).list(DEPLOYMENTS)).items for name in ("east", "west")]
            return len(found[0]), len(found[1])

    assert run_manual(story()) == (30, 0)


async def _gone(world: Fleet, name: str) -> bool:
    try:
        await world.cluster(name)
    except NotFound:
        return True
    return False


def test_a_member_that_leaves_is_emptied_first() -> None:
    async def story() -> tuple[bool, dict[str, int], list[Object], Object]:
        async with fleet("east", "west") as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            await world.admin.delete(CLUSTERS, "west")
            await asyncio.sleep(30)
            works = [w for w in (await world.admin.list(WORKS)).items if "west" in w["metadata"]["namespace"]]
            return (
                await _gone(world, "west"),
                await world.replicas(),
                works,
                await world.binding("web-deployment"),
            )

    gone, replicas, works, binding = run_manual(story())
    assert gone
    assert replicas == {"east": 4}
    assert works == []
    assert binding["spec"]["clusters"] == [{"name": "east", "replicas": 4}]


def test_a_member_is_gone_only_when_no_result_names_it() -> None:
    async def story() -> bool:
        async with fleet("east", lively=False) as world:
            await world.control.components.crash("scheduler")
            await deploy(world, 4)
            await asyncio.sleep(2)
            # Without a signature the taint manager does not touch it.
            result = {"spec": {"clusters": [{"name": "east", "replicas": 4}]}}
            await world.admin.patch(RESOURCEBINDINGS, "web-deployment", result, namespace="default")
            await asyncio.sleep(5)
            await world.admin.delete(CLUSTERS, "east")
            await asyncio.sleep(30)
            return await _gone(world, "east")

    assert not run_manual(story())


def test_a_member_that_leaves_while_it_is_away_does_not_hold_the_fleet_up() -> None:
    async def story() -> tuple[bool, dict[str, int]]:
        async with fleet("east", "west", lively=False) as world:
            await deploy(world, 4)
            await asyncio.sleep(10)
            world.clusters["west"].faults.fail("karmada", status=0)
            await asyncio.sleep(60)
            await world.admin.delete(CLUSTERS, "west")
            await asyncio.sleep(60)
            return await _gone(world, "west"), await world.replicas()

    # What the lost member holds nobody could take away.
    assert run_manual(story()) == (True, {"east": 4, "west": 2})


MODELS: list[Object] = [
    {
        "grade": grade,
        "ranges": [
            {"name": "cpu", "min": str(2 * grade), "max": str(2 * grade + 2)},
            {"name": "memory", "min": f"{4 * grade}Gi", "max": f"{4 * grade + 4}Gi"},
        ],
    }
    for grade in range(4)
]


def naive_summary(
    pods: dict[str, Object], nodes: dict[str, Object]
) -> tuple[dict[str, dict[str, int]], list[int]]:
    """Count everything again from the start."""
    totals: dict[str, dict[str, int]] = {"allocatable": {}, "allocated": {}, "allocating": {}}
    free = {name: resources.parse(node["status"]["allocatable"]) for name, node in nodes.items()}
    for amounts in free.values():
        resources.add(totals["allocatable"], amounts)
    for each in pods.values():
        if each["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        needs = {**resources.parse(each["spec"]["containers"][0]["resources"]["requests"]), "pods": 1}
        node = each["spec"].get("nodeName")
        resources.add(totals["allocated" if node else "allocating"], needs)
        if node in free:
            resources.add(free[node], {name: -units for name, units in needs.items()})
    counts = [0] * len(MODELS)
    for amounts in free.values():
        if amounts["pods"] > 0:
            grades = [
                model["grade"]
                for model in MODELS
                if all(
                    amounts.get(each["name"], 0) >= resources.amount(each["name"], each["min"])
                    for each in model["ranges"]
                )
            ]
            counts[max(grades, default=0)] += 1
    return totals, counts


_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("pod"),
            st.integers(0, 5),
            st.sampled_from(["", "n0", "n1"]),
            st.sampled_from(["500m", "2", "4"]),
            st.sampled_from(["Pending", "Running", "Succeeded"]),
        ),
        st.tuples(st.just("no pod"), st.integers(0, 5)),
        st.tuples(
            st.just("node"), st.integers(0, 1), st.sampled_from(["4", "8"]), st.sampled_from(["2", "9"])
        ),
        st.tuples(st.just("no node"), st.integers(0, 1)),
    ),
    max_size=30,
)


@given(_steps)
def test_the_summary_kept_up_to_date_is_the_one_counted_again(steps: list[Any]) -> None:
    summary, pods, nodes = SummaryBuilder(), {}, {}
    summary.set_models(Models(MODELS))
    for kind, number, *about in steps:
        name = f"{'n' if 'node' in kind else 'p'}{number}"
        key = ObjectKey("", name)
        if kind == "pod":
            pods[name] = pod(name, node=about[0], cpu=about[1], phase=about[2])
            summary.on_pod(ObjectChange("MODIFIED", key, decode(pods[name], Pod)))
        elif kind == "node":
            amounts = {"cpu": about[0], "memory": "8Gi", "pods": about[1]}
            nodes[name] = {"metadata": {"name": name}, "status": {"allocatable": amounts}}
            summary.on_node(ObjectChange("MODIFIED", key, decode(nodes[name], Node)))
        elif kind == "no pod":
            pods.pop(name, None)
            summary.on_pod(ObjectChange("DELETED", key, None))
        else:
            nodes.pop(name, None)
            summary.on_node(ObjectChange("DELETED", key, None))

        told = summary.resources(MODELS)

        totals, counts = naive_summary(pods, nodes)
        for field, amounts in totals.items():
            assert resources.parse(told.get(field)) == {n: u for n, u in amounts.items() if u}
        assert [each["count"] for each in told["allocatableModelings"]] == counts
        assert summary.nodes()["totalNum"] == len(nodes)


def test_nodes_that_come_and_go_are_counted() -> None:
    async def story() -> list[Object]:
        seen = []
        async with fleet("east", lively=False) as world:
            await world.at("east").create(NODES, {"metadata": {"name": "node-b"}})
            await asyncio.sleep(11)
            seen.append((await world.cluster("east"))["status"]["nodeSummary"])
            await world.at("east").delete(NODES, "node-a")
            await asyncio.sleep(11)
            seen.append((await world.cluster("east"))["status"]["nodeSummary"])
        return seen

    assert run_manual(story()) == [{"totalNum": 2, "readyNum": 1}, {"totalNum": 1, "readyNum": 0}]
