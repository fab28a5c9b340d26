"""The fleet of the tour with its controllers, in this process, as fast as it goes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from karpool.fleet.clock import LoopClock, run_scaled
from karpool.fleet.fleet import Fleet
from karpool.fleet.serving import served
from karpool.fleet.tour.stage import Stage
from karpool.fleet.tour.tour import staged, tour_fleet
from karpool.kube.clock import RealClock

T = TypeVar("T")
SPEED = 200.0


def on_stage(folder: Path, story: Callable[[Stage], Awaitable[T]]) -> T:
    async def told() -> T:
        clock = LoopClock(RealClock().now() - asyncio.get_running_loop().time())
        kubeconfig = folder / "kubeconfig"
        async with (
            Fleet(tour_fleet(), clock) as fleet,
            served(fleet, kubeconfig),
            staged(fleet, kubeconfig) as stage,
        ):
            return await story(stage)

    return run_scaled(told(), SPEED)
