"""Demand, stock, switches and crashes at random: budgets hold, and afterwards all is clean and at rest."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

import pytest

from karpool.model.kubernetes.api_resources import CONFIGMAPS
from tests.consolidation.executing import NAMESPACE, QUICK, Play, play

LIVELY = replace(QUICK, plan_seconds=5.0)
BUDGETS = [{"nodes": "50%"}]


async def live(p: Play, random: Random, moments: int) -> int:
    """Returns how many pods there should be."""
    wanted = {"web": 6, "big": 1}
    shortage = None

    async def scale(name: str, most: int) -> None:
        wanted[name] = random.randint(0, most)
        await p.scale(name, wanted[name])

    async def crash() -> None:
        if p.stage.cluster.components.is_running("consolidator"):
            await p.stage.cluster.components.crash("consolidator")
        p.stage.cluster.components.start("consolidator")

    async def lose_a_record() -> None:
        under_way = [record for record in await p.records() if not record.phase.is_over]
        if under_way:
            await p.stage.admin.delete(CONFIGMAPS, under_way[0].name, namespace=NAMESPACE)

    async def stock() -> None:
        nonlocal shortage
        if shortage is None:
            shortage = p.stage.cloud.stock_out(random.choice(["small", "medium", "large"]))
        else:
            shortage.end()
            shortage = None

    happenings: list[Callable[[], Awaitable[None]]] = [
        lambda: scale("web", 12),
        lambda: scale("web", 12),
        lambda: scale("big", 3),
        lambda: p.switch(stop=random.random() < 0.3),
        crash,
        lose_a_record,
        stock,
    ]
    for _ in range(moments):
        await random.choice(happenings)()
        await asyncio.sleep(random.choice([3, 20, 60]))
    await p.switch(stop=False)
    if shortage is not None:
        shortage.end()
    return sum(wanted.values())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_random_life_ends_clean_and_at_rest(seed: int) -> None:
    async def story(p: Play) -> None:
        disruption = {"consolidateAfter": "10s", "budgets": BUDGETS}
        await p.stage.pool("general", types=("small", "medium", "large"), disruption=disruption)
        await p.deploy("web", 6, cpu="700m")
        await p.deploy("big", 1, cpu="3")
        await p.stage.budget("web", maxUnavailable=1)
        await p.running(7)
        p.start()
        pods = await live(p, Random(seed), 25)

        async def at_rest() -> bool:
            return await p.steady(300)

        for _ in range(20):
            if await at_rest():
                break
        else:
            raise AssertionError("it never comes to rest")
        await p.running(pods)
        assert await p.leaks() == []
        plan = p.made[-1].plan
        assert plan is not None and plan.moves == ()

    play(story, LIVELY)
