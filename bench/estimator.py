"""The estimator as it runs: its own process, fed over HTTP, asked over gRPC on loopback.

Three processes on one machine: a stand-in API server that holds the pages of the
synthetic cluster ready and can change pods at a rate, `karpool estimator` itself, and
clients. Every request is different (its CPU request is), so that what is measured is
decoding and counting, not a memory of earlier answers.
"""

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import grpc
import msgspec
import uvloop
from aiohttp import web

from bench import cluster, list_pods
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR

NODE_COUNT = 5000
POD_COUNT = 50_000
REQUESTS_ALONE = 2000
WARMING = 20
SECONDS = 10.0
CHURN_SECONDS = 20.0
LOADS = 3
WARM_SECONDS = 2.0

Result = dict[str, Any]


# The API server's stand-in


def node_object(number: int, row: Any) -> dict[str, Any]:
    amounts = {name: f"{units}m" if name == "cpu" else str(units) for name, units in row.allocatable.items()}
    return {
        "metadata": {
            "name": row.name,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "labels": dict(row.labels),
        },
        "spec": {"taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in row.taints]},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod_object(number: int, pod: cluster.BoundPod, version: int) -> dict[str, Any]:
    """About 4 kB, as the API server sends it, with what the synthetic cluster says of it."""
    made = list_pods.pod(number, _UNUSED)
    namespace, _, name = pod.key.partition("/")
    units = dict(pod.shape.requests)
    labels = dict(pod.shape.labels)
    owner = made["metadata"]["ownerReferences"][0]
    owner |= {"name": labels["app"], "uid": labels["app"]}
    made["metadata"] |= {
        "name": name,
        "namespace": namespace,
        "resourceVersion": str(version),
        "labels": labels,
    }
    made["spec"]["nodeName"] = pod.node
    requests = {"cpu": f"{units['cpu']}m", "memory": str(units["memory"])}
    made["spec"]["containers"][0]["resources"] = {"requests": requests}
    return made


_UNUSED = Random(0)


async def serve() -> None:
    hosts = cluster.nodes(NODE_COUNT)
    bound = cluster.pods(hosts, POD_COUNT)
    held = {
        "nodes": [node_object(number, row) for number, row in enumerate(hosts)],
        "pods": [pod_object(number, pod, 100_000 + number) for number, pod in enumerate(bound)],
    }
    encoded: dict[tuple[str, int], list[bytes]] = {}
    changes = {"rate": 0.0}

    def page(plural: str, size: int, start: int) -> bytes:
        if (plural, size) not in encoded:
            encoded[plural, size] = list_pods.pages(held[plural], size)
        return encoded[plural, size][start // size]

    async def answer(request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        if plural not in held:
            return web.json_response({"metadata": {"resourceVersion": "500000"}, "items": []})
        if "watch" in request.query:
            return await watched(request, plural)
        size = int(request.query.get("limit") or 10**9)
        body = page(plural, size, int(request.query.get("continue") or 0))
        return web.Response(body=body, content_type="application/json")

    async def watched(request: web.Request, plural: str) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"content-type": "application/json"})
        await stream.prepare(request)
        made: deque[dict[str, Any]] = deque()
        version, numbers, owed = count(600_000), count(POD_COUNT), 0.0
        while True:
            await asyncio.sleep(0.05)
            owed += changes["rate"] * 0.05 / 2 if plural == "pods" else 0
            lines = []
            while owed >= 1:
                owed -= 1
                number = next(numbers)
                pod = bound[number % POD_COUNT]
                new = cluster.BoundPod(f"{pod.key}-{number}", pod.shape, pod.node)
                made.append(pod_object(number, new, next(version)))
                lines.append({"type": "ADDED", "object": made[-1]})
                if len(made) > 200:
                    gone = made.popleft()
                    gone["metadata"]["resourceVersion"] = str(next(version))
                    lines.append({"type": "DELETED", "object": gone})
            try:
                await stream.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            except ConnectionError:
                return stream

    async def control(request: web.Request) -> web.Response:
        changes["rate"] = float(request.query["rate"])
        return web.Response()

    for plural in held:  # so that the first list is not slowed down by encoding
        page(plural, 2000, 0)
    app = web.Application()
    app.router.add_get("/changes", control)
    app.router.add_get("/api/v1/{plural}", answer)
    app.router.add_get("/apis/{group}/v1/{plural}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


# The clients


def plain(number: int) -> bytes:
    wanted = pb.ReplicaRequirements(
        resource_request_bytes={
            "cpu": pb.Quantity(string=f"{500 + number % 100_000}m").SerializeToString(),
            "memory": pb.Quantity(string="1Gi").SerializeToString(),
        }
    )
    return pb.MaxAvailableReplicasRequest(cluster="bench", replica_requirements=wanted).SerializeToString()


def selecting(number: int) -> bytes:
    """With a node selector, an affinity and a toleration."""
    message = pb.MaxAvailableReplicasRequest.FromString(plain(number))
    claim = message.replica_requirements.node_claim
    claim.node_selector["kubernetes.io/arch"] = "amd64"
    zones = pb.NodeSelectorRequirement(
        key="topology.kubernetes.io/zone", operator="In", values=["eu-1a", "eu-1b"]
    )
    term = pb.NodeSelectorTerm(match_expressions=[zones])
    claim.node_affinity_bytes = pb.NodeSelector(node_selector_terms=[term]).SerializeToString()
    toleration = pb.Toleration(key="dedicated", operator="Equal", value="batch", effect="NoSchedule")
    claim.tolerations_bytes.append(toleration.SerializeToString())
    return message.SerializeToString()


def components(number: int) -> bytes:
    """No two alike."""

    def component(name: str, replicas: int, cpu: str, memory: str) -> pb.Component:
        amounts = {"cpu": cpu, "memory": memory}
        wanted = {name: pb.Quantity(string=text).SerializeToString() for name, text in amounts.items()}
        requirements = pb.ComponentReplicaRequirements(resource_request_bytes=wanted)
        return pb.Component(name=name, replicas=replicas, replica_requirements=requirements)

    return pb.MaxAvailableComponentSetsRequest(
        cluster="bench",
        namespace="default",
        components=[
            component("manager", 1, "4", f"{8192 - number}Mi"),
            component("worker", 3, "2", "4Gi"),
        ],
    ).SerializeToString()


def alone(port: int, method: str, requests: Sequence[bytes]) -> list[float]:
    """One client, one call after the other: milliseconds of each. The first ones warm both ends, and are not
    asked again."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(f"/{ESTIMATOR}/{method}")
        for request in requests[:WARMING]:
            call(request, timeout=60)
        took = []
        for request in requests[WARMING:]:
            start = time.perf_counter()
            call(request, timeout=60)
            took.append((time.perf_counter() - start) * 1e3)
    return took


async def together(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """Many clients with a connection each, half of them with selectors."""
    took: list[float] = []
    errors = 0
    numbers = count()
    begin = time.perf_counter() + WARM_SECONDS
    end = begin + seconds

    async def client(make: Callable[[int], bytes]) -> None:
        nonlocal errors
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            call: Any = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
            while (start := time.perf_counter()) < end:
                try:
                    await call(make(next(numbers)), timeout=10)
                except grpc.RpcError:
                    errors += 1
                if start >= begin:
                    took.append((time.perf_counter() - start) * 1e3)

    await asyncio.gather(*(client(selecting if each % 2 else plain) for each in range(clients)))
    ordered = sorted(took)
    return {
        "rate": len(took) / seconds,
        "requests": next(numbers),
        "p50": statistics.median(took),
        "p99": ordered[int(len(ordered) * 0.99)],
        "errors": errors,
    }


# Around them


@contextmanager
def process(*arguments: str, pattern: str, stream: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command until a line matches; what the pattern's group holds is given along."""
    piped: dict[str, Any] = {stream: subprocess.PIPE}
    with subprocess.Popen([sys.executable, *arguments], text=True, **piped) as child:
        try:
            lines = child.stdout if stream == "stdout" else child.stderr
            assert lines is not None
            for line in lines:
                if found := re.search(pattern, line):
                    yield child, found[1]
                    break
            else:
                raise RuntimeError(f"{arguments} ended early")
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(timeout=30)


@contextmanager
def api_server() -> Iterator[str]:
    with process("-m", "bench.estimator", "serve", pattern=r"(http://\S+)", stream="stdout") as (_, url):
        yield url


@contextmanager
def estimator(url: str) -> Iterator[tuple[int, int]]:
    """Process id and gRPC port of a fresh estimator that may not have counted anything yet."""
    flags = ["--cluster-name=bench", f"--master={url}", "--server-port=0"]
    flags += ["--metrics-bind-address=0", "--health-probe-bind-address=0"]
    command = ("-m", "karpool.cli.main", "estimator", *flags)
    with process(*command, pattern=r"listening on port (\d+)", stream="stderr") as (child, port):
        yield child.pid, int(port)


def first_answer(port: int) -> int:
    """Ask until the server says that it has counted everything."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
        while True:
            try:
                answer = call(plain(0), timeout=60)
                return pb.MaxAvailableReplicasResponse.FromString(answer).max_replicas
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                time.sleep(0.01)


def memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time so far: what a busy machine does not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port: int, clients: int, seconds: float = SECONDS) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.estimator", "load", str(port), str(clients), str(seconds)]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    )
    return found


def change(url: str, rate: float) -> None:
    with urllib.request.urlopen(f"{url}/changes?rate={rate}", timeout=10) as answer:
        answer.read()


def result(name: str, unit: str, values: list[float], target: float | None, **more: Any) -> Result:
    return {"name": name, "unit": unit, "values": values, "target": target, **more}


def benchmarks() -> Iterator[Result]:
    with api_server() as url:
        starts, answers = [], set()
        for _ in range(3):
            begin = time.perf_counter()
            with estimator(url) as (_, port):
                answers.add(first_answer(port))
                starts.append(time.perf_counter() - begin)
        if len(answers) != 1:
            raise RuntimeError(f"first answers differ: {sorted(answers)}")
        yield result("estimator: start to the first answer, which is right", "s", starts, 5.0)
        with estimator(url) as (pid, port):
            expected = first_answer(port)
            if {expected} != answers:
                raise RuntimeError(f"{expected} now, {answers} at the start")
            yield result("estimator: memory after sync", "MiB", [memory_mib(pid)], 300.0)
            took = sorted(alone(port, "MaxAvailableReplicas", [plain(n) for n in range(REQUESTS_ALONE)]))
            yield result("estimator: plain request, 1 client, p50", "ms", [statistics.median(took)], 1.0)
            yield result("estimator: the same, p99", "ms", [took[int(len(took) * 0.99)]], 4.0)
            took = alone(port, "MaxAvailableComponentSets", [components(n) for n in range(WARMING + 20)])
            yield result("estimator: component sets", "ms", took, 60.0)
            for clients in (8, 32):
                found = [load(port, clients) for _ in range(LOADS)]
                yield from _loaded(f"{clients} clients", found, 1500.0, None)
            change(url, 100.0)
            before, found, memory = cpu_seconds(pid), [], []
            for _ in range(LOADS):  # a minute altogether
                found.append(load(port, 32, CHURN_SECONDS))
                memory.append(memory_mib(pid))
            used = (cpu_seconds(pid) - before) / sum(each["requests"] for each in found) * 1e3
            yield from _loaded("32 clients, 100 pod changes/s", found, 1000.0, 30.0)
            change(url, 0.0)
            yield result("estimator: CPU time per request of that", "ms", [used], None)
            yield result("estimator: memory under load", "MiB", memory, 400.0)


def _loaded(what: str, found: list[dict[str, Any]], rate: float, p99: float | None) -> Iterator[Result]:
    if errors := sum(each["errors"] for each in found):
        raise RuntimeError(f"{what}: {errors} calls failed")
    rates = [each["rate"] for each in found]
    yield result(f"estimator: {what}, half with selectors", "req/s", rates, rate, better="higher")
    yield result("estimator: the same, p99", "ms", [each["p99"] for each in found], p99)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        with suppress(KeyboardInterrupt):
            asyncio.run(serve())
    elif sys.argv[1] == "load":
        # The clients have one of the two cores; what they need of it is not the server's doing.
        outcome = uvloop.run(together(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
        print(json.dumps(outcome))
    else:
        os._exit(2)
