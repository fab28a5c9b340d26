"""The scheduler as it runs: its own process, on the embedded API server in another, over HTTPS.

Three processes on one machine: `karpool apiserver` with Karmada's definitions,
`karpool scheduler` without client limits, and the one that creates bindings and watches
them being placed. A binding counts as placed when its observed generation is its
generation: result and status are written. The second table asks only for truth: a
burst on clusters that are nearly full, and afterwards a count of what was promised.
"""

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import uvloop
from tests.scheduler.deciding import schedule

from bench.timing import timed
from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watch.informer import Informer
from karpool.model.karmada.binding import Binding, read_binding
from karpool.model.karmada.member_cluster import MemberCluster, read_cluster
from karpool.model.karmada.placement import ReplicaStrategy
from karpool.model.kubernetes.api_resources import CLUSTERS, CRDS, NAMESPACES, RESOURCEBINDINGS
from karpool.scheduler.cycle import assignment
from karpool.scheduler.cycle.decision import ClusterAvailability, ClusterCandidate, SchedulingMode
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds

BINDINGS = 2000
MEMBERS = 100
BURST = 1000
NEARLY_FULL = 20
RUNS = 3
CREATING = 32

Result = dict[str, Any]
Object = dict[str, Any]

STRATEGIES: dict[str, Object] = {
    "Duplicated": {"replicaSchedulingType": "Duplicated"},
    "StaticWeight": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Weighted"},
    "DynamicWeight": {
        "replicaSchedulingType": "Divided",
        "replicaDivisionPreference": "Weighted",
        "weightPreference": {"dynamicWeight": "AvailableReplicas"},
    },
    "Aggregated": {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"},
}


# The fleet


def member(number: int, cpu: int, used: int = 0) -> Object:
    name = f"member{number:03}"
    return {
        "metadata": {"name": name, "labels": {"region": f"r{number % 5}"}},
        "spec": {"syncMode": "Push", "region": f"r{number % 5}"},
        "status": {
            "apiEnablements": [
                {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}
            ],
            "resourceSummary": {
                "allocatable": {"cpu": str(cpu), "memory": f"{cpu * 4}Gi", "pods": str(cpu * 10)},
                "allocated": {"cpu": str(used), "memory": f"{used * 4}Gi", "pods": str(used)},
            },
        },
    }


def workload(number: int, replicas: int, cpu: str, strategy: str) -> Object:
    name = f"app-{number:05}"
    return {
        "metadata": {
            "name": f"{name}-deployment",
            "namespace": "default",
            "labels": {"propagationpolicy.karmada.io/permanent-id": name},
        },
        "spec": {
            "resource": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "namespace": "default",
                "name": name,
                "uid": f"00000000-0000-4000-8000-{number:012}",
            },
            "replicas": replicas,
            "replicaRequirements": {"resourceRequest": {"cpu": cpu, "memory": "256Mi"}},
            "schedulerName": "karpool-scheduler",
            "placement": {"replicaScheduling": STRATEGIES[strategy]},
        },
    }


# The processes


