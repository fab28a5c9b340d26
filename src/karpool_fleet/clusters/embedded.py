"""One embedded cluster: an API server and its components.

`async with EmbeddedCluster("east", clock=...) as cluster` starts it; `cluster.add` adds a component, and
`cluster.client(...)` returns a client for all others. The same seed, clock and sequence of calls give the
same objects, byte for byte.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.rest import STEADY_PACE, WatchPace
from karpool.kube.watch.informer import Informer
from karpool.manager.options import WatchOptions
from karpool.manager.readiness import ManagerStatus
from karpool.model.kubernetes.api_resources import CRDS
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.faults.faults import Faults
from karpool_fleet.runtime.informers import Informers, SharedInformers
from karpool_fleet.runtime.supervisor import Build, Context, Supervisor


class EmbeddedCluster:
    def __init__(
        self,
        name: str,
        *,
        clock: Clock,
        seed: int = 0,
        crds: Iterable[Object] = (),
        idle_seconds: float = 0.0,
    ) -> None:
        """Create a cluster. `idle_seconds` is the check interval of idle watches; 0 is the usual one."""
        self.name = name
        self.clock = clock
        self.server = ApiServer(clock, ids=self._uuids(f"{seed}/{name}/ids"))
        self._pace = STEADY_PACE
        if idle_seconds:
            self._pace = WatchPace(1.5 * idle_seconds, 10 * idle_seconds, idle_seconds)
            self.server.cluster.bookmark_seconds = idle_seconds
        self._seed = seed
        self._crds = tuple(crds)
        self.faults = Faults(clock, crash=self._kill)
        self._clients: dict[str, int] = {}  # number of clients of each component
        self._stack = AsyncExitStack()
        self._supervisor: Supervisor | None = None

    @property
    def components(self) -> Supervisor:
        assert self._supervisor is not None, "the cluster has not been started"
        return self._supervisor

    def client(self, component: str) -> Client:
        """Return a new client for `component`, without rate limits: the server is in this process."""
        transport = self.faults.wrap(component, InProcessTransport(self.server))
        # Numbered, so that a restarted component does not draw the same random numbers again.
        number = self._clients[component] = self._clients.get(component, 0) + 1
        chance = self.random(f"{component}/{number}/chance").random
        return Client(
            transport,
            self.clock,
            name=self.name,
            qps=None,
            field_manager=component,
            chance=chance,
            pace=self._pace,
        )

    def new_status(self) -> ManagerStatus:
        """Return the status of a controller; its staleness limit allows for the interval of idle watches."""
        return ManagerStatus(max(WatchOptions().max_staleness_seconds, 2 * self._pace.idle_seconds))

    def random(self, purpose: str) -> Random:
        return Random(f"{self._seed}/{self.name}/{purpose}")  # noqa: S311 - simulation, not secrets

    def jump(self, seconds: float) -> None:
        """Move the wall clock of this cluster, if its clock can be moved."""
        if not isinstance(self.clock, LoopClock):
            raise TypeError(f"cluster {self.name}: its clock is not a LoopClock and cannot be moved")
        self.clock.jump(seconds)

    def add(self, name: str, build: Build) -> None:
        self.components.add(name, build)

    async def __aenter__(self) -> "EmbeddedCluster":
        admin = self.client("admin")
        for crd in self._crds:
            await admin.create(CRDS, crd)
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._stack.push_async_callback(self._stop)
        self._informers = SharedInformers(
            self.client("informers"), lambda informer: self._watch(group, informer)
        )
        self._watching: list[asyncio.Task[Any]] = []
        self._supervisor = Supervisor(group, self.clock, self._context)
        return self

    async def __aexit__(self, *exit_details: Any) -> None:
        await self._stack.__aexit__(*exit_details)

    def _watch(self, group: asyncio.TaskGroup, informer: Informer[Any]) -> None:
        self._watching.append(group.create_task(informer.run(), name=f"informer {informer.resource}"))

    def _kill(self, component: str) -> None:
        self.components.kill(component)

    async def _stop(self) -> None:
        await self.components.stop()
        for task in self._watching:
            task.cancel()
        await self.server.close()

    def _context(self, component: str) -> Context:
        client = self.client(component)
        return Context(
            cluster=self.name,
            clock=self.clock,
            client=client,
            informers=Informers(self._informers),
            events=EventRecorder(client, component),
            random=self.random(f"{component}/{self._clients[component]}"),
        )

    @staticmethod
    def _uuids(seed: str) -> Callable[[], str]:
        draw = Random(seed)  # noqa: S311 - repeatable on purpose

        def next_id() -> str:
            text = f"{draw.getrandbits(128):032x}"
            return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"

        return next_id
