"""Runs the components of an embedded cluster, and restarts them when they fail.

A component is a controller written against the client, as it would run in a real cluster. Components of one
cluster share informers, so that an event is decoded once. Each has its own client, so that a fault can affect
it alone, and its own random numbers, so that adding one component does not change another's.

A component that raises is restarted after a back-off; one that was crashed on purpose stays down until
`start`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

import structlog

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.backoff import Backoff
from karpool_fleet.runtime.informers import Informers

log = structlog.get_logger(__name__)

RESTART = Backoff(first=1.0, limit=60.0)


@dataclass(frozen=True)
class Context:
    """The context of a component."""

    cluster: str
    clock: Clock
    client: Client
    informers: Informers
    events: EventRecorder
    random: Random


class FleetComponent(Protocol):
    async def run(self) -> None:
        """Work until cancelled. After a crash it is called on a new instance."""


Build = Callable[[Context], FleetComponent]


class Supervisor:
    """Keeps the components of one cluster running, and stops them on command."""

    def __init__(self, group: asyncio.TaskGroup, clock: Clock, context: Callable[[str], Context]) -> None:
        self._group = group
        self._clock = clock
        self._context = context
        self._builds: dict[str, Build] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.restarts: dict[str, int] = {}

    @property
    def components(self) -> list[str]:
        return list(self._builds)

    def is_running(self, name: str) -> bool:
        return name in self._tasks

    def add(self, name: str, build: Build) -> None:
        self._builds[name] = build
        self.restarts[name] = 0
        self.start(name)

    def start(self, name: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._group.create_task(self._keep(name), name=name)

    def kill(self, name: str) -> asyncio.Task[None]:
        """Stop a component at once, as kill -9 would; it stays down until `start`."""
        task = self._tasks.pop(name)
        task.cancel()
        return task

    async def crash(self, name: str) -> None:
        """Call `kill`, and wait until the component has ended."""
        await asyncio.wait((self.kill(name),))

    async def stop(self) -> None:
        for name in list(self._tasks):
            await self.crash(name)

    async def _keep(self, name: str) -> None:
        while True:
            context = self._context(name)
            try:
                async with asyncio.TaskGroup() as inner:
                    recorder = inner.create_task(context.events.run())
                    await self._builds[name](context).run()
                    recorder.cancel()
                return
            except ExceptionGroup as error:
                reason = repr(error.exceptions[0])
                log.warning("component failed", component=name, reason=reason, exc_info=error)
            finally:
                context.informers.close()
            self.restarts[name] += 1
            await self._clock.sleep(RESTART.delay(self.restarts[name], context.random.random()))
