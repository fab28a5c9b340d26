"""How fast the embedded API server takes writes, and whether watchers keep up with it.

The server runs in a process of its own over HTTPS, as `karpool apiserver` does; the
client shares the machine with it. Each function returns name, unit, the value of every
run and the target; more is better unless the unit says otherwise.
"""

import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

PODS = "/api/v1/namespaces/default/pods"
RUNS = 3
CREATES = 6_000
CONNECTIONS = 16
WATCHERS = 20
EVENTS_PER_SECOND = 1_000
SECONDS = 5
STORED = 50_000


def pod(name: str, number: int) -> dict[str, Any]:
    """A pod of ordinary size: 1.0 kB as sent, 1.7 kB as stored."""
    container = {
        "name": "app",
        "image": "registry.example/app:1.2.3",
        "ports": [{"containerPort": 8080}],
        "env": [{"name": "MODE", "value": "production"}, {"name": "LEVEL", "value": "info"}],
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
        "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}],
    }
    labels = {"app": f"web-{number % 500}", "tier": "front", "pod-template-hash": "5d4f8"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "settings", "configMap": {"name": "settings"}}],
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
            "nodeSelector": {"topology.kubernetes.io/zone": "a"},
        },
    }


@dataclass
class Server:
    """How to reach a server in another process, and, once it has ended, the CPU seconds it served for."""

    url: str
    token: str
    trust: ssl.SSLContext
    ca_pem: str = ""
    cpu_seconds: float = 0.0


