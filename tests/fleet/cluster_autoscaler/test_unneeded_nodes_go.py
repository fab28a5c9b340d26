"""A node that is little used and whose pods have another place goes after ten minutes; no other does."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from karpool.model.kubernetes.api_resources import NODES, PDBS, PODS
from karpool.model.kubernetes.meta import decode
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import CompiledPdb
from karpool.model.labels import LabelMatcher
from karpool_fleet.cluster_autoscaler.groups import NodeGroup
from karpool_fleet.cluster_autoscaler.scale_down import keeps_node
from tests.fleet.cluster_autoscaler.acting import Stage
from tests.fleet.cluster_autoscaler.test_groups_grow_for_pods import ONE_CPU, play

GROUP = NodeGroup("small", "small", zones=("a",), max_size=6)
MINUTE = 60.0
# Up to here a scale-up holds scale-down back.
SETTLED = 11 * MINUTE


async def shrunk(on: Stage, replicas: int, **spec: Any) -> None:
    """Three nodes, of which one or more have become too many."""
    await on.deploy("web", 6, ONE_CPU, **spec)
    await asyncio.sleep(2 * MINUTE)
    assert len(on.machines("small")) == 3
    await on.scale("web", replicas)


def test_empty_nodes_go_after_ten_minutes_and_not_before() -> None:
    async def story(on: Stage) -> None:
        await shrunk(on, 0)
        await asyncio.sleep(MINUTE)
        assert (await on.group("small"))["scaleDown"] | {"lastProbeTime": 0, "lastTransitionTime": 0} == {
            "status": "CandidatesPresent",
            "candidates": 3,
            "lastProbeTime": 0,
            "lastTransitionTime": 0,
        }
        taints = [taint.key for node in await on.nodes() for taint in node.spec.taints or ()]
        assert taints == ["DeletionCandidateOfClusterAutoscaler"] * 3
        await asyncio.sleep(8 * MINUTE)
        assert len(on.machines("small")) == 3
        await asyncio.sleep(2.5 * MINUTE)
        assert not on.machines("small")
        assert not await on.nodes()
        said = (await on.reasons("Node"))["ScaleDown"]
        assert said.count("node removed by cluster autoscaler") == 3

    play([GROUP], story)


async def two_nodes(on: Stage) -> str:
    """One with a pod that must stay, one with a pod that may move there; returns the latter's name."""
    stay = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    await on.deploy("anchor", 1, {"cpu": "1"}, annotations=stay)
    await on.deploy("big", 1, {"cpu": "1500m"})
    await asyncio.sleep(2 * MINUTE)
    (anchored,) = [pod.spec.node_name for pod in await on.pods() if pod.labels["app"] == "anchor"]
    await on.client.patch(NODES, anchored, {"spec": {"unschedulable": True}})
    await on.deploy("web", 1, {"cpu": "400m"})
    await asyncio.sleep(MINUTE)
    await on.client.patch(NODES, anchored, {"spec": {"unschedulable": False}})
    await on.scale("big", 0)
    (other,) = [machine.id for machine in on.machines("small") if machine.id != anchored]
    assert [pod.spec.node_name for pod in await on.pods() if pod.labels["app"] == "web"] == [other]
    return other


async def is_leaving(on: Stage) -> bool:
    taints = [taint.key for node in await on.nodes() for taint in node.spec.taints or ()]
    return "ToBeDeletedByClusterAutoscaler" in taints


def test_pods_of_a_little_used_node_move_elsewhere() -> None:
    async def story(on: Stage) -> None:
        other = await two_nodes(on)
        await asyncio.sleep(SETTLED + 4 * MINUTE)
        assert other not in on.cloud.instances
        assert len(on.machines("small")) == 1
        assert len(await on.pods(on_nodes=True)) == 2
        assert "ScaleDown" in await on.reasons("Pod")

    play([GROUP], story)


