"""The scheduler as the manager runs it: from flags to its settings and estimator clients."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.manager.options import ProbeOptions, WatchOptions
from karpool.scheduler.controller.controller import Scheduler, SchedulerSettings
from karpool.scheduler.controller.options import (
    EstimatorAccessOptions,
    KarmadaConnectionOptions,
    LeaseOptions,
    SchedulerOptions,
)
from karpool.scheduler.controller.reconciler import Show
from karpool.scheduler.estimates.estimate_cache import EstimatorApi
from karpool.scheduler.promises.metrics import follow_estimators

if TYPE_CHECKING:
    from karpool.scheduler.estimates.estimator_client import EstimatorClient


def _manages(options: SchedulerOptions) -> ManagerOptions:
    return manager_options(options.connection, options.lease, options.probes, options.watch)


async def _build(
    environment: Environment,
    options: SchedulerOptions,
    *,
    asker: EstimatorApi | None = None,
    show: Show | None = None,
) -> Scheduler:
    estimators = (
        None if asker is not None else estimator_clients(options.decisions.estimators, environment.client)
    )
    if estimators is not None:
        follow_estimators(environment.registry, estimators.lost)
    settings = scheduler_settings(options)
    return Scheduler(environment, settings, asker=asker, estimators=estimators, show=show)


async def check_estimators(client: Client, access: EstimatorAccessOptions) -> None:
    """Check certificates even before this process leads. Raises Invalid."""
    estimators = estimator_clients(access, client)
    if estimators is not None:
        await estimators.close()


SCHEDULER = Controller[SchedulerOptions](
    name="scheduler",
    place=Place.CONTROL_PLANE,
    component=lambda options: options.scheduler_name,
    manages=_manages,
    build=_build,
    before_lease=lambda client, options: check_estimators(client, options.decisions.estimators),
)


def scheduler_settings(options: SchedulerOptions) -> SchedulerSettings:
    decisions = options.decisions
    return SchedulerSettings(
        name=options.scheduler_name,
        gates=decisions.gates,
        settings=decisions.settings(propagate_empty=options.propagates_empty_workloads),
        lifetime=decisions.lifetime,
        workers=options.workers,
        unschedulable_seconds=options.unschedulable_retry_seconds,
        hold_down_seconds=decisions.estimator_hold_down_seconds,
        max_room_age_seconds=options.max_room_age_seconds,
        grace_seconds=options.grace_period_seconds,
        base_delay_seconds=options.base_delay_seconds,
        max_delay_seconds=options.max_delay_seconds,
    )


def estimator_clients(access: EstimatorAccessOptions, client: Client) -> "EstimatorClient | None":
    """Raises Invalid for unusable certificates."""
    if not access.enabled:
        return None
    # Without estimators gRPC and cryptography are not loaded: 25 MiB.
    from karpool.scheduler.estimates.estimator_client import (
        EstimatorClient,
        EstimatorSettings,
        service_resolver,
    )
    from karpool.wire.channels import ClientTls

    settings = EstimatorSettings(
        timeout_seconds=access.timeout_seconds,
        namespace=access.namespace,
        prefix=access.prefix,
        port=access.port,
        asks_pull_clusters=not access.skips_pull_clusters,
        tls=ClientTls(
            _path(access.ca_file),
            _path(access.cert_file),
            _path(access.key_file),
            access.skips_verify,
        ),
    )
    return EstimatorClient(service_resolver(client, settings), settings, client.clock)


def _path(text: str) -> Path | None:
    return Path(text) if text else None


# Shared with the descheduler's process


def manager_options(
    connection: KarmadaConnectionOptions,
    election: LeaseOptions,
    probes: ProbeOptions,
    watch: WatchOptions,
) -> ManagerOptions:
    lease = LeaseName(election.name, election.namespace, election.timing)
    return ManagerOptions(
        clusters=[replace(config_of(connection), name="karmada")],
        listen=probes.addresses,
        lease=lease if election.leader_elect else None,
        qps=connection.kube_api_qps or None,
        burst=max(1, connection.kube_api_burst),
        max_staleness_seconds=watch.max_staleness_seconds,
    )


def config_of(connection: KarmadaConnectionOptions) -> ClusterConfig:
    """The connection to the Karmada API server. Raises ConfigError."""
    path, master = connection.kubeconfig, connection.master
    if not path and master:
        return ClusterConfig("karmada", master.rstrip("/"))
    config = kubeconfig.load(Path(path) if path else None)
    return replace(config, server=master.rstrip("/")) if master else config
