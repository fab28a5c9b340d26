"""Kills, pauses and bad networks, from one seed, while people want things.

    python -m tests.chaos.processes.campaign --kills 50 --pauses 35 --seed 1

prints what was done and what was wrong as one line of JSON, and fails when anything was.
"""

import argparse
import asyncio
import json
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import structlog

from karpool.kube.errors import KubeError
from tests.chaos.processes.network_faults import OF_CONNECTIONS, ActiveTrouble, NetworkWeather, Trouble
from tests.chaos.processes.replica_process import UNLIMITED, Limits
from tests.chaos.processes.stage import CONTROLLERS, Line, Stage, stage
from tests.chaos.random_company import Days

# Half of a lease: leaders are struck in every phase of their work, and some work is done.
GAP_SECONDS = 8.0
CALM_SECONDS = 420.0
EMPTY_SECONDS = 420.0
# Enough to start and to lead, not to load much; what is on its way when they are reached fails.
STARVED_SHARE = 0.15  # of starts
TIGHT = (Limits(files=24), Limits(memory=90 * 2**20), Limits(disk=2048))
# Which controllers take part, and what people want of them: a machine that is busy carries few processes.
_PLACING = (Days.place, Days.place, Days.scale, Days.scale, Days.scale, Days.withdraw)
_MOVING = (Days.install, Days.resize, Days.resize)
_GPUS = (Days.ask_for_gpu, Days.ask_for_gpu, Days.give_back_gpu)
CASTS: Mapping[str, Sequence[tuple[str, str]]] = {
    "all": CONTROLLERS,
    "placing": [each for each in CONTROLLERS if each[1] in ("scheduler", "descheduler", "estimator")],
    "moving": [("grows", "consolidator")],
    "gpus": [each for each in CONTROLLERS if each[0] == "gpu"],
}


@dataclass
class Figures:
    seed: int
    cast: str = "all"
    seconds: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)  # by controller
    kills_of_leaders: int = 0
    pauses: dict[str, int] = field(default_factory=dict)
    pauses_of_leaders: int = 0
    starved: int = 0
    clock_steps: int = 0
    network_faults: dict[str, int] = field(default_factory=dict)  # requests, events and pieces hit
    wishes: int = 0  # of people
    writes: int = 0  # of controllers, but for leases and events
    terms: int = 0  # of leaders
    longest_gap_seconds: float = 0.0
    longest_vacancy_seconds: float = 0.0  # while one replica stood for it, and was well
    restarts: int = 0
    placements: int = 0
    wrong: list[str] = field(default_factory=list)


