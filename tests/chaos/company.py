"""A small fleet in which every controller of Karpool works at once, and what people do to it.

Three members: `fixed` never grows, `grows` buys nodes and is consolidated, `gpu` buys GPU
nodes. Every replica that Karmada places asks for one core, so that room can be counted on
fingers. All randomness comes from the seed, all time from the manual clock.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.errors import NotFound
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PDBS, PODS, PROPAGATIONPOLICIES
from karpool.scheduler.controller.options import SCHEDULER_NAME
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.estimators import Estimators
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import ClusterSpec, FleetFile, KarmadaSpec, StaticNodes, TimingSpec
from karpool_fleet.clusters.wiring import InProcessWiring
from tests.chaos.judging import Jury
from tests.fleet.living import budget, deployment, pool
from tests.gpu.whole import gpu_pool, worker

Object = dict[str, Any]
KARMADA = "karmada"
FIXED_NODES = 4
# Of a machine of four cores three are free for replicas of one core; twice as many cores as limits allow
# cannot be there, so these are the most replicas a member may ever be given.
MOST = {"fixed": 3 * FIXED_NODES, "grows": 12}
# Shorter than in production, so that what follows from a failure fits a story.
FLAGS: Mapping[str, Mapping[str, Any]] = {
    "estimator": {
        "feature-gates": "SchedulingOvercommitProtection=true",
        "node-capacity-providers": ("karpenter",),
        "failure-threshold": "1m",
        "recovery-interval": "3m",
    },
    "scheduler": {"unschedulable-retry": "2m"},
    "descheduler": {"descheduling-interval": "30s", "unschedulable-threshold": "2m", "cool-down": "2m"},
    "consolidator": {"settle": "20s", "quiet-period": "10s", "launch-timeout": "5m"},
    "gpu-scaler": {"accept-unenforced-shares": True},
}
BESIDE_KARMADA = ("scheduler", "descheduler")
IN_MEMBERS = ("estimator", "consolidator", "gpu-scaler")
AGGREGATED = {"replicaSchedulingType": "Divided", "replicaDivisionPreference": "Aggregated"}
BY_ROOM = {
    "replicaSchedulingType": "Divided",
    "replicaDivisionPreference": "Weighted",
    "weightPreference": {"dynamicWeight": "AvailableReplicas"},
}


def _general() -> Object:
    made = pool("general", limits={"cpu": "16"}, type=["m7i.large", "m7i.xlarge"], capacity=["on-demand"])
    made["metadata"]["annotations"] = {"karpool.dev/consolidation-threshold": "2"}
    made["spec"]["disruption"] = {
        "consolidationPolicy": "Balanced",
        "consolidateAfter": "15s",
        "budgets": [{"nodes": "2"}],
    }
    return made


def _gpus() -> Object:
    made = gpu_pool("gpus", "g6.xlarge", "g5.xlarge", limits={"nvidia.com/gpu": "3"})
    made["spec"]["disruption"] = {
        "consolidationPolicy": "WhenEmpty",
        "consolidateAfter": "1m",
        "budgets": [{"nodes": "100%"}],
    }
    return made


TIMING = TimingSpec(register="5s", ready="2s", devices="2s", pull="1s")


def fleet_file(seed: int) -> FleetFile:
    fixed = [StaticNodes(type="m7i.xlarge", count=FIXED_NODES)]
    return FleetFile(
        seed=seed,
        clusters=[
            ClusterSpec(name="fixed", autoscaler="none", nodes=fixed, timing=TIMING),
            ClusterSpec(name="grows", objects=[_general()], timing=TIMING),
            ClusterSpec(name="gpu", objects=[_gpus()], timing=TIMING),
        ],
        karmada=KarmadaSpec(members=["fixed", "grows"]),
    )


@dataclass
class Company:
    """The fleet, those who act in it, and those who judge."""

    fleet: EmbeddedFleet
    jury: Jury
    estimators: Estimators
    told: list[str] = field(default_factory=list)

    @property
    def karmada(self) -> EmbeddedCluster:
        assert self.fleet.karmada is not None
        return self.fleet.karmada

    @property
    def clock(self) -> LoopClock:
        assert isinstance(self.fleet.clock, LoopClock)
        return self.fleet.clock

    @property
    def controllers(self) -> list[tuple[str, str]]:
        """Cluster and component of everything that is Karpool's."""
        members = [(name, each) for name in self.fleet.clusters for each in IN_MEMBERS]
        return [*((KARMADA, each) for each in BESIDE_KARMADA), *members]

    def cluster(self, name: str) -> EmbeddedCluster:
        return self.fleet.api_servers[name]

    def people(self, cluster: str) -> Client:
        return self.cluster(cluster).client("people")

    def tell(self, sentence: str) -> None:
        self.told.append(f"{self.clock.monotonic():8.1f} {sentence}")

    def revive(self) -> int:
        """Start again what has died, as a kubelet would; how many there were."""
        dead = 0
        for cluster in self.fleet.api_servers.values():
            for name in cluster.components.components:
                if not cluster.components.is_running(name):
                    cluster.components.start(name)
                    dead += 1
        return dead

    def keep_alive(self) -> asyncio.Task[None]:
        """Whatever dies is back within seconds; until cancelled."""

        async def keep() -> None:
            while True:
                await asyncio.sleep(3)
                self.revive()

        return asyncio.ensure_future(keep())

    async def is_calm(self) -> bool:
        return not self.jury.when_calm()

    async def until(
        self, condition: Callable[[], Awaitable[bool]], *, within: float, every: float = 5
    ) -> bool:
        for _ in range(int(within / every)):
            self.revive()
            if await condition():
                return True
            await asyncio.sleep(every)
        return False

    # What people do

    async def place(self, name: str, replicas: int, how: Object = AGGREGATED) -> None:
        """A Deployment that Karmada divides between `fixed` and `grows`."""
        people = self.people(KARMADA)
        await people.create(PROPAGATIONPOLICIES, _policy(name, how))
        await people.create(DEPLOYMENTS, deployment(name, replicas, cpu="1", memory="1Gi"))
        self.tell(f"{replicas} replicas of {name}")

    async def scale(self, name: str, replicas: int) -> None:
        self.tell(f"{name} to {replicas}")
        await self.people(KARMADA).scale(DEPLOYMENTS, name, replicas, namespace="default")

    async def withdraw(self, name: str) -> None:
        self.tell(f"{name} is deleted")
        for kind in (DEPLOYMENTS, PROPAGATIONPOLICIES):
            await self._delete(KARMADA, kind, name)

    async def install(self, name: str, replicas: int, cpu: str = "400m", **limit: Any) -> None:
        """A Deployment in `grows` that Karmada does not know, with a PodDisruptionBudget."""
        people = self.people("grows")
        await people.create(DEPLOYMENTS, deployment(name, replicas, cpu=cpu, memory="512Mi"))
        await people.create(PDBS, budget(name, **(limit or {"maxUnavailable": 1})))
        self.tell(f"{replicas} local replicas of {name}")

    async def resize(self, name: str, replicas: int) -> None:
        self.tell(f"{name} to {replicas} in grows")
        await self.people("grows").scale(DEPLOYMENTS, name, replicas, namespace="default")

    async def uninstall(self, name: str) -> None:
        self.tell(f"{name} is deleted in grows")
        for kind in (DEPLOYMENTS, PDBS):
            await self._delete("grows", kind, name)

    async def ask_for_gpu(self, name: str, vram: str = "8Gi") -> None:
        self.tell(f"{name} asks for a piece of a GPU")
        await self.people("gpu").create(PODS, worker(name, vram=vram))

    async def give_back_gpu(self, name: str) -> None:
        self.tell(f"{name} is done")
        await self._delete("gpu", PODS, name)

    async def _delete(self, cluster: str, kind: Any, name: str) -> None:
        with suppress(NotFound):
            await self.people(cluster).delete(kind, name, namespace="default", propagation="Background")


def _policy(name: str, how: Object) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}],
            "placement": {"replicaScheduling": how},
        },
    }


@asynccontextmanager
async def company(seed: int = 0, flags: Mapping[str, Mapping[str, Any]] = FLAGS) -> AsyncIterator[Company]:
    """Everything is running and has seen the fleet."""
    made: list[tuple[Jury, Estimators]] = []

    def furnish(fleet: EmbeddedFleet) -> None:
        jury = Jury(fleet, MOST)
        wiring = InProcessWiring()
        jury.schedulers = add_controllers(fleet, flags, wiring).schedulers
        made.append((jury, wiring.estimators))

    async with EmbeddedFleet(fleet_file(seed), LoopClock(), furnish=furnish) as fleet:
        jury, estimators = made[0]
        found = Company(fleet, jury, estimators)
        await asyncio.sleep(30)
        yield found
