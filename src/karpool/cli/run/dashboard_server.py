"""Serves the dashboard: certificates that are renewed, clients of every cluster, and the page."""

import asyncio
import contextlib
import errno
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import structlog

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.output.text import note
from karpool.dashboard.options import DashboardOptions
from karpool.dashboard.pages.collector import CollectorSettings
from karpool.dashboard.server.access import is_loopback
from karpool.dashboard.server.app import dashboard as serving
from karpool.kube.api.client import Client
from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.transport.http import HttpTransport
from karpool.manager.shutdown import run_until_signalled
from karpool.provisioning.market_file import market_of
from karpool.scheduler.estimates.estimator_client import EstimatorClient
from karpool.scheduler.process import estimator_clients
from karpool.wire.server_tls import stamp

log = structlog.get_logger(__name__)

RELOAD_SECONDS = 30.0


@dataclass
class ReloadingCertificate:
    """Read again when its files change; what cannot be used is reported, and the last good pair stays."""

    certificate: Path
    key: Path
    context: ssl.SSLContext = field(
        default_factory=lambda: ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    )

    def __post_init__(self) -> None:
        """Raises Failed."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._stamp = stamp((self.certificate, self.key))
            self.context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise CommandFailed(f"{self.certificate} and {self.key} cannot be used: {error}") from None

    def renew(self) -> None:
        try:
            found = stamp((self.certificate, self.key))
            if found == self._stamp:
                return
            self._stamp = found
            # Into one of its own first: half a pair must not spoil what is served.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
            self.context.load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            log.warning("renewed certificate not used", certificate=str(self.certificate), reason=str(error))
            return
        log.info("certificate reloaded", certificate=str(self.certificate))

    @contextlib.asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow(), name="certificate")
        try:
            yield
        finally:
            task.cancel()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            self.renew()


def serve_dashboard(options: DashboardOptions) -> None:
    """Until a signal says stop."""
    tls = None
    if options.tls_cert_file is not None and options.tls_private_key_file is not None:
        tls = ReloadingCertificate(options.tls_cert_file, options.tls_private_key_file)
    configs = _configs(options)
    market_of(options.catalogue, options.region)  # what is wrong with it is said before anything listens
    run_until_signalled(lambda stop: _serve(stop, configs, options, tls))


def _token(path: Path | None, host: str) -> str | None:
    if path is not None:
        return read_bounded(path, CREDENTIAL_LIMIT).decode().strip()
    return None if is_loopback(host) else secrets.token_urlsafe(32)


def _configs(options: DashboardOptions) -> dict[str, ClusterConfig]:
    """By the name the page shows. Raises ConfigError."""
    path, named = options.connection.kubeconfig, options.clusters
    if options.all_contexts:
        named = tuple(kubeconfig.contexts(path))
    elif not named:
        config = kubeconfig.load(path, context=options.connection.context)
        return {config.name: config}
    configs: dict[str, ClusterConfig] = {}
    for text in named:
        name, _, context = text.rpartition("=") if not options.all_contexts else ("", "", text)
        config = kubeconfig.load(path, context=context, cluster=name)
        if config.name in configs:
            raise click.UsageError(f"--cluster: two clusters are called {config.name}; name one NAME=CONTEXT")
        configs[config.name] = config
    return configs


async def _serve(
    stop: asyncio.Event,
    configs: dict[str, ClusterConfig],
    options: DashboardOptions,
    tls: ReloadingCertificate | None,
) -> None:
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name, config in configs.items():
            client = Client(HttpTransport(config), name=name, timeout=options.connection.timeout_seconds)
            clients[name] = await stack.enter_async_context(client)
        asked: list[EstimatorClient] = []

        def asker(client: Client) -> EstimatorClient | None:
            found = estimator_clients(options.decisions.estimators, client)
            asked.extend([found] if found is not None else [])
            return found

        settings = CollectorSettings(
            lifetime=options.decisions.lifetime,
            settings=options.decisions.settings(),
            asker=asker,
            region=options.region,
            catalogue=options.catalogue,
        )
        try:
            page = await stack.enter_async_context(
                serving(
                    clients,
                    host=options.host,
                    port=options.port,
                    token=_token(options.token_file, options.host),
                    tls=tls.context if tls is not None else None,
                    hosts=options.allowed_hosts,
                    wishes=settings,
                )
            )
        except OSError as error:
            hint = "choose another --port, or 0 for a free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                hint = "give --host an address of this machine"
            raise CommandFailed(
                f"cannot listen on {options.host}:{options.port}: {error.strerror or error}; {hint}"
            ) from None
        if tls is not None:
            await stack.enter_async_context(tls.renewing())
        note(f"{', '.join(clients)}: open {page.link if options.token_file is None else page.url}")
        await stop.wait()
        for estimator_client in asked:
            await estimator_client.close()
