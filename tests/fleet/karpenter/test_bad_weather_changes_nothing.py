"""Errors, conflicts, late and lost events delay Karpenter; they do not lead it astray."""

import asyncio
from typing import Any

import pytest

from karpool.model.kubernetes.api_resources import NODECLAIMS, PODS
from tests.fleet.karpenter.acting import Stage, play, status_of


def weather(stage: Stage, kind: str) -> Any:
    faults = stage.cluster.faults
    match kind:
        case "errors":
            return faults.fail("karpenter", status=500, method="WRITE", times=15)
        case "conflicts":
            return faults.fail("karpenter", status=409, method="WRITE", times=25)
        case "throttling":
            return faults.fail("karpenter", status=429, method="WRITE", times=10, retry_after=3)
        case "lost answers":
            return faults.fail("karpenter", status=0, method="WRITE", times=5)
        case "slow writes":
            return faults.delay("karpenter", seconds=2, method="WRITE")
        case "late events":
            return faults.late_events("informers", seconds=1)
        case "repeated events":
            return faults.repeat_events("informers")
    raise AssertionError(kind)


async def clear(stage: Stage) -> None:
    """Who sees late may buy once more for a pod that is gone; that goes as well."""
    for pod in await stage.all_pods():
        await stage.admin.delete(PODS, pod.name, namespace="default")
    for _ in range(5):
        for claim in await stage.claims():
            await stage.admin.delete(NODECLAIMS, claim.name)
        await asyncio.sleep(120)
    await stage.empty()


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    ["errors", "conflicts", "throttling", "lost answers", "slow writes", "late events", "repeated events"],
)
def test_nodes_come_and_go_all_the_same(kind: str) -> None:
    async def story(stage: Stage) -> None:
        fault = weather(stage, kind)
        await stage.pool(types=("large",))
        await stage.pods(8)

        async def all_well() -> bool:
            claims = await stage.claims()
            ready = all(status_of(claim, "Ready")[0] == "True" for claim in claims)
            return len(await stage.running()) == 8 and bool(claims) and ready

        await stage.until(all_well, seconds=1800)
        assert fault.hits
        await asyncio.sleep(60)
        # A batch may be planned on what was known then; nothing else may be bought twice.
        claims = await stage.claims()
        assert len(claims) == len(stage.cloud.instances) == len(await stage.nodes())
        assert len(claims) <= 3
        await clear(stage)

    play(story)


def test_a_cut_watch_is_taken_up_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(8)
        for _ in range(20):
            await asyncio.sleep(2)
            stage.cluster.faults.cut_watches(expired=True)
        await stage.all_run(8)
        assert len(await stage.claims()) == len(stage.cloud.instances) == 2

    play(story)


def test_while_karpenter_stands_still_nothing_happens_and_then_everything_does() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await asyncio.sleep(2)
        stage.cluster.faults.pause("karpenter")
        await stage.pods(3)
        await asyncio.sleep(600)
        assert await stage.claims() == []
        stage.cluster.faults.resume("karpenter")
        await stage.all_run(3)

    play(story)
