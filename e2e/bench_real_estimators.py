"""Karmada's estimator and ours on the same loaded cluster, one after the other.

A real kube-apiserver holds nodes, and pods that are bound already. Each estimator is started,
asked over mutual TLS, and ended before the next begins. Clients have a connection each; every
question under load is another one, so that nothing can be remembered, and half of them
have a selector, an affinity and a toleration. Churn is pods that come and go and nodes that change while
clients ask. Both must give the same answers to the same questions; of component sets Karmada's
may find a few less than fit, so how many each found is a result.
"""

import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import uvloop

from e2e.asking import Asker, component, replica
from e2e.bench_real_loading import Result, memory_mib, processor_seconds, say, send, talking
from e2e.components import Estimator, EstimatorPki, estimator, estimator_pki
from e2e.control_plane import ApiServer, api_server, etcd
from e2e.kubectl import wait_for
from e2e.peers import Built
from e2e.workloads import node
from karpool.model.karmada.replica_requirements import Component, ReplicaNodeClaim, ReplicaRequirements
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.kubernetes.node import ARCH, ZONE
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.taints import Toleration
from karpool.wire.client_protocol import ask_replicas
from karpool.wire.requests import ESTIMATOR

MAKES = ("go", "karpool")
POD_CPU, POD_MEMORY, NODE_CPU = "500m", "256Mi", 32
ZONES = ("zone-a", "zone-b", "zone-c")
# Nobody takes taints off nodes here, nor makes service accounts.
MEMBER_FLAGS = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
PODS_PER_SECOND, NODES_PER_SECOND = 50, 5  # churn: so many pods come, as many go, so many nodes change
PACE = 0.1  # seconds between two rounds of it
SETS = {
    # About 2,500 and 9,000 of them fit into 5,000 nodes with 27 free processors each.
    "large_component_sets": (("manager", 1, "13", "16Gi"), ("worker", 3, "13", "16Gi")),
    "component_sets": (("manager", 1, "6", "8Gi"), ("worker", 3, "3", "4Gi")),
}


@dataclass(frozen=True)
class Size:
    nodes: int
    pods: int
    asks: int
    seconds: float
    clients: tuple[int, ...] = (1, 8, 32)


def estimators(peers: dict[str, Built], place: Path, size: Size) -> dict[str, Result]:
    pki = estimator_pki(place / "pki")
    with (
        etcd(peers["etcd"], place) as url,
        api_server(peers["kubernetes"], place, url, "loaded", flags=MEMBER_FLAGS) as server,
    ):
        took = _load(server, size)
        say(f"estimators: {size.nodes} nodes and {size.pods} pods loaded in {took:.0f} s")
        found, answers = {}, {}
        for make in MAKES:
            found[make], answers[make] = _measure(peers, make, server, pki, place, size)
        different = [key for key in answers["go"] if answers["go"][key] != answers["karpool"][key]]
        assert not different, f"answers differ: {different} of {answers}"
        say(f"estimators: {len(answers['go'])} answers of each, all the same")
        return found


def _load(server: ApiServer, size: Size) -> float:
    names = [node_name(number) for number in range(size.nodes)]
    took = asyncio.run(send(server, NODES, [ready_node(number) for number in range(size.nodes)]))
    pods = [bound_pod(f"pod-{i:06}", names[i % len(names)]) for i in range(size.pods)]
    return took + asyncio.run(send(server, PODS, pods))


def node_name(number: int) -> str:
    return f"node-{number:05}"


def bound_pod(name: str, on: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": POD_CPU, "memory": POD_MEMORY}}
    container = {"name": "main", "image": "none", "resources": resources}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": on, "containers": [container]},
    }


def ready_node(number: int) -> dict[str, Any]:
    labels = {ZONE: ZONES[number % 3], ARCH: "arm64" if number % 5 == 0 else "amd64"}
    made = node(node_name(number), str(NODE_CPU), "128Gi", **labels)
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return made


# One estimator


def _measure(
    peers: dict[str, Built], make: str, server: ApiServer, pki: EstimatorPki, place: Path, size: Size
) -> tuple[Result, dict[str, int]]:
    wanted = replica(POD_CPU, POD_MEMORY)
    truth = size.nodes * NODE_CPU * 2 - size.pods
    limits = ("--kube-api-qps=1000", "--kube-api-burst=2000")
    begun = time.monotonic()
    go = peers["karmada"] if make == "go" else None
    running = estimator(go, server, pki, place / f"estimator-{make}.log", limits)
    program = running.program
    asker = Asker(server.name, running.port, pki)
    result: Result = {}
    answers: dict[str, int] = {}

    def note(name: str, value: float) -> None:
        result[name] = value
        say(f"estimators: {make}: {name} {value:,.2f}")

    try:
        wait_for("the right answer", lambda: _answer(asker, wanted) == truth, 120, 0.02)
        note("start_seconds", time.monotonic() - begun)
        note("memory_after_start_mib", memory_mib(program))
        asker.replicas(wanted)
        alone = _timed(lambda: asker.replicas(wanted), size.asks)
        note("p50_ms", statistics.median(alone) * 1e3)
        note("p99_ms", _high(alone) * 1e3)
        for clients, churn in (*((client, False) for client in size.clients), (8, True)):
            seen = _under_load(server, running, pki, clients, size.seconds, churn=churn)
            name = f"clients_{clients}{'_churn' if churn else ''}"
            note(f"{name}_per_second", seen.per_second)
            note(f"{name}_p50_ms", seen.p50_ms)
            note(f"{name}_p99_ms", seen.p99_ms)
            note(f"{name}_processor_ms", seen.processor_ms)
        for name, components in SETS.items():
            parts = [component(part, n, replica(cpu, mem)) for part, n, cpu, mem in components]
            begun = time.perf_counter()
            sets = _sets(asker, parts)  # once: Karmada's takes long enough to be timed by one
            note(f"{name}_ms", (time.perf_counter() - begun) * 1e3)
            note(f"{name}_found", sets)
        note("memory_after_load_mib", memory_mib(program))
        answers |= {f"question {n}": asker.replicas(question(n)) for n in range(0, 200, 13)}
        return result, answers
    finally:
        asker.close()
        program.stop()