@asynccontextmanager
async def server(data_dir: Path | None = None) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.apiserver",
        *([str(data_dir)] if data_dir else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        ready = json.loads(await process.stdout.readline())
        trust = ssl.create_default_context(cadata=ready["ca"])
        served = Server(ready["url"], ready["token"], trust, ready["ca"])
        yield served
        process.stdin.close()  # tells it to end
        served.cpu_seconds = json.loads(await process.stdout.readline())["cpu_seconds"]
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def session(address: Server, connections: int) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=address.trust, limit=connections)
    headers = {"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(address.url, connector=connector, headers=headers) as made:
        yield made


async def _create_all(client: aiohttp.ClientSession, bodies: list[bytes], workers: int) -> float:
    """Seconds to create them all over keep-alive connections."""
    waiting = iter(bodies)

    async def worker() -> None:
        for body in waiting:
            async with client.post(PODS, data=body) as answer:
                await answer.read()
                if answer.status != 201:
                    raise RuntimeError(f"a create was answered {answer.status}")

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return time.perf_counter() - start


async def _creates(data_dir: Path | None = None) -> tuple[list[float], float]:
    """Creates per second of each run, and the server's CPU seconds for all of them."""
    rates = []
    async with server(data_dir) as address, session(address, CONNECTIONS) as client:
        for run in range(RUNS + 1):
            bodies = [json.dumps(pod(f"p-{run}-{n}", n)).encode() for n in range(CREATES)]
            rates.append(CREATES / await _create_all(client, bodies, CONNECTIONS))
    return rates[1:], address.cpu_seconds  # the first run compiles schemas and opens connections


@cache
def _create_runs() -> tuple[list[float], float]:
    return uvloop.run(_creates())


@cache
def _durable_runs() -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        return uvloop.run(_creates(Path(folder)))[0]


async def _starts() -> list[float]:
    """Seconds until a server with many objects on disk has answered its first request."""
    seconds = []
    bodies = [json.dumps(pod(f"p-{n}", n)).encode() for n in range(STORED)]
    with tempfile.TemporaryDirectory() as folder:
        async with server(Path(folder)) as address, session(address, CONNECTIONS) as client:
            await _create_all(client, bodies, CONNECTIONS)
        for _ in range(RUNS):
            start = time.perf_counter()
            async with server(Path(folder)) as address, session(address, 1) as client:
                async with client.get(PODS, params={"limit": "1"}) as answer:
                    listed = await answer.json()
                seconds.append(time.perf_counter() - start)
                if listed["metadata"]["remainingItemCount"] != STORED - 1:
                    raise RuntimeError("objects are missing after a restart")
    return seconds


async def _watch_all(client: aiohttp.ClientSession, version: str, count: int) -> tuple[int, int]:
    """Events received, and events out of order or doubled, until `count` have come."""
    received = disorder = 0
    last = int(version)
    rest = b""
    query = {"watch": "true", "resourceVersion": version}
    async with client.get(PODS, params=query, timeout=aiohttp.ClientTimeout(total=None)) as stream:
        async for chunk in stream.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                received += 1
                # Decoding 20,000 events a second would measure this client instead.
                at = line.index(b'"resourceVersion":"') + 19
                now = int(line[at : line.index(b'"', at)])
                disorder += now <= last
                last = now
            if received >= count:
                break
    return received, disorder


async def _pace(client: aiohttp.ClientSession, bodies: list[bytes], per_second: int) -> float:
    """Create at a steady rate; the rate that was really reached."""
    start = time.perf_counter()
    waiting = iter(enumerate(bodies))

    async def worker() -> None:
        for number, body in waiting:
            early = start + number / per_second - time.perf_counter()
            if early > 0:
                await asyncio.sleep(early)
            async with client.post(PODS, data=body) as answer:
                await answer.read()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    return len(bodies) / (time.perf_counter() - start)


async def _watch_run(run: int) -> tuple[float, float]:
    """The event rate reached, and the share of events that every watcher saw exactly once."""
    count = EVENTS_PER_SECOND * SECONDS
    bodies = [json.dumps(pod(f"w-{run}-{n}", n)).encode() for n in range(count)]
    async with server() as address, session(address, CONNECTIONS + WATCHERS) as client:
        await _create_all(client, [json.dumps(pod(f"warm-{n}", n)).encode() for n in range(200)], CONNECTIONS)
        async with client.get(PODS, params={"limit": "1"}) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        watchers = [asyncio.create_task(_watch_all(client, version, count)) for _ in range(WATCHERS)]
        rate = await _pace(client, bodies, EVENTS_PER_SECOND)
        results = await asyncio.wait_for(asyncio.gather(*watchers), 60)
    exact = sum(received for received, disorder in results if disorder == 0)
    return rate, exact / (count * WATCHERS)


@cache
def _watch_runs() -> list[tuple[float, float]]:
    return [uvloop.run(_watch_run(run)) for run in range(RUNS)]


def creates_per_second() -> dict[str, Any]:
    values, _ = _create_runs()
    return {"name": "apiserver: pods created over HTTPS", "unit": "1/s", "values": values, "target": 1_500}


def cpu_time_of_a_create() -> dict[str, Any]:
    """What the rate would allow if the server had a core to itself."""
    _, seconds = _create_runs()
    each = seconds / (CREATES * (RUNS + 1)) * 1e6
    return {
        "name": "the same, CPU time of the server per pod",
        "unit": "µs",
        "values": [each],
        "target": None,
    }


def acknowledged_creates_per_second() -> dict[str, Any]:
    """Each answer waits until the pod is on disk."""
    return {
        "name": "apiserver: pods created over HTTPS, synced to disk",
        "unit": "1/s",
        "values": _durable_runs(),
        "target": None,
    }


def start_with_many_objects() -> dict[str, Any]:
    return {
        "name": f"apiserver: start with {STORED:,} pods on disk",
        "unit": "s",
        "values": uvloop.run(_starts()),
        "target": None,
    }


def watched_events_per_second() -> dict[str, Any]:
    """Reached when the pace could be kept; a little below it is the end of the last second."""
    return {
        "name": f"apiserver: events per second to {WATCHERS} watchers",
        "unit": "1/s",
        "values": [rate for rate, _ in _watch_runs()],
        "target": 0.99 * EVENTS_PER_SECOND,
    }


def watched_events_lost() -> dict[str, Any]:
    return {
        "name": f"apiserver: events lost, doubled or disordered at {WATCHERS} watchers",
        "unit": "share",
        "values": [1.0 - share for _, share in _watch_runs()],
        "target": 0.0,
        "better": "lower",
    }


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    return [
        creates_per_second,
        cpu_time_of_a_create,
        acknowledged_creates_per_second,
        start_with_many_objects,
        watched_events_per_second,
        watched_events_lost,
    ]


async def _serve() -> None:
    """The other process: serve until standard input ends."""
    from karpool_fleet.apiserver.serve.run import RunningServer, run_apiserver

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ready(running: RunningServer) -> None:
        print(json.dumps({"url": running.url, "token": running.token, "ca": running.ca_pem}), flush=True)

    started = time.process_time()
    reader = loop.run_in_executor(None, sys.stdin.read)
    reader.add_done_callback(lambda _: stop.set())
    await run_apiserver(
        host="127.0.0.1",
        port=0,
        kubeconfig=None,
        data_dir=Path(sys.argv[1]) if len(sys.argv) > 1 else None,
        token=None,
        tls=True,
        ready=ready,
        stop=stop,
    )
    print(json.dumps({"cpu_seconds": time.process_time() - started}), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve())
