"""Wiring of controllers in a fleet: how they reach API servers and each other.

Controllers are the same everywhere; a `Wiring` is what differs: within one process on any kind of time, or
over HTTPS and gRPC as in production (`tour/over_https.py`). Every controller is a component of its cluster:
one that fails is restarted.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from karpool.consolidation.execution.controller import Consolidator
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Controller, Environment
from karpool.manager.manager import Manager
from karpool.scheduler.controller.controller import Scheduler
from karpool.scheduler.estimates.estimator_client import EstimatorClient
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.estimators import EstimatorComponent, Estimators
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.runtime.supervisor import Build, Context, FleetComponent

OptionsT = TypeVar("OptionsT")
Flags = Mapping[str, Any]
Work = Callable[[Client], Awaitable[None]]


class Wiring(Protocol):
    def component(self, context: Context, name: str, work: Work) -> FleetComponent:
        """Return a component that runs `work` with its client."""

    def asker(self, clock: Clock) -> EstimatorClient:
        """Return the scheduler's client of estimators."""

    def add_estimators(self, team: "Team", flags: Flags) -> None:
        """Start the estimators of all members."""


@dataclass
class Team:
    """The controllers of a fleet, and running ones whose state the dashboard or tests show."""

    fleet: EmbeddedFleet
    wiring: Wiring
    added: list[tuple[EmbeddedCluster, str]] = field(default_factory=list)
    consolidators: dict[str, Consolidator] = field(default_factory=dict)
    schedulers: dict[str, Scheduler] = field(default_factory=dict)

    def manage(
        self,
        cluster: EmbeddedCluster,
        controller: Controller[OptionsT],
        options: OptionsT,
        parts: Callable[[Client], Mapping[str, Any]],
    ) -> None:
        """Run a declared controller in a cluster, with parts that depend on the wiring."""

        async def work(client: Client) -> None:
            events = EventRecorder(client, controller.component(options))
            environment = Environment({cluster.name: client}, events, status=cluster.new_status())
            runnable = await controller.given(**parts(client)).build(environment, options)
            if isinstance(runnable, Consolidator):
                self.consolidators[cluster.name] = runnable
            if isinstance(runnable, Scheduler):
                self.schedulers[cluster.name] = runnable
            await Manager(runnable, environment).run()

        self.add(cluster, controller.name, work)

    def add(self, cluster: EmbeddedCluster, name: str, work: Work) -> None:
        self.build(cluster, name, lambda context: self.wiring.component(context, name, work))

    def build(self, cluster: EmbeddedCluster, name: str, build: Build) -> None:
        cluster.add(name, build)
        self.added.append((cluster, name))

    def failures(self) -> Counter[str]:
        """Return how often each controller failed and was restarted."""
        return Counter(
            {f"{name} in {cluster.name}": cluster.components.restarts[name] for cluster, name in self.added}
        )

    async def stop(self) -> None:
        for cluster, name in reversed(self.added):
            if cluster.components.is_running(name):
                await cluster.components.crash(name)


class InProcessWiring:
    """Wiring without a network: in-process clients and estimators, which work on manual time."""

    def __init__(self) -> None:
        self.estimators = Estimators()

    def component(self, context: Context, name: str, work: Work) -> FleetComponent:
        return Working(context.client, work)

    def asker(self, clock: Clock) -> EstimatorClient:
        return self.estimators.clients(clock)

    def add_estimators(self, team: Team, flags: Flags) -> None:
        karmada = team.fleet.karmada
        members = () if karmada is None else team.fleet.members
        for name, cluster in team.fleet.clusters.items():
            options = dict(flags)
            if cluster.catalogue_file is not None:
                options.setdefault("catalogue", str(cluster.catalogue_file))
            control = karmada.client("estimator") if karmada is not None and name in members else None
            team.build(cluster.embedded, "estimator", self._build(options, control))

    def _build(self, given: dict[str, Any], karmada: Client | None) -> Build:
        return lambda context: EstimatorComponent(context, self.estimators, given, karmada)


@dataclass(frozen=True)
class Working:
    client: Client
    work: Work

    async def run(self) -> None:
        await self.work(self.client)
