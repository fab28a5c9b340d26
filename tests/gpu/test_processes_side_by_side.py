"""gpu-scaler, consolidator and estimator as processes on one cluster whose GPU pool is open to consolidation
under Balanced; each is killed and started again in between. No share is lost, no node goes under a pod that
was not asked to leave, and whoever went back says why. Pods that nobody can read are counted by all three.
"""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e.processes import free_port

from karpool.consolidation.execution.record import OVER, RECORD, MovePhase, MoveRecord, from_object
from karpool.model.kubernetes.api_resources import CONFIGMAPS, DEPLOYMENTS, PODS, ListOptions
from karpool.model.kubernetes.configmap import ConfigMap
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.apiserver.storage.history import StoredEvent
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.fleet_file import ClusterSpec, TimingSpec
from karpool_fleet.clusters.live import LiveCluster
from tests.chaos.processes.replica_process import ReplicaProcess, WallClock, context
from tests.fleet.living import pods
from tests.gpu.shares_and_moves import ShareJudge, owned
from tests.gpu.whole import gpu_pool, worker

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

BALANCED = {"consolidationPolicy": "Balanced", "consolidateAfter": "10s", "budgets": [{"nodes": "100%"}]}
TIMING = TimingSpec(register="3s", ready="1s", devices="1s", pull="1s")
FLAGS = {
    "consolidator": {"settle": "5s", "quiet-period": "5s", "launch-timeout": "2m", "interval": "5s"},
    "gpu-scaler": {"debounce": "2s", "accept-unenforced-shares": ""},
    "estimator": {"cluster-name": "gpu", "node-capacity-providers": "karpenter"},
}


