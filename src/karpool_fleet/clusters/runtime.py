"""Run the parts of an embedded cluster: who they are, what they are given, how they fail.

A component is a controller written against the client, as it would run in a real
cluster. Components of one cluster share informers, so that an event is decoded
once. Each has its own client, so that a fault can be aimed at it alone, and its own
random numbers, so that adding one component does not change another's.

A component that raises is started again after a back-off; one that was crashed on
purpose stays down until it is started.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import structlog

from karpool.cluster.changes import ChangeSink, ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.backoff import Backoff
from karpool.kube.watch.informer import Informer
from karpool.model.karpenter.objects import NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, NODES, PODS, ApiResource, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod

log = structlog.get_logger(__name__)

T = TypeVar("T")

# One way of reading each kind, so that its events are decoded once; any other kind is read whole.
STRUCTS: dict[ApiResource, type[Any]] = {PODS: Pod, NODES: Node, NODEPOOLS: NodePool, NODECLAIMS: NodeClaim}
RESTART = Backoff(first=1.0, limit=60.0)


class SharedInformers:
    """The informers of one cluster, by kind; started when first asked for."""

    def __init__(self, client: Client, start: Callable[[Informer[Any]], None]) -> None:
        self._client = client
        self._start = start
        self._known: dict[ApiResource, Informer[Any]] = {}

    def of(self, resource: ApiResource) -> Informer[Any]:
        if resource not in self._known:
            self._known[resource] = informer = Informer(
                self._client, resource, into=STRUCTS.get(resource, dict)
            )
            self._start(informer)
        return self._known[resource]


class Informers:
    """One component's use of the shared informers: what it listens to ends with it."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._used: list[Informer[Any]] = []
        self._gate = _Gate()

    def of(self, resource: ApiResource, into: type[T] = dict) -> "Feed[T]":  # type: ignore[assignment]
        """Typed as `STRUCTS` says; `into` is for the type checker and must agree."""
        assert into is STRUCTS.get(resource, dict), (resource, into)
        informer = self._shared.of(resource)
        self._used.append(informer)
        return Feed(informer, self._gate)

    async def synced(self) -> None:
        """Wait until every kind asked for has been listed once."""
        for informer in self._used:
            await informer.synced.wait()

    def close(self) -> None:
        self._gate.is_open = False


class _Gate:
    is_open = True


class Feed(Generic[T]):
    """A shared informer as one component sees it."""

    def __init__(self, informer: Informer[T], gate: _Gate) -> None:
        self._informer = informer
        self._gate = gate
        self.get = informer.get
        self.objects = informer.objects

    def __len__(self) -> int:
        return len(self._informer)

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._informer

    def add_sink(self, sink: ChangeSink[T]) -> None:
        self._informer.add_sink(_Gated(sink, self._gate))

    def on_change(self, handler: Callable[[ObjectChange[T]], None]) -> None:
        """Call `handler` for everything known now and for every change from now on."""
        self.add_sink(_Each(handler))


class _Gated(Generic[T]):
    def __init__(self, sink: ChangeSink[T], gate: _Gate) -> None:
        self._sink = sink
        self._gate = gate

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        if self._gate.is_open:
            self._sink.apply(changes)


class _Each(Generic[T]):
    def __init__(self, handler: Callable[[ObjectChange[T]], None]) -> None:
        self._handler = handler

    def apply(self, changes: Sequence[ObjectChange[T]], /) -> None:
        for change in changes:
            self._handler(change)


@dataclass(frozen=True)
class Context:
    """What a component is given."""

    cluster: str
    clock: Clock
    client: Client
    informers: Informers
    events: EventRecorder
    random: Random


class FleetComponent(Protocol):
    async def run(self) -> None:
        """Work until cancelled. Called again on a fresh instance after a crash."""


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
        """Stop a component wherever it is, as kill -9 would; it stays down until `start`."""
        task = self._tasks.pop(name)
        task.cancel()
        return task

    async def crash(self, name: str) -> None:
        """`kill`, and wait until it is dead."""
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
