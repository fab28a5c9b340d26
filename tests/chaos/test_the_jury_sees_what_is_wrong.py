"""A jury that never finds anything proves nothing: each kind of damage is done on purpose, and found."""

import asyncio
from typing import Any

import pytest

from karpool.consolidation.execution.node_marks import LEAVING, MOVE_MARK
from karpool.consolidation.execution.record import ACTIVE, MOVE, RECORD
from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.model.karpenter.objects import DO_NOT_DISRUPT
from karpool.model.kubernetes.api_resources import (
    CONFIGMAPS,
    NODECLAIMS,
    NODEPOOLS,
    NODES,
    PODS,
    RESOURCEBINDINGS,
    ListOptions,
)
from karpool.provisioning.placeholders.placeholder import KARPOOL, MANAGED_BY
from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import BESIDE_KARMADA, IN_MEMBERS, KARMADA, Company, company
from tests.chaos.replicas import double
from tests.fleet.living import deployment
from tests.gpu.whole import worker


async def without_controllers(at: Company) -> None:
    """Nobody takes back what we do."""
    for cluster, name in at.controllers:
        await at.cluster(cluster).components.crash(name)
        del at.cluster(cluster).components._builds[name]


@pytest.fixture(scope="module")
def seen() -> list[str]:
    """What the jury says of a fleet that was damaged in every way it knows."""

    async def story() -> list[str]:
        async with company() as at:
            assert not at.jury.when_calm()
            await at.install("local", 8)
            await at.place("web", 9)
            assert await at.until(at.is_calm, within=600)
            await without_controllers(at)
            grows = at.people("grows")
            nodes = (await grows.list(NODES)).items
            await _budget_of_none(at)
            marked = {"metadata": {"annotations": {MOVE_MARK: "karpool-move-x"}}}
            for node in nodes:
                await grows.patch(NODES, node["metadata"]["name"], marked)
            await grows.delete(NODECLAIMS, (await grows.list(NODECLAIMS)).items[0]["metadata"]["name"])
            await at.people("fixed").patch(
                NODES, "fixed-m7i-xlarge-0", {"spec": {"unschedulable": True}} | marked
            )
            leaving = {"metadata": {"labels": {LEAVING: "true"}, "annotations": {DO_NOT_DISRUPT: "true"}}}
            await at.people("fixed").patch(NODES, "fixed-m7i-xlarge-2", leaving)
            await _leave_things(at)
            await _overfill(at)
            await _break_disruption_budget(at)
            promised = [{"name": "fixed", "replicas": 99}]
            name = "web-deployment"
            await at.people(KARMADA).patch(
                RESOURCEBINDINGS, name, {"spec": {"clusters": promised}}, namespace="default"
            )
            await asyncio.sleep(1)
            return at.jury.when_calm()

    return run_manual(story())


async def _budget_of_none(at: Company) -> None:
    budgets = {"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}}
    await at.people("grows").patch(NODEPOOLS, "general", budgets)


async def _overfill(at: Company) -> None:
    """A pod that somebody puts where there is neither room for it nor what it wants."""
    spec = deployment("huge", 1, cpu="100", nodeSelector={"disk": "ssd"})["spec"]["template"]["spec"]
    meta = {"name": "huge", "namespace": "default"}
    await at.people("fixed").create(
        PODS, {"metadata": meta, "spec": spec | {"nodeName": "fixed-m7i-xlarge-1"}}
    )


async def _break_disruption_budget(at: Company) -> None:
    """Two pods at once where one may go, of a server that does not look at budgets."""
    grows = at.people("grows")
    budgets = at.cluster("grows").server.cluster.budgets
    budgets.selecting = lambda pod: []  # type: ignore[method-assign]
    chosen = ListOptions("default", label_selector="app=local")
    for pod in (await grows.list(PODS, chosen)).items[:2]:
        await grows.evict(pod["metadata"]["name"], namespace="default")


async def _leave_things(at: Company) -> None:
    left: dict[str, Any] = deployment("left", 1)["spec"]["template"]["spec"]
    labels = {MANAGED_BY: KARPOOL}
    meta = {"name": "left", "namespace": "default", "labels": labels}
    await at.people("gpu").create(PODS, {"metadata": meta, "spec": left})
    await at.people("gpu").create(PODS, worker("waiting"))
    spec = {"pool": "shared", "model": "*", "vramGiB": 8, "tflops": 30}
    record = {"metadata": {"name": "left", "namespace": "karpool-smart-pods"}, "spec": spec}
    await at.people("gpu").create(SCALEUPS, record)
    labels = {RECORD: MOVE, ACTIVE: "true"}
    record = {"metadata": {"name": "karpool-move-x", "namespace": "default", "labels": labels}}
    await at.people("gpu").create(CONFIGMAPS, record)


@pytest.mark.parametrize(
    "sentence",
    [
        "web-deployment gets 99 in fixed",
        "binding default/web-deployment: 99 of 9 replicas",
        "nodes go, and 0 may",
        "fixed: node fixed-m7i-xlarge-0 is still cordoned",
        "fixed: node fixed-m7i-xlarge-0 still has consolidation.karpool.dev/move",
        "fixed: node fixed-m7i-xlarge-2 still has consolidation.karpool.dev/leaving",
        "fixed: node fixed-m7i-xlarge-2 still has karpenter.sh/do-not-disrupt",
        "fixed: node fixed-m7i-xlarge-1: 10",
        "fixed: pod default/huge on node fixed-m7i-xlarge-1: selector asks for disk=ssd",
        "of the 7 pods that budget default/local wants healthy",
        "gpu: move default/karpool-move-x is still under way",
        "gpu: placeholder default/left is left",
        "gpu: scale-up karpool-smart-pods/left is left",
        "gpu: pod default/waiting waits for the GPU scaler",
    ],
)
def test_damage_is_found(seen: list[str], sentence: str) -> None:
    assert [each for each in seen if sentence in each], "\n".join(seen)


@pytest.mark.long
def test_a_promise_that_is_not_kept_is_found() -> None:
    async def story() -> list[str]:
        async with company() as at:
            await at.place("web", 2)
            await asyncio.sleep(0.05)
            return at.jury.when_calm()

    assert [each for each in run_manual(story()) if "still promised" in each]


@pytest.mark.long
def test_a_write_without_the_lease_is_found() -> None:
    async def story() -> list[str]:
        async with company() as at:
            assert {name for _, name in at.controllers} == {*BESIDE_KARMADA, *IN_MEMBERS}
            fencing = await double(at)
            await asyncio.sleep(20)
            assert not fencing.violations
            leader = fencing.holder("gpu", "consolidator")
            other = "consolidator" if leader != "consolidator" else "consolidator-2"
            meta = {"name": "x", "namespace": "default"}
            spec = deployment("x", 1)["spec"]["template"]["spec"]
            await at.cluster("gpu").client(other).create(PODS, {"metadata": meta, "spec": spec})
            return fencing.violations

    (found,) = run_manual(story())
    assert "while consolidator" in found
