"""Runs one scenario to its end on manual time and returns the result.

Clusters and controllers are the same as elsewhere; here their clock jumps from timer to timer. The same
scenario gives the same bytes, whatever the process, the machine or the hash seed: all randomness comes from
the seed of the scenario.
"""

import asyncio
import gc
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path

import msgspec
import structlog

from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError, NotFound
from karpool.model import durations
from karpool.model.contracts.contract_file import contract_from
from karpool.model.contracts.shared_contract import SharedContract
from karpool.model.errors import ModelError
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, JOBS, PODS, ApiResource
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.object_loader import load_objects
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation.arrivals import Arrival, arrivals
from karpool_fleet.simulation.figures import Result
from karpool_fleet.simulation.measurements import RunMeasurements
from karpool_fleet.simulation.replay import ReplayedChange
from karpool_fleet.simulation.scenario_file import Named, ScenarioAction
from karpool_fleet.simulation.traces import read_traces

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 30.0  # before the first arrival, so that every controller has seen the fleet
Progress = Callable[[float], None]  # called with the completed share
_Do = Callable[[], Awaitable[Arrival | None]]
_KINDS: dict[str, ApiResource] = {"Deployment": DEPLOYMENTS, "Job": JOBS, "Pod": PODS}


def simulate(
    named: Named,
    *,
    folder: Path = Path(),
    progress: Progress = lambda share: None,
    reading: Progress = lambda share: None,
    keep_log: bool = True,
    catalogue: Path | None = None,
    replayed: Sequence[ReplayedChange] = (),
) -> Result:
    """Run a scenario.

    `replayed` are changes of a recording; `catalogue` is a file that replaces the shipped catalogue.
    `reading` is called with the share of the traces that is read, `progress` with the share of the time.

    Raises FleetError when the scenario cannot be satisfied.
    """
    traced = read_traces(named.scenario, folder, reading)
    coming = sorted([*arrivals(named.scenario), *traced.arrivals], key=lambda arrival: arrival.at)
    # A fleet has many long-lived objects; repeated garbage collection over all of them takes a quarter of
    # the time.
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, 50, 1000)
    try:
        result = run_manual(
            _run(named, coming, replayed, folder, progress, keep_log=keep_log, catalogue=catalogue)
        )
        return replace(result, notes=(*traced.notes, *result.notes))
    except* ModelError as errors:
        raise FleetError(str(_first(errors))) from None
    finally:
        gc.set_threshold(*thresholds)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _run(
    named: Named,
    coming: list[Arrival],
    replayed: Sequence[ReplayedChange],
    folder: Path,
    progress: Progress,
    *,
    keep_log: bool,
    catalogue: Path | None,
) -> Result:
    scenario, clock = named.scenario, LoopClock()
    lines = DecisionLog(clock, keep=keep_log)
    measuring: list[RunMeasurements] = []

    def furnish(fleet: EmbeddedFleet) -> None:
        shared = SharedContract(contract_from(scenario.contract)) if scenario.contract is not None else None
        measuring.append(RunMeasurements(fleet, scenario, lines.say, shared))
        add_controllers(fleet, scenario.controllers, contract=shared if scenario.contract_known else None)

    async with EmbeddedFleet(
        scenario.fleet,
        clock,
        folder=folder,
        furnish=furnish,
        faults_from=SETTLE_SECONDS,
        catalogue=catalogue,
        idle_seconds=durations.seconds(scenario.idle_checks),
    ) as fleet:
        people = People(fleet)
        await load_objects(people.client(scenario.home), scenario.objects)
        await clock.sleep(SETTLE_SECONDS)
        lines.start = clock.monotonic()
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(people.play(coming, scenario.actions, scenario.home, replayed)),
                group.create_task(people.sweep(measuring[0])),
            ]
            await measuring[0].through(progress)
            for task in beside:
                task.cancel()
        notes = [f"{name}: {text}" for name, live in fleet.clusters.items() for text in live.notes]
        return replace(measuring[0].result(named.name, lines, people.refused), notes=tuple(notes))


class DecisionLog:
    """JSON lines: seconds since the start, the cluster, the decision and its details."""

    def __init__(self, clock: LoopClock, *, keep: bool) -> None:
        self.start: float | None = None
        self.lines: list[bytes] = []
        self.count = 0
        self._clock, self._keep = clock, keep
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def say(self, cluster: str, decision: str, details: dict[str, object]) -> None:
        start = SETTLE_SECONDS if self.start is None else self.start
        at = round(self._clock.monotonic() - start, 6)
        line = msgspec.json.encode({"t": at, "cluster": cluster, "decision": decision, **details})
        self.count += 1
        self._digest.update(line + b"\n")
        if self._keep:
            self.lines.append(line)


