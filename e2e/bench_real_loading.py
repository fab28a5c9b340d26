"""What the parts of the side-by-side benchmark share: talking to a real API server, and progress."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from e2e.control_plane import ApiServer
from e2e.processes import Program
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.transport.http import HttpTransport
from karpool.model.kubernetes.api_resources import ApiResource

Result = dict[str, float]
T = TypeVar("T")
WRITERS = 32  # requests under way at once while a cluster is loaded
_BEGUN = time.monotonic()
_EVERY = 10_000


def say(text: str) -> None:
    """A line of progress, with the seconds since the benchmark began."""
    print(f"[{time.monotonic() - _BEGUN:4.0f} s] {text}", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def talking(server: ApiServer) -> AsyncIterator[Client]:
    """A client that nothing holds back."""
    async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name=server.name) as client:
        yield client.without_limit()


async def for_all(work: Callable[[T], Coroutine[Any, Any, object]], items: Iterable[T]) -> None:
    """Do something with each, a few dozen at a time."""
    left = iter(items)

    async def worker() -> None:
        for each in left:
            await work(each)

    await asyncio.gather(*(worker() for _ in range(WRITERS)))


async def send(server: ApiServer, resource: ApiResource, objects: Sequence[dict[str, Any]]) -> float:
    """Create all of them; returns the seconds it took."""
    begun = time.monotonic()
    done = 0
    async with talking(server) as client:

        async def create(each: dict[str, Any]) -> None:
            nonlocal done
            await client.create(resource, each)
            done += 1
            if done % _EVERY == 0:
                say(f"loading: {done} of {len(objects)} {resource.plural} written")

        await for_all(create, objects)
    return time.monotonic() - begun


def memory_mib(program: Program) -> float:
    """Resident memory of a running program."""
    text = Path(f"/proc/{program.pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def processor_seconds(program: Program) -> float:
    """Processor time that a running program has used so far, of all its threads."""
    fields = Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
