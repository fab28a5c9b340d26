"""The estimator as the manager runs it: one gRPC server over many clusters, without a lease.

Probes answer first, then gRPC, then the clusters are watched: a probe finds /healthz while a large
cluster is still being counted, and a caller finds a server that says UNAVAILABLE. Whatever cannot work
ends the process before it answers anything.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog
from msgspec import structs

from karpool.estimator.serving.failure_reporting import FailureGauges, report_failures, reporting
from karpool.estimator.serving.member import MemberEstimator, build_member, plugin_names
from karpool.estimator.serving.metrics import EstimatorMetrics
from karpool.estimator.serving.options import EstimatorOptions, GrpcServerOptions
from karpool.estimator.serving.server import EstimatorServer
from karpool.estimator.serving.service import EstimatorService
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.config.kubeconfig_file import merge, read_file
from karpool.kube.errors import ConfigError
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.manager.stop import Stop
from karpool.wire.server_tls import TlsFiles

log = structlog.get_logger(__name__)

COMPONENT = "karpool-estimator"
_FILE_ENDINGS = ("-kubeconfig", ".kubeconfig", ".yaml", ".yml", ".conf")


class FleetEstimator:
    """The estimators of all clusters, and the server in front of them.

    `own` are options of single clusters. Without `serves` nobody listens: `service` is called.
    """

    def __init__(
        self,
        environment: Environment,
        options: EstimatorOptions,
        *,
        own: Mapping[str, Mapping[str, Any]] | None = None,
        serves: bool = True,
        host: str = "[::]",
    ) -> None:
        clock, self._clients = environment.clock, environment.clients
        metrics = EstimatorMetrics(environment.registry, plugin_names(options))
        self._gauges = FailureGauges(environment.registry)
        self.members: dict[str, MemberEstimator] = {
            name: build_member(
                name, client, structs.replace(options, **(own or {}).get(name, {})), metrics, clock
            )
            for name, client in environment.clients.items()
        }
        self.service = EstimatorService(
            self.members, metrics, clock=clock, cannot_tell_until_synced=options.answers_unknown_until_synced
        )
        self.server: EstimatorServer | None = None
        if serves:
            self.server = EstimatorServer(
                self.service,
                self.members,
                environment.status.not_ready,
                host=host,
                port=options.grpc.server_port,
                tls=tls_files(options.grpc),
                concurrent=options.max_concurrent_requests,
                grace_seconds=options.grace_period_seconds,
            )

    @property
    def informers(self) -> list[InformerSet]:
        return [member.informers for member in self.members.values()]

    async def prepare(self, stack: AsyncExitStack) -> None:
        for name, member in self.members.items():
            await stack.enter_async_context(_announcing(member, self._clients[name], self._gauges))
        if self.server is not None:
            await stack.enter_async_context(self.server)

    async def run(self, stop: Stop) -> None:
        await stop.wait()
        log.info("stopping")


def _manages(options: EstimatorOptions) -> ManagerOptions:
    return ManagerOptions(
        clusters=configs(options),
        listen=options.probes.addresses,
        qps=options.connection.kube_api_qps or None,
        burst=options.connection.kube_api_burst,
        max_staleness_seconds=options.max_staleness_seconds,
    )


async def _build(environment: Environment, options: EstimatorOptions, **parts: Any) -> FleetEstimator:
    return FleetEstimator(environment, options, **parts)


ESTIMATOR = Controller[EstimatorOptions](
    name="estimator",
    place=Place.MANY,
    component=lambda options: COMPONENT,
    manages=_manages,
    build=_build,
)


def configs(options: EstimatorOptions) -> list[ClusterConfig]:
    """Where each cluster is, and its name. Raises ConfigError."""
    path = Path(options.connection.kubeconfig) if options.connection.kubeconfig else None
    if not options.fleet:
        name = options.cluster_name
        master = options.connection.master
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


@asynccontextmanager
async def _announcing(member: MemberEstimator, client: Client, gauges: FailureGauges) -> AsyncIterator[None]:
    """Report what fails to metrics and as events for the length of the context."""
    providers = reporting(member.framework.plugins)
    gauges.follow(member.name, providers)
    if not providers:
        yield
        return
    recorder = EventRecorder(client, COMPONENT)
    for provider in providers:
        report_failures(provider, recorder)
    writing = asyncio.create_task(recorder.run(), name=f"{member.name} events")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def tls_files(grpc: GrpcServerOptions) -> TlsFiles | None:
    """None is plaintext: without both a certificate and its key the other TLS flags mean nothing."""
    certificate, key = grpc.cert_file, grpc.key_file
    if not certificate or not key:
        if certificate or key or grpc.client_ca_file:
            log.warning(
                "serving plaintext", reason="TLS needs --grpc-auth-cert-file and --grpc-auth-key-file"
            )
        return None
    authority = grpc.client_ca_file
    verify = bool(authority) and not grpc.skips_client_verify
    return TlsFiles(Path(certificate), Path(key), Path(authority) if verify else None)
