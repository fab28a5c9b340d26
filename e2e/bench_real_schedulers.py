"""Karmada's scheduler and ours on the same control plane, with the same bindings.

A real Karmada API server with its webhook holds clusters that report a summary, and bindings that
wait. Each scheduler is started and timed until all bindings that name it are placed; client-side limits are
lifted for both. Bindings are alike except for their name and that of their scheduler.

In a second part both ask the same Go estimators, one of every cluster, and no two bindings ask for the same,
so that no answer serves twice. The estimators share one loaded member: what they are asked is what counts.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench_real_estimators import MEMBER_FLAGS, ready_node
from e2e.bench_real_loading import Result, for_all, memory_mib, processor_seconds, say, send, talking
from e2e.components import EstimatorPki, estimator, estimator_pki, scheduler
from e2e.control_plane import ApiServer, api_server, etcd
from e2e.karmada import Karmada, karmada
from e2e.peers import Built
from e2e.processes import Program
from e2e.workloads import DYNAMIC
from karpool.cluster.changes import PutDropSink
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import CLUSTERS, NODES, RESOURCEBINDINGS
from karpool.model.kubernetes.meta import Wire, WireObject

MAKES = ("go", "karpool")
REPLICAS = 20
MEMBER_NODES = 100
SCHEDULER_NAMES = {"go": "default-scheduler", "karpool": "karpool-scheduler"}


@dataclass(frozen=True)
class Size:
    clusters: int
    bindings: int


class _Target(Wire, frozen=True):
    name: str = ""
    replicas: int = 0


class _Spec(Wire, frozen=True):
    clusters: list[_Target] | None = None


class _Placed(WireObject, frozen=True):
    spec: _Spec = _Spec()


def schedulers(peers: dict[str, Built], place: Path, size: Size) -> dict[str, Result]:
    with (
        etcd(peers["etcd"], place) as url,
        karmada(peers, place, url, propagates=False) as control,
    ):
        asyncio.run(_clusters(control.server, size.clusters))
        say(f"schedulers: {size.clusters} clusters known")
        return {make: _measure(peers, make, control, place, size) for make in MAKES}


async def _clusters(server: ApiServer, count: int) -> None:
    room = {"cpu": "10000", "memory": "40000Gi", "pods": "100000"}
    kinds = {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "ClusterReady",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"apiEnablements": [kinds], "conditions": [ready], "resourceSummary": {"allocatable": room}}

    async with talking(server) as client:

        async def join(name: str) -> None:
            spec = {"syncMode": "Push", "apiEndpoint": f"https://{name}.invalid"}
            await client.create(CLUSTERS, {"metadata": {"name": name}, "spec": spec})
            await client.patch(CLUSTERS, name, {"status": status}, subresource="status")

        await for_all(join, (f"member{number:03}" for number in range(count)))


def asking_schedulers(peers: dict[str, Built], place: Path, size: Size) -> dict[str, Result]:
    pki = estimator_pki(place / "pki")
    with (
        etcd(peers["etcd"], place) as url,
        karmada(peers, place, url, propagates=False) as control,
        api_server(peers["kubernetes"], place, url, "member", flags=MEMBER_FLAGS) as member,
        contextlib.ExitStack() as running,
    ):
        asyncio.run(_clusters(control.server, size.clusters))
        asyncio.run(send(member, NODES, [ready_node(number) for number in range(MEMBER_NODES)]))
        for number in range(size.clusters):
            name = f"member{number:03}"
            flags = (f"--cluster-name={name}",)
            asked = estimator(peers["karmada"], member, pki, place / f"estimator-{name}.log", flags)
            running.callback(asked.program.kill)
            control.estimator_at(name, asked.port)
        say(f"asking schedulers: {size.clusters} Go estimators run")
        return {make: _measure(peers, make, control, place, size, pki) for make in MAKES}


def binding(name: str, scheduler_name: str, milli_cpu: int = 10) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"propagationpolicy.karmada.io/permanent-id": "bench"},
        },
        "spec": {
            "schedulerName": scheduler_name,
            "replicas": REPLICAS,
            "replicaRequirements": {"resourceRequest": {"cpu": f"{milli_cpu}m", "memory": "16Mi"}},
            "resource": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "namespace": "default",
                "name": name,
                "uid": f"uid-{name}",
            },
            "placement": {"replicaScheduling": DYNAMIC},
        },
    }


def _measure(
    peers: dict[str, Built],
    make: str,
    control: Karmada,
    place: Path,
    size: Size,
    pki: EstimatorPki | None = None,
) -> Result:
    wanted = [
        binding(f"{make}-{number:05}", SCHEDULER_NAMES[make], 10 if pki is None else 10 + number)
        for number in range(size.bindings)
    ]
    asyncio.run(send(control.server, RESOURCEBINDINGS, wanted))
    limits = ("--kube-api-qps=5000", "--kube-api-burst=10000")
    go = peers["karmada"] if make == "go" else None

    def start() -> Program:
        return scheduler(go, control.server, pki, place / f"scheduler-{make}.log", limits)

    result = asyncio.run(_timed(control.server, f"{make}-", size.bindings, start))
    say(f"schedulers: {make}: {', '.join(f'{name} {value:,.2f}' for name, value in result.items())}")
    return result


async def _timed(server: ApiServer, prefix: str, count: int, start: Callable[[], Program]) -> Result:
    """Start a scheduler while bindings are watched, and see when each has all of its replicas."""
    found: dict[str, float] = {}
    everything = asyncio.Event()

    def seen(each: _Placed) -> None:
        targets = each.spec.clusters or ()
        if each.metadata.name.startswith(prefix) and sum(to.replicas for to in targets) == REPLICAS:
            found.setdefault(each.metadata.name, time.monotonic())
            if len(found) == count:
                everything.set()

    async with talking(server) as client:
        informer = Informer(client, RESOURCEBINDINGS, into=_Placed)
        informer.add_sink(PutDropSink[_Placed](lambda key, new: seen(new), lambda key: None))
        watching = asyncio.create_task(informer.run())
        await informer.synced.wait()
        assert not found
        begun = time.monotonic()
        program = await asyncio.to_thread(start)
        try:
            async with asyncio.timeout(300):
                await everything.wait()
            placed = sorted(found.values())
            return {
                "bindings_per_second": len(placed) / (placed[-1] - placed[0]),
                "start_to_first_binding_seconds": placed[0] - begun,
                "start_to_last_binding_seconds": placed[-1] - begun,
                "processor_ms_per_binding": processor_seconds(program) / len(placed) * 1e3,
                "memory_mib": memory_mib(program),
            }
        finally:
            watching.cancel()
            await asyncio.to_thread(program.stop)