def _answer(asker: Asker, wanted: ReplicaRequirements) -> int:
    with contextlib.suppress(Exception):  # it may not answer yet
        return asker.replicas(wanted)
    return -1


def _sets(asker: Asker, parts: list[Component]) -> int:
    """None are found in time when the client's deadline passes: that is a result, too."""
    try:
        return asker.sets(parts)
    except grpc.RpcError as error:
        say(f"estimators: no answer about component sets: {error.code()}")
        return 0


def _timed(ask: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        ask()
        found.append(time.perf_counter() - begun)
    return found


def _high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


# Many clients


def question(number: int) -> ReplicaRequirements:
    """Another one for every number; every other one says where pods may run."""
    wanted = {"cpu": f"{400 + number % 20_000}m", "memory": "256Mi"}
    if number % 2:
        return ReplicaRequirements(resource_request=wanted)
    zones = SelectorRequirement(key=ZONE, operator="In", values=list(ZONES[:2]))
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[zones])])
    tolerated = Toleration(key="dedicated", operator="Equal", value="batch", effect="NoSchedule")
    claim = ReplicaNodeClaim({ARCH: "amd64"}, terms, (tolerated,))
    return ReplicaRequirements(resource_request=wanted, node_claim=claim)


@lru_cache(maxsize=1)
def _questions(cluster: str) -> tuple[bytes, ...]:
    """Encoded beforehand, so that clients leave as much of the machine as they can to servers."""
    return tuple(ask_replicas(question(number)).to(cluster) for number in range(10_000))


@dataclass(frozen=True)
class Load:
    """What clients saw: milliseconds of each call, and the processor time of the server in each."""

    per_second: float
    p50_ms: float
    p99_ms: float
    processor_ms: float


def _under_load(
    server: ApiServer, running: Estimator, pki: EstimatorPki, clients: int, seconds: float, *, churn: bool
) -> Load:
    used = processor_seconds(running.program)
    took = uvloop.run(_together(server, running.port, pki, clients, seconds, churn=churn))
    used = processor_seconds(running.program) - used
    return Load(
        len(took) / seconds,
        statistics.median(took) * 1e3,
        _high(took) * 1e3,
        used / len(took) * 1e3,
    )


async def _together(
    server: ApiServer, port: int, pki: EstimatorPki, clients: int, seconds: float, *, churn: bool
) -> list[float]:
    credentials = grpc.ssl_channel_credentials(
        pki.ca.read_bytes(), pki.client_key.read_bytes(), pki.client_certificate.read_bytes()
    )
    asked, took, numbers = _questions(server.name), list[float](), count()
    end = time.perf_counter() + seconds

    async def client() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
            call: Any = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
            while (begun := time.perf_counter()) < end:
                await call(asked[next(numbers) % len(asked)], timeout=60)
                took.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        if churn:
            group.create_task(_change(server, end))
        for _ in range(clients):
            group.create_task(client())
    return took


async def _change(server: ApiServer, end: float) -> None:
    """Pods come and go and nodes change, at a steady pace, until then; leaves nothing behind."""
    alive: deque[str] = deque()
    async with talking(server) as client:

        async def replace_pod(name: str) -> None:
            await client.create(PODS, bound_pod(name, node_name(len(alive) % 10)))
            alive.append(name)
            if len(alive) > PODS_PER_SECOND:
                await client.delete(PODS, alive.popleft(), namespace="default", grace_seconds=0)

        async def change_node(number: int) -> None:
            patch = {"metadata": {"labels": {"changed": str(number)}}}
            await client.patch(NODES, node_name(number % 10), patch)

        tick = 0
        while (begun := time.perf_counter()) < end:
            tick += 1
            names = [f"churn-{tick}-{number}" for number in range(round(PODS_PER_SECOND * PACE))]
            await asyncio.gather(*(replace_pod(name) for name in names))
            if tick % round(1 / PACE / NODES_PER_SECOND) == 0:
                await change_node(tick)
            await asyncio.sleep(max(0.0, PACE - (time.perf_counter() - begun)))
        for name in alive:
            await client.delete(PODS, name, namespace="default", grace_seconds=0)
