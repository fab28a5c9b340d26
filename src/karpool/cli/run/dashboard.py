"""`karpool dashboard`: a web page of the fleet, for looking only."""

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
from karpool.cli.options.cluster import ClusterOptions, catalogue_option, connection_options
from karpool.cli.options.parameters import with_options
from karpool.cli.output.text import note
from karpool.dashboard.pages.collector import DashboardOptions
from karpool.dashboard.server.access import is_loopback
from karpool.dashboard.server.app import dashboard as serving
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.transport.http import HttpTransport
from karpool.manager.shutdown import run_until_signalled
from karpool.provisioning.market_file import market_of
from karpool.scheduler.controller.options import DecisionOptions
from karpool.scheduler.estimates.estimator_client import EstimatorClient
from karpool.scheduler.process import estimator_clients
from karpool.wire.server_tls import stamp

log = structlog.get_logger(__name__)

PORT = 8088
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


@dataclass(frozen=True)
class DashboardListener:
    host: str
    port: int
    token: str | None
    tls: ReloadingCertificate | None
    hosts: tuple[str, ...]
    shows_token: bool  # one that was made here is known to nobody else


@dataclass(frozen=True)
class PriceSource:
    """Whose prices count: of a region that is shipped, or of a file."""

    region: str
    catalogue: Path | None


@click.option(
    "--cluster",
    "named",
    multiple=True,
    metavar="[NAME=]CONTEXT",
    help="A cluster to show; repeat for more. NAME is the one Karmada knows it by, if it differs.",
)
@click.option("--all-contexts", is_flag=True, help="Show every cluster of the kubeconfig.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Token to ask for, never shown. Outside loopback one is made and shown, if none is given.",
)
@click.option("--tls-cert-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="PEM.")
@click.option(
    "--tls-private-key-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="PEM."
)
@click.option(
    "--insecure-http", is_flag=True, help="No TLS outside loopback: only behind a proxy that ends TLS itself."
)
@click.option("--allowed-host", "hosts", multiple=True, help="A name it may be asked by, beside loopback's.")
@click.option("--region", default="", help="Whose prices count, where a cluster does not say.")
@catalogue_option
@connection_options
@with_options(DecisionOptions, "decisions")
def _dashboard(
    cluster: ClusterOptions,
    named: tuple[str, ...],
    all_contexts: bool,
    host: str,
    port: int,
    token_file: Path | None,
    tls_cert_file: Path | None,
    tls_private_key_file: Path | None,
    insecure_http: bool,
    hosts: tuple[str, ...],
    region: str,
    catalogue: Path | None,
    decisions: DecisionOptions,
) -> None:
    if named and all_contexts:
        raise click.UsageError("--cluster and --all-contexts exclude each other")
    tls = _tls(tls_cert_file, tls_private_key_file)
    if tls is None and not is_loopback(host) and not insecure_http:
        raise click.UsageError(
            f"--host {host} is not loopback: give --tls-cert-file and --tls-private-key-file, "
            "or --insecure-http behind a proxy that ends TLS"
        )
    token = _token(token_file, host)
    configs = _configs(cluster, named, all_contexts)
    listener = DashboardListener(host, port, token, tls, hosts, shows_token=token_file is None)
    timeout = cluster.timeout_seconds
    market_of(catalogue, region)  # what is wrong with it is said before anything listens
    prices = PriceSource(region, catalogue)
    run_until_signalled(lambda stop: _serve(stop, configs, listener, decisions, prices, timeout))


def _tls(certificate: Path | None, key: Path | None) -> ReloadingCertificate | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("--tls-cert-file and --tls-private-key-file belong together")
    return ReloadingCertificate(certificate, key)


def _token(path: Path | None, host: str) -> str | None:
    if path is not None:
        return path.read_text(encoding="utf-8").strip()
    return None if is_loopback(host) else secrets.token_urlsafe(32)


def _configs(cluster: ClusterOptions, named: tuple[str, ...], all_contexts: bool) -> dict[str, ClusterConfig]:
    """By the name the page shows. Raises ConfigError."""
    if all_contexts:
        named = tuple(kubeconfig.contexts(cluster.kubeconfig))
    elif not named:
        found = kubeconfig.load(cluster.kubeconfig, context=cluster.context or "")
        return {found.name: found}
    configs: dict[str, ClusterConfig] = {}
    for text in named:
        name, _, context = text.rpartition("=") if not all_contexts else ("", "", text)
        found = kubeconfig.load(cluster.kubeconfig, context=context, cluster=name)
        if found.name in configs:
            raise click.UsageError(f"--cluster: two clusters are called {found.name}; name one NAME=CONTEXT")
        configs[found.name] = found
    return configs


async def _serve(
    stop: asyncio.Event,
    configs: dict[str, ClusterConfig],
    listener: DashboardListener,
    decisions: DecisionOptions,
    prices: PriceSource,
    timeout: float | None,
) -> None:
    async with AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for name, config in configs.items():
            client = Client(HttpTransport(config), name=name, timeout=timeout)
            clients[name] = await stack.enter_async_context(client)
        asked: list[EstimatorClient] = []

        def asker(client: Client) -> EstimatorClient | None:
            found = estimator_clients(decisions.estimators, client)
            asked.extend([found] if found is not None else [])
            return found

        wishes = DashboardOptions(
            lifetime=decisions.lifetime,
            settings=decisions.settings(),
            asker=asker,
            region=prices.region,
            catalogue=prices.catalogue,
        )
        try:
            page = await stack.enter_async_context(
                serving(
                    clients,
                    host=listener.host,
                    port=listener.port,
                    token=listener.token,
                    tls=listener.tls.context if listener.tls is not None else None,
                    hosts=listener.hosts,
                    wishes=wishes,
                )
            )
        except OSError as error:
            hint = "choose another --port, or 0 for a free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                hint = "give --host an address of this machine"
            raise CommandFailed(
                f"cannot listen on {listener.host}:{listener.port}: {error.strerror or error}; {hint}"
            ) from None
        if listener.tls is not None:
            await stack.enter_async_context(listener.tls.renewing())
        note(f"{', '.join(clients)}: open {page.link if listener.shows_token else page.url}")
        await stop.wait()
        for estimator_client in asked:
            await estimator_client.close()


dashboard = click.Command(
    "dashboard",
    callback=_dashboard,
    help="""Serve a web page of the fleet: nodes and prices, placements, promises, scale-ups, consolidation
    and events.

    Reads only, and needs nothing else: no database, no files from elsewhere. On loopback everybody may look;
    elsewhere it asks for a token. The JSON API behind the page describes itself at /openapi.json.
    """,
    epilog="Example: karpool dashboard --kubeconfig fleet.yaml --all-contexts",
)
dashboard.params = getattr(_dashboard, "__click_params__", [])[::-1]
