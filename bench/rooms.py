"""Decisions from copies of rooms: 100 clusters whose estimator is another process, over gRPC on loopback.

The estimator's clusters are fed in memory: there is no API server. It is one process for all clusters, with
the server's own code for streams. The scheduler's end is what decides: copies, filters, counts, division,
promises; nothing is written to an API server. All workloads are different from each other, in requests,
selectors, tolerations and spread, so that no answer serves twice. Where pods change, the changes were worked
out beforehand: the work of 100 estimators is not measured along with the scheduler's. Both processes share
the cores.
"""

import asyncio
import gc
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import grpc
from tests.scheduler.deciding import schedule

from bench import cluster as synthetic
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster_room import ClusterRoom
from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.market import Market
from karpool.cluster.snapshot import ClusterFacts, Snapshot
from karpool.estimator.plugins.node_resource import NodeResourceEstimator
from karpool.estimator.serving.room_stream import RoomStreams
from karpool.kube.clock import RealClock
from karpool.model.karmada.binding import Binding, BindingKey, WorkloadTemplate
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary
from karpool.model.karmada.placement import read_placement
from karpool.model.karmada.replica_requirements import ReplicaNodeClaim, requirements
from karpool.model.kubernetes.meta import SelectorRequirement
from karpool.model.kubernetes.node import ZONE
from karpool.model.requirements import NodeSelector, NodeSelectorTerm
from karpool.model.taints import Toleration
from karpool.rooms.copied_rooms import CopiedRooms
from karpool.rooms.publisher import RoomPublisher
from karpool.rooms.room_change import PROTOCOL, RoomChangeReader
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimate_cache import question_of
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings
from karpool.scheduler.estimates.local_rooms import LocalRooms
from karpool.scheduler.estimates.room_keeper import RoomKeeper
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.wire.proto import rooms_pb2 as pb
from karpool.wire.requests import ROOMS

CLUSTERS, NODES, PODS_PER_NODE = 100, 1_000, 5
DECISIONS = 1_000
CHANGES_PER_SECOND = 100  # in each cluster
TICKS_PER_SECOND = 10
RECORDED_SECONDS = 15
MEASURED_SECONDS = 8
RULES = pb.RoomRules(knows_owners=True)
LARGE_NODES = 5_000
MIB = 1024**2

Result = dict[str, Any]


class FedCluster:
    """As much of a `Cluster` as streams look at."""

    aspects = Aspect.ROOM | Aspect.OWNERS

    def __init__(self, number: int, nodes: int, pods: int) -> None:
        self.room = ClusterRoom()
        hosts = synthetic.nodes(nodes, seed=number)
        for host in hosts:
            self.room.put_node(host)
        self.pods = synthetic.pods(hosts, pods, seed=number)
        for pod in self.pods:
            self.room.put_pod(pod.key, pod.shape, pod.node)
        self._facts = ClusterFacts(self.aspects, {}, {}, Market(), LaunchFailures())
        self.changes = 0

    def snapshot(self, now: float) -> Snapshot:
        room = self.room.snapshot()
        return Snapshot(room.version, room, self._facts)

    def replicas_of(self, *workload: str) -> tuple[Counter[Any], int]:
        return Counter(), 0

    def change(self, number: int) -> None:
        """A pod moves to another node, which is one that comes and one that goes."""
        pod, other = self.pods[number % len(self.pods)], self.pods[(7 * number + 1) % len(self.pods)]
        self.room.put_pod(pod.key, pod.shape, other.node)
        self.changes += 1


def member_of(cluster: FedCluster) -> Any:
    return SimpleNamespace(
        cluster=cluster,
        framework=SimpleNamespace(plugins=(NodeResourceEstimator(),)),
        stale=False,
        not_ready=lambda: None,
        staleness=lambda: 0.0,
    )


def _serve(to_parent: Connection, clusters: int, nodes: int, changes: bool) -> None:
    asyncio.run(_serving(to_parent, clusters, nodes, changes))