class Campaign:
    def __init__(self, at: Stage, seed: int, *, gap: float = GAP_SECONDS) -> None:
        """`gap`: seconds between two strokes at one controller, about."""
        self.at = at
        self.draw = Random(f"{seed}/processes")
        self.days = Days(at.company, seed)
        self.figures = Figures(seed)
        self._kills: Counter[str] = Counter()
        self._pauses: Counter[str] = Counter()
        self._gap = gap / len(at.controllers)
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._wishes = [
            *(_PLACING if "karmada/scheduler" in at.controllers else ()),
            *(_MOVING if "grows/consolidator" in at.controllers else ()),
            *(_GPUS if "gpu/gpu-scaler" in at.controllers else ()),
        ]
        self._began = time.monotonic()

    async def run(self, kills: int, pauses: int) -> Figures:
        strokes = ["kill"] * kills + ["pause"] * pauses
        self.draw.shuffle(strokes)
        for number, stroke in enumerate(strokes):
            self._stroke(stroke)
            if number % 2 == 0:
                await self._wish()
            if number % 2 == 0:
                self._trouble()
            if number % 11 == 0:
                self._wrong_clock()
            await self._pass(self._gap * self.draw.uniform(0.5, 1.5))
            if self.at.violations:
                break
        await self._end()
        return self.figures

    # What goes wrong

    def _victim(self, *, leaders: bool) -> Line:
        controller = self.draw.choice(self.at.controllers)
        leader = self.at.leader(controller) if leaders else None
        running = [line for line in self.at.of(controller) if line.process.is_running] or self.at.of(
            controller
        )
        return leader or self.draw.choice(running)

    def _stroke(self, stroke: str) -> None:
        """Every stroke hits: when the one that was drawn is down, it is started for it."""
        line = self._victim(leaders=self.draw.random() < 0.6)
        if not line.process.is_running:
            line.process.start()
        leads = self.at.leader(line.controller) is line
        if stroke == "kill":
            assert line.process.kill(), line.process.name
            self._kills[line.controller] += 1
            self.figures.kills_of_leaders += leads
            return
        line.process.stop()
        self._pauses[line.controller] += 1
        self.figures.pauses_of_leaders += leads
        # Blinks, pauses that end as the lease does, and such that a rival leads for long by then.
        seconds = self.draw.choice((0.3, 1.0, 4.0, 9.5, 11.0, 15.5, 20.0, 35.0))
        life = line.process.lives

        def wake() -> None:
            if line.process.lives == life:
                line.process.wake()

        self._at(seconds, wake)

    def _trouble(self) -> None:
        """On one line for a while; on all lines of a cluster at times."""
        seconds = self.draw.choice((3.0, 10.0, 20.0))
        if self.at.estimators and self.draw.random() < 0.25:
            member = self.draw.choice(list(self.at.estimators))
            self._begin(self.at.estimators[member].weather, self.draw.choice(OF_CONNECTIONS), seconds)
            return
        trouble = self.draw.choice(list(Trouble))
        line = self._victim(leaders=True)
        lines = self.at.of(line.controller) if self.draw.random() < 0.3 else [line]
        for hit in lines:
            self._begin(hit.weather, trouble, seconds)

    def _begin(self, weather: NetworkWeather, trouble: Trouble, seconds: float) -> ActiveTrouble:
        active = weather.begin(trouble, share=self.draw.choice((0.3, 1.0)), seconds=self.draw.uniform(0.1, 2))
        self._at(seconds, lambda: weather.end(active))
        return active

    def _wrong_clock(self) -> None:
        line = self._victim(leaders=True)
        line.process.clock.set(self.draw.choice((-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0)))
        self.figures.clock_steps += 1
        self._at(self.draw.choice((5.0, 20.0)), lambda: line.process.clock.set(0.0))

    async def _wish(self) -> None:
        self.figures.wishes += 1
        with suppress(KubeError):
            await self.draw.choice(self._wishes)(self.days)

    # How time passes

    def _at(self, seconds: float, act: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, act))

    async def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due = [act for when, act in self._later if when <= now]
            self._later = [(when, act) for when, act in self._later if when > now]
            for act in due:
                act()
            self.at.revive(0.5, self._limits)
            self.at.company.revive()
            if now >= end:
                return
            await asyncio.sleep(min(0.2, end - now))

    def _limits(self) -> Limits:
        if self.draw.random() > STARVED_SHARE:
            return UNLIMITED
        self.figures.starved += 1
        return self.draw.choice(TIGHT)

    async def _end(self) -> None:
        for _, act in self._later:
            act()
        self._later.clear()
        for line in self.at.lines.values():
            if line.process.limits != UNLIMITED:
                line.process.kill()
        wrong = self.at.violations or await self.at.calm(CALM_SECONDS)
        self.days.end()
        if not wrong:
            await self.days.leave()
            wrong = await self.at.calm(EMPTY_SECONDS) or await self._left() or self.at.violations
        figures, judge = self.figures, self.at.judge
        figures.wrong = wrong
        if wrong:
            self._dump()
        figures.kills, figures.pauses = dict(self._kills), dict(self._pauses)
        hits: Counter[str] = Counter()
        for weather in (
            *(line.weather for line in self.at.lines.values()),
            *(proxy.weather for proxy in self.at.estimators.values()),
        ):
            hits.update({str(trouble): number for trouble, number in weather.hits.items()})
        figures.network_faults = dict(hits)
        figures.writes = sum(judge.writes.values())
        figures.terms = sum(len(lease.holders) for lease in judge.leases.values())
        figures.longest_gap_seconds = round(max(lease.longest_gap for lease in judge.leases.values()), 1)
        figures.longest_vacancy_seconds = round(
            max(lease.longest_vacancy for lease in judge.leases.values()), 1
        )
        figures.restarts = self.at.restarts
        figures.placements = self.at.company.jury.placements.written
        figures.seconds = round(time.monotonic() - self._began, 1)

    def _dump(self) -> None:
        """Everything that the members hold, for whoever wants to know why."""
        for name in self.at.company.fleet.clusters:
            kinds = self.at.company.jury.world(name).kinds
            (self.at.folder / f"{name}.json").write_text(json.dumps(kinds, default=str))

    async def _left(self) -> list[str]:
        """When everybody has left, every node that was bought is sold, if whoever sells takes part."""
        clouds = {
            name: live.cloud
            for name, live in self.at.company.fleet.clusters.items()
            if f"{name}/consolidator" in self.at.controllers
        }
        end = time.monotonic() + EMPTY_SECONDS
        while any(cloud.instances for cloud in clouds.values()):
            if time.monotonic() > end:
                return [f"{name} still has {list(cloud.instances)}" for name, cloud in clouds.items()]
            await self._pass(1)
        return []


async def play(
    folder: Path, seed: int, kills: int, pauses: int, *, gap: float = GAP_SECONDS, cast: str = "all"
) -> tuple[Figures, Stage]:
    async with stage(folder, seed, controllers=CASTS[cast]) as at:
        campaign = Campaign(at, seed, gap=gap)
        await at.led()
        campaign.figures.cast = cast
        return await campaign.run(kills, pauses), at


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--pauses", type=int, default=35)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gap", type=float, default=GAP_SECONDS)
    parser.add_argument("--cast", choices=list(CASTS), default="all")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="karpool-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures, at = asyncio.run(
        play(folder, given.seed, given.kills, given.pauses, gap=given.gap, cast=given.cast)
    )
    sys.stdout.write(json.dumps(asdict(figures)) + "\n")
    if figures.wrong:
        sys.stderr.write("\n".join([*at.company.told, f"logs: {folder}", ""]))
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
