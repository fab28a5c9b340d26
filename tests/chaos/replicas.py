"""Two replicas of each controller that acts, with a lease between them, as they are deployed.

`Fencing` sees who writes what: a write of a replica that does not hold the lease, other than
to the lease itself and of events, is a violation.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any

from karpool.cluster.market.market import Market
from karpool.consolidation.execution.controller import Consolidator, consolidator_settings
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.gpu.controller.controller import GpuScaler
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.kube.errors import AlreadyExists
from karpool.kube.leases import Leadership, LeaseElector
from karpool.kube.transport_interface import HttpRequest
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import NAMESPACES
from karpool.scheduler.controller.controller import Scheduler
from karpool.scheduler.controller.options import DeschedulerOptions, SchedulerOptions
from karpool.scheduler.descheduler.descheduler import Descheduler
from karpool.scheduler.descheduler_process import descheduler_settings
from karpool.scheduler.process import scheduler_settings
from karpool_fleet.clusters.controllers import embedded_options
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.estimators import Estimators
from karpool_fleet.runtime.supervisor import Build, Context
from tests.chaos.company import FLAGS, Company

LEASES = "karpool-leases"  # a namespace
SECOND = "-2"  # of two replicas
Led = Callable[[Context, Leadership], Any]


class Replica:
    def __init__(self, context: Context, lease: str, identity: str, led: Led) -> None:
        self._context, self._lease, self._identity, self._led = context, lease, identity, led

    async def run(self) -> None:
        client = self._context.client
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": LEASES}})
        elector = LeaseElector(client, self._lease, namespace=LEASES, identity=self._identity)
        await elector.run(self._lead)

    async def _lead(self, leadership: Leadership) -> None:
        await self._led(self._context, leadership)


def _ledby(estimators: Estimators, market: Callable[[], Market]) -> dict[str, Led]:
    scheduling = scheduler_settings(embedded_options(SchedulerOptions, FLAGS["scheduler"]))
    descheduling = descheduler_settings(embedded_options(DeschedulerOptions, FLAGS["descheduler"]))

    def scheduler(context: Context, leadership: Leadership) -> Any:
        asker = estimators.clients(context.clock)
        return Manager.of(
            context.client, lambda env: Scheduler(env, scheduling, asker=asker), check=leadership.check
        ).run()

    def descheduler(context: Context, leadership: Leadership) -> Any:
        asker = estimators.clients(context.clock)
        return Manager.of(
            context.client, lambda env: Descheduler(env, asker, descheduling), check=leadership.check
        ).run()

    def consolidator(context: Context, leadership: Leadership) -> Any:
        options = consolidator_settings(embedded_options(ConsolidatorOptions, FLAGS["consolidator"]))
        return Manager.of(
            context.client,
            lambda environment: Consolidator(environment, options, market=market()),
            check=leadership.check,
        ).run()

    def gpu_scaler(context: Context, leadership: Leadership) -> Any:
        options = embedded_options(GpuScalerOptions, FLAGS["gpu-scaler"])
        return Manager.of(
            context.client,
            lambda environment: GpuScaler(environment, options, market=market()),
            check=leadership.check,
        ).run()

    return {
        "scheduler": scheduler,
        "descheduler": descheduler,
        "consolidator": consolidator,
        "gpu-scaler": gpu_scaler,
    }


async def double(at: Company) -> "Fencing":
    """Replace every controller that acts by two replicas with a lease."""
    fencing = Fencing(at)
    for cluster, name in at.controllers:
        if name == "estimator":
            continue
        components = at.cluster(cluster).components
        await components.crash(name)
        live = at.fleet.clusters.get(cluster)
        led = _ledby(at.estimators, lambda live=live: Market(live.catalogue))[name]  # type: ignore[misc]
        for identity in (name, name + SECOND):
            components.add(identity, _build(name, identity, led))
        fencing.watch(at.cluster(cluster), name)
    return fencing


def _build(name: str, identity: str, led: Led) -> Build:
    return lambda context: Replica(context, name, identity, led)


class Fencing:
    """Whether who writes holds the lease, by what the API server has at that moment."""

    def __init__(self, at: Company) -> None:
        self._at = at
        self.violations: list[str] = []
        self.writers: dict[tuple[str, str], int] = {}

    def watch(self, cluster: EmbeddedCluster, name: str) -> None:
        inner = cluster.faults.before

        async def before(component: str, request: HttpRequest, limit: float | None) -> Any:
            instead = await inner(component, request, limit)
            if instead is None and component in (name, name + SECOND) and _acts(request):
                self._judge(cluster, name, component, request)
            return instead

        cluster.faults.before = before  # type: ignore[method-assign]

    def _judge(self, cluster: EmbeddedCluster, name: str, component: str, request: HttpRequest) -> None:
        key = (cluster.name, component)
        self.writers[key] = self.writers.get(key, 0) + 1
        lease = cluster.server.cluster.store.collection("leases.coordination.k8s.io").get(LEASES, name)
        holder = lease.object()["spec"].get("holderIdentity") if lease is not None else ""
        if holder != component:
            self.violations.append(
                f"{self._at.clock.monotonic():.1f} {cluster.name}: {component} writes {request.method} "
                f"{request.path} while {holder or 'nobody'} holds the lease"
            )

    def holder(self, cluster: str, name: str) -> str:
        store = self._at.cluster(cluster).server.cluster.store
        lease = store.collection("leases.coordination.k8s.io").get(LEASES, name)
        assert lease is not None, f"nobody ever led {name} in {cluster}"
        return str(lease.object()["spec"].get("holderIdentity"))


def _acts(request: HttpRequest) -> bool:
    if request.method not in ("POST", "PUT", "PATCH", "DELETE"):
        return False
    return not re.search(r"/(leases|events)(/|$)|/namespaces$", request.path)