async def _serving(to_parent: Connection, clusters: int, nodes: int, changes: bool) -> None:
    frames: list[list[list[bytes]]] = []
    streams = RoomStreams({}, RealClock())
    if changes:
        frames = [_recorded(number, nodes) for number in range(clusters)]
    else:
        fed = {name(number): FedCluster(number, nodes, nodes * PODS_PER_NODE) for number in range(clusters)}
        streams = RoomStreams({known: member_of(cluster) for known, cluster in fed.items()}, RealClock())

    async def follow(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for frame in _replay(frames, requests) if frames else streams.follow(requests):
            yield frame

    gc.freeze()

    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(cast(Any, follow))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(ROOMS, {"Follow": handler})])
    to_parent.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await asyncio.Event().wait()


def _recorded(number: int, nodes: int) -> list[list[bytes]]:
    """The frames of one cluster: the whole, then one change for each tenth of a second."""
    cluster, publisher = FedCluster(number, nodes, nodes * PODS_PER_NODE), RoomPublisher(RULES)
    before, frames = None, []
    for step in range(RECORDED_SECONDS * TICKS_PER_SECOND):
        for change in range(CHANGES_PER_SECOND // TICKS_PER_SECOND if step else 0):
            cluster.change(step * CHANGES_PER_SECOND + change)
        after = publisher.publish(cluster.snapshot(0.0))
        parts = publisher.parts(name(number), before, after, {})
        frames.append([pb.RoomFrame(patch=part).SerializeToString() for part in parts])
        before = after
    return frames


async def _replay(frames: list[list[list[bytes]]], requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    hello = pb.RoomHello(protocol=PROTOCOL, instance="recorded")
    yield pb.RoomFrame(hello=hello).SerializeToString()
    followed: set[str] = set()
    async for data in requests:
        followed |= {room.cluster for room in pb.FollowRequest.FromString(data).rooms}
        if len(followed) == len(frames):
            break
    due = time.perf_counter()
    for step in zip(*frames, strict=True):
        for frame in (frame for parts in step for frame in parts):
            yield frame
        due += 1 / TICKS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


def name(number: int) -> str:
    return f"member{number:03}"


@contextmanager
def estimating(*, changes: bool = False) -> Iterator[int]:
    here, there = multiprocessing.Pipe()
    arguments = (there, CLUSTERS, NODES, changes)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
    process.start()
    try:
        yield here.recv()
    finally:
        process.terminate()
        process.join()


class Scheduling:
    def __init__(self, port: int) -> None:
        async def address(_: str) -> list[str]:
            return [f"127.0.0.1:{port}"]

        clock, self.ledger = RealClock(), PromiseLedger()
        self.clock = clock
        self.clients = EstimatorClient(address, EstimatorSettings(), clock)
        self.rooms = LocalRooms(self.ledger, clock)
        self.keeper = RoomKeeper(self.clients.channel, self.rooms, clock)
        self.reader = AvailabilityReader(
            SchedulingSettings(), clock, ledger=self.ledger, asker=self.clients, rooms=self.rooms
        )
        apis = frozenset({("apps/v1", "Deployment")})
        self.members = [
            MemberCluster(name(number), apis=apis, summary=ResourceSummary()) for number in range(CLUSTERS)
        ]

    async def until_current(self) -> None:
        self.keeper.keep([member.name for member in self.members])
        while not all(self.rooms.is_current(member.name) for member in self.members):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def decide(self, binding: Binding) -> None:
        available = await self.reader.gather(binding, self.members)
        decision = schedule(binding, self.members, available)
        assert decision.targets
        self.ledger.confirm(self.ledger.promise(binding, decision.targets, self.clock.monotonic()), 2)


@asynccontextmanager
async def scheduling(port: int) -> AsyncIterator[Scheduling]:
    made = Scheduling(port)
    try:
        await made.until_current()
        yield made
    finally:
        await made.keeper.close()
        await made.clients.close()


def workloads(count: int) -> list[Binding]:
    random = Random(5)
    return [_workload(number, random) for number in range(count)]


def _workload(number: int, random: Random) -> Binding:
    selector = {"karpenter.sh/capacity-type": random.choice(("spot", "on-demand"))} if number % 3 else {}
    affinity = None
    if number % 2:
        zones = random.sample(synthetic.ZONES, 2)
        condition = SelectorRequirement(key=ZONE, operator="In", values=zones)
        affinity = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[condition])])
    tolerations = (Toleration(key="dedicated", operator="Exists"),) if number % 5 == 0 else ()
    needs = requirements(
        {"cpu": f"{100 + number}m", "memory": f"{random.randrange(64, 2048)}Mi"},
        ReplicaNodeClaim(selector, affinity, tolerations),
        "default",
    )
    weighted = {
        "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"},
    }
    how = {"replicaDivisionPreference": "Aggregated"} if number % 4 == 0 else weighted
    spread = [{"spreadByField": "cluster", "minGroups": 1, "maxGroups": random.randrange(2, 8)}]
    placement = {
        "replicaScheduling": {"replicaSchedulingType": "Divided", **how},
        "spreadConstraints": spread,
    }
    name_of = f"app-{number}"
    return replace(
        Binding(
            key=BindingKey("ResourceBinding", "default", name_of),
            template=WorkloadTemplate("apps/v1", "Deployment", "default", name_of),
            replicas=random.randrange(2, 30),
            requirements=needs,
            generation=1,
        ),
        placement=read_placement(placement),
    )


