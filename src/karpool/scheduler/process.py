"""From flags to a running scheduler: probes first, then the lease, then the watches.

Only the leader watches and decides. Losing the lease ends the process, as upstream: what
was under way is cancelled, and whoever leads next finds every promise in the API
server. Asked to stop, it finishes the writes under way and gives the lease back.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from karpool.kube.api.client import Client
from karpool.kube.clock import Clock, RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.flags import InvalidOptions
from karpool.kube.leases import Leadership, LeaseElector, lead
from karpool.kube.transport.http import HttpTransport
from karpool.manager.metrics import describe_process
from karpool.manager.probes import HealthChecks, ProbeServer
from karpool.model import durations
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler import gates
from karpool.scheduler.controller.options import (
    SCHEDULER_FLAGS,
    defaults,
    enabled_plugins,
    lease_timing,
    validate,
)
from karpool.scheduler.controller.reconciler import Show
from karpool.scheduler.controller.running import Scheduler, SchedulerOptions
from karpool.scheduler.controller.settings import CostPreference, EstimateMergeRule, SchedulingSettings
from karpool.scheduler.promises.metrics import follow_estimators
from karpool.scheduler.promises.promise import PromiseLifetime
from karpool.wire.addresses import probe_addresses

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient

log = structlog.get_logger(__name__)

Led = Callable[[Leadership | None], Awaitable[None]]


async def run(
    given: Mapping[str, Any],
    stop: asyncio.Event,
    *,
    ready: Callable[[], None] = lambda: None,
    decided: Show | None = None,
) -> None:
    """Schedule until `stop` is set. `decided` is for a dry run: nothing is written then.

    Raises WrongOptions, ConfigError, Invalid or OSError if it cannot start, LeadershipLost when the
    lease was lost.
    """
    chosen = defaults(SCHEDULER_FLAGS) | dict(given)
    if errors := validate(SCHEDULER_FLAGS, chosen):
        raise InvalidOptions("\n".join(errors))
    # Bindings, clusters and promises live long and hold no cycles. With Python's own thresholds, looking
    # through a hundred thousand promises for garbage takes as long as deciding.
    gc.set_threshold(50_000, 20, 100)
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(controlling(chosen, chosen["scheduler-name"]))
        estimators = estimator_clients(chosen, control.client)
        if estimators is not None:
            stack.push_async_callback(estimators.close)
            follow_estimators(control.registry, estimators.lost)

        async def led(leadership: Leadership | None) -> None:
            def follow(old: MemberCluster | None, new: MemberCluster | None) -> None:
                if estimators is not None and new is None:
                    estimators.keep({cluster.name for cluster in scheduler.view.clusters.all()})

            scheduler = Scheduler(
                control.client,
                scheduler_options(chosen),
                asker=estimators,
                events=control.events,
                metrics=control.registry,
                check=leadership.check if leadership is not None else _no_check,
                show=decided,
                follow=follow,
            )
            # Until we lead there is nothing to be ready for: waiting is what rivals are for.
            control.health.add("readyz", "informers", scheduler.not_ready)
            scheduler.metrics.leading(True)
            ready()
            await scheduler.run(stop)

        # Looking writes nothing, so it needs no lease.
        elected = chosen if decided is None else chosen | {"leader-elect": False}
        await leading(elected, control.client, stop, led)


def _no_check() -> None:
    return None


def scheduler_options(chosen: Mapping[str, Any]) -> SchedulerOptions:
    switched = gates.parse(chosen["feature-gates"])
    settings = SchedulingSettings(
        plugins=enabled_plugins(chosen["plugins"]),
        multiple_pod_templates=switched[gates.MULTIPLE_TEMPLATES],
        workload_affinity=switched[gates.WORKLOAD_AFFINITY],
        resource_models=switched[gates.MODELING],
        propagate_empty=chosen["enable-empty-workload-propagation"],
        merge=EstimateMergeRule(chosen["availability"]),
        partial=chosen["partial-placement"],
        cost=CostPreference(chosen["cost"]),
        spare_tainted=chosen["spare-tainted"],
    )
    seconds = {name: durations.seconds(chosen[name]) for name in _DURATIONS}
    return SchedulerOptions(
        name=chosen["scheduler-name"],
        gates=switched,
        settings=settings,
        lifetime=PromiseLifetime(seconds["assumption-ttl"], seconds["assumption-ttl-limit"]),
        workers=chosen["workers"],
        unschedulable_seconds=seconds["unschedulable-retry"],
        hold_down_seconds=seconds["estimator-hold-down"],
        grace_seconds=seconds["grace-period"],
        base_delay_seconds=seconds["rate-limiter-base-delay"],
        max_delay_seconds=seconds["rate-limiter-max-delay"],
    )


_DURATIONS = (
    "assumption-ttl",
    "assumption-ttl-limit",
    "unschedulable-retry",
    "estimator-hold-down",
    "grace-period",
    "rate-limiter-base-delay",
    "rate-limiter-max-delay",
)


def estimator_clients(chosen: Mapping[str, Any], client: Client) -> "EstimatorClient | None":
    """Raises Invalid for certificates that cannot be used."""
    if not chosen["enable-scheduler-estimator"]:
        return None
    # Whoever asks no estimator is spared gRPC and cryptography: 25 MiB.
    from karpool.scheduler.estimates.estimator_client import (
        EstimatorClient,
        EstimatorSettings,
        service_resolver,
    )
    from karpool.wire.channels import ClientTls

    settings = EstimatorSettings(
        timeout_seconds=durations.seconds(chosen["scheduler-estimator-timeout"]),
        namespace=chosen["scheduler-estimator-service-namespace"],
        prefix=chosen["scheduler-estimator-service-prefix"],
        port=chosen["scheduler-estimator-port"],
        asks_pull_clusters=not chosen["disable-scheduler-estimator-in-pull-mode"],
        tls=ClientTls(
            _path(chosen["scheduler-estimator-ca-file"]),
            _path(chosen["scheduler-estimator-cert-file"]),
            _path(chosen["scheduler-estimator-key-file"]),
            chosen["insecure-skip-estimator-verify"],
        ),
    )
    return EstimatorClient(service_resolver(client, settings), settings, client.clock)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


# What the descheduler's process needs as well


@dataclass
class Control:
    """A process and its API server: probes and metrics are answered, clients are open."""

    client: Client
    events: Client
    clock: Clock
    registry: CollectorRegistry
    health: HealthChecks


@asynccontextmanager
async def controlling(chosen: Mapping[str, Any], component: str) -> AsyncIterator[Control]:
    config, clock = config_of(chosen), RealClock()
    async with AsyncExitStack() as stack:
        limits: dict[str, Any] = {
            "name": "karmada",
            "qps": chosen["kube-api-qps"] or None,
            "burst": max(1, chosen["kube-api-burst"]),
            "user_agent": component,
            "field_manager": component,
        }
        client = Client(HttpTransport(config, clock), clock, **limits)
        await stack.enter_async_context(client)
        # Events have a limit of their own: a flood of them must not hold up decisions.
        events = Client(client.rest.transport, clock, **limits)
        control = Control(client, events, clock, CollectorRegistry(), HealthChecks())
        describe_process(control.registry)
        for host, port in probe_addresses(chosen):
            server = ProbeServer(control.health, host=host, port=port, registry=control.registry)
            await stack.enter_async_context(server)
        yield control


def config_of(chosen: Mapping[str, Any]) -> ClusterConfig:
    """Where the Karmada API server is. Raises ConfigError."""
    path, master = chosen["kubeconfig"], chosen["master"]
    if not path and master:
        return ClusterConfig("karmada", master.rstrip("/"))
    config = kubeconfig.load(Path(path) if path else None)
    return replace(config, server=master.rstrip("/")) if master else config


async def leading(chosen: Mapping[str, Any], client: Client, stop: asyncio.Event, led: Led) -> None:
    """Run `led` while holding the lease, or at once without election; or return when asked to stop
    before the lease was ours."""
    if not chosen["leader-elect"]:
        await led(None)
        return
    elector = LeaseElector(
        client,
        chosen["leader-elect-resource-name"],
        namespace=chosen["leader-elect-resource-namespace"],
        timing=lease_timing(chosen),
    )
    await lead(elector, led, stop)
