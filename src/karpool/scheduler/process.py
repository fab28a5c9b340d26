"""The scheduler as the manager runs it: from flags to its options, and who it asks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.flags import InvalidOptions
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.manager.manager import run_process
from karpool.manager.stop import Stop
from karpool.model import durations
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
from karpool.scheduler.estimates.estimate_cache import EstimatorApi
from karpool.scheduler.promises.metrics import follow_estimators
from karpool.scheduler.promises.promise import PromiseLifetime
from karpool.wire.addresses import probe_addresses

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient


async def run(
    given: Mapping[str, Any],
    stop: Stop,
    *,
    ready: Callable[[], None] = lambda: None,
    decided: Show | None = None,
) -> None:
    """Schedule until `stop` is set. `decided` is for a dry run: nothing is written then. Raises as
    `run_process` does."""
    chosen = defaults(SCHEDULER_FLAGS) | dict(given)
    controller = SCHEDULER.given(show=decided)
    await run_process(
        controller, chosen, stop, ready=lambda scheduler: ready(), reads_only=decided is not None
    )


def _manages(chosen: Mapping[str, Any]) -> ManagerOptions:
    if errors := validate(SCHEDULER_FLAGS, chosen):
        raise InvalidOptions("\n".join(errors))
    return manager_options(chosen)


async def _build(
    environment: Environment,
    chosen: Mapping[str, Any],
    *,
    asker: EstimatorApi | None = None,
    show: Show | None = None,
) -> Scheduler:
    estimators = None if asker is not None else estimator_clients(chosen, environment.client)
    if estimators is not None:
        follow_estimators(environment.registry, estimators.lost)
    options = scheduler_options(chosen)
    return Scheduler(environment, options, asker=asker, estimators=estimators, show=show)


async def check_estimators(client: Client, chosen: Mapping[str, Any]) -> None:
    """Certificates that cannot be used end a process that does not lead yet, too. Raises Invalid."""
    estimators = estimator_clients(chosen, client)
    if estimators is not None:
        await estimators.close()


SCHEDULER = Controller[Mapping[str, Any]](
    name="scheduler",
    place=Place.CONTROL_PLANE,
    component=lambda chosen: str(chosen["scheduler-name"]),
    manages=_manages,
    build=_build,
    before_lease=check_estimators,
)


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


def manager_options(chosen: Mapping[str, Any]) -> ManagerOptions:
    lease = LeaseName(
        chosen["leader-elect-resource-name"], chosen["leader-elect-resource-namespace"], lease_timing(chosen)
    )
    return ManagerOptions(
        clusters=[replace(config_of(chosen), name="karmada")],
        listen=probe_addresses(chosen),
        lease=lease if chosen["leader-elect"] else None,
        qps=chosen["kube-api-qps"] or None,
        burst=max(1, chosen["kube-api-burst"]),
    )


def config_of(chosen: Mapping[str, Any]) -> ClusterConfig:
    """Where the Karmada API server is. Raises ConfigError."""
    path, master = chosen["kubeconfig"], chosen["master"]
    if not path and master:
        return ClusterConfig("karmada", master.rstrip("/"))
    config = kubeconfig.load(Path(path) if path else None)
    return replace(config, server=master.rstrip("/")) if master else config