class EvictionJudge:
    """Whether a node is gone while a pod runs on it that nobody asked to leave."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.violations: list[str] = []
        self._store = cluster.embedded.server.cluster.store
        self._store.listeners.append(self._on_change)

    def _on_change(self, event: StoredEvent) -> None:
        if event.record.collection.group_resource != "nodes" or event.type != "DELETED":
            return
        for stored in self._store.collection("pods").ordered(None):
            raw = stored.object()
            owners = {owner["kind"] for owner in raw["metadata"].get("ownerReferences", ())}
            if (
                raw.get("status", {}).get("phase") == "Running"
                and "DaemonSet" not in owners
                and raw["spec"].get("nodeName") == event.record.name
                and "deletionTimestamp" not in raw["metadata"]
            ):
                self.violations.append(f"node {event.record.name} is gone under {raw['metadata']['name']}")


class Stage:
    def __init__(self, cluster: LiveCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.people = cluster.embedded.client("people")
        self.shares, self.evictions = ShareJudge(cluster), EvictionJudge(cluster)
        self.processes: dict[str, ReplicaProcess] = {}
        self.metrics: dict[str, int] = {}  # ports

    def start(self, url: str) -> None:
        kubeconfig, forks = self.folder / "kubeconfig", context()
        write_kubeconfig(kubeconfig, [EmbeddedClusterEntry("gpu", url)])
        for command, own in FLAGS.items():
            self.metrics[command] = free_port()
            flags = {
                **own,
                "kubeconfig": str(kubeconfig),
                "region": self.cluster.spec.region,
                "metrics-bind-address": f"127.0.0.1:{self.metrics[command]}",
                "health-probe-bind-address": "0",
                **({"server-port": str(free_port())} if command == "estimator" else {}),
            }
            words = [f"--{key}={value}" if value else f"--{key}" for key, value in flags.items()]
            clock = WallClock(self.folder / f"{command}.clock")
            self.processes[command] = ReplicaProcess(
                forks, command, ["--verbosity=1", command, *words], self.folder, clock
            )
            self.processes[command].start()

    async def kill_and_start(self, command: str) -> None:
        process = self.processes[command]
        assert process.kill(), f"{command} had ended: {process.said()[-2000:]}"
        await self.until(lambda: self._ended(process), f"the end of {command}")
        process.start()

    async def _ended(self, process: ReplicaProcess) -> bool:
        return not process.is_running

    async def until(self, is_so: Callable[[], Awaitable[bool]], what: str, within: float = 300.0) -> None:
        end = time.monotonic() + within
        while not await is_so():
            logs = "\n".join(process.said()[-1500:] for process in self.processes.values())
            assert time.monotonic() < end, f"{what} did not come\n{logs}"
            assert not self.violations, self.violations
            await asyncio.sleep(0.3)

    @property
    def violations(self) -> list[str]:
        return [*self.shares.violations, *self.evictions.violations]

    def stored_pods(self) -> list[dict[str, Any]]:
        """Of people; those included that cannot be read."""
        stored = self.cluster.embedded.server.cluster.store.collection("pods").ordered("default")
        return [record.object() for record in stored]

    async def served(self) -> bool:
        return all(
            raw["spec"].get("nodeName")
            for raw in self.stored_pods()
            if "deletionTimestamp" not in raw["metadata"]
        )

    async def moves(self) -> list[MoveRecord]:
        listed = await self.people.list(CONFIGMAPS, ListOptions(label_selector=RECORD), into=ConfigMap)
        return [from_object(stored) for stored in listed.items]

    async def unreadable(self, command: str) -> float | None:
        url = f"http://127.0.0.1:{self.metrics[command]}/metrics"
        try:
            body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read().decode())
        except OSError:
            return None
        name = 'karpool_unreadable_objects{kind="Pod"} '
        return next((float(line.split()[-1]) for line in body.splitlines() if line.startswith(name)), None)


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    clock = LoopClock(time.time() - asyncio.get_running_loop().time())
    objects = [gpu_pool("gpus", "g6.xlarge", "g5.xlarge", disruption=BALANCED)]
    cluster = LiveCluster(ClusterSpec(name="gpu", objects=objects, timing=TIMING), clock=clock)
    async with cluster.running():
        await cluster.load(Path())
        listening = await serve(cluster.embedded.server)
        made = Stage(cluster, folder)
        try:
            made.start(listening.url)
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.join()
            await listening.close()


def odd(name: str, node: str, requests: dict[str, str], labels: dict[str, str]) -> dict[str, Any]:
    """A pod as no API server of today would take it, and as an older one, or etcd, may hold it."""
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    meta = {"name": name, "namespace": "default", "uid": name, "labels": labels}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": {"phase": "Running"},
    }


async def test_no_share_is_lost_whoever_is_killed(tmp_path: Path) -> None:
    async with stage(tmp_path) as at:
        for name, replicas, vram in (("small", 4, "6Gi"), ("large", 3, "14Gi")):
            await at.people.create(DEPLOYMENTS, owned(name, replicas, vram))
        await at.people.create(PODS, worker("bare", vram="16Gi"))
        await at.until(at.served, "a node for every worker")

        # Room to give back comes up, and each of them dies while it is given back.
        deleted = at.shares.deletions
        await at.people.scale(DEPLOYMENTS, "large", 1, namespace="default")
        await at.people.scale(DEPLOYMENTS, "small", 2, namespace="default")

        async def begun() -> bool:
            return bool(await at.moves()) or at.shares.deletions > deleted

        await at.until(begun, "a move")
        for command in at.processes:
            await at.kill_and_start(command)
        await at.people.scale(DEPLOYMENTS, "small", 5, namespace="default")
        for command in at.processes:
            await at.kill_and_start(command)
        await at.until(at.served, "a node for every worker, once more")
        await at.people.scale(DEPLOYMENTS, "small", 0, namespace="default")
        await at.people.scale(DEPLOYMENTS, "large", 0, namespace="default")

        async def only_one_left() -> bool:
            claims = at.cluster.embedded.server.cluster.store.collection("nodeclaims.karpenter.sh")
            over = all(record.phase in OVER for record in await at.moves())
            return len(claims) == 1 and over

        await at.until(only_one_left, "the end of what nobody uses", within=600)
        moves = await at.moves()
        assert at.shares.deletions > deleted and any(move.phase is MovePhase.DONE for move in moves)
        assert all(move.reason for move in moves if move.phase in (MovePhase.ROLLED_BACK, MovePhase.REJECTED))
        (bare,) = [pod for pod in await pods(at.cluster) if pod.metadata.namespace == "default"]
        assert bare.name == "bare" and bare.spec.node_name
        assert not at.violations
        assert all(process.lives == 3 and process.is_running for process in at.processes.values())


async def test_pods_that_nobody_can_read_are_counted_by_every_process_and_keep_their_node(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as at:
        await at.people.create(PODS, worker("first"))
        await at.until(at.served, "a node")
        (first,) = [pod for pod in await pods(at.cluster) if pod.name == "first"]
        node = first.spec.node_name

        async def count(number: int) -> bool:
            return all([await at.unreadable(command) == number for command in at.processes])

        await at.until(lambda: count(0), "metrics that say 0")
        store = at.cluster.embedded.server.cluster.store
        store.put(store.collection("pods"), odd("nan", node, {"cpu": "NaN"}, {}))
        store.put(store.collection("pods"), odd("label", node, {"cpu": "1"}, {"app": "no such value!"}))
        bad_list = odd("shape", node, {}, {})
        bad_list["spec"]["containers"] = "none"
        store.put(store.collection("pods"), bad_list)
        await at.until(lambda: count(3), "three pods that cannot be read, in every process")

        # Its last worker leaves; the node looks empty, and is not. Nor is it given to the next one.
        deleted = at.shares.deletions
        await at.people.delete(PODS, "first", namespace="default")
        await at.people.create(PODS, worker("second"))
        await at.until(at.served, "another node")
        (home,) = [raw["spec"]["nodeName"] for raw in at.stored_pods() if raw["metadata"]["name"] == "second"]
        assert home != node
        assert at.shares.deletions == deleted
        for name in ("nan", "label", "shape"):
            store.remove(store.collection("pods").get("default", name))
        await at.until(lambda: count(0), "metrics that say 0 again")

        async def gone() -> bool:
            return store.collection("nodes").get("", node) is None

        await at.until(gone, "the end of the node that nobody uses")
        assert not at.violations
