"""Plans are carried out in living clusters: nodes go, pods stay, nothing is left, and it comes to rest."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator
from karpool.consolidation.execution.plan_application import summary
from karpool.consolidation.execution.record import MovePhase
from karpool.consolidation.planning.plan import ConsolidationPlan, MoveKind
from karpool.consolidation.policy.policy import PolicyName, PolicyOverride
from karpool.kube.api.client import Client
from karpool.manager.manager import Manager
from karpool.manager.stop import Stop
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODES, ApiResource
from tests.consolidation.executing import FREELY, QUICK, Play, play
from tests.fleet.karpenter.acting import catalogue


def test_half_empty_nodes_go_and_their_pods_move_to_others() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(4)
        p.start()
        await p.over()
        assert len(await p.stage.nodes()) == 2
        await p.running(8)
        assert await p.leaks() == []
        assert await p.steady()
        for record in await p.records():
            assert record.phase is MovePhase.DONE
            assert record.realised == pytest.approx(record.move.savings_per_hour)
            assert record.extra_nodes == ()
            assert record.disturbed == 2 * len(record.nodes)

    play(story)


def test_a_node_that_is_too_large_is_replaced_and_the_new_one_comes_first() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        (record,) = await p.over()
        assert (record.phase, record.move.kind) == (MovePhase.DONE, MoveKind.REPLACE)
        assert await p.types() == ["small"]
        (node,) = await p.stage.nodes()
        assert record.arrived == (node.name,)
        assert record.realised == pytest.approx(0.30)
        await p.running(1)
        assert await p.leaks() == []
        assert await p.steady()

    play(story)


@pytest.mark.long
def test_one_node_becomes_two_smaller_ones_of_a_tainted_pool() -> None:
    async def story(p: Play) -> None:
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        bears = {"tolerations": [{"key": "team", "operator": "Exists"}]}
        pool = {"template": {"taints": [taint]}, "disruption": FREELY}
        await p.stage.pool("general", types=("small", "large"), **pool)
        await p.deploy("big", 1, cpu="4", **bears)
        await p.deploy("web", 2, cpu="1500m", **bears)
        await p.running(3)
        assert await p.types() == ["large"]
        await p.scale("big", 0)
        await p.running(2)
        p.start()
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE and len(set(record.arrived)) == 2
        assert await p.types() == ["small", "small"]
        assert record.realised == pytest.approx(0.20)
        await p.running(2)
        assert await p.leaks() == [] and await p.steady()

    play(story)


def test_an_empty_node_goes() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(1)
        await p.scale("web", 0)
        await p.running(0)
        p.start()
        (record,) = await p.over()
        assert (record.phase, record.move.kind) == (MovePhase.DONE, MoveKind.EMPTY)
        assert await p.stage.nodes() == [] and await p.stage.claims() == []
        assert await p.steady()

    play(story)


@pytest.mark.long
def test_pod_and_pool_budgets_hold_at_every_write() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(6, budgets=[{"nodes": "1"}])
        await p.stage.budget("web", maxUnavailable=1)
        await asyncio.sleep(5)
        p.start()

        async def three_are_left() -> bool:
            return len(await p.stage.nodes()) == 3

        await p.stage.until(three_are_left, seconds=1800)
        await p.over()
        await p.running(12)
        assert p.budgets.deletions == 3 and p.judge.evictions == 6
        assert await p.leaks() == [] and await p.steady()

    play(story)


def test_a_cordon_that_was_there_before_is_left_alone() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        (node,) = await p.stage.nodes()
        await p.stage.admin.patch(NODES, node.name, {"spec": {"unschedulable": True}})
        out = p.stage.cloud.stock_out("small")
        p.start()
        await p.reached(MovePhase.ROLLED_BACK)
        (after,) = await p.stage.nodes()
        assert after.spec.unschedulable
        assert await p.leaks() == [f"{node.name}: cordoned"]
        out.end()

    play(story)


def test_two_that_run_at_once_do_what_one_does() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start("one")
        p.start("other")
        records = await p.over()
        assert [record.phase for record in records] == [MovePhase.DONE]
        assert await p.types() == ["small"] and await p.leaks() == []
        assert await p.steady()

    play(story)


@pytest.mark.long
def test_a_dry_run_writes_nothing() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2)
        plans: list[ConsolidationPlan] = []
        stop = Stop()
        client = p.stage.cluster.client("dry")
        looking = Manager.of(
            client, lambda env: Consolidator(env, QUICK, market=Market(catalogue()), show=plans.append)
        )
        task = asyncio.ensure_future(looking.run(stop))
        await asyncio.sleep(60)
        stop.set()
        await task
        assert len(plans) > 3
        first, *later = (plan.certificate for plan in plans)
        assert first is not None and first.possible_per_hour is not None
        assert not any(later), "the next one is hours away"
        assert p.stage.cluster.faults.writes.get("dry", 0) == 0
        assert len(await p.stage.nodes()) == 2

    play(story)


def test_once_makes_one_plan_and_ends_when_it_is_carried_out() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(2)
        client = p.stage.cluster.client("once")
        manager = Manager.of(
            client, lambda env: Consolidator(env, replace(QUICK, once=True), market=Market(catalogue()))
        )
        await manager.run()
        found = manager.runnable
        (record,) = await p.records()
        assert record.phase is MovePhase.DONE
        assert record.bound is not None and record.bound.share == pytest.approx(1.0, abs=1e-4)
        assert len(await p.stage.nodes()) == 1
        assert summary(found.ended).startswith("1 moves done, 0 rolled back, 0 not started")

    play(story)


@pytest.mark.long
def test_a_move_that_was_paid_for_is_not_rolled_back_by_its_own_score() -> None:
    """Half the price is just worth it. With the new node in the pool's bill, the same move scores less."""

    async def story(p: Play) -> None:
        await p.stage.pool("general", types=("medium", "large"), disruption=FREELY)
        await p.deploy("big", 1, cpu="4")
        await p.deploy("web", 6, cpu="500m")
        await p.running(7)
        assert await p.types() == ["large"]
        await p.scale("big", 0)
        await p.running(6)
        p.start()
        (record,) = await p.over()
        assert record.phase is MovePhase.DONE, record.message
        assert record.attempt == 1
        assert await p.types() == ["medium"]
        await p.running(6)

    play(story, replace(QUICK, plan=replace(QUICK.plan, override=PolicyOverride(PolicyName.BALANCED))))


@pytest.mark.long
def test_a_deletion_names_the_claim_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its uid: one of the same name that came since is another, and the server refuses."""
    asked = []
    delete = Client.delete

    async def watched(self: Client, resource: ApiResource, name: str, **options: Any) -> Any:
        if resource == NODECLAIMS:
            asked.append((name, options.get("uid")))
        return await delete(self, resource, name, **options)

    async def story(p: Play) -> None:
        await p.half_empty(2)
        uids = {claim.name: claim.metadata.uid for claim in await p.stage.claims()}
        monkeypatch.setattr(Client, "delete", watched)
        p.start()
        await p.over()
        assert asked and set(asked) <= uids.items()

    play(story)
