"""Wires the controllers of a fleet as in production.

Each has its own client and uses HTTPS to the API servers, with the kubeconfig that people get; schedulers
call estimators over gRPC, found through Services of the control plane. Only the clock is the fleet's.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from karpool.estimator.process import COMPONENT, FleetEstimator
from karpool.estimator.serving.member import MemberEstimator
from karpool.estimator.serving.options import EstimatorOptions, GrpcServerOptions
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.config import kubeconfig
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.http import HttpTransport
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.options import read_options
from karpool.scheduler.controller.options import SYSTEM_NAMESPACE
from karpool.scheduler.estimates.estimator_client import EstimatorClient, EstimatorSettings, service_resolver
from karpool.wire.addresses import PORT, service_name
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.object_loader import load_objects
from karpool_fleet.clusters.wiring import Flags, Team, Work, Working
from karpool_fleet.runtime.supervisor import Context, FleetComponent
from karpool_fleet.tour.manifests import Object, namespace

# Some durations are shorter than the defaults, so that a failure and its effects fit into a tour.
CONTROLLERS: dict[str, dict[str, Any]] = {
    "estimator": {
        "fleet": True,
        "feature-gates": "SchedulingOvercommitProtection=true",
        "node-capacity-providers": ("karpenter",),
        "failure-threshold": "45s",
        "recovery-interval": "4m",
    },
    # As upstream divides: if existing nodes were filled first, no cluster would start from zero here.
    "scheduler": {"room-order": "by-total"},
    "descheduler": {
        "descheduling-interval": "15s",
        "unschedulable-threshold": "60s",
        "cool-down": "60s",
    },
    "consolidator": {"settle": "20s"},
    "gpu-scaler": {},
}
LOOPBACK = "127.0.0.1"
LOOK_SECONDS = 0.2
ANSWER_SECONDS = 120.0


def connect(path: Path, cluster: str, clock: Clock, component: str) -> Client:
    """Return a client of one cluster of a kubeconfig, with the fleet's clock and no rate limit."""
    config = kubeconfig.load(path, context=cluster, cluster=cluster)
    return Client(
        HttpTransport(config, clock),
        clock,
        name=cluster,
        qps=None,
        user_agent=component,
        field_manager=component,
    )


class OverHttps:
    """The wiring. `estimators` is a client for observers."""

    def __init__(self, fleet: EmbeddedFleet, path: Path) -> None:
        assert fleet.karmada is not None, "the fleet of a tour has a Karmada"
        self._fleet, self._path, self._karmada = fleet, path, fleet.karmada
        self._services = self._connect(self._karmada.name, "tour")
        # Answers take real network time, while the time of the fleet is faster.
        settings = EstimatorSettings(timeout_seconds=ANSWER_SECONDS)
        self.estimators = EstimatorClient(service_resolver(self._services, settings), settings, fleet.clock)
        self._members: dict[str, MemberEstimator] = {}
        self._port = 0  # of the estimators; kept across restarts
        self._serving = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Team]:
        """Run all controllers; the estimators know every cluster."""
        team = add_controllers(self._fleet, CONTROLLERS, self)
        try:
            await self._counted()
            yield team
        finally:
            await team.stop()
            await self.estimators.close()
            await self._services.close()

    async def _counted(self) -> None:
        await self._serving.wait()
        for name in self._fleet.clusters:
            while (member := self._members.get(name)) is None or member.not_ready():
                await self._fleet.clock.sleep(LOOK_SECONDS)

    # Wiring

    def component(self, context: Context, name: str, work: Work) -> FleetComponent:
        client = self._connect(context.cluster, name)

        async def connected(client: Client) -> None:
            async with client:
                await work(client)

        return Working(client, connected)

    def asker(self, clock: Clock) -> EstimatorClient:
        return self.estimators

    def add_estimators(self, team: Team, flags: Flags) -> None:
        """Add `karpool estimator --karmada-kubeconfig`: one process for all members."""

        async def work(karmada: Client) -> None:
            await self._estimate(karmada, read_options(EstimatorOptions, flags, embedded=True))

        team.add(self._karmada, "estimator", work)

    # Inside

    def _connect(self, cluster: str, component: str) -> Client:
        return connect(self._path, cluster, self._fleet.clock, f"karpool-{component}")

    async def _estimate(self, karmada: Client, options: EstimatorOptions) -> None:
        """Run the estimators; members and their regions come from Karmada's Cluster objects."""
        async with asyncio.TaskGroup() as group:
            environment = Environment({self._karmada.name: karmada}, EventRecorder(karmada, COMPONENT))
            options = structs.replace(
                options,
                karmada_kubeconfig=str(self._path),
                connection=structs.replace(options.connection, kubeconfig=str(self._path)),
                grpc=GrpcServerOptions(server_port=self._port),
                grace_period_seconds=0.1,
            )
            estimators = FleetEstimator(
                environment,
                options,
                host=LOOPBACK,
                connecting=lambda config: self._connect(config.name, "estimator"),
            )
            assert estimators.server is not None
            listening = asyncio.Event()
            group.create_task(Manager(estimators, environment).run(prepared=listening.set))
            await listening.wait()
            self._members, self._port = estimators.members, estimators.server.port
            await load_objects(
                karmada, [namespace(SYSTEM_NAMESPACE), *map(self._service, self._fleet.clusters)]
            )
            self._serving.set()

    def _service(self, cluster: str) -> Object:
        """Return the Service through which schedulers find the estimator of a cluster."""
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
