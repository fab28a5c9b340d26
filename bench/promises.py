"""The ledger of promises, and estimators asked over gRPC.

The servers of the last one answer at once, without counting anything, and share the process: what is
measured is the asking, both ends of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
from tests.scheduler.deciding import schedule

from bench.timing import timed
from karpool.kube.clock import RealClock
from karpool.model.karmada.binding import Binding, BindingKey, TargetCluster, WorkloadTemplate
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary
from karpool.model.karmada.placement import read_placement
from karpool.model.karmada.replica_requirements import ReplicaRequirements, requirements
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.estimates.availability import AvailabilityReader
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings
from karpool.scheduler.promises.ledger import PromiseLedger
from karpool.scheduler.promises.promise_annotation import PROMISES
from karpool.wire.proto import estimator_pb2 as pb
from karpool.wire.requests import ESTIMATOR

MEMBERS = 100
BINDINGS = 500
RUNS = 5
DECISIONS = 100
DYNAMIC = {
    "replicaSchedulingType": "Divided",
    "replicaDivisionPreference": "Weighted",
    "weightPreference": {"dynamicWeight": "AvailableReplicas"},
}
NEEDS = requirements({"cpu": "500m", "memory": "512Mi"})

Result = dict[str, Any]


def binding(number: int, on: tuple[TargetCluster, ...] = (), generation: int = 1, **more: Any) -> Binding:
    name = f"app-{number}"
    return Binding(
        key=BindingKey("ResourceBinding", "default", name),
        template=WorkloadTemplate("apps/v1", "Deployment", "default", name),
        replicas=200,
        requirements=NEEDS,
        targets=on,
        generation=generation,
        **more,
    )


TARGETS = tuple(TargetCluster(f"member{number:03}", 2) for number in range(MEMBERS))


def filled() -> PromiseLedger:
    ledger = PromiseLedger()
    for number in range(BINDINGS):
        promise(ledger, number)
    return ledger


def promise(ledger: PromiseLedger, number: int) -> str | None:
    before = binding(number)
    ledger.observe(before, 0.0, 0.0)
    token = ledger.promise(before, TARGETS, 0.0)
    record = ledger.record(before.key, 0.0, 0.0)
    ledger.confirm(token, 2)
    return record


def promising() -> Result:
    """One decision on all members, with that many promises in each of them already."""
    ledger = filled()
    values = []
    for number in range(BINDINGS, BINDINGS + 50):
        start = time.perf_counter()
        promise(ledger, number)
        values.append((time.perf_counter() - start) * 1000)
    return {
        "name": f"promise and write down, {MEMBERS} clusters, {BINDINGS} promises in each",
        "unit": "ms",
        "values": values,
        "target": None,
    }


def rebuilding() -> Result:
    """What a new leader does before its first decision."""
    ledger = filled()
    held = [
        binding(
            number, TARGETS, 2, annotations={PROMISES: ledger.record(binding(number).key, 0.0, 0.0) or ""}
        )
        for number in range(BINDINGS)
    ]
    return {
        "name": f"rebuild the ledger, {BINDINGS} bindings on {MEMBERS} clusters each",
        "unit": "ms",
        "values": timed(lambda: PromiseLedger().rebuild(held, 0.0, 0.0), repeat=RUNS),
        "target": None,
    }


def asking() -> Result:
    return _asking(0)


def asking_with_promises() -> Result:
    return _asking(20)


def _asking(promises: int) -> Result:
    return {
        "name": f"ask {MEMBERS} estimators, {promises} promises in each cluster",
        "unit": "ms",
        "values": asyncio.run(_asked(promises)),
        "target": None,
    }


def deciding_alike() -> Result:
    return _deciding("of one template", lambda number: NEEDS)


def deciding_diverse() -> Result:
    sizes = [requirements({"cpu": f"{500 + number}m", "memory": "512Mi"}) for number in range(DECISIONS)]
    return _deciding("all different", lambda number: sizes[number])


def _deciding(what: str, needs: Callable[[int], ReplicaRequirements]) -> Result:
    return {
        "name": f"{DECISIONS} decisions on {MEMBERS} estimators, {what}",
        "unit": "decisions/s",
        "values": [asyncio.run(_decided(needs)) for _ in range(3)],
        "target": None,
    }


async def _decided(needs: Callable[[int], ReplicaRequirements]) -> float:
    """Ask, decide and promise, one after the other, as if each was written at once."""
    async with _serving() as port:

        async def address(_: str) -> list[str]:
            return [f"127.0.0.1:{port}"]

        clock, ledger = RealClock(), PromiseLedger()
        clients = EstimatorClient(address, EstimatorSettings(timeout_seconds=60.0), clock)
        room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=clients)
        apis = frozenset({("apps/v1", "Deployment")})
        members = [MemberCluster(target.name, apis=apis, summary=ResourceSummary()) for target in TARGETS]
        placement = read_placement({"replicaScheduling": DYNAMIC})
        await room.gather(binding(-1), members)  # so that all are connected
        start = time.perf_counter()
        for number in range(DECISIONS):
            wanted = replace(binding(number), placement=placement, requirements=needs(number))
            decision = schedule(wanted, members, await room.gather(wanted, members))
            assert decision.targets
            ledger.confirm(ledger.promise(wanted, decision.targets, clock.monotonic()), 2)
        took = time.perf_counter() - start
        await clients.close()
    return DECISIONS / took


@asynccontextmanager
async def _serving() -> AsyncIterator[int]:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(_answer)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(ESTIMATOR, {"MaxAvailableReplicas": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def _asked(promises: int) -> list[float]:
    async with _serving() as port:
        return await _asked_at(port, promises)


async def _asked_at(port: int, promises: int) -> list[float]:
    clock, ledger = RealClock(), PromiseLedger()

    async def address(_: str) -> list[str]:
        return [f"127.0.0.1:{port}"]

    for number in range(promises):
        promise(ledger, number)
    clients = EstimatorClient(address, EstimatorSettings(), clock)
    room = AvailabilityReader(SchedulingSettings(), clock, ledger=ledger, asker=clients)
    members = [MemberCluster(target.name, summary=ResourceSummary()) for target in TARGETS]
    await room.gather(binding(-1), members)
    values = []
    for _ in range(20):
        start = time.perf_counter()
        await room.gather(binding(-1), members, fresh=True)
        values.append((time.perf_counter() - start) * 1000)
    await clients.close()
    return values


async def _answer(data: bytes, _: object) -> bytes:
    request = pb.MaxAvailableReplicasRequest.FromString(data)
    arrived = [pb.Arrived(bound=[0]) for _ in request.assumed_workloads]
    taken = sum(part.replicas for workload in request.assumed_workloads for part in workload.components)
    left = max(0, 1_000_000 - taken)
    return pb.MaxAvailableReplicasResponse(max_replicas=left, arrived=arrived).SerializeToString()


def benchmarks() -> Iterator[Callable[[], Result]]:
    yield from (promising, rebuilding, asking, asking_with_promises, deciding_alike, deciding_diverse)
