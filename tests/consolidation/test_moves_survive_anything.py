"""Whoever carries out moves may die at any write, and anything may change meanwhile: nothing is left."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest

from karpool.consolidation.execution.node_marks import MOVE_MARK
from karpool.consolidation.execution.record import MovePhase
from karpool.consolidation.execution.step import ExecutionSettings
from karpool.model.kubernetes.api_resources import CONFIGMAPS, NODECLAIMS, NODEPOOLS, NODES
from karpool_fleet.cloud.cloud import CloudSettings
from karpool_fleet.cloud.delays import constant
from tests.consolidation.executing import NAMESPACE, QUICK, Play, play
from tests.fleet.karpenter.acting import BOOTS

CONSOLIDATOR = "consolidator"
BRISK = replace(
    QUICK,
    execution=ExecutionSettings(quiet_seconds=4.0, refusal_seconds=12.0, settle_seconds=2.0),
    plan_seconds=5.0,
)
FAST_BOOTS = replace(BOOTS, register=constant(3), ready=constant(2))
Story = Callable[[Play], Awaitable[None]]

# Nodes that go stay open while others are asked for: pods may come, and the phase Cordoning lasts a while.
LATE = replace(QUICK, execution=replace(QUICK.execution, cordons_early=False))


async def replaced(p: Play) -> None:
    await p.too_large()
    p.start()
    await p.over()
    assert await p.types() == ["small"]
    await p.running(1)


async def merged(p: Play) -> None:
    await p.half_empty(2)
    p.start()
    await p.over()
    assert await p.types() == ["small"]
    await p.running(4)


async def rolled_back(p: Play) -> None:
    await p.too_large()
    p.stage.cloud.stock_out("small")
    p.start()
    await p.over()
    assert await p.types() == ["large"]
    await p.running(1)


async def several(p: Play) -> None:
    """A plan of several moves, of which the pool's budget lets two nodes go at a time."""
    await p.half_empty(6, budgets=[{"nodes": "2"}])
    p.start()

    async def few_enough() -> bool:
        await p.over()
        return await p.types() == ["small"] * 3

    await p.until(few_enough)
    assert sum(len(record.nodes) for record in await p.records()) == 3
    await p.running(12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("story", "least", "end", "whens"),
    [
        # Two namespaces, a class; record, asking, cordon, pod, arrival, mark, cordoning, pod gone,
        # deleting, claim, mark gone, settling, done.
        (replaced, 16, MovePhase.DONE, ["before"]),
        (replaced, 16, MovePhase.DONE, ["after"]),
        # Record, cordoning, cordon, deleting, claim, settling, done.
        (merged, 10, MovePhase.DONE, ["before", "after"]),
        # The same three times, but for what is made once.
        (several, 22, MovePhase.DONE, ["before"]),
        # Record, asking, mark, pod, rolling back, pod gone, mark gone, rolled back.
        (rolled_back, 11, MovePhase.ROLLED_BACK, ["before", "after"]),
    ],
)
def test_a_crash_at_any_write_changes_nothing(
    story: Story, least: int, end: MovePhase, whens: list[str]
) -> None:
    """With two moments: before a write, and after the first that follows the restart."""

    async def crashing(p: Play, number: int) -> int:
        for later, when in enumerate(whens):
            p.stage.cluster.faults.crash_at_write(CONSOLIDATOR, number + later, when=when)
        await story(p)
        assert {record.phase for record in await p.records()} == {end}
        assert await p.leaks() == []
        return p.stage.crashes

    for number in count(1):
        if play(lambda p, n=number: crashing(p, n), BRISK, boots=FAST_BOOTS) == 0:
            break
    assert number > least


def test_bad_weather_changes_nothing() -> None:
    async def story(p: Play) -> None:
        faults = p.stage.cluster.faults
        for status in (409, 503, 0, 429):
            faults.fail(CONSOLIDATOR, status=status, method="WRITE", times=3)
        faults.fail(CONSOLIDATOR, status=500, method="GET", times=10)
        faults.repeat_events(CONSOLIDATOR)
        faults.late_events(CONSOLIDATOR, seconds=3, times=20)
        await p.too_large()
        p.start()

        async def settled() -> bool:
            # What arrives late may cost a move; the next one is made.
            await p.over()
            return await p.types() == ["small"]

        await p.until(settled)
        await p.running(1)
        assert await p.leaks() == []

    play(story)


def test_a_stock_out_is_rolled_back_and_not_tried_again_at_once() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        out = p.stage.cloud.stock_out("small")
        p.start()
        record = await p.reached(MovePhase.ROLLED_BACK)
        assert record.reason == "stock_out"
        assert await p.leaks() == [] and await p.types() == ["large"]
        assert await p.steady(120), "what is out of stock is not planned"
        out.end()
        await p.reached(MovePhase.DONE, seconds=1200)
        assert await p.types() == ["small"] and await p.leaks() == []

    play(story)


def test_nodes_that_do_not_come_in_time_are_given_up() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.stage.cloud.boot_badly(registers=False)
        p.start()
        record = await p.reached(MovePhase.ROLLED_BACK)
        assert record.reason == "timeout"
        assert await p.leaks() == [] and await p.types() == ["large"]

    slow = replace(QUICK, execution=ExecutionSettings(launch_seconds=60.0))
    play(story, slow)


