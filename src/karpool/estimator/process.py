"""The estimator as the manager runs it: one gRPC server for many clusters, without a lease.

Probes start first, then gRPC, then the watches: /healthz answers while a large cluster is still being listed,
and callers get UNAVAILABLE until then. A configuration error ends the process before it answers anything.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from karpool.estimator.plugins import node_autoscaler
from karpool.estimator.plugins.registry import LIMITS
from karpool.estimator.serving.failure_reporting import FailureGauges, report_failures, reporting
from karpool.estimator.serving.member import MemberEstimator, build_member, plugin_names
from karpool.estimator.serving.metrics import EstimatorMetrics
from karpool.estimator.serving.options import EstimatorOptions, GrpcServerOptions
from karpool.estimator.serving.server import EstimatorServer
from karpool.estimator.serving.service import EstimatorService
from karpool.kube.api.client import Client
from karpool.kube.clock import Clock
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig, load_contexts
from karpool.kube.errors import ConfigError
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.manager.membership import FleetMembership, watching_member
from karpool.manager.stop import Stop
from karpool.provisioning.market_file import shared_contract
from karpool.wire.server_tls import TlsFiles

log = structlog.get_logger(__name__)

COMPONENT = "karpool-estimator"
_LOOK_SECONDS = 15.0  # interval of checks, for synced clusters and for configuration changes
_SAY_AGAIN_SECONDS = 3600.0
# Large requests are parsed in their own thread, which may delay the answering thread for this long. A plain
# question takes 0.6 ms.
SWITCH_SECONDS = 0.0005
_FILE_ENDINGS = ("-kubeconfig", ".kubeconfig", ".yaml", ".yml", ".conf")


class FleetEstimator:
    """The estimators of all clusters, and their server.

    Without `serves` there is no port: callers use `service`.
    """

    def __init__(
        self,
        environment: Environment,
        options: EstimatorOptions,
        *,
        serves: bool = True,
        host: str = "[::]",
        connecting: Callable[[ClusterConfig], Client] | None = None,
    ) -> None:
        clock, self._clients = environment.clock, environment.clients
        self._environment, self._options = environment, options
        environment.status.more_remarks.append(self._remarks)
        if options.autoscaler_model == LIMITS and plugin_names(options).count(node_autoscaler.NAME):
            log.warning("cluster summaries will not show future nodes", reason="--autoscaler-model=limits")
        self._metrics = metrics = EstimatorMetrics(environment.registry, plugin_names(options))
        self._gauges = FailureGauges(environment.registry)
        # One process sees the use of a contract by all of its clusters.
        self._contract = shared_contract(Path(options.contract)) if options.contract else None
        follows = bool(options.karmada_kubeconfig)
        self.members: dict[str, MemberEstimator] = {
            name: build_member(name, client, options, metrics, clock, contract=self._contract)
            for name, client in ({} if follows else environment.clients).items()
        }
        self._membership: FleetMembership | None = None
        if follows:
            connect = connecting or partial(member_client, options=options, clock=clock)
            self._membership = FleetMembership(
                environment.client, connect, self._serving, partial(_files, options)
            )
        self.service = EstimatorService(
            self.members,
            metrics,
            clock=clock,
            cannot_tell_until_synced=options.answers_unknown_until_synced,
            watchers_max=max(1, options.max_concurrent_requests // 2),
            reads_aside=serves,
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
        following = [self._membership.informers] if self._membership is not None else []
        return [*following, *(member.informers for member in self.members.values())]

    async def prepare(self, stack: AsyncExitStack) -> None:
        for name, member in self.members.items():
            await stack.enter_async_context(_announcing(member, self._clients[name], self._gauges))
        if self.server is not None:
            sys.setswitchinterval(SWITCH_SECONDS)
            await stack.enter_async_context(self.server)

    async def run(self, stop: Stop) -> None:
        telling = asyncio.create_task(self._tell_remarks(stop), name="remarks")
        try:
            if self._membership is not None:
                await self._membership.run(stop)
            else:
                await stop.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        log.info("stopping")

    async def _tell_remarks(self, stop: Stop) -> None:
        """Log why answers are less exact than possible: at the start, and every hour."""
        said: dict[str, float] = {}  # and when
        while not await stop.sleep(_LOOK_SECONDS):
            now = self._environment.clock.monotonic()
            remarks = list(self._remarks())
            said = {remark: at for remark, at in said.items() if remark in remarks}
            for remark in remarks:
                if remark not in said or now - said[remark] >= _SAY_AGAIN_SECONDS:
                    said[remark] = now
                    log.warning("answers are less precise", reason=remark)

    def _remarks(self) -> Iterator[str]:
        return (remark for member in self.members.values() for remark in member.remarks())

    @asynccontextmanager
    async def _serving(self, name: str, client: Client) -> AsyncIterator[None]:
        """Serve a new cluster: unknown at first, and counted once it is synced."""
        member = build_member(
            name, client, self._options, self._metrics, client.clock, contract=self._contract
        )
        if self._membership is not None:
            member.cluster.market.see_karmada_cluster(*self._membership.place_of(name))
        self.members[name] = member
        self._announce()
        try:
            async with (
                _announcing(member, client, self._gauges),
                watching_member(self._environment, member.informers),
            ):
                yield
        finally:
            del self.members[name]
            if self._contract is not None:
                self._contract.leave(name)
            self._gauges.forget(name)
            self._announce()

    def _announce(self) -> None:
        if self.server is not None:
            self.server.announce()


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
    """The API server and name of each cluster. Raises ConfigError."""
    path = Path(options.connection.kubeconfig) if options.connection.kubeconfig else None
    if options.karmada_kubeconfig:
        return [kubeconfig.load(Path(options.karmada_kubeconfig), cluster="karmada")]
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
    members = list(_files(options).values())
    if not members:
        raise ConfigError(f"--fleet: {path} contains no cluster")
    return members


def _files(options: EstimatorOptions) -> dict[str, ClusterConfig]:
    """Members with their own file or context. Raises ConfigError."""
    if not options.connection.kubeconfig:
        return {}
    path = Path(options.connection.kubeconfig)
    return {config.name: config for config in (_of_folder(path) if path.is_dir() else load_contexts(path))}


def member_client(config: ClusterConfig, *, options: EstimatorOptions, clock: Clock) -> Client:
    connection = options.connection
    return Client(
        HttpTransport(config, clock),
        clock,
        name=config.name,
        qps=connection.kube_api_qps or None,
        burst=connection.kube_api_burst,
        user_agent=COMPONENT,
        field_manager=COMPONENT,
    )


def _of_folder(path: Path) -> list[ClusterConfig]:
    # Mounted secrets have their files a second time under names with two dots.
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    return [kubeconfig.load(file, cluster=_cluster_of(file)) for file in files]


def _cluster_of(path: Path) -> str:
    for ending in _FILE_ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.name.removesuffix(ending)
    return path.name


@asynccontextmanager
async def _announcing(member: MemberEstimator, client: Client, gauges: FailureGauges) -> AsyncIterator[None]:
    """Report failures as metrics and events within the context."""
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
    """None is plaintext: without a certificate and its key the other TLS flags have no effect."""
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
