"""The fleet of the tour with its controllers, in this process, as fast as it goes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from karpool.kube.clock import RealClock
from karpool_fleet.clusters.clock import LoopClock, run_scaled
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.served_fleet import served
from karpool_fleet.tour.stage import TourStage
from karpool_fleet.tour.tour import staged, tour_fleet

T = TypeVar("T")
SPEED = 200.0


def on_stage(folder: Path, story: Callable[[TourStage], Awaitable[T]]) -> T:
    async def told() -> T:
        clock = LoopClock(RealClock().now() - asyncio.get_running_loop().time())
        kubeconfig = folder / "kubeconfig"
        async with (
            EmbeddedFleet(tour_fleet(), clock) as fleet,
            served(fleet, kubeconfig),
            staged(fleet, kubeconfig) as stage,
        ):
            return await story(stage)

    return run_scaled(told(), SPEED)