def test_a_pod_that_comes_meanwhile_ends_the_move() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(MovePhase.ASKING)
        await p.scale("web", 5)
        record = await p.reached(MovePhase.ROLLED_BACK)
        assert record.reason in ("new_pod", "pod_starting")
        assert await p.leaks() == []
        await p.running(5)

    play(story, LATE)


def test_a_pod_that_no_watch_told_of_is_seen_before_anything_is_deleted() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(MovePhase.ASKING)
        p.stage.cluster.faults.lose_events(CONSOLIDATOR, path="/pods")
        await p.scale("web", 2)
        record = await p.reached(MovePhase.ROLLED_BACK)
        assert record.reason == "new_pod"
        assert p.budgets.deletions == 0 and await p.leaks() == []

    play(story, LATE)


def test_a_node_that_goes_by_itself_ends_the_move() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(MovePhase.ASKING)
        (claim,) = [each for each in await p.stage.claims() if each.is_registered]
        await p.stage.admin.delete(NODECLAIMS, claim.name)
        record = await p.reached(MovePhase.ROLLED_BACK)
        assert record.reason in ("deleting", "gone")
        await p.over()
        await p.running(1)
        assert await p.leaks() == []

    play(story)


@pytest.mark.parametrize("phase", [MovePhase.WAITING, MovePhase.ASKING, MovePhase.CORDONING])
def test_the_switch_stops_every_phase_and_survives_a_restart(phase: MovePhase) -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(phase)
        await p.switch(stop=True)
        await p.over(seconds=30)
        assert [record.reason for record in await p.records()] == ["stopped"]
        assert await p.leaks() == [] and "large" in await p.types()
        await p.stage.cluster.components.crash(CONSOLIDATOR)
        p.stage.cluster.components.start(CONSOLIDATOR)
        assert await p.steady(180)
        await p.switch(stop=False)
        await p.reached(MovePhase.DONE, seconds=1200)

    play(story, LATE if phase is MovePhase.CORDONING else QUICK)


def test_a_view_that_is_not_kept_up_holds_no_move_for_ever() -> None:
    """Pools can neither be listed nor watched; all else works."""
    brief = replace(QUICK.execution, quiet_seconds=90.0, look_seconds=30.0)
    options = replace(QUICK, execution=brief)

    async def story(p: Play) -> None:
        p.max_staleness_seconds = 70.0
        await p.too_large()
        p.start()
        await p.reached(MovePhase.WAITING)
        faults = p.stage.cluster.faults
        broken = faults.fail(CONSOLIDATOR, status=500, path="/nodepools$")
        faults.cut_watches(CONSOLIDATOR, path="/nodepools$")
        (record,) = await p.over(seconds=180)
        assert (record.phase, record.reason) == (MovePhase.REJECTED, "timeout")
        assert "could not be validated" in record.message
        broken.end()
        await p.reached(MovePhase.DONE)

    play(story, options)


def test_a_pool_that_is_stopped_takes_its_moves_back() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        await p.reached(MovePhase.ASKING)
        stopped = {"metadata": {"annotations": {"karpool.dev/consolidation-stop": "true"}}}
        await p.stage.admin.patch(NODEPOOLS, "general", stopped)
        record = (await p.over(seconds=60))[0]
        assert (record.phase, record.reason) == (MovePhase.ROLLED_BACK, "stopped")
        assert await p.leaks() == []

    play(story)


def test_what_is_left_of_a_record_that_somebody_deleted_is_taken_back() -> None:
    async def story(p: Play) -> None:
        await p.too_large()
        p.start()
        record = await p.reached(MovePhase.ASKING)
        await p.switch(stop=True)
        await p.stage.admin.delete(CONFIGMAPS, record.name, namespace=NAMESPACE)

        async def clean() -> bool:
            return await p.leaks() == []

        await p.stage.until(clean, seconds=60)
        assert await p.records() == []

    play(story)


def test_a_mark_of_nobody_is_taken_back() -> None:
    async def story(p: Play) -> None:
        await p.half_empty(1)
        (node,) = await p.stage.nodes()
        mark = {"metadata": {"annotations": {MOVE_MARK: "karpool-move-of-old"}}}
        await p.stage.admin.patch(NODES, node.name, mark)
        p.start()
        await asyncio.sleep(30)
        assert await p.leaks() == []

    play(story)


def test_one_unreadable_budget_closes_its_own_pool_visibly() -> None:
    async def story(p: Play) -> None:
        bad = [{"nodes": "1", "schedule": "@dailyish", "duration": "1h"}]
        await p.stage.pool("broken", types=("large",), labels={"team": "a"}, disruption={"budgets": bad})
        await p.deploy("held", 1, cpu="500m", nodeSelector={"team": "a"})
        await p.running(1)
        await p.scale("held", 0)
        await p.running(0)
        await p.half_empty(2)
        p.start()
        await p.over()
        assert await p.types() == ["large", "small"]
        blocked = await p.stage.events("DisruptionBlocked")
        assert [each["involvedObject"]["name"] for each in blocked] == ["broken"]
        assert "closed by an invalid budget" in blocked[0]["message"]

    play(story)


def test_slow_clouds_are_waited_for() -> None:
    play(replaced, cloud_settings=CloudSettings(launch=constant(120), terminate=constant(60)))
