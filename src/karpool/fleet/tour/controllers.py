"""All of Karpool's controllers at work in a fleet, as they are in production.

Each has a client of its own and talks HTTPS to the API servers, with the kubeconfig that
people are given; schedulers ask estimators over gRPC. Only the clock is the fleet's.
They are components of the clusters they work in: one that fails is started again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from karpool.consolidation.consolidator import Consolidator, ConsolidatorOptions
from karpool.consolidation.execution import ExecutionSettings
from karpool.estimator import options as estimator_options
from karpool.estimator import process as estimating
from karpool.estimator.failure_reports import FailureGauges
from karpool.estimator.member import Member
from karpool.estimator.metrics import Metrics
from karpool.estimator.server import EstimatorServer
from karpool.estimator.service import Service
from karpool.fleet.embedded import EmbeddedCluster
from karpool.fleet.fleet import Fleet
from karpool.fleet.live import LiveCluster
from karpool.fleet.loading import load_objects
from karpool.fleet.tour.manifests import Object, namespace
from karpool.gpu.controller import GpuScaler
from karpool.kube import kubeconfig
from karpool.kube.client import Client
from karpool.kube.clock import Clock
from karpool.kube.http import HttpTransport
from karpool.provisioning.market import Market
from karpool.scheduler.descheduler import Descheduler, DeschedulerOptions
from karpool.scheduler.estimator_client import EstimatorClients, EstimatorSettings, service_resolver
from karpool.scheduler.options import SYSTEM_NAMESPACE
from karpool.scheduler.running import Scheduler
from karpool.wire.addresses import PORT, service_name

# Shorter than the defaults (3, 10, 5 and 10 minutes), so that a failure and what follows from it fit a tour.
FAILURE_THRESHOLD = "45s"
RECOVERY_INTERVAL = "4m"
DESCHEDULING = DeschedulerOptions(interval_seconds=15.0, threshold_seconds=60.0, cool_down_seconds=60.0)
CONSOLIDATING = ConsolidatorOptions(execution=ExecutionSettings(settle_seconds=20.0))

LOOPBACK = "127.0.0.1"

Work = Callable[[Client], Awaitable[None]]


def connect(path: Path, cluster: str, clock: Clock, component: str) -> Client:
    """A client of one cluster of a kubeconfig, with the fleet's clock and no rate limit."""
    config = kubeconfig.load(path, context=cluster, cluster=cluster)
    return Client(
        HttpTransport(config, clock),
        clock,
        name=cluster,
        qps=None,
        user_agent=component,
        field_manager=component,
    )


class Controllers:
    """Those that run, and how to ask them: estimators over gRPC, consolidators for their last plan."""

    def __init__(self, fleet: Fleet, path: Path) -> None:
        assert fleet.karmada is not None, "the fleet of a tour has a Karmada"
        self.consolidators: dict[str, Consolidator] = {}
        self.members: dict[str, Member] = {}
        self._port = 0  # of the estimators; kept when they are started again
        self._fleet, self._path, self._karmada = fleet, path, fleet.karmada
        self._services = self._connect(self._karmada.name, "karpool-tour")
        settings = EstimatorSettings()
        self.estimators = EstimatorClients(service_resolver(self._services, settings), settings, fleet.clock)
        self._serving = asyncio.Event()
        self._added: list[tuple[EmbeddedCluster, str]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Controllers"]:
        try:
            self._add(self._karmada, "karpool-estimator", self._estimate)
            await self.counted()
            self._add(self._karmada, "karpool-scheduler", self._schedule)
            self._add(self._karmada, "karpool-descheduler", self._deschedule)
            for cluster in self._fleet.clusters.values():
                if cluster.spec.autoscaler == "karpenter":
                    self._add(cluster.embedded, "karpool-consolidator", self._consolidates(cluster))
                    self._add(cluster.embedded, "karpool-gpu-scaler", self._scales_gpus(cluster))
            yield self
        finally:
            for cluster_of, name in reversed(self._added):
                await cluster_of.components.crash(name)
            await self.estimators.close()
            await self._services.close()

    async def counted(self) -> None:
        """Until the estimators know every cluster."""
        await self._serving.wait()
        for member in self.members.values():
            while member.not_ready():
                await self._fleet.clock.sleep(0.2)

    def failures(self) -> Counter[str]:
        """How often each controller failed and was started again."""
        return Counter(
            {f"{name} in {cluster.name}": cluster.components.restarts[name] for cluster, name in self._added}
        )

    def _add(self, cluster: EmbeddedCluster, name: str, work: Work) -> None:
        cluster.add(name, lambda _: _OverHttps(self._connect(cluster.name, name), work))
        self._added.append((cluster, name))

    def _connect(self, cluster: str, component: str) -> Client:
        return connect(self._path, cluster, self._fleet.clock, component)

    # Beside Karmada

    async def _schedule(self, client: Client) -> None:
        await Scheduler(client, asker=self.estimators).run(asyncio.Event())

    async def _deschedule(self, client: Client) -> None:
        await Descheduler(client, self.estimators, DESCHEDULING).run(asyncio.Event())

    async def _estimate(self, karmada: Client) -> None:
        """`karpool estimator --fleet`: one process for all members."""
        clock, registry = self._fleet.clock, CollectorRegistry()
        chosen = estimator_options.defaults() | {
            "fleet": True,
            "feature-gates": "SchedulingOvercommitProtection=true",
            "node-capacity-providers": ("karpenter",),
            "failure-threshold": FAILURE_THRESHOLD,
            "recovery-interval": RECOVERY_INTERVAL,
        }
        metrics = Metrics(registry, estimating.plugin_names(chosen))
        gauges = FailureGauges(registry)
        async with AsyncExitStack() as stack:
            members: dict[str, Member] = {}
            for name, cluster in self._fleet.clusters.items():
                client = await stack.enter_async_context(self._connect(name, "karpool-estimator"))
                given = chosen | {"region": cluster.spec.region}
                member = members[name] = estimating.build_member(name, client, given, metrics, clock)
                await stack.enter_async_context(estimating.announcing(member, client, gauges))
            service = Service(members, metrics, clock=clock, cannot_tell_until_synced=True)
            server = EstimatorServer(service, members, host=LOOPBACK, port=self._port, grace_seconds=0.1)
            await stack.enter_async_context(server)
            await stack.enter_async_context(estimating.running(members))
            self.members, self._port = members, server.port
            await load_objects(karmada, [namespace(SYSTEM_NAMESPACE), *map(self._service, members)])
            self._serving.set()
            await asyncio.Event().wait()

    def _service(self, cluster: str) -> Object:
        """Where schedulers look for the estimator of a cluster."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service_name(cluster), "namespace": SYSTEM_NAMESPACE},
            "spec": {
                "type": "ExternalName",
                "externalName": LOOPBACK,
                "ports": [{"name": "grpc", "port": PORT, "targetPort": self._port}],
            },
        }

    # In every member with Karpenter

    def _consolidates(self, cluster: LiveCluster) -> Work:
        async def work(client: Client) -> None:
            market = Market(cluster.catalogue)
            consolidator = Consolidator(client, CONSOLIDATING, market=market)
            self.consolidators[cluster.name] = consolidator
            await consolidator.run(asyncio.Event())

        return work

    def _scales_gpus(self, cluster: LiveCluster) -> Work:
        async def work(client: Client) -> None:
            await GpuScaler(client, market=Market(cluster.catalogue)).run()

        return work


@dataclass(frozen=True)
class _OverHttps:
    """A controller for as long as its connection is open."""

    client: Client
    work: Work

    async def run(self) -> None:
        async with self.client:
            await self.work(self.client)
