"""Runs one term of a controller (`Manager`), and the process around the terms (`run_process`).

The order is: check options, open listeners (/livez is true, /readyz says "not started"), create clients, take
the lease, `prepare`, start informers. When all informers are synced, the controller runs. Only the leader
watches and acts. On stop it finishes the current work, writes its events and releases the lease. If the lease
is lost, the controller is cancelled and the process ends. All its intentions are in the API server, so the
next leader continues from there.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.kube.transport.http import HttpTransport
from karpool.manager.controller import Controller, Environment, ManagerOptions, Runnable
from karpool.manager.metrics import describe_process, follow_leadership
from karpool.manager.probes import HealthChecks, ProbeServer
from karpool.manager.readiness import ManagerStatus
from karpool.manager.stop import STOPPED, Stop

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Runnable)
OptionsT = TypeVar("OptionsT")

# Objects of a cluster live long and hold no cycles. With Python's default thresholds, garbage collection
# over a hundred thousand promises takes as long as the decisions.
GC_THRESHOLDS = (50_000, 20, 100)


class Manager(Generic[R]):
    """One term of a controller. `synced` is called once everything was listed."""

    def __init__(
        self, runnable: R, environment: Environment, *, synced: Callable[[], None] = lambda: None
    ) -> None:
        self.runnable = runnable
        self._events = environment.events
        self._status = environment.status
        self._synced = synced

    @classmethod
    def of(
        cls,
        client: Client,
        build: Callable[[Environment], R],
        *,
        component: str = "karpool",
        check: Callable[[], None] = lambda: None,
        registry: CollectorRegistry | None = None,
    ) -> "Manager[R]":
        """Return a manager for one cluster without a process, for tests and for commands that act once."""
        environment = Environment(
            {client.name: client.fenced(check)},
            EventRecorder(client, component),
            registry or CollectorRegistry(),
            check,
        )
        return cls(build(environment), environment)

    def not_ready(self) -> str | None:
        return self._status.not_ready()

    async def run(self, stop: Stop | None = None, *, prepared: Callable[[], None] = lambda: None) -> None:
        """Run until `stop` is set or the controller returns. Raises what the controller raises."""
        stop = stop or Stop()
        try:
            async with AsyncExitStack() as stack:
                self._status.waiting_for = "preparing"
                await self.runnable.prepare(stack)
                prepared()
                await self._watching(stop)
        except ExceptionGroup as failures:
            raise _first(failures) from failures
        finally:
            self._status.informers, self._status.waiting_for = (), "stopped"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[R]:
        """Run the controller during a block, which starts after `prepare`.

        Raises what the controller raises.
        """
        stop, prepared = Stop(), asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.run(stop, prepared=prepared.set))
                await prepared.wait()
                try:
                    yield self.runnable
                finally:
                    stop.set()
        except ExceptionGroup as failures:
            raise _first(failures) from failures

    async def _watching(self, stop: Stop) -> None:
        async with asyncio.TaskGroup() as group:
            self._status.informers = informers = list(self.runnable.informers)
            beside = [group.create_task(cluster.run()) for cluster in informers]
            beside.append(group.create_task(self._events.run(), name="events"))
            try:
                if await stop.until(self._status.synced()) is not STOPPED:
                    self._synced()
                    await self.runnable.run(stop)
                await self._events.flush()
            finally:
                for task in beside:
                    task.cancel()


async def run_process(
    controller: Controller[OptionsT],
    options: OptionsT,
    stop: Stop,
    *,
    ready: Callable[[Any], None] = lambda runnable: None,
    reads_only: bool = False,
) -> None:
    """Run until `stop` is set. With `reads_only` nothing is written, so no lease is needed.

    Raises InvalidOptions, ConfigError, Invalid or OSError if it cannot start, and LeadershipLost if the lease
    is lost.
    """
    manages = controller.manages(options)
    gc.set_threshold(*GC_THRESHOLDS)
    registry, health, status = (
        CollectorRegistry(),
        HealthChecks(),
        ManagerStatus(manages.max_staleness_seconds),
    )
    describe_process(registry)
    status.follow(registry)
    health.add("readyz", "watches", status.not_ready)
    health.remarks = status.remarks
    async with AsyncExitStack() as stack:
        for host, port in manages.listen:
            await stack.enter_async_context(ProbeServer(health, host=host, port=port, registry=registry))
        component = controller.component(options)
        clients = await _connect(stack, manages, component)
        # Events have their own rate limit: many events must not delay decisions.
        client = next(iter(clients.values()))
        events = Client(
            client.rest.transport,
            client.clock,
            name=client.name,
            qps=manages.qps,
            burst=manages.burst,
            field_manager=component,
        )

        async def led(leadership: Leadership | None) -> None:
            status.lease = ""
            check = leadership.check if leadership is not None else lambda: None
            environment = Environment(
                {name: client.fenced(check) for name, client in clients.items()},
                EventRecorder(events, component),
                registry,
                check,
                status,
                asyncio.to_thread,  # keeps the loop free to renew the lease
            )
            runnable = await controller.build(environment, options)
            await Manager(runnable, environment, synced=_freeze).run(stop, prepared=lambda: ready(runnable))

        if manages.lease is None or reads_only:
            await led(None)
            return
        if controller.before_lease is not None:
            await controller.before_lease(client, options)
        lease = manages.lease
        elector = LeaseElector(client, lease.name, namespace=lease.namespace, timing=lease.timing)
        if controller.metrics_prefix:
            follow_leadership(registry, controller.metrics_prefix, lambda: elector.leading)
        # A replica that waits for the lease is ready.
        log.info("waiting for the lease", lease=elector.name)
        status.waiting_for, status.lease = "", f"{lease.namespace}/{lease.name}"
        await lead(elector, led, stop)


async def _connect(stack: AsyncExitStack, manages: ManagerOptions, component: str) -> dict[str, Client]:
    clock, clients = RealClock(), {}
    for config in manages.clusters:
        client = Client(
            HttpTransport(config, clock),
            clock,
            name=config.name,
            qps=manages.qps,
            burst=manages.burst,
            timeout=manages.timeout,
            user_agent=component,
            field_manager=component,
        )
        clients[config.name] = await stack.enter_async_context(client)
    return clients


def _freeze() -> None:
    """Exclude listed objects from garbage collection: a pass over those of 5,000 nodes takes 20 ms."""
    gc.collect()
    gc.freeze()


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the first error of nested groups: the caller needs the error, not the task."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
