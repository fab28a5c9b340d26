"""Put a dashboard on the network, for as long as a block lasts."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import web
from prometheus_client import CollectorRegistry

from karpool.dashboard.pages.collector import DashboardOptions, FleetCollector
from karpool.dashboard.server.access import TOKEN_LEAST, AccessGuard, is_loopback
from karpool.dashboard.server.metrics import DashboardMetrics
from karpool.dashboard.server.server import DashboardServer
from karpool.kube.api.client import Client
from karpool.manager.probes import HealthChecks
from karpool.model.errors import Invalid

_LINE_MAX = 4096
_HEADER_MAX = 8190


@dataclass(frozen=True, slots=True)
class ServedDashboard:
    """A dashboard that is served. `link` carries the token in its fragment, which no server ever sees."""

    url: str
    token: str | None
    collector: FleetCollector

    @property
    def link(self) -> str:
        return self.url if self.token is None else f"{self.url}#token={quote(self.token, safe='')}"


@asynccontextmanager
async def dashboard(
    clusters: Mapping[str, Client],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    hosts: Collection[str] = (),
    wishes: DashboardOptions | None = None,
) -> AsyncIterator[ServedDashboard]:
    """Watch the clusters and serve what they show. Port 0 takes a free one.

    Outside loopback a token is needed; raises Invalid without one, and OSError for a port that is taken.
    """
    if token is None and not is_loopback(host):
        raise Invalid("host", host, "is not loopback, where everybody may read; give a token")
    if token is not None and len(token) < TOKEN_LEAST:
        raise Invalid("token", "(not shown)", f"must have at least {TOKEN_LEAST} characters")
    collector = FleetCollector(clusters, wishes)
    health = HealthChecks()
    health.add("readyz", "clusters", collector.not_ready)
    metrics = DashboardMetrics(CollectorRegistry())
    metrics.follow(collector.watches)
    server = DashboardServer(collector, AccessGuard(token, hosts), health, metrics)
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        keepalive_timeout=75,
        shutdown_timeout=1,
        max_line_size=_LINE_MAX,
        max_field_size=_HEADER_MAX,
        handler_cancellation=True,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        bound = runner.addresses[0][1]
        shown = f"[{host}]" if ":" in host else host
        url = f"{'https' if tls is not None else 'http'}://{shown}:{bound}/"
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(collector.run(), name="dashboard")
            try:
                yield ServedDashboard(url, token, collector)
            finally:
                watching.cancel()
    finally:
        await runner.cleanup()