async def _decisions(port: int) -> tuple[float, list[float]]:
    """Seconds for all, and milliseconds of each."""
    async with scheduling(port) as scheduler:
        bindings = workloads(DECISIONS)
        for binding in workloads(20):
            await scheduler.decide(
                replace(binding, key=BindingKey("ResourceBinding", "warm", binding.key.name))
            )
        gc.collect()
        values: list[float] = []
        start = time.perf_counter()
        for binding in bindings:
            began = time.perf_counter()
            await scheduler.decide(binding)
            values.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0)  # what arrives is read between decisions, as in the scheduler
        return time.perf_counter() - start, sorted(values)


def _decision_rows(what: str, *, changes: bool) -> Iterator[Result]:
    with estimating(changes=changes) as port:
        took, values = asyncio.run(_decisions(port))
    title = f"{DECISIONS:,} decisions on {CLUSTERS} copied rooms of {NODES:,} nodes, all different{what}"
    targets: tuple[float | None, ...] = (200, 5, 32) if not changes else (None, None, None)
    yield {"name": title, "unit": "decisions/s", "values": [DECISIONS / took], "target": targets[0]}
    yield {"name": "the same, p50", "unit": "ms", "values": [values[len(values) // 2]], "target": targets[1]}
    p99 = values[int(len(values) * 0.99)]
    yield {"name": "the same, p99", "unit": "ms", "values": [p99], "target": targets[2]}


def _idle_cost() -> Result:
    """Of the scheduler's process, while it only keeps copies."""

    async def measure(port: int) -> float:
        async with scheduling(port):
            await asyncio.sleep(1)
            start, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(MEASURED_SECONDS)
            return (time.process_time() - used) / (time.perf_counter() - start)

    with estimating(changes=True) as port:
        share = asyncio.run(measure(port))
    title = (
        f"{CHANGES_PER_SECOND} pod changes/s in each of {CLUSTERS} clusters: share of a core in the scheduler"
    )
    return {"name": title, "unit": "cores", "values": [share], "target": 0.5}


def _all_parts(to_parent: Connection) -> None:
    for number in range(CLUSTERS):
        cluster = FedCluster(number, LARGE_NODES, 0)
        publisher = RoomPublisher(RULES)
        for part in publisher.parts(name(number), None, publisher.publish(cluster.snapshot(0.0)), {}):
            to_parent.send_bytes(part.SerializeToString())
    to_parent.send_bytes(b"")


def _memory() -> Result:
    """Of this process, all of it, with the copies and the masks of a hundred questions."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_all_parts, args=(there,), daemon=True)
    process.start()
    copies = CopiedRooms()
    readers: dict[str, RoomChangeReader] = {}
    while data := here.recv_bytes():
        patch = pb.RoomPatch.FromString(data)
        change = readers.setdefault(patch.cluster, RoomChangeReader()).read(patch)
        if change is not None:
            copies.apply(change)
    process.join()
    names = [name(number) for number in range(CLUSTERS)]
    for binding in workloads(100):
        copies.answers(question_of(binding, False).request, names)
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    title = f"{CLUSTERS} copied rooms of {LARGE_NODES:,} nodes: memory of the process"
    return {"name": title, "unit": "MiB", "values": [resident / MIB], "target": 1536}


def benchmarks() -> Iterator[Result | Callable[[], Result]]:
    yield from _decision_rows("", changes=False)
    yield from _decision_rows(f", {CHANGES_PER_SECOND} pod changes/s in each", changes=True)
    yield _idle_cost
    yield _memory
