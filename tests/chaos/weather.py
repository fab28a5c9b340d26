"""What goes wrong around Karpool's controllers: one coroutine per kind, which goes on until cancelled.

All of them hit every controller in every cluster, again and again, and never the embedded
clusters themselves: those have a campaign of their own (`tests/fleet`). When a kind ends,
so does its damage; what was lost on a watch is found by the list that follows.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from karpool_fleet.faults.faults import Fault
from tests.chaos.company import Company

Weather = Callable[[Company], Awaitable[None]]


async def _again_and_again(every: float, strike: Callable[[], object]) -> None:
    while True:
        strike()
        await asyncio.sleep(every)


async def _lasting(at: Company, start: Callable[[Company, str, str], Fault]) -> None:
    """A fault of every controller, for as long as the weather lasts."""
    started = [start(at, cluster, name) for cluster, name in at.controllers]
    try:
        await asyncio.Event().wait()
    finally:
        for fault in started:
            fault.end()
        for cluster, name in at.controllers:
            at.cluster(cluster).faults.cut_watches(name, expired=True)


async def _bursts(at: Company, every: float, start: Callable[[Company, str, str], Fault]) -> None:
    started: list[Fault] = []

    def strike() -> None:
        for fault in started:
            fault.end()
        started[:] = [start(at, cluster, name) for cluster, name in at.controllers]

    try:
        await _again_and_again(every, strike)
    finally:
        for fault in started:
            fault.end()


async def crashes(at: Company) -> None:
    """All controllers die at once, and are back after some seconds."""

    async def strike() -> None:
        for cluster, name in at.controllers:
            components = at.cluster(cluster).components
            if components.is_running(name):
                await components.crash(name)
        await asyncio.sleep(4)
        at.revive()

    while True:
        await asyncio.sleep(97)
        await strike()


async def crashes_at_writes(at: Company) -> None:
    """Every controller dies at one of its next writes, before or after it, and is back after a second."""
    number = 0
    armed: dict[tuple[str, str], Fault] = {}
    try:
        while True:
            for cluster, name in at.controllers:
                fault = armed.get((cluster, name))
                if fault is None or fault.ended.is_set():
                    number += 1
                    when = ("before", "after")[number % 2]
                    armed[cluster, name] = at.cluster(cluster).faults.crash_at_write(
                        name, 1 + number % 5, when=when
                    )
            await asyncio.sleep(1)
            at.revive()
    finally:
        for fault in armed.values():
            fault.end()
        at.revive()


async def stale_reads(at: Company) -> None:
    await _lasting(at, lambda at, cluster, name: at.cluster(cluster).faults.stale_reads(name, seconds=15))


async def late_events(at: Company) -> None:
    await _lasting(at, lambda at, cluster, name: at.cluster(cluster).faults.late_events(name, seconds=2))


async def repeated_events(at: Company) -> None:
    await _lasting(at, lambda at, cluster, name: at.cluster(cluster).faults.repeat_events(name))


async def lost_events(at: Company) -> None:
    """Watches swallow a few events, and say so half a minute later."""

    def strike() -> None:
        for cluster, name in at.controllers:
            faults = at.cluster(cluster).faults
            faults.cut_watches(name, expired=True)
            lost.append(faults.lose_events(name, times=7))

    lost: list[Fault] = []
    try:
        await _again_and_again(31, strike)
    finally:
        for fault in lost:
            fault.end()
        for cluster, name in at.controllers:
            at.cluster(cluster).faults.cut_watches(name, expired=True)


async def cut_watches(at: Company) -> None:
    """Reconnect storms; every other one with "too old resource version"."""
    times = 0

    def strike() -> None:
        nonlocal times
        times += 1
        for cluster, name in at.controllers:
            at.cluster(cluster).faults.cut_watches(name, expired=times % 2 == 0)

    await _again_and_again(11, strike)


def _errors(status: int, method: str, retry_after: float | None = None) -> Weather:
    async def weather(at: Company) -> None:
        def start(at: Company, cluster: str, name: str) -> Fault:
            faults = at.cluster(cluster).faults
            return faults.fail(name, status=status, method=method, times=3, retry_after=retry_after)

        await _bursts(at, 13, start)

    return weather


async def lost_answers(at: Company) -> None:
    """Writes are done, and the writer does not hear of it."""
    await _bursts(at, 17, lambda at, cluster, name: at.cluster(cluster).faults.lose_answers(name, times=2))


async def pauses(at: Company) -> None:
    """One controller after the other stands still for longer than a lease."""
    while True:
        for cluster, name in at.controllers:
            faults = at.cluster(cluster).faults
            faults.pause(name)
            try:
                await asyncio.sleep(19)
            finally:
                faults.resume(name)


async def hanging_member(at: Company) -> None:
    """The API server of one member takes requests and does not answer; each in turn."""
    while True:
        for cluster in at.fleet.clusters:
            hung = [at.cluster(cluster).faults.hang(name) for each, name in at.controllers if each == cluster]
            try:
                await asyncio.sleep(25)
            finally:
                for fault in hung:
                    fault.end()
            await asyncio.sleep(20)


async def clock_jumps(at: Company) -> None:
    """Forward and back, by minutes and by an hour, as daylight time done wrong would; right in the end."""
    wrong = 0.0
    try:
        while True:
            for seconds in (600.0, -600.0, -3600.0, 3600.0, 1.0, -1.0):
                await asyncio.sleep(29)
                at.clock.jump(seconds)
                wrong += seconds
    finally:
        # Machines that are going by the stamps of a wrong clock would take as long as it was wrong.
        at.clock.jump(-wrong)


KINDS: Mapping[str, Weather] = {
    "crashes": crashes,
    "crashes at writes": crashes_at_writes,
    "stale reads": stale_reads,
    "late events": late_events,
    "lost events": lost_events,
    "repeated events": repeated_events,
    "cut watches": cut_watches,
    "conflicts": _errors(409, "WRITE"),
    "too many requests": _errors(429, "", retry_after=2),
    "server errors": _errors(500, ""),
    "unavailable": _errors(503, "WRITE"),
    "no connection": _errors(0, ""),
    "lost answers": lost_answers,
    "pauses": pauses,
    "hanging member": hanging_member,
    "clock jumps": clock_jumps,
}


@asynccontextmanager
async def under(at: Company, *kinds: str) -> AsyncIterator[None]:
    """These kinds at once, until the block ends."""
    tasks = [asyncio.ensure_future(KINDS[kind](at)) for kind in kinds]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        at.revive()
