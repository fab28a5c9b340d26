"""An honest caller beside hostile ones: the estimator's process of `bench.estimator`, 5,000 nodes.

One client asks plain questions, one after the other, every one another; first alone, then while 30
others, on a connection each, send the largest questions that are still answered, and then while 30 send
questions of about 950 kB that are refused. The hostile clients and the honest one are processes of the same
two cores, so part of what the honest one waits for is not the server's doing.
"""

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import grpc
import uvloop

from bench.estimator import alone, api_server, estimator, first_answer, plain, result
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR

HOSTILE_CALLERS = 30
QUESTIONS = 400
# Inside the limits: 1,000 conditions of one template, the terms among them, and 10,000 values.
LARGEST = (499, 9)
# What once starved everybody: 9,990 terms of 18 values each.
REFUSED = (9990, 18)


def large(terms: int, values: int, number: int) -> bytes:
    """A question whose node affinity has so many terms: none matches, so all are looked at."""
    message = pb.MaxAvailableReplicasRequest.FromString(plain(number))
    selector = pb.NodeSelector()
    for term in range(terms):
        names = [f"v{value}" for value in range(values)]
        condition = pb.NodeSelectorRequirement(key=f"k{term % 7}", operator="In", values=names)
        selector.node_selector_terms.append(pb.NodeSelectorTerm(match_expressions=[condition]))
    message.replica_requirements.node_claim.node_affinity_bytes = selector.SerializeToString()
    return message.SerializeToString()


async def hostile(port: int, terms: int, values: int) -> None:
    """Until ended; says "ready" once every caller has had an answer of whatever kind."""
    numbers, heard = count(), asyncio.Semaphore(0)

    async def caller() -> None:
        question = large(terms, values, next(numbers))
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call: Any = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
            while True:
                with suppress(grpc.RpcError):
                    await call(question, timeout=60)
                heard.release()

    async with asyncio.TaskGroup() as group:
        for _ in range(HOSTILE_CALLERS):
            group.create_task(caller())
        for _ in range(HOSTILE_CALLERS):
            await heard.acquire()
        print("ready", flush=True)


def beside(port: int, size: tuple[int, int]) -> list[float]:
    """What the honest caller waits for, in milliseconds, while the others are at it."""
    command = [sys.executable, "-m", "bench.callers", str(port), *map(str, size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as others:
        try:
            assert others.stdout is not None
            if others.stdout.readline().strip() != "ready":
                raise RuntimeError("the hostile callers did not come up")
            return sorted(alone(port, "MaxAvailableReplicas", [plain(number) for number in range(QUESTIONS)]))
        finally:
            others.kill()


def benchmarks() -> Iterator[dict[str, Any]]:
    with api_server() as url, estimator(url) as (_, port):
        first_answer(port)
        quiet = sorted(alone(port, "MaxAvailableReplicas", [plain(number) for number in range(QUESTIONS)]))
        yield from _rows("nobody else", quiet, None)
        p99 = _p99(quiet)
        yield from _rows(f"{HOSTILE_CALLERS} with the largest questions", beside(port, LARGEST), 2 * p99)
        yield from _rows(f"{HOSTILE_CALLERS} whose questions are refused", beside(port, REFUSED), 2 * p99)


def _rows(who: str, took: list[float], p99: float | None) -> Iterator[dict[str, Any]]:
    yield result(f"an honest caller beside {who}, p50", "ms", [statistics.median(took)], None)
    yield result("the same, p99", "ms", [_p99(took)], p99)


def _p99(ordered: list[float]) -> float:
    return ordered[int(len(ordered) * 0.99)]


if __name__ == "__main__":
    uvloop.run(hostile(*map(int, sys.argv[1:4])))
