"""Pools are never exceeded, and say what they use and whether they can be used."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model import resources
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, NODES, PODS
from karpool.model.kubernetes.meta import condition
from karpool_fleet.runtime.supervisor import Context
from tests.fleet.karpenter.acting import Stage, play, pod, pool, status_of


class Onlooker:
    """Adds up all claims of each pool that are not going, after every change of any of them."""

    def __init__(self, context: Context, seen: list[dict[str, int]]) -> None:
        self._claims = context.informers.of(NODECLAIMS, NodeClaim)
        self._claims.on_change(lambda _: seen.append(self._total()))

    def _total(self) -> dict[str, int]:
        total: dict[str, int] = {"nodes": 0}
        for claim in self._claims.objects():
            if not claim.is_deleting:
                resources.add(total, resources.parse(claim.status.capacity))
                total["nodes"] += 1
        return total

    async def run(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "nodes"), [({"cpu": "20"}, 3), ({"nodes": "2"}, 2), ({"cpu": "16", "memory": "40Gi"}, 2)]
)
def test_a_pool_is_filled_up_to_its_limits_and_never_beyond(limits: dict[str, str], nodes: int) -> None:
    seen: list[dict[str, int]] = []

    async def story(stage: Stage) -> None:
        stage.cluster.add("onlooker", lambda context: Onlooker(context, seen))
        await stage.pool(limits=limits)
        await stage.pods(60)
        await asyncio.sleep(300)
        assert len(await stage.nodes()) == nodes
        (event, *_) = await stage.events("FailedScheduling")
        assert "limit" in event["message"]

    play(story)
    allowed = resources.parse_all(limits)
    assert seen
    assert all(total.get(name, 0) <= most for total in seen for name, most in allowed.items())


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(
    cpus=st.lists(st.sampled_from(["300m", "1", "1500m", "3", "7"]), min_size=1, max_size=25),
    limit=st.integers(2, 40),
    nodes=st.integers(1, 6),
)
def test_limits_hold_whatever_pods_come(cpus: list[str], limit: int, nodes: int) -> None:
    seen: list[dict[str, int]] = []

    async def story(stage: Stage) -> None:
        stage.cluster.add("onlooker", lambda context: Onlooker(context, seen))
        await stage.pool(limits={"cpu": str(limit), "nodes": str(nodes)})
        for number, cpu in enumerate(cpus):
            await stage.admin.create(PODS, pod(f"p-{number}", cpu=cpu))
            await asyncio.sleep(number % 3)
        await asyncio.sleep(120)

    play(story)
    assert all(total.get("cpu", 0) <= limit * 1000 and total["nodes"] <= nodes for total in seen)


def test_when_a_limit_is_raised_the_pods_that_waited_get_nodes() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(limits={"nodes": "1"})
        await stage.pods(20)
        await asyncio.sleep(120)
        assert len(await stage.running()) == 7
        await stage.admin.patch(NODEPOOLS, "general", {"spec": {"limits": {"nodes": "5"}}})
        await stage.all_run(20)

    play(story)


def test_the_status_of_a_pool_shows_what_it_uses() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(8)
        await stage.all_run(8)
        await asyncio.sleep(6)
        status = (await stage.get_pool()).status
        assert status is not None
        assert status.nodes == len(await stage.nodes()) == 2
        assert status.resources is not None
        assert status.resources["cpu"] == "10"
        assert status.resources["nodes"] == "2"
        assert set(status.resources) == {"cpu", "memory", "pods", "ephemeral-storage", "nodes"}
        for claim in await stage.claims():
            await stage.admin.delete(NODECLAIMS, claim.name)
        for each in await stage.all_pods():
            await stage.admin.delete(PODS, each.name, namespace="default")
        await stage.empty()
        await asyncio.sleep(6)
        status = (await stage.get_pool()).status
        assert status is not None and status.resources is not None
        assert (status.nodes, status.resources["cpu"]) == (0, "0")

    play(story)


def test_a_pool_that_is_wrong_is_not_ready_says_why_and_harms_no_other() -> None:
    async def story(stage: Stage) -> None:
        wrong = pool("wrong", kinds=("free",), weight=50)
        await stage.admin.create(NODEPOOLS, wrong)
        await stage.pool("right")
        await stage.pods(1)
        await stage.all_run(1)
        status = (await stage.get_pool("wrong")).status
        assert status is not None
        ready, valid = (condition(status.conditions, kind) for kind in ("Ready", "ValidationSucceeded"))
        assert ready is not None and valid is not None
        assert (ready.status, ready.reason) == ("False", "UnhealthyDependents")
        assert (valid.status, valid.reason) == ("False", "NodePoolValidationFailed")
        assert "karpenter.sh/capacity-type" in (valid.message or "")
        assert [claim.pool_name for claim in await stage.claims()] == ["right"]

    play(story)


def test_a_pool_without_any_type_to_launch_says_so() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("gigantic",))
        await stage.pods(1)
        await asyncio.sleep(30)
        (event,) = await stage.events("NoCompatibleInstanceTypes")
        assert event["involvedObject"]["kind"] == "NodePool"
        assert await stage.claims() == []

    play(story)


def test_a_change_of_the_template_makes_nodes_drift_and_a_change_of_limits_does_not() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(1)
        await stage.all_run(1)
        await stage.admin.patch(NODEPOOLS, "general", {"spec": {"limits": {"cpu": "1000"}, "weight": 5}})
        await asyncio.sleep(5)
        (claim,) = await stage.claims()
        assert status_of(claim, "Drifted") == ("", "")

        template = {"spec": {"template": {"metadata": {"labels": {"team": "b"}}}}}
        await stage.admin.patch(NODEPOOLS, "general", template)
        await asyncio.sleep(5)
        (claim,) = await stage.claims()
        assert status_of(claim, "Drifted") == ("True", "NodePoolDrifted")

        await stage.admin.patch(NODEPOOLS, "general", {"spec": {"template": {"metadata": None}}})
        await asyncio.sleep(5)
        (claim,) = await stage.claims()
        assert status_of(claim, "Drifted") == ("", "")

    play(story)


def test_requirements_that_a_node_no_longer_meets_are_drift() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(1)
        await stage.all_run(1)
        wanted = pool(types=("large",))["spec"]
        await stage.admin.patch(NODEPOOLS, "general", {"spec": wanted})
        await asyncio.sleep(5)
        (claim,) = await stage.claims()
        assert status_of(claim, "Drifted") == ("True", "RequirementsDrifted")

    play(story)


def test_deleting_a_pool_drains_and_removes_its_nodes() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(3)
        await stage.all_run(3)
        await stage.admin.delete(NODEPOOLS, "general")
        await stage.empty()
        assert await stage.all_pods() == []  # evicted; nothing brings pods without an owner back

    play(story)


def test_nodes_of_nobody_are_used_and_left_alone() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        node = {
            "metadata": {"name": "own", "labels": {"kubernetes.io/hostname": "own"}},
            "status": {
                "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "10"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        await stage.admin.create(NODES, node)
        await stage.admin.patch(NODES, "own", {"status": node["status"]}, subresource="status")
        await stage.pods(3)
        await stage.all_run(3)
        assert await stage.claims() == []
        await stage.admin.delete(NODES, "own")
        await asyncio.sleep(5)
        assert await stage.nodes() == []

    play(story)
