"""From options to a running scaler: probes first, then the lease, then the watches.

Only the leader watches and acts. Losing the lease ends the process: everything that was
intended is in the API server, and whoever leads next goes on from there.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from karpool.gpu.controller.controller import GpuScaler, GpuScalerOptions
from karpool.gpu.controller.metrics import PREFIX, ScaleUpMetrics
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.kube.transport.http import HttpTransport
from karpool.manager.metrics import QueueMetrics, describe_process, follow_leadership
from karpool.manager.probes import HealthChecks, ProbeServer
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.market import market_of
from karpool.provisioning.placeholders.choosing import backend
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.wire.addresses import ListenAddress

COMPONENT = "karpool-gpu-scaler"


@dataclass(frozen=True)
class ProcessOptions:
    """`listen` are the addresses of probes and metrics."""

    kubeconfig: Path | None = None
    context: str = ""
    scaler: GpuScalerOptions = field(default_factory=GpuScalerOptions)
    backend: str = "smart-pod"
    region: str = ""
    catalogue: Path | None = None  # instead of the shipped one
    leader_elect: bool = True
    listen: tuple[ListenAddress, ...] = ()
    original_metric_names: bool = False
    qps: float | None = 50.0
    burst: int = 100
    timeout: float | None = None  # of a request, in seconds


async def run(
    options: ProcessOptions, stop: asyncio.Event, *, ready: Callable[[], None] = lambda: None
) -> None:
    """Scale until `stop` is set. Raises ConfigError, Invalid or OSError if it cannot start,
    LeadershipLost when the lease was lost."""
    market = market_of(options.catalogue, options.region)
    config = kubeconfig.load(options.kubeconfig, context=options.context)
    registry, health, clock = CollectorRegistry(), HealthChecks(), RealClock()
    async with AsyncExitStack() as stack:
        client = Client(
            HttpTransport(config, clock),
            clock,
            name=config.name,
            qps=options.qps,
            burst=options.burst,
            timeout=options.timeout,
            user_agent=COMPONENT,
            field_manager=COMPONENT,
        )
        await stack.enter_async_context(client)
        # Events have a limit of their own: a flood of them must not hold up decisions.
        events = Client(client.rest.transport, clock, name=config.name, qps=20.0, field_manager=COMPONENT)
        for host, port in options.listen:
            await stack.enter_async_context(ProbeServer(health, host=host, port=port, registry=registry))
        describe_process(registry)
        metrics = ScaleUpMetrics(
            registry,
            original_names=options.original_metric_names,
            maximum_age_seconds=options.scaler.settings.maximum_age,
        )

        queue = QueueMetrics(registry, COMPONENT, clock.monotonic)

        async def led(leadership: Leadership | None) -> None:
            monitor = ClaimMonitor(clock)
            smart_pods = options.scaler.smart_pods
            scaler = GpuScaler(
                client,
                options.scaler,
                market=market,
                events=EventRecorder(events, COMPONENT),
                metrics=metrics,
                monitor=monitor,
                backend=await backend(options.backend, client, smart_pods, monitor),
                check=leadership.check if leadership is not None else _always,
                tell=queue,
            )
            health.add("readyz", "watches", scaler.not_ready)
            ready()
            await _until(stop, scaler.run())

        if not options.leader_elect:
            await led(None)
            return
        await ensure_prerequisites(client, options.scaler.smart_pods)  # the namespace of the lease
        elector = LeaseElector(client, COMPONENT, namespace=options.scaler.smart_pods.namespace)
        follow_leadership(registry, PREFIX, lambda: elector.leading)
        await lead(elector, led, stop)


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends or `stop` is set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _always() -> None:
    return None
