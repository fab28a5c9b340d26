"""The tour: runs its chapters in order, each to its end, whatever the result of the others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

import structlog

from karpool.kube.errors import KubeError
from karpool.model.errors import Invalid
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import FleetFile, read_fleet_file
from karpool_fleet.tour import balance, burst, from_zero, gpu_fraction, stock_out
from karpool_fleet.tour.chapter import Chapter, ChapterOutcome, Notes
from karpool_fleet.tour.over_https import OverHttps, connect
from karpool_fleet.tour.stage import TourStage

log = structlog.get_logger(__name__)

CHAPTERS: Sequence[Chapter] = (
    from_zero.CHAPTER,
    burst.CHAPTER,
    stock_out.CHAPTER,
    gpu_fraction.CHAPTER,
    balance.CHAPTER,
)
# Fleet time, not real time. A chapter that takes longer has failed.
CHAPTER_SECONDS = 2400.0


@cache
def tour_fleet() -> FleetFile:
    return read_fleet_file(Path(__file__).with_name("fleet.yaml"))


@asynccontextmanager
async def staged(fleet: EmbeddedFleet, kubeconfig: Path) -> AsyncIterator[TourStage]:
    """Run all controllers in a served fleet, with clients for the chapters."""
    assert fleet.karmada is not None, "the fleet of a tour has a Karmada"
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(connect(kubeconfig, name, fleet.clock, "karpool-tour"))
            for name in fleet.api_servers
        }
        wiring = OverHttps(fleet, kubeconfig)
        team = await stack.enter_async_context(wiring.running())
        karmada = clients.pop(fleet.karmada.name)
        yield TourStage(fleet, karmada, clients, team, wiring.estimators)


async def play(
    stage: TourStage,
    chapters: Sequence[Chapter] = CHAPTERS,
    *,
    begins: Callable[[Chapter], None] = lambda chapter: None,
    tell: Callable[[str], None] = lambda line: None,
    ended: Callable[[ChapterOutcome], None] = lambda outcome: None,
) -> list[ChapterOutcome]:
    outcomes: list[ChapterOutcome] = []
    async with asyncio.TaskGroup() as group:
        growing = group.create_task(_grow(stage)) if balance.CHAPTER in chapters else None
        for chapter in chapters:
            begins(chapter)
            outcome = await _one(stage, chapter, tell)
            outcomes.append(outcome)
            ended(outcome)
        if growing is not None:
            growing.cancel()
    return outcomes


async def _one(stage: TourStage, chapter: Chapter, tell: Callable[[str], None]) -> ChapterOutcome:
    notes, began, error = Notes(tell), stage.clock.monotonic(), ""
    failures = stage.team.failures()
    try:
        async with asyncio.timeout(CHAPTER_SECONDS):
            await chapter.play(stage, notes)
    except TimeoutError:
        error = f"did not end within {CHAPTER_SECONDS:.0f} s of the fleet"
    except (KubeError, Invalid, OSError) as problem:
        log.warning("chapter failed", chapter=chapter.name, exc_info=problem)
        error = str(problem) or type(problem).__name__
    if failed := stage.team.failures() - failures:
        error = error or f"failed and had to be started again: {', '.join(failed)}"
    took = stage.clock.monotonic() - began
    return ChapterOutcome(chapter, tuple(notes.promises), tuple(notes.figures), took, error)


async def _grow(stage: TourStage) -> None:
    """Grow the cluster for a later chapter; a failure shows in that chapter."""
    try:
        await balance.grow(stage)
    except (KubeError, OSError) as problem:
        log.warning("ireland did not grow", exc_info=problem)
