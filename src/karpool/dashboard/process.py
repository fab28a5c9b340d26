"""The dashboard as a controller of the manager."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from karpool.dashboard.api.list_views import ShownFile
from karpool.dashboard.options import DashboardOptions
from karpool.dashboard.pages.collector import CollectorSettings
from karpool.dashboard.server.access import is_loopback
from karpool.dashboard.server.app import Dashboard, ServedDashboard
from karpool.dashboard.server.certificate import ReloadingCertificate
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import log_bad_objects
from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.errors import ApiUnreachable
from karpool.kube.event_recorder import EventRecorder
from karpool.kube.snapshots.reader import ObjectFile
from karpool.kube.transport.http import HttpTransport
from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse
from karpool.manager.controller import Controller, Environment, ManagerOptions, Place
from karpool.manager.metrics import describe_process
from karpool.manager.options import InvalidOptions
from karpool.manager.stop import Stop
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.provisioning.market_file import market_of
from karpool.scheduler.process import estimator_clients

COMPONENT = "karpool-dashboard"


def cluster_configs(options: DashboardOptions) -> list[ClusterConfig]:
    """Return the clusters by the name that the page shows. Raises ConfigError, InvalidOptions."""
    path, named = options.connection.kubeconfig, options.clusters
    if options.all_contexts:
        named = tuple(kubeconfig.contexts(path))
    elif not named:
        return [kubeconfig.load(path, context=options.connection.context)]
    configs: dict[str, ClusterConfig] = {}
    for text in named:
        name, _, context = text.rpartition("=") if not options.all_contexts else ("", "", text)
        config = kubeconfig.load(path, context=context, cluster=name)
        if config.name in configs:
            raise InvalidOptions([f"--cluster: two clusters are called {config.name}; name one NAME=CONTEXT"])
        configs[config.name] = config
    return list(configs.values())


def _manages(options: DashboardOptions) -> ManagerOptions:
    # Report problems of these files before the server listens.
    market_of(options.catalogue, options.region, options.contract)
    return ManagerOptions(clusters=cluster_configs(options), timeout=options.connection.timeout_seconds)


async def _build(environment: Environment, options: DashboardOptions) -> Dashboard:
    return _dashboard_of(environment, options)


async def show_file(options: DashboardOptions, stop: Stop, told: Callable[[ServedDashboard], None]) -> None:
    """Serve the dashboard of one file, at the time of the file. Raises Invalid if it cannot be read."""
    assert options.snapshot is not None
    market_of(options.catalogue, options.region, options.contract)
    file = ObjectFile(options.snapshot, report=log_bad_objects)
    objects = list(file.objects())
    name = (file.header.cluster if file.header else "") or options.snapshot.name
    taken = parse_rfc3339(file.header.taken_at) if file.header else None
    shown = ShownFile(name=options.snapshot.name, taken_at=taken)
    client = Client(NoServer(), RealClock() if taken is None else FileClock(taken), name=name)
    environment = Environment({name: client}, EventRecorder(client, COMPONENT))
    describe_process(environment.registry)
    page = _dashboard_of(environment, options, objects, shown)
    async with AsyncExitStack() as stack:
        await page.prepare(stack)
        environment.status.waiting_for = ""
        assert page.served is not None, "prepared"
        told(page.served)
        await stop.wait()


class FileClock(RealClock):
    """A clock that stands at the time of the file: nothing in it becomes older."""

    def __init__(self, taken: float) -> None:
        self._taken = taken

    def now(self) -> float:
        return self._taken


class NoServer:
    """A transport without a server: all objects are in the file."""

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        raise ApiUnreachable(f"{request.path}: a file has no API server", sent=False)

    def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AbstractAsyncContextManager[StreamResponse]:
        raise ApiUnreachable(f"{request.path}: a file has no API server", sent=False)

    async def close(self) -> None:
        return None


def _dashboard_of(
    environment: Environment,
    options: DashboardOptions,
    objects: Sequence[Mapping[str, Any]] | None = None,
    file: ShownFile | None = None,
) -> Dashboard:
    certificate = None
    if options.tls_cert_file is not None and options.tls_private_key_file is not None:
        certificate = ReloadingCertificate(options.tls_cert_file, options.tls_private_key_file)
    return Dashboard(
        environment,
        objects=objects,
        host=options.host,
        port=options.port,
        token=_token(options.token_file, options.host),
        certificate=certificate,
        hosts=options.allowed_hosts,
        connecting=partial(_member_client, timeout=options.connection.timeout_seconds)
        if options.members
        else None,
        settings=CollectorSettings(
            lifetime=options.decisions.lifetime,
            settings=options.decisions.settings(),
            asker=lambda client: (
                None if objects is not None else estimator_clients(options.decisions.estimators, client)
            ),
            region=options.region,
            catalogue=options.catalogue,
            contract=options.contract,
            history=options.history_file,
            file=file,
            prometheus=options.prometheus,
        ),
    )


def _member_client(config: ClusterConfig, *, timeout: float | None) -> Client:
    clock = RealClock()
    transport = HttpTransport(config, clock)
    return Client(transport, clock, name=config.name, timeout=timeout, user_agent=COMPONENT)


def _token(path: Path | None, host: str) -> str | None:
    if path is not None:
        return read_bounded(path, CREDENTIAL_LIMIT).decode().strip()
    return None if is_loopback(host) else secrets.token_urlsafe(32)


DASHBOARD = Controller[DashboardOptions](
    name="dashboard",
    place=Place.MANY,
    component=lambda options: COMPONENT,
    manages=_manages,
    build=_build,
)
