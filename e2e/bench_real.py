"""Go's and Karpool's programs on the same real, loaded clusters, in one run: `python -m e2e.bench_real`.

Estimators: one kube-apiserver with nodes and pods that are bound already; each estimator is
started, asked over mutual TLS by a client of its own process, and ended before the next.
Schedulers: one Karmada API server with clusters that report a summary, and bindings that
wait; each scheduler is started and timed until all are placed. Client-side limits are
lifted for both. Results are printed as a table, and as JSON with `--json FILE`.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.asking import Asker, component, replica
from e2e.components import EstimatorPki, estimator, estimator_pki, scheduler
from e2e.control_plane import ApiServer, api_server, etcd
from e2e.karmada import Karmada, karmada
from e2e.kubectl import Kubectl, wait_for
from e2e.peers import Built, NoPeers, build_all
from e2e.processes import Program
from e2e.workloads import DYNAMIC, node
from karpool.kube import kubeconfig
from karpool.kube.client import Client
from karpool.kube.http import HttpTransport
from karpool.kube.informer import Informer
from karpool.kube.resource import NODES, PODS, RESOURCEBINDINGS, Resource
from karpool.model.meta import Wire, WireObject


class _Spec(Wire, frozen=True):
    clusters: list[Any] | None = None


class _Placed(WireObject, frozen=True):
    spec: _Spec = _Spec()


MAKES = ("go", "karpool")
POD, NODE_CPU = "500m", 32
Result = dict[str, float]


def bound_pod(name: str, on: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": POD, "memory": "256Mi"}}
    container = {"name": "main", "image": "none", "resources": resources}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": on, "containers": [container]},
    }


def ready_node(name: str) -> dict[str, Any]:
    made = node(name, str(NODE_CPU), "128Gi")
    made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return made


async def send(server: ApiServer, resource: Resource, objects: Sequence[dict[str, Any]]) -> None:
    """All of them, a few dozen at a time."""
    async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name=server.name) as client:
        left = iter(objects)
        unlimited = client.without_limit()

        async def work() -> None:
            for each in left:
                await unlimited.create(resource, each)

        await asyncio.gather(*(work() for _ in range(32)))


# Estimators


def estimators(peers: dict[str, Built], place: Path, size: argparse.Namespace) -> dict[str, Result]:
    pki = estimator_pki(place / "pki")
    # Nobody takes taints off nodes here, nor makes service accounts.
    flags = ("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",)
    with (
        etcd(peers["etcd"], place) as url,
        api_server(peers["kubernetes"], place, url, "loaded", flags=flags) as server,
    ):
        names = [f"node-{number:05}" for number in range(size.nodes)]
        asyncio.run(send(server, NODES, [ready_node(name) for name in names]))
        pods = [bound_pod(f"pod-{i:06}", names[i % len(names)]) for i in range(size.pods)]
        asyncio.run(send(server, PODS, pods))
        return {make: _estimator(peers, make, server, pki, place, size) for make in MAKES}


def _estimator(
    peers: dict[str, Built],
    make: str,
    server: ApiServer,
    pki: EstimatorPki,
    place: Path,
    size: argparse.Namespace,
) -> Result:
    wanted = replica(POD, "256Mi")
    truth = size.nodes * NODE_CPU * 2 - size.pods
    limits = ("--kube-api-qps=1000", "--kube-api-burst=2000")
    begun = time.monotonic()
    go = peers["karmada"] if make == "go" else None
    running = estimator(go, server, pki, place / f"estimator-{make}.log", limits)
    asker = Asker(server.name, running.port, pki)
    try:
        wait_for("the right answer", lambda: _answers(asker, wanted) == truth, 120, 0.02)
        result = {"start_seconds": time.monotonic() - begun}
        asker.replicas(wanted)
        alone = _timed(lambda: asker.replicas(wanted), size.asks)
        result |= {"p50_ms": statistics.median(alone) * 1e3, "p99_ms": _high(alone) * 1e3}
        result["asks_per_second_8"] = _throughput(asker, size.seconds)
        with _churn(server):
            result["asks_per_second_8_churn"] = _throughput(asker, size.seconds)
        set_ = [component("a", 1, replica("4", "8Gi")), component("b", 3, replica("2", "4Gi"))]
        result["component_sets_ms"] = statistics.median(_timed(lambda: asker.sets(set_), 3)) * 1e3
        result["memory_mib"] = _memory(running.program)
        return result
    finally:
        asker.close()
        running.program.stop()


def _answers(asker: Asker, wanted: Any) -> int:
    with contextlib.suppress(Exception):  # it may not answer yet
        return asker.replicas(wanted)
    return -1


def _timed(ask: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        ask()
        found.append(time.perf_counter() - begun)
    return found


def _high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def _throughput(asker: Asker, seconds: float) -> float:
    """Eight callers at once, each asking for another size, so that nothing can be remembered."""
    end = time.monotonic() + seconds

    def work(worker: int) -> int:
        number = 0
        while time.monotonic() < end:
            asker.replicas(replica(f"{400 + (worker * 37 + number) % 200}m", "256Mi"))
            number += 1
        return number

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(work, range(8))) / seconds


@contextlib.contextmanager
def _churn(server: ApiServer, per_second: int = 50) -> Iterator[None]:
    """Pods that come and go, so many of each in a second."""
    stop = threading.Event()

    async def run() -> None:
        async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name="churn") as client:
            number = 0
            while not stop.is_set():
                begun = time.monotonic()
                names = [f"churn-{number + i}" for i in range(per_second // 10)]
                number += len(names)
                await asyncio.gather(*(client.create(PODS, bound_pod(name, "node-00000")) for name in names))
                for name in names:
                    await client.delete(PODS, name, namespace="default", grace_seconds=0)
                await asyncio.sleep(max(0.0, 0.1 - (time.monotonic() - begun)))

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _memory(program: Program) -> float:
    text = Path(f"/proc/{program.pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


# Schedulers


def schedulers(peers: dict[str, Built], place: Path, size: argparse.Namespace) -> dict[str, Result]:
    with (
        etcd(peers["etcd"], place) as url,
        karmada(peers, place, url, propagates=False) as control,
    ):
        _clusters(control.kubectl, size.clusters)
        return {make: _scheduler(peers, make, control, place, size) for make in MAKES}


def _clusters(kubectl: Kubectl, count: int) -> None:
    names = [f"member{number:03}" for number in range(count)]
    kubectl.apply(
        *(
            {
                "apiVersion": "cluster.karmada.io/v1alpha1",
                "kind": "Cluster",
                "metadata": {"name": name},
                "spec": {"syncMode": "Push", "apiEndpoint": f"https://{name}.invalid"},
            }
            for name in names
        )
    )
    room = {"cpu": "10000", "memory": "40000Gi", "pods": "100000"}
    status = {
        "apiEnablements": [
            {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "ClusterReady",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "resourceSummary": {"allocatable": room},
    }
    for name in names:
        patch = json.dumps({"status": status})
        kubectl("patch", "cluster", name, "--subresource=status", "--type=merge", "-p", patch)


def binding(name: str, scheduler_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "work.karmada.io/v1alpha2",
        "kind": "ResourceBinding",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"propagationpolicy.karmada.io/permanent-id": "bench"},
        },
        "spec": {
            "schedulerName": scheduler_name,
            "replicas": 20,
            "replicaRequirements": {"resourceRequest": {"cpu": "10m", "memory": "16Mi"}},
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


def _scheduler(
    peers: dict[str, Built], make: str, control: Karmada, place: Path, size: argparse.Namespace
) -> Result:
    name = "default-scheduler" if make == "go" else "karpool-scheduler"
    wanted = [binding(f"{make}-{number:05}", name) for number in range(size.bindings)]
    asyncio.run(send(control.server, RESOURCEBINDINGS, wanted))
    limits = ("--kube-api-qps=5000", "--kube-api-burst=10000")
    go = peers["karmada"] if make == "go" else None
    begun = time.monotonic()
    program = scheduler(go, control.server, None, place / f"scheduler-{make}.log", limits)
    try:
        placed = asyncio.run(_placed(control.server, f"{make}-", size.bindings))
        return {
            "bindings_per_second": len(placed) / (placed[-1] - placed[0]),
            "first_binding_seconds": placed[0] - begun,
            "memory_mib": _memory(program),
        }
    finally:
        program.stop()


async def _placed(server: ApiServer, prefix: str, count: int) -> list[float]:
    """When each binding was seen with a result."""

    found: dict[str, float] = {}
    async with Client(HttpTransport(kubeconfig.load(server.kubeconfig())), name=server.name) as client:
        informer = Informer(client, RESOURCEBINDINGS, into=_Placed)
        everything = asyncio.Event()

        def seen(each: Any) -> None:
            if each.metadata.name.startswith(prefix) and each.spec.clusters:
                found.setdefault(each.metadata.name, time.monotonic())
                if len(found) == count:
                    everything.set()

        informer.add_handler(on_add=seen, on_update=lambda _, new: seen(new))
        running = asyncio.create_task(informer.run())
        async with asyncio.timeout(600):
            await everything.wait()
        running.cancel()
    return sorted(found.values())


# Showing


def show(title: str, results: dict[str, Result]) -> None:
    """Ratios are how many times better Karpool is, whichever direction is better."""
    print(f"\n| {title} | Go | Karpool | better by |\n|---|---|---|---|")
    for key in results["go"]:
        theirs, ours = results["go"][key], results["karpool"][key]
        ratio = ours / theirs if "per_second" in key else theirs / ours
        print(f"| {key} | {theirs:,.2f} | {ours:,.2f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.bench_real", description=__doc__)
    for name, default in {
        "nodes": 5000,
        "pods": 50000,
        "asks": 200,
        "seconds": 5,
        "clusters": 20,
        "bindings": 1000,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=("estimators", "schedulers"), default="")
    parser.add_argument("--json", type=Path)
    size = parser.parse_args()
    try:
        peers = build_all()
    except NoPeers as error:
        sys.exit(f"bench-real: {error}")
    with tempfile.TemporaryDirectory(prefix="karpool-bench-") as folder:
        results = {}
        for part in (estimators, schedulers):
            if size.only not in ("", part.__name__):
                continue
            results[part.__name__] = part(peers, Path(folder) / part.__name__, size)
            show(part.__name__, results[part.__name__])
    if size.json:
        size.json.write_text(
            json.dumps({"input": vars(size) | {"json": None}, **results}, default=str, indent=1)
        )


if __name__ == "__main__":
    main()
