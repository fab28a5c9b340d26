"""Karpenter's own consolidation, when it is switched on."""

import asyncio
from typing import Any

import pytest

from karpool.model.karpenter.objects import DISRUPTED, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.meta import ObjectMeta
from karpool.model.kubernetes.node import INSTANCE_TYPE, Node
from karpool_fleet.karpenter.disruption.candidates import DisruptionCandidate
from karpool_fleet.karpenter.disruption.methods import MULTI_NODE_MAX, multi_node
from karpool_fleet.karpenter.disruption.simulation import DisruptionCommand, NoMove
from karpool_fleet.karpenter.settings import KarpenterSettings
from tests.fleet.karpenter.acting import Stage, play, pod, status_of

ON = KarpenterSettings(consolidates=True)
ANY = {"budgets": [{"nodes": "100%"}]}


@pytest.mark.long
def test_empty_nodes_go_together_after_their_window_and_fifteen_seconds() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption={**ANY, "consolidateAfter": "30s", "consolidationPolicy": "WhenEmpty"})
        await stage.pods(15)
        await stage.all_run(15)
        assert len(await stage.claims()) == 3
        for each in await stage.all_pods():
            await stage.admin.delete(PODS, each.name, namespace="default")
        start = stage.now
        await asyncio.sleep(40)
        assert len(stage.cloud.instances) == 3
        await stage.empty()
        assert 45 <= stage.now - start <= 30 + 10 + 15 + 15 + 300
        assert {event["message"] for event in await stage.events("DisruptionTerminating")} == {
            "Disrupting Node: Empty"
        }

    play(story, settings=ON)


def test_a_node_that_is_not_empty_stays_under_the_policy_when_empty() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("large",), disruption={**ANY, "consolidationPolicy": "WhenEmpty"})
        await stage.pods(14)
        await stage.all_run(14)
        for number in range(1, 13):
            await stage.admin.delete(PODS, f"web-{number:03}", namespace="default")
        await asyncio.sleep(1200)
        assert len(await stage.nodes()) == 2
        assert await stage.events("Unconsolidatable")

    play(story, settings=ON)


def test_nodes_whose_pods_fit_elsewhere_are_deleted() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("large",), disruption=ANY)
        await stage.pods(21)
        await stage.all_run(21)
        assert len(await stage.nodes()) == 3
        by_node: dict[str, list[str]] = {}
        for each in await stage.all_pods():
            by_node.setdefault(each.spec.node_name, []).append(each.name)
        for names in by_node.values():
            for name in names[2:]:
                await stage.admin.delete(PODS, name, namespace="default")

        async def fewer() -> bool:
            return len(await stage.nodes()) == 1

        await stage.until(fewer, seconds=900)
        assert stage.cloud.launches == 3

    play(story, settings=ON)


def test_a_node_is_replaced_by_a_cheaper_one_that_is_ready_first() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption=ANY)
        await stage.pods(1, cpu="7")
        await stage.admin.create(PODS, pod("little", cpu="100m"))
        await stage.all_run(2)
        (old,) = await stage.claims()
        assert old.labels[INSTANCE_TYPE] == "large"
        await stage.admin.delete(PODS, "web-000", namespace="default")

        async def closing() -> bool:
            claims = await stage.claims()
            if len(claims) < 2:
                return False
            mine = next(claim for claim in claims if claim.name == old.name)
            assert status_of(mine, "DisruptionReason") == ("True", "Underutilized")
            (node,) = [n for n in await stage.nodes() if n.spec.provider_id == old.provider_id]
            assert DISRUPTED in (node.spec.taints or ())
            return True

        await stage.until(closing, seconds=900)

        async def deleted() -> bool:
            claims = {claim.name: claim for claim in await stage.claims()}
            if old.name in claims and claims[old.name].metadata.deletion_timestamp is None:
                return False
            (new,) = [each for name, each in claims.items() if name != old.name]
            assert status_of(new, "Initialized")[0] == "True"
            assert new.labels[INSTANCE_TYPE] == "small"
            return True

        await stage.until(deleted)
        await stage.gone(old.name)
        assert len(await stage.events("DisruptionLaunching")) == 1

    play(story, settings=ON)


@pytest.mark.long
def test_when_the_replacement_is_out_of_stock_the_node_is_opened_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption=ANY)
        await stage.pods(1, cpu="7")
        await stage.admin.create(PODS, pod("little", cpu="100m"))
        await stage.all_run(2)
        rule = stage.cloud.stock_out()
        (old,) = await stage.claims()
        await stage.admin.delete(PODS, "web-000", namespace="default")

        async def refused() -> bool:
            return stage.cloud.refusals > 0

        await stage.until(refused, seconds=900)
        await asyncio.sleep(5)
        (claim,) = await stage.claims()
        (node,) = await stage.nodes()
        assert (claim.name, claim.metadata.deletion_timestamp) == (old.name, None)
        assert status_of(claim, "DisruptionReason") == ("", "")
        assert DISRUPTED not in (node.spec.taints or ())
        rule.end()
        await stage.gone(old.name, seconds=1200)
        assert len(await stage.claims()) == 1

    play(story, settings=ON)