def test_a_group_keeps_its_least_size() -> None:
    async def story(on: Stage) -> None:
        await shrunk(on, 0)
        await asyncio.sleep(30 * MINUTE)
        assert len(on.machines("small")) == 2
        on.cloud.fail_zone("a")
        on.cloud.restore_zone("a")
        await asyncio.sleep(MINUTE)
        assert len(on.machines("small")) == 2

    play([NodeGroup("small", "small", zones=("a",), min_size=2, max_size=6)], story)


def test_a_node_that_asks_to_stay_stays() -> None:
    async def story(on: Stage) -> None:
        await shrunk(on, 0)
        kept = (await on.nodes())[0].name
        wish = {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}}}
        await on.client.patch(NODES, kept, wish)
        await asyncio.sleep(20 * MINUTE)
        assert [machine.id for machine in on.machines("small")] == [kept]

    play([GROUP], story)


def test_a_half_used_node_stays() -> None:
    async def story(on: Stage) -> None:
        await on.deploy("web", 2, {"cpu": "1"}, topologySpreadConstraints=[])
        await asyncio.sleep(40 * MINUTE)
        assert len(on.machines("small")) == 1

    play([GROUP], story)


def test_a_drain_that_a_budget_forbids_is_given_up_and_the_node_lives_on() -> None:
    async def story(on: Stage) -> None:
        other = await two_nodes(on)
        # The budget is there when pods are to be evicted, and not yet when the node is judged.
        for _ in range(3600):
            if await is_leaving(on):
                break
            await asyncio.sleep(1)
        await on.client.create(
            PDBS,
            {
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            },
        )
        before = {pod.metadata.uid for pod in await on.pods()}
        await asyncio.sleep(5 * MINUTE)
        assert {pod.metadata.uid for pod in await on.pods()} == before
        assert "ScaleDownFailed" in await on.reasons("Node")
        assert other in on.cloud.instances
        assert not await is_leaving(on)

    play([GROUP], story)


def test_a_pod_without_a_controller_keeps_its_node() -> None:
    async def story(on: Stage) -> None:
        await on.client.create(
            PODS,
            {
                "metadata": {"name": "bare", "namespace": "default"},
                "spec": {
                    "containers": [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "100m"}}}]
                },
            },
        )
        await asyncio.sleep(40 * MINUTE)
        assert len(on.machines("small")) == 1

    play([NodeGroup("small", "small", zones=("a",), min_size=0, max_size=6)], story)


REPLICATED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "controller": True}]
}
SAFE = {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}
UNSAFE = {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}
SPENT = CompiledPdb("default", "b", LabelMatcher(()), 0, False, False)
OPEN = CompiledPdb("kube-system", "b", LabelMatcher(()), 1, False, False)
DISK = {"volumes": [{"name": "scratch", "emptyDir": {}}]}


@pytest.mark.parametrize(
    ("metadata", "spec", "budgets", "reason"),
    [
        ({}, {}, (), "no controller"),
        (SAFE, {}, (), None),
        (REPLICATED, {}, (), None),
        (REPLICATED | UNSAFE, {}, (), "safe-to-evict"),
        (REPLICATED, {}, (SPENT,), "allows no disruption"),
        (REPLICATED | SAFE, {}, (SPENT,), "allows no disruption"),
        (REPLICATED, DISK, (), "local storage, volume scratch"),
        (REPLICATED | SAFE, DISK, (), None),
        (REPLICATED, {"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]}, (), None),
        (REPLICATED, {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, (), "local storage"),
        (REPLICATED | {"namespace": "kube-system"}, {}, (), "system pod"),
        (REPLICATED | {"namespace": "kube-system"}, {}, (OPEN,), None),
    ],
)
def test_what_keeps_a_pod_where_it_is(
    metadata: dict[str, Any], spec: dict[str, Any], budgets: Sequence[CompiledPdb], reason: str | None
) -> None:
    pod = decode({"metadata": {"name": "p", "namespace": "default", **metadata}, "spec": spec}, Pod)
    found = keeps_node(pod, lambda namespace: [budget for budget in budgets if budget.namespace == namespace])
    assert (found is None) if reason is None else (found is not None and reason in found)
