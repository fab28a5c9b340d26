"""The guided tour in a terminal or a log: the fleet is started, shown, played, and put away again."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from karpool.cli.embedded import tour_text
from karpool.cli.exit_codes import CommandFailed
from karpool.cli.output.progress_line import ProgressLine
from karpool.cli.output.text import columns, emit, note
from karpool.dashboard.pages.collector import CollectorSettings
from karpool.dashboard.server.app import dashboard
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.manager.shutdown import run_until_signalled
from karpool.scheduler.controller.options import EstimatorAccessOptions
from karpool.scheduler.process import estimator_clients
from karpool_fleet.clusters.clock import LoopClock, ScaledLoop, loop_at
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.served_fleet import served
from karpool_fleet.tour.chapter import Chapter, ChapterOutcome
from karpool_fleet.tour.over_https import ANSWER_SECONDS, connect
from karpool_fleet.tour.stage import TourStage
from karpool_fleet.tour.tour import CHAPTERS, play, staged, tour_fleet

# A tour takes some ten minutes of the fleet, in less than one. It begins so far in the past that its
# clock is not ahead of other people's when they look at it.
HEAD_START_SECONDS = 1200.0
TICK_SECONDS = 0.5  # of people
_ABOUT = {
    "virginia": "six machines, no autoscaler",
    "oregon": "Karpenter, and no node",
    "ireland": "Karpenter; a campaign scales it up",
    "tokyo": "Karpenter, no GPU node yet",
}


@dataclass(frozen=True)
class TourOptions:
    stays: bool
    port: int
    speed: float
    chapters: Sequence[Chapter]
    output: str


def chapters_named(names: Sequence[str]) -> list[Chapter]:
    """In their order, all of them when none is named."""
    titles = [chapter.name for chapter in CHAPTERS]
    for name in names:
        if name not in titles:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(titles)}", param_hint="--chapter")
    return [chapter for chapter in CHAPTERS if not names or chapter.name in names]


def run(kubeconfig: Path, wishes: TourOptions) -> None:
    """Raises Failed when a promise was not kept, click.Abort when somebody ended it before its end."""
    run_until_signalled(lambda stop: _up(stop, kubeconfig, wishes), loop_factory=loop_at(wishes.speed))


async def _up(stop: asyncio.Event, kubeconfig: Path, wishes: TourOptions) -> None:
    began = time.monotonic()
    try:
        async with _ended_by(stop) as stays_now, _running(kubeconfig, wishes) as (stage, page):
            guide = _Guide(wishes.chapters)
            async with guide.shown():
                outcomes = await play(
                    stage, wishes.chapters, begins=guide.begins, tell=guide.tell, ended=guide.ended
                )
            took = time.monotonic() - began
            emit(_result(outcomes, took, wishes.output))
            if wishes.stays:
                stays_now()
                _say_how_to_go_on(kubeconfig, page)
                _pace(1.0)
                await stop.wait()
                _pace(wishes.speed)  # nobody looks any more
    except asyncio.CancelledError:
        if stop.is_set():
            raise click.Abort from None
        raise
    if broken := tour_text.broken(outcomes):
        raise CommandFailed(f"not every promise of the tour was kept: {broken}")


@asynccontextmanager
async def _ended_by(stop: asyncio.Event) -> AsyncIterator[Callable[[], None]]:
    """Cancel this task when `stop` is set, unless what is yielded was called before."""
    main, waiting = asyncio.current_task(), asyncio.create_task(stop.wait())
    assert main is not None

    def end(_: object) -> None:
        main.cancel()

    def stays() -> None:
        waiting.remove_done_callback(end)

    waiting.add_done_callback(end)
    try:
        yield stays
    finally:
        waiting.remove_done_callback(end)
        waiting.cancel()


@asynccontextmanager
async def _running(kubeconfig: Path, wishes: TourOptions) -> AsyncIterator[tuple[TourStage, str]]:
    """The fleet, its controllers and the page, whose address is yielded too."""
    clock = LoopClock(RealClock().now() - HEAD_START_SECONDS - asyncio.get_running_loop().time())
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(EmbeddedFleet(tour_fleet(), clock))
        addresses = await stack.enter_async_context(served(fleet, kubeconfig))
        clients = {
            name: await stack.enter_async_context(connect(kubeconfig, name, clock, "karpool-dashboard"))
            for name in addresses
        }
        page = await stack.enter_async_context(_dashboard(clients, wishes.port))
        emit(_clusters(fleet, addresses), err=True)
        emit(f"\nkubeconfig  {kubeconfig}   (a context for each cluster)", err=True)
        note(f"dashboard   {page}")
        yield await stack.enter_async_context(staged(fleet, kubeconfig)), page


@asynccontextmanager
async def _dashboard(clients: Mapping[str, Client], port: int) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        try:
            # As `karpool dashboard --enable-scheduler-estimator`: rooms are those that estimators see.
            settings = CollectorSettings(
                asker=lambda client: estimator_clients(
                    EstimatorAccessOptions(enabled=True, timeout_seconds=ANSWER_SECONDS), client
                )
            )
            page = await stack.enter_async_context(dashboard(clients, port=port, settings=settings))
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2].lower()
            raise CommandFailed(
                f"cannot serve the dashboard on port {port}: {reason}; choose another --port"
            ) from error
        yield page.link


def _clusters(fleet: EmbeddedFleet, addresses: Mapping[str, str]) -> str:
    rows = [
        (
            name,
            address,
            f"{fleet.clusters[name].spec.region}: {_ABOUT.get(name, 'a member')}"
            if name in fleet.clusters
            else "control plane: workloads are created here",
        )
        for name, address in addresses.items()
    ]
    return columns(("CLUSTER", "ADDRESS", "WHAT IT HAS"), rows)


class _Guide:
    """Says what happens, and how far it has come."""

    def __init__(self, chapters: Sequence[Chapter]) -> None:
        self.line = ProgressLine(sys.stderr, len(chapters), "the tour")
        self._total, self._number = len(chapters), 0

    def begins(self, chapter: Chapter) -> None:
        self._number += 1
        self.line.begins(chapter.title)
        self.line.say(tour_text.heading(self._number, self._total, chapter), bold=True)

    def tell(self, line: str) -> None:
        self.line.say(tour_text.told(line))

    def ended(self, outcome: ChapterOutcome) -> None:
        self.line.say(tour_text.verdicts(outcome), colour="green" if outcome.kept else "red")
        self.line.ended()

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Seconds go on also while nothing is said."""
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(self._tick())
            with self.line:
                yield
            ticking.cancel()

    async def _tick(self) -> None:
        while self.line.is_live:
            await asyncio.sleep(TICK_SECONDS * _speed())
            self.line.draw()


def _result(outcomes: Sequence[ChapterOutcome], real_seconds: float, form: str) -> str:
    if form == "table":
        return "\n" + tour_text.summary(outcomes, real_seconds)
    return tour_text.document(outcomes, real_seconds, form)


def _speed() -> float:
    loop = asyncio.get_running_loop()
    return loop.speed if isinstance(loop, ScaledLoop) else 1.0


def _pace(speed: float) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(loop, ScaledLoop):
        loop.speed = speed


def _say_how_to_go_on(kubeconfig: Path, page: str) -> None:
    emit(
        f"""
The fleet stays. Open {page}
or in another terminal:
  export KUBECONFIG={kubeconfig}
  kubectl --context karmada get resourcebindings -A
  kubectl --context oregon get nodeclaims,nodes
  kubectl --context karmada -n shop scale deployment web --replicas=60
  karpool explain binding shop/web-deployment --fresh --enable-scheduler-estimator --context karmada
  karpool plan --context ireland
  karpool top pools --context oregon
Ctrl-C ends it.""",
        err=True,
    )
