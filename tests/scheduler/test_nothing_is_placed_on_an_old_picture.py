"""A scheduler that has not heard of its clusters for three minutes waits until it does."""

import asyncio

from tests.scheduler.acting import Stage, binding, play


def test_bindings_wait_while_clusters_cannot_be_watched() -> None:
    async def story(stage: Stage) -> None:
        await stage.join("m1", 10)
        async with stage.scheduling():
            await stage.create(binding("before", 2))
            await stage.until_placed("before")
            faults = stage.control.faults
            broken = faults.fail("scheduler", status=500, path="/clusters$")
            faults.cut_watches("scheduler", path="/clusters$")
            await asyncio.sleep(240)
            await stage.create(binding("meanwhile", 2))
            await asyncio.sleep(60)
            assert await stage.condition("meanwhile") == ("", "", ""), "bindings are heard, clusters are not"
            broken.end()
            await stage.until_placed("meanwhile", seconds=120)

    play(story)
