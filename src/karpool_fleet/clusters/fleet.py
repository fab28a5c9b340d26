"""Runs all clusters of a fleet file, with Karmada and scheduled faults."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import structlog

from karpool.kube.clock import Clock
from karpool.model import durations
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet_file import FaultSpec, FleetFile
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.faults.fault_kinds import CLOUD_FAULTS, inject
from karpool_fleet.karmada import karmada_components
from karpool_fleet.karmada.members.members import JoinedMember, join

log = structlog.get_logger(__name__)


class EmbeddedFleet:
    """The clusters of a fleet file.

    `async with EmbeddedFleet(file, clock) as fleet` runs them; then `fleet.clusters["east"]` is one of them.
    """

    def __init__(
        self,
        file: FleetFile,
        clock: Clock,
        *,
        folder: Path = Path(),
        furnish: Callable[["EmbeddedFleet"], None] = lambda fleet: None,
        faults_from: float = 0.0,
        catalogue: Path | None = None,
        idle_seconds: float = 0.0,
    ) -> None:
        """Create the clusters.

        `furnish` adds further components before objects are loaded and faults are checked. Times of faults
        start `faults_from` seconds after loading. `catalogue` is a file that replaces the shipped catalogue.
        `idle_seconds`: see EmbeddedCluster.

        Raises FleetError when a spec cannot be satisfied.
        """
        self.file = file
        self.clock = clock
        self._idle_seconds = idle_seconds
        self.clusters = {
            spec.name: LiveCluster(
                spec, clock=clock, seed=file.seed, catalogue=catalogue, idle_seconds=idle_seconds
            )
            for spec in file.clusters
        }
        self.karmada: EmbeddedCluster | None = None
        self._folder = folder
        self._furnish = furnish
        self._faults_from = faults_from
        self._stack = AsyncExitStack()
        self._timers: list[asyncio.Task[None]] = []

    @property
    def api_servers(self) -> dict[str, EmbeddedCluster]:
        """Return every cluster with its own API server, by name; Karmada's first."""
        clusters = {self.karmada.name: self.karmada} if self.karmada else {}
        return clusters | {name: cluster.embedded for name, cluster in self.clusters.items()}

    @property
    def members(self) -> Collection[str]:
        """Return the clusters that joined Karmada."""
        spec = self.file.karmada
        return () if spec is None else spec.members or self.clusters

    async def __aenter__(self) -> "EmbeddedFleet":
        try:
            for cluster in self.clusters.values():
                await self._stack.enter_async_context(cluster.running(self._folder))
            if self.file.karmada is not None:
                await self._start_karmada()
            self._furnish(self)
            self._check_components()
            for cluster in self.clusters.values():
                await cluster.load(self._folder)
            group = await self._stack.enter_async_context(asyncio.TaskGroup())
            self._stack.callback(self._stop_timers)
            self._timers = [group.create_task(self._play(fault)) for fault in self.file.faults]
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exit_details: Any) -> None:
        await self._stack.__aexit__(*exit_details)

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()

    async def _start_karmada(self) -> None:
        spec = self.file.karmada
        assert spec is not None
        members = {
            name: JoinedMember(
                name,
                self.clusters[name].embedded.client,
                provider=self.clusters[name].catalogue.provider,
                region=self.clusters[name].spec.region,
                zones=tuple(self.clusters[name].catalogue.zones),
            )
            for name in self.members
        }
        self.karmada = EmbeddedCluster(
            spec.name,
            clock=self.clock,
            seed=self.file.seed,
            crds=bundled_crds(KARMADA),
            idle_seconds=self._idle_seconds,
        )
        await self._stack.enter_async_context(self.karmada)
        for name, build in karmada_components(members).items():
            self.karmada.add(name, build)
        for member in members.values():
            await join(self.karmada.client("admin"), member)

    def _check_components(self) -> None:
        for index, fault in enumerate(self.file.faults):
            components = self.api_servers[fault.cluster].components.components
            if fault.component and fault.component not in components:
                raise FleetError(
                    f"faults[{index}]: cluster {fault.cluster} has no component {fault.component!r}; "
                    f"there are {', '.join(components)}"
                )
            if fault.kinds[0] in CLOUD_FAULTS and fault.cluster not in self.clusters:
                raise FleetError(f"faults[{index}]: {fault.cluster} has no cloud for {fault.kinds[0]}")

    # Faults

    async def _play(self, fault: FaultSpec) -> None:
        await self.clock.sleep(self._faults_from + durations.seconds(fault.at))
        log.info("fault started", cluster=fault.cluster, fault=fault.kinds[0])
        end = await inject(fault, self.api_servers[fault.cluster], self.clusters.get(fault.cluster))
        if fault.lasts is not None:
            await self.clock.sleep(durations.seconds(fault.lasts))
            end()
            log.info("fault ended", cluster=fault.cluster, fault=fault.kinds[0])