@contextmanager
def process(*arguments: str, pattern: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command of ours until it says a line."""
    command = [sys.executable, "-m", "karpool.cli.main", *arguments]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as child:
        try:
            assert child.stderr is not None
            for line in child.stderr:
                if re.search(pattern, line):
                    break
            else:
                raise RuntimeError(f"{arguments} ended early")
            yield child
        finally:
            child.send_signal(signal.SIGTERM)
            assert child.stderr is not None
            child.stderr.close()
            child.wait(timeout=30)


@contextmanager
def control_plane() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        with process("apiserver", f"--write-kubeconfig={path}", pattern="listening on"):
            yield path


@contextmanager
def scheduler(path: Path) -> Iterator[subprocess.Popen[str]]:
    flags = [f"--kubeconfig={path}", "--kube-api-qps=0", "--metrics-bind-address=0"]
    flags += ["--health-probe-bind-address=0", "--leader-elect=false"]
    with process("scheduler", *flags, pattern="scheduling for") as child:
        yield child


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    clock = RealClock()
    async with Client(HttpTransport(kubeconfig.load(path), clock), clock, qps=None) as client:
        yield client


async def prepare(client: Client, members: list[Object]) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "karmada-system"}})
    for definition in bundled_crds(KARMADA):
        await client.create(CRDS, definition)
    for each in members:
        await client.create(CLUSTERS, each)
        status = {"status": each["status"]}
        await client.patch(CLUSTERS, each["metadata"]["name"], status, subresource="status")


async def create(client: Client, bindings: list[Object]) -> None:
    waiting = iter(bindings)

    async def some() -> None:
        for each in waiting:
            await client.create(RESOURCEBINDINGS, each)

    await asyncio.gather(*(some() for _ in range(CREATING)))


class Watching:
    """Follows bindings until all have been looked at."""

    def __init__(self, client: Client, number: int) -> None:
        self._informer: Informer[Object] = Informer(client, RESOURCEBINDINGS, into=dict)
        self._informer.add_sink(self)
        self._wanted = number
        self.outcomes: dict[str, str] = {}
        self.done = asyncio.Event()

    async def run(self) -> None:
        await self._informer.run()

    def apply(self, changes: Sequence[ObjectChange[Object]], /) -> None:
        for change in changes:
            if change.object is not None:
                self._look_at(change.object)

    def _look_at(self, obj: Object) -> None:
        said = [c for c in obj.get("status", {}).get("conditions") or () if c["type"] == "Scheduled"]
        if not said:
            return
        placed = obj["status"].get("schedulerObservedGeneration") == obj["metadata"]["generation"]
        self.outcomes[obj["metadata"]["name"]] = "placed" if placed else said[0]["reason"]
        if len(self.outcomes) == self._wanted:
            self.done.set()


async def run_through(
    path: Path, members: list[Object], bindings: list[Object]
) -> tuple[float, list[Object]]:
    """Seconds from the first creation to the last outcome, and the bindings as they are then."""
    async with connected(path) as client:
        await prepare(client, members)
        watching = Watching(client, len(bindings))
        task = asyncio.create_task(watching.run())
        with scheduler(path) as child:
            await asyncio.sleep(2)  # until it has seen the clusters; not part of what is timed
            start = time.perf_counter()
            await create(client, bindings)
            while not watching.done.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(watching.done.wait(), 5)
                if child.poll() is not None or time.perf_counter() - start > 300:
                    raise RuntimeError(f"{len(watching.outcomes)} of {len(bindings)} were looked at")
            took = time.perf_counter() - start
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return took, (await client.list(RESOURCEBINDINGS)).items


def throughput() -> Result:
    rates = []
    for _ in range(RUNS):
        with control_plane() as path:
            members = [member(number, 10_000, number * 10) for number in range(MEMBERS)]
            bindings = [workload(n, 100, f"{100 + n % 5}m", "DynamicWeight") for n in range(BINDINGS)]
            took, found = uvloop.run(run_through(path, members, bindings))
            wrong = [each for each in found if placed(each) != 100]
            if wrong:
                raise RuntimeError(f"{len(wrong)} bindings are not placed")
            rates.append(BINDINGS / took)
    return result(
        f"scheduler: {BINDINGS} bindings, {MEMBERS} clusters, create to last placed", "1/s", rates, 150.0
    )


def placed(binding: Object) -> int:
    return sum(each.get("replicas", 0) for each in binding["spec"].get("clusters") or ())


@cache
def _bursts() -> tuple[list[float], list[float]]:
    """Room for half of the burst: workloads of two replicas of a core, fifty cores free in each cluster."""
    over, rejected = [], []
    for _ in range(RUNS):
        with control_plane() as path:
            members = [member(number, 1000, 950) for number in range(NEARLY_FULL)]
            bindings = [workload(n, 2, "1", "Aggregated") for n in range(BURST)]
            _, found = uvloop.run(run_through(path, members, bindings))
        used: dict[str, int] = {}
        for each in found:
            for target in each["spec"].get("clusters") or ():
                used[target["name"]] = used.get(target["name"], 0) + target.get("replicas", 0)
        over.append(float(sum(max(0, count - 50) for count in used.values())))
        unplaced = sum(1 for each in found if not placed(each))
        # Each workload takes two; none is rejected needlessly if no two replicas of room are left.
        left = NEARLY_FULL * 50 - sum(used.values())
        rejected.append(float(min(unplaced, left // 2)))
    return over, rejected


def burst_overcommitted() -> Result:
    name = f"scheduler: burst of {BURST}, {NEARLY_FULL} nearly full clusters, over-committed"
    return result(name, "", _bursts()[0], 0.0)


def burst_rejected() -> Result:
    return result("scheduler: the same, needlessly rejected", "", _bursts()[1], 0.0)


# The arithmetic alone


def pure() -> Result:
    clusters = [_read_member(number) for number in range(MEMBERS)]
    known = {each.name: ClusterAvailability(1000 + n * 10, "bench") for n, each in enumerate(clusters)}
    binding = _read_workload("DynamicWeight")
    values = timed(lambda: schedule(binding, clusters, known), repeat=300, warm=20)
    return result(f"scheduler: pure schedule of one binding, {MEMBERS} clusters", "ms", values, 1.0)


def _division(strategy: str) -> Result:
    candidates = [ClusterCandidate(f"member{n:03}", 0, 0, 10 + n % 7, 0) for n in range(MEMBERS)]
    weights = {each.name: 1 + n % 3 for n, each in enumerate(candidates)}
    chosen = weights if strategy == "StaticWeight" else None
    task = assignment.AssignmentTask(
        ReplicaStrategy(strategy), SchedulingMode.STEADY, 1000, "uid", (), chosen
    )
    values = timed(lambda: assignment.assign(candidates, task), repeat=300, warm=20)
    return result(f"scheduler: divide 1,000 replicas over {MEMBERS}, {strategy}", "ms", values, 0.3)


def divide_duplicated() -> Result:
    return _division("Duplicated")


def divide_static() -> Result:
    return _division("StaticWeight")


def divide_dynamic() -> Result:
    return _division("DynamicWeight")


def divide_aggregated() -> Result:
    return _division("Aggregated")


def _read_member(number: int) -> MemberCluster:
    return read_cluster(member(number, 10_000, number * 10))


def _read_workload(strategy: str) -> Binding:
    return read_binding(workload(1, 100, "100m", strategy))


def result(name: str, unit: str, values: list[float], target: float | None, **more: Any) -> Result:
    return {"name": name, "unit": unit, "values": values, "target": target, **more}


def benchmarks() -> Iterator[Callable[[], Result]]:
    yield pure
    yield from (divide_duplicated, divide_static, divide_dynamic, divide_aggregated)
    yield throughput
    yield from (burst_overcommitted, burst_rejected)
