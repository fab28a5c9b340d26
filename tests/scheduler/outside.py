"""An embedded fleet in real time whose estimator, scheduler and descheduler are processes of their own.

They are started with the commands that people type; the region is what Karmada's Cluster objects say.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from e2e.processes import free_port

from karpool.kube.api.client import Client
from karpool.model.kubernetes.api_resources import NAMESPACES, RESOURCEBINDINGS, SERVICES
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import ClusterSpec, FleetFile, KarmadaSpec
from karpool_fleet.clusters.object_loader import load_objects
from tests.scheduler.acting import condition, targets

Object = dict[str, Any]
SYSTEM = "karmada-system"
PATIENCE = 90.0  # of a machine that is busy with something else
ESTIMATOR = ("--node-capacity-providers=karpenter", "--feature-gates=SchedulingOvercommitProtection=true")


@dataclass
class OutsideFleet:
    fleet: EmbeddedFleet
    folder: Path

    @property
    def karmada(self) -> Client:
        assert self.fleet.karmada is not None
        return self.fleet.karmada.client("people")

    def member(self, name: str) -> Client:
        return self.fleet.clusters[name].embedded.client("people")

    async def apply(self, *objects: Object) -> None:
        await load_objects(self.karmada, list(objects))

    async def bindings(self) -> dict[str, Object]:
        return {
            found["metadata"]["name"]: found for found in (await self.karmada.list(RESOURCEBINDINGS)).items
        }

    async def placed(self) -> dict[str, dict[str, int]]:
        return {
            name: targets(found)
            for name, found in (await self.bindings()).items()
            if condition(found)[0] == "True"
        }

    async def refused(self) -> dict[str, str]:
        return {
            name: condition(found)[2]
            for name, found in (await self.bindings()).items()
            if condition(found)[0] == "False"
        }

    async def until(self, what: str, is_so: Callable[[], Awaitable[object]]) -> None:
        end = time.monotonic() + PATIENCE
        while not await is_so():
            assert time.monotonic() < end, f"{what}: not so; logs are in {self.folder}"
            await asyncio.sleep(0.05)


def policy(*clusters: str, scheduling: Object, namespace: str = "default") -> Object:
    return {
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": "all", "namespace": namespace},
        "spec": {
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment"}],
            "schedulerName": "karpool-scheduler",
            "placement": {
                "clusterAffinity": {"clusterNames": list(clusters)},
                "replicaScheduling": scheduling,
            },
        },
    }


@asynccontextmanager
async def outside_fleet(
    folder: Path,
    clusters: Sequence[ClusterSpec],
    *,
    commands: Sequence[str] = ("estimator", "scheduler"),
    flags: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[OutsideFleet]:
    """Everything runs and is ready; processes end with the block."""
    names = [cluster.name for cluster in clusters]
    file = FleetFile(clusters=list(clusters), karmada=KarmadaSpec(members=names))
    clock = LoopClock(time.time() - asyncio.get_running_loop().time())
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(EmbeddedFleet(file, clock))
        made = OutsideFleet(fleet, folder)
        entries = {}
        for name, cluster in fleet.api_servers.items():
            listening = await serve(cluster.server)
            stack.push_async_callback(listening.close)
            entries[name] = EmbeddedClusterEntry(name, listening.url)
        assert fleet.karmada is not None
        control, members = folder / "karmada.yaml", folder / "members.yaml"
        write_kubeconfig(control, [entries[fleet.karmada.name]])
        write_kubeconfig(members, [entries[name] for name in names])
        port = free_port()
        await load_objects(made.karmada, [_namespace(), *(_service(name, port) for name in names)])
        asking = ("--enable-scheduler-estimator=true", "--scheduler-estimator-timeout=30s")
        own = {
            "estimator": (
                "--fleet",
                f"--karmada-kubeconfig={control}",
                f"--kubeconfig={members}",
                f"--server-port={port}",
                *ESTIMATOR,
            ),
            "scheduler": (f"--kubeconfig={control}", *asking),
            "descheduler": (f"--kubeconfig={control}", *asking),
            "cluster-summary": (f"--kubeconfig={control}", *asking),
        }
        for command in commands:
            await _start(stack, folder, command, [*own[command], *(flags or {}).get(command, ())])
        yield made


async def _start(stack: AsyncExitStack, folder: Path, command: str, flags: Sequence[str]) -> None:
    health = free_port()
    log = stack.enter_context((folder / f"{command}.log").open("wb"))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "karpool.cli.main", "-v1", command),
        "--metrics-bind-address=0",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        *flags,
        stderr=log,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )

    async def end() -> None:
        if child.returncode is None:
            child.kill()
        await child.wait()

    stack.push_async_callback(end)
    deadline = time.monotonic() + PATIENCE
    async with aiohttp.ClientSession() as session:
        while True:
            assert child.returncode is None, (folder / f"{command}.log").read_text()
            assert time.monotonic() < deadline, (folder / f"{command}.log").read_text()
            try:
                async with session.get(f"http://127.0.0.1:{health}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


def _namespace() -> Object:
    return {"apiVersion": NAMESPACES.version, "kind": "Namespace", "metadata": {"name": SYSTEM}}


def _service(member: str, port: int) -> Object:
    return {
        "apiVersion": SERVICES.version,
        "kind": "Service",
        "metadata": {"name": f"karmada-scheduler-estimator-{member}", "namespace": SYSTEM},
        "spec": {
            "type": "ExternalName",
            "externalName": "127.0.0.1",
            "ports": [{"port": 10352, "targetPort": port, "protocol": "TCP"}],
        },
    }
