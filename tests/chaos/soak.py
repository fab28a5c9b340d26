"""Days after days of a company on manual time: `python -m tests.chaos.soak 30`.

Every hour something happens, twice a day the weather is bad, every evening everything goes.
What is left then is counted: objects in the API servers by kind, promises, Python objects
that are alive, and the memory of the process. Exits with 1 when anything is left or grows.
"""

import asyncio
import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import process_time

import structlog

from karpool_fleet.clusters.clock import run_manual
from tests.chaos.company import FLAGS, Company, company
from tests.chaos.random_company import ACTIONS, Days
from tests.chaos.story import report
from tests.chaos.weather import KINDS, under

HOUR = 3600.0
# Looks less often than in a story, and keeps the ledger of moves for three days instead of thirty, in which
# it would still grow: nothing else is different.
CALMER = {**FLAGS, "consolidator": {**FLAGS["consolidator"], "interval": "1m", "keep-moves": "72h"}}
ROOM_TO_GROW = 1.1  # of Python objects and memory, from the first third of the days to the last


@dataclass(frozen=True)
class Evening:
    """What is there when everybody has gone home."""

    day: int
    stored: Counter[str]  # objects, by cluster and kind
    alive: int  # Python objects that the collector knows
    resident_mib: float
    promises: int


async def live_a_day(at: Company, days: Days) -> None:
    bad = days.draw.sample(range(20), 2)
    for hour in range(20):
        act = days.draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        await act(days)
        kinds = days.draw.sample(list(KINDS), 2) if hour in bad else []
        async with under(at, *kinds):
            await asyncio.sleep(300)
        await asyncio.sleep(HOUR - 300)
        assert not at.jury.violations, report(at)
    days.end()
    await days.leave()
    days.forget()
    await asyncio.sleep(4 * HOUR)


async def evening(at: Company, day: int) -> Evening:
    """Raises AssertionError when anything is left, or anybody waits."""
    found = at.jury.when_calm()
    assert not found, report(at)
    at.told.clear()
    gc.collect()
    await asyncio.sleep(1)  # generators that nobody reads are closed by the loop, and freed only then
    gc.collect()
    stored = Counter[str]()
    for name, cluster in at.fleet.api_servers.items():
        for collection in cluster.server.cluster.store.collections():
            stored[f"{name} {collection.group_resource}"] = len(list(collection.ordered(None)))
    return Evening(day, stored, len(gc.get_objects()), resident_mib(), len(list(at.jury.ledger.promises())))


def resident_mib() -> float:
    """0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 / 2**20 if status.exists() else 0.0


def growth(evenings: Sequence[Evening]) -> list[str]:
    """What the last third of the days has more of than the first; none is good. The very first warms up."""
    known = evenings[1:]
    third = max(1, len(known) // 3)
    early, late = known[:third], known[-third:]
    found = [f"day {each.day}: {each.promises} promises are left" for each in evenings if each.promises]
    for kind in late[-1].stored:
        before, after = (max(each.stored[kind] for each in some) for some in (early, late))
        if after > 1.2 * before + 20:
            found.append(f"{kind}: {before} objects, later {after}")
    for what, of in _MEASURES.items():
        before, after = (median(of(each) for each in some) for some in (early, late))
        if after > ROOM_TO_GROW * before:
            found.append(f"{what}: {before:.0f}, later {after:.0f}")
    return found


_MEASURES: dict[str, Callable[[Evening], float]] = {
    "Python objects": lambda each: each.alive,
    "MiB resident": lambda each: each.resident_mib,
}


async def soak(count: int, say: Callable[[str], object], seed: int = 7) -> list[Evening]:
    evenings: list[Evening] = []
    async with company(seed, CALMER) as at:
        days = Days(at, seed)
        for number in range(count):
            start = process_time()
            await live_a_day(at, days)
            evenings.append(found := await evening(at, number + 1))
            say(
                f"day {found.day:3}  {sum(found.stored.values()):6} objects stored  {found.alive:9,} alive  "
                f"{found.resident_mib:6.0f} MiB  {found.promises} promises  {process_time() - start:6.1f} s"
            )
    return evenings


def main(arguments: Sequence[str]) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    evenings = run_manual(soak(int(arguments[0]) if arguments else 30, say))
    found = growth(evenings)
    for sentence in found or [f"flat over {len(evenings)} days, and nothing is left"]:
        say(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
