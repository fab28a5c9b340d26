"""From flags to a running estimator: probes first, then gRPC, then the clusters.

A probe finds /healthz while a large cluster is still being counted, and a caller finds
a server that says UNAVAILABLE. Whatever cannot work ends the process before it
answers anything.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from karpool.estimator import gates
from karpool.estimator.plugins import registry
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.registry import PluginSettings
from karpool.estimator.serving import options
from karpool.estimator.serving.failure_reporting import FailureGauges, report_failures, reporting
from karpool.estimator.serving.member import MemberEstimator, MemberSettings
from karpool.estimator.serving.metrics import EstimatorMetrics
from karpool.estimator.serving.server import POLL_SECONDS, EstimatorServer, not_ready
from karpool.estimator.serving.service import EstimatorService
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock, RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.config.kubeconfig_file import merge, read_file
from karpool.kube.errors import ConfigError
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.flags import InvalidOptions
from karpool.kube.transport.http import HttpTransport
from karpool.manager.probes import HealthChecks, ProbeServer
from karpool.model import durations
from karpool.wire.addresses import probe_addresses
from karpool.wire.server_tls import TlsFiles

log = structlog.get_logger(__name__)

_FILE_ENDINGS = ("-kubeconfig", ".kubeconfig", ".yaml", ".yml", ".conf")


@dataclass(frozen=True)
class Running:
    grpc_port: int
    clusters: Sequence[str]


async def run(
    given: Mapping[str, Any],
    stop: asyncio.Event,
    *,
    ready: Callable[[Running], None] = lambda running: None,
) -> None:
    """Serve until `stop` is set. Raises WrongOptions, ConfigError, Invalid or OSError if it cannot start."""
    chosen = options.defaults() | dict(given)
    if errors := options.validate(chosen):
        raise InvalidOptions("\n".join(errors))
    members = configs(chosen)
    async with AsyncExitStack() as stack:
        collectors = CollectorRegistry()
        clusters: dict[str, MemberEstimator] = {}
        health = HealthChecks()
        health.add("readyz", "clusters", lambda: not_ready(clusters) if clusters else "not started yet")
        for address in probe_addresses(chosen):
            host, port = address
            await stack.enter_async_context(ProbeServer(health, host=host, port=port, registry=collectors))
        clock = RealClock()
        metrics = EstimatorMetrics(collectors, plugin_names(chosen))
        gauges = FailureGauges(collectors)
        for config in members:
            client = Client(
                HttpTransport(config, clock),
                clock,
                name=config.name,
                qps=chosen["kube-api-qps"] or None,
                burst=chosen["kube-api-burst"],
                user_agent="karpool-estimator",
            )
            await stack.enter_async_context(client)
            member = clusters[config.name] = build_member(config.name, client, chosen, metrics, clock)
            await stack.enter_async_context(announcing(member, client, gauges))
        service = EstimatorService(
            clusters, metrics, clock=clock, cannot_tell_until_synced=_cannot_tell_until_synced(chosen)
        )
        server = EstimatorServer(
            service,
            clusters,
            port=chosen["server-port"],
            tls=tls_files(chosen),
            concurrent=chosen["max-concurrent-requests"],
            grace_seconds=durations.seconds(chosen["grace-period"]),
        )
        await stack.enter_async_context(server)
        await stack.enter_async_context(running(clusters, counted=_freeze))
        ready(Running(server.port, list(clusters)))
        await stop.wait()
        log.info("stopping")


def configs(chosen: Mapping[str, Any]) -> list[ClusterConfig]:
    """Where each cluster is, and its name. Raises ConfigError."""
    path = Path(chosen["kubeconfig"]) if chosen["kubeconfig"] else None
    if not chosen["fleet"]:
        name = chosen["cluster-name"]
        master = chosen["master"]
        if path is None and master:
            return [ClusterConfig(name, master.rstrip("/"))]
        config = kubeconfig.load(path, cluster=name)
        return [replace(config, server=master.rstrip("/")) if master else config]
    if path is None:
        raise ConfigError(
            "--fleet needs --kubeconfig: a file whose contexts are the clusters, or a folder of files"
        )
    found = _of_folder(path) if path.is_dir() else _of_contexts(path)
    if not found:
        raise ConfigError(f"--fleet: {path} names no cluster")
    return found


def _of_folder(path: Path) -> list[ClusterConfig]:
    # Mounted secrets hold their files a second time under names with two dots.
    files = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
    return [kubeconfig.load(file, cluster=_cluster_of(file)) for file in files]


def _cluster_of(path: Path) -> str:
    for ending in _FILE_ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.name.removesuffix(ending)
    return path.name


def _of_contexts(path: Path) -> list[ClusterConfig]:
    if not path.is_file():
        raise ConfigError(f"kubeconfig {path} does not exist; check --kubeconfig")
    names = list(merge([read_file(path, "")]).contexts)
    return [kubeconfig.load(path, context=name, cluster=name) for name in names]


def plugin_names(chosen: Mapping[str, Any]) -> list[str]:
    plugins = chosen["plugins"]
    return registry.chosen(plugins, chosen["node-capacity-providers"], registry.known(plugins))


def build_member(
    name: str, client: Client, chosen: Mapping[str, Any], metrics: EstimatorMetrics, clock: Clock
) -> MemberEstimator:
    """One cluster with its own plugins. Raises Invalid for a plugin that cannot be made."""
    switched = gates.parse(chosen["feature-gates"])
    settings = PluginSettings(
        cluster=name,
        gates=switched,
        clock=clock,
        providers=chosen["node-capacity-providers"],
        autoscaler_model=chosen["autoscaler-model"],
        region=chosen["region"],
        catalogue=Path(chosen["catalogue"]) if chosen["catalogue"] else None,
        potential_nodes_max=chosen["max-potential-nodes"],
        quota_scopes=chosen["quota-scopes"],
        failure_threshold_seconds=durations.seconds(chosen["failure-threshold"]),
        recovery_interval_seconds=durations.seconds(chosen["recovery-interval"]),
    )
    plugins = registry.build(plugin_names(chosen), settings)
    framework = Framework(
        plugins.ours,
        plugins.others,
        timeout_seconds=durations.seconds(chosen["plugin-timeout"]),
        observe=metrics.plugin,
    )
    rules = MemberSettings(
        switched, durations.seconds(chosen["max-staleness"]), tuple(chosen["unschedulable-kinds"])
    )
    member = MemberEstimator(name, client, plugins, framework, rules)
    metrics.follow(member)
    return member


@asynccontextmanager
async def announcing(member: MemberEstimator, client: Client, gauges: FailureGauges) -> AsyncIterator[None]:
    """Report what fails to metrics and as events for the length of the context."""
    providers = reporting(member.framework.plugins)
    gauges.follow(member.name, providers)
    if not providers:
        yield
        return
    recorder = EventRecorder(client, "karpool-estimator")
    for provider in providers:
        report_failures(provider, recorder)
    writing = asyncio.create_task(recorder.run(), name=f"{member.name} events")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@asynccontextmanager
async def running(
    members: Mapping[str, MemberEstimator], *, counted: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    """Watch all clusters for the length of the context; `counted` is called once all are."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(member.run(), name=name) for name, member in members.items()]
        if counted is not None:
            tasks.append(group.create_task(_call_when_counted(members, counted)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _call_when_counted(members: Mapping[str, MemberEstimator], counted: Callable[[], None]) -> None:
    while not_ready(members):  # noqa: ASYNC110 - a state of many informers, not an event of one
        await asyncio.sleep(POLL_SECONDS)
    counted()


def _freeze() -> None:
    """Spare what was counted from garbage collection: looking through 5,000 nodes' worth takes 20 ms."""
    gc.collect()
    gc.freeze()


def tls_files(chosen: Mapping[str, Any]) -> TlsFiles | None:
    """None is plaintext: without both a certificate and its key the other TLS flags mean nothing."""
    certificate, key = chosen["grpc-auth-cert-file"], chosen["grpc-auth-key-file"]
    if not certificate or not key:
        if certificate or key or chosen["grpc-client-ca-file"]:
            log.warning(
                "serving plaintext", reason="TLS needs --grpc-auth-cert-file and --grpc-auth-key-file"
            )
        return None
    authority = chosen["grpc-client-ca-file"]
    verify = bool(authority) and not chosen["insecure-skip-grpc-client-verify"]
    return TlsFiles(Path(certificate), Path(key), Path(authority) if verify else None)


def _cannot_tell_until_synced(chosen: Mapping[str, Any]) -> bool:
    """Of many clusters, one that is still being counted must not cost a caller the others' answers."""
    wanted = chosen["until-synced"]
    return wanted == "unknown" or (not wanted and bool(chosen["fleet"]))
