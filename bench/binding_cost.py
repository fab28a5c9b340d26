"""What one binding costs the scheduler's process: processor time and memory, at several numbers of bindings.

The bindings wait before the scheduler starts, as in `e2e.bench_real_schedulers`: the embedded API server and
the one who looks on are processes of their own, so only the scheduler is counted, its start included. Every
binding asks for as much as every other and differs by its name.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import uvloop

from bench.scheduler import (
    MEMBERS,
    Object,
    Result,
    Watching,
    connected,
    control_plane,
    create,
    member,
    prepare,
    result,
    scheduler,
    workload,
)

SIZES = (1000, 5000, 20_000)
REPLICAS = 20
# Processor time: half of what Go's scheduler takes beside ours on a real server. Memory: a fifth above Go's.
GOALS_AT_1000 = (3.7, 82.0)


@dataclass(frozen=True)
class SchedulerCost:
    processor_ms_per_binding: float
    memory_mib: float


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def _placed(path: Path, bindings: list[Object]) -> SchedulerCost:
    async with connected(path) as client:
        await prepare(client, [member(number, 10_000, number * 10) for number in range(MEMBERS)])
        await create(client, bindings)
        watching = Watching(client, len(bindings))
        task = asyncio.create_task(watching.run())
        with scheduler(path) as child:
            start = time.monotonic()
            while not watching.done.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(watching.done.wait(), 5)
                if child.poll() is not None or time.monotonic() - start > 1200:
                    raise RuntimeError(f"{len(watching.outcomes)} of {len(bindings)} were looked at")
            cost = SchedulerCost(processor_seconds(child.pid) / len(bindings) * 1e3, memory_mib(child.pid))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        wrong = set(watching.outcomes.values()) - {"placed"}
        if wrong:
            raise RuntimeError(f"not every binding was placed: {wrong}")
        return cost


@cache
def cost(count: int) -> SchedulerCost:
    bindings = [workload(number, REPLICAS, "10m", "DynamicWeight") for number in range(count)]
    with control_plane() as path:
        return uvloop.run(_placed(path, bindings))


def processor_time(count: int) -> Result:
    goal = GOALS_AT_1000[0] if count == SIZES[0] else None
    name = f"scheduler: processor time per binding, start included, {count:,} bindings"
    return result(name, "ms", [cost(count).processor_ms_per_binding], goal)


def memory(count: int) -> Result:
    goal = GOALS_AT_1000[1] if count == SIZES[0] else None
    return result(f"the same: memory once all are placed, {count:,}", "MiB", [cost(count).memory_mib], goal)


def benchmarks() -> Iterator[Callable[[], Result]]:
    for count in SIZES:
        yield _named(partial(processor_time, count), f"processor_time_{count}")
        yield _named(partial(memory, count), f"memory_{count}")


def _named(measure: Callable[[], Result], name: str) -> Callable[[], Result]:
    def benchmark() -> Result:
        return measure()

    benchmark.__name__ = name
    return benchmark