def test_budgets_bound_how_many_nodes_go_at_once() -> None:
    most = 0

    async def story(stage: Stage) -> None:
        nonlocal most
        budgets = [{"nodes": "1", "reasons": ["Empty"]}]
        await stage.pool(types=("small",), disruption={"budgets": budgets})
        await stage.pods(5)
        await stage.all_run(5)
        for each in await stage.all_pods():
            await stage.admin.delete(PODS, each.name, namespace="default")

        async def gone() -> bool:
            nonlocal most
            claims = await stage.claims()
            most = max(most, sum(claim.metadata.deletion_timestamp is not None for claim in claims))
            return not claims

        await stage.until(gone, seconds=3000)

    play(story, settings=ON)
    assert most == 1


def test_a_budget_of_none_stops_it_and_says_so() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption={"budgets": [{"nodes": "0"}]})
        await stage.pods(1)
        await stage.all_run(1)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(600)
        assert len(await stage.nodes()) == 1
        events = await stage.events("DisruptionBlocked")
        assert any("reason Empty due to blocking budget" in event["message"] for event in events)

    play(story, settings=ON)


def test_a_pod_that_arrives_during_validation_saves_its_node() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("large",), disruption=ANY)
        await stage.pods(1)
        await stage.all_run(1)
        await asyncio.sleep(30)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(14)  # the loop has seen it empty by now, and waits
        await stage.pods(1, prefix="late")
        await stage.all_run(1)
        await asyncio.sleep(20)
        (claim,) = await stage.claims()
        assert claim.metadata.deletion_timestamp is None

    play(story, settings=ON)


@pytest.mark.parametrize("what", ["node", "pod", "budget"])
def test_who_asks_not_to_be_disturbed_is_not(what: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption=ANY)
        wish = {"karpenter.sh/do-not-disrupt": "true"}
        await stage.pods(1, cpu="7")
        await stage.admin.create(PODS, pod("little", cpu="100m", annotations=wish if what == "pod" else {}))
        await stage.all_run(2)
        if what == "node":
            (node,) = await stage.nodes()
            await stage.admin.patch(NODES, node.name, {"metadata": {"annotations": wish}})
        if what == "budget":
            await stage.budget("web", maxUnavailable=0)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(900)
        (claim,) = await stage.claims()
        assert claim.labels[INSTANCE_TYPE] == "large"
        assert await stage.events("DisruptionBlocked")

    play(story, settings=ON)


@pytest.mark.long
def test_a_crash_in_the_middle_of_a_command_leaves_no_closed_node() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption=ANY)
        await stage.pods(1, cpu="7")
        await stage.admin.create(PODS, pod("little", cpu="100m"))
        await stage.all_run(2)
        (old,) = await stage.claims()
        await stage.admin.delete(PODS, "web-000", namespace="default")

        async def closed() -> bool:
            return any(DISRUPTED in (node.spec.taints or ()) for node in await stage.nodes())

        await stage.until(closed, seconds=900)
        await stage.cluster.components.crash("karpenter")
        stage.cluster.components.start("karpenter")
        await asyncio.sleep(10)
        mine = [each for each in await stage.claims() if each.name == old.name]
        assert all(status_of(claim, "DisruptionReason") == ("", "") for claim in mine)
        assert not await closed()
        await stage.gone(old.name, seconds=1800)
        await stage.empty(seconds=1800)  # the pod was evicted, and nothing brings it back

    play(story, settings=ON)


def test_switched_off_it_leaves_every_node_alone() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption=ANY)
        await stage.pods(1)
        await stage.all_run(1)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(3600)
        assert len(await stage.nodes()) == 1

    play(story)


@pytest.mark.parametrize(
    ("candidates", "works", "batch", "probes"),
    [
        (10, lambda size: size <= 4, 4, [6, 3, 4, 5]),
        (100, lambda size: True, 100, [51, 76, 88, 94, 97, 99, 100]),
        (1, lambda size: True, 0, []),
        (150, lambda size: True, MULTI_NODE_MAX + 1, [51, 76, 89, 95, 98, 100, 101]),
    ],
)
def test_the_largest_batch_is_searched_as_upstream_searches(
    candidates: int, works: Any, batch: int, probes: list[int]
) -> None:
    pool = NodePool(metadata=ObjectMeta(name="p"))
    some = [
        DisruptionCandidate(NodeClaim(), Node(metadata=ObjectMeta(name=str(number))), pool, (), 1.0, 2.0)
        for number in range(candidates)
    ]
    seen: list[int] = []

    def consolidate(tried: Any) -> DisruptionCommand | NoMove:
        seen.append(len(tried))
        return DisruptionCommand(tuple(tried)) if works(len(tried)) else NoMove("too many")

    found = multi_node(some, {"p": 1000}, consolidate)
    assert (len(found.move.candidates) if found else 0) == batch
    assert seen == probes