class People:
    """The users of the fleet: they create, scale and delete objects, from arrivals and actions."""

    def __init__(self, fleet: EmbeddedFleet) -> None:
        self._fleet = fleet
        self.refused = 0  # arrivals that a cluster refused
        self._clients: dict[str, Client] = {}

    def client(self, cluster: str) -> Client:
        if cluster not in self._clients:
            self._clients[cluster] = self._fleet.api_servers[cluster].client("people")
        return self._clients[cluster]

    async def play(
        self,
        coming: Iterable[Arrival],
        actions: Iterable[ScenarioAction],
        home: str,
        replayed: Iterable[ReplayedChange] = (),
    ) -> None:
        """Execute everything at its time; equal times keep the order of the file."""
        start = self._fleet.clock.monotonic()
        queue: list[tuple[float, int, _Do]] = [
            (arrival.at, number, partial(self._arrive, arrival)) for number, arrival in enumerate(coming)
        ]
        first = len(queue)
        queue += [
            (durations.seconds(action.at), first + number, partial(self._act, action, home))
            for number, action in enumerate(actions)
        ]
        first = len(queue)
        queue += [
            (change.at, first + number, partial(self._replay, change, home))
            for number, change in enumerate(replayed)
        ]
        number = len(queue)
        heapify(queue)
        while queue:
            at, _, do = heappop(queue)
            if (wait := start + at - self._fleet.clock.monotonic()) > 0:
                await self._fleet.clock.sleep(wait)
            later = await do()
            if later is not None:
                end: tuple[float, int, _Do] = later.ends_at or 0.0, number, partial(self._leave, later)
                heappush(queue, end)
                number += 1

    async def _arrive(self, arrival: Arrival) -> Arrival | None:
        kind, client = arrival.object["kind"], self.client(arrival.cluster)
        try:
            if kind in _KINDS:
                await client.create(_KINDS[kind], arrival.object)
            else:
                await load_objects(client, [arrival.object])
        except KubeError as error:
            self.refused += 1
            log.warning("arrival refused", cluster=arrival.cluster, reason=str(error))
            return None
        return arrival if arrival.ends_at is not None else None

    async def _leave(self, arrival: Arrival) -> None:
        meta = arrival.object["metadata"]
        await self._delete(arrival.cluster, _KINDS[arrival.object["kind"]], meta["name"], meta["namespace"])

    async def _act(self, action: ScenarioAction, home: str) -> None:
        cluster = action.cluster or home
        client = self.client(cluster)
        try:
            if action.apply is not None:
                await load_objects(client, [action.apply])
            elif (scale := action.scale) is not None:
                resource = _KINDS.get(scale.kind, DEPLOYMENTS)
                await client.scale(resource, scale.name, scale.replicas, namespace=scale.namespace)
            elif (gone := action.delete) is not None:
                group, _, version = gone.api_version.rpartition("/")
                plural = f"{gone.kind.lower()}s"
                resource = ApiResource(group, version, plural, gone.kind)
                await self._delete(cluster, resource, gone.name, gone.namespace)
        except KubeError as error:
            raise FleetError(f"actions: at {action.at} in {cluster}: {error}") from None

    async def _replay(self, change: ReplayedChange, cluster: str) -> None:
        if change.object is None:
            await self._delete(cluster, change.resource, change.name, change.namespace)
            return
        client = self.client(cluster)
        try:
            if change.object.keys() == {"status"}:
                with suppress(NotFound):  # it was moved, and ends elsewhere
                    await client.patch(
                        change.resource,
                        change.name,
                        change.object,
                        namespace=change.namespace,
                        subresource="status",
                    )
            else:
                await load_objects(client, [change.object])
        except KubeError as error:
            self.refused += 1
            log.warning("change refused", cluster=cluster, reason=str(error))

    async def _delete(self, cluster: str, resource: ApiResource, name: str, namespace: str) -> None:
        try:
            await self.client(cluster).delete(resource, name, namespace=namespace)
        except NotFound:
            pass
        except KubeError as error:
            log.warning("not deleted", cluster=cluster, name=name, reason=str(error))

    async def sweep(self, measuring: RunMeasurements) -> None:
        """Delete ended pods without an owner."""
        while True:
            await self._fleet.clock.sleep(60.0)
            for cluster, watching in measuring.watching.items():
                ended, watching.ended = watching.ended, []
                for namespace, name in ended:
                    await self._delete(cluster, PODS, name, namespace)
