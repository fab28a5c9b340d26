"""Serves a dashboard during a block."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from karpool.dashboard.change_notifier import ViewArea
from karpool.dashboard.pages.collector import CollectorSettings, FleetCollector
from karpool.dashboard.server.access import TOKEN_LEAST, AccessGuard, is_loopback
from karpool.dashboard.server.certificate import ReloadingCertificate
from karpool.dashboard.server.metrics import DashboardMetrics
from karpool.dashboard.server.server import DashboardServer
from karpool.kube.api.client import Client
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.event_recorder import EventRecorder
from karpool.manager.controller import Environment
from karpool.manager.manager import Manager
from karpool.manager.membership import FleetMembership, watching_member
from karpool.manager.metrics import describe_process
from karpool.manager.probes import HealthChecks, listening
from karpool.manager.stop import Stop
from karpool.model.errors import Invalid

_LINE_MAX = 4096
_HEADER_MAX = 8190


@dataclass(frozen=True, slots=True)
class ServedDashboard:
    """A running dashboard. `link` has the token in its fragment, which is never sent to a server."""

    url: str
    token: str | None
    collector: FleetCollector

    @property
    def link(self) -> str:
        return self.url if self.token is None else f"{self.url}#token={quote(self.token, safe='')}"


class Dashboard:
    """A collector and its server, run by the manager. It serves what was read so far."""

    def __init__(
        self,
        environment: Environment,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        certificate: ReloadingCertificate | None = None,
        hosts: Collection[str] = (),
        settings: CollectorSettings | None = None,
        connecting: Callable[[ClusterConfig], Client] | None = None,
        objects: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Create a dashboard.

        Outside loopback a token is required; raises Invalid without one. `connecting` connects to the members
        of the first cluster, which are then shown too. With `objects` the cluster consists of these, and
        nothing is watched.
        """
        if token is None and not is_loopback(host):
            raise Invalid("host", host, "is not loopback; a token is required")
        if token is not None and len(token) < TOKEN_LEAST:
            raise Invalid("token", "(not shown)", f"must have at least {TOKEN_LEAST} characters")
        self.collector = FleetCollector(environment.clients, settings)
        self.informers = list(self.collector.informers) if objects is None else []
        self._objects = objects
        self._environment = environment
        self._membership: FleetMembership | None = None
        if connecting is not None:
            self._membership = FleetMembership(environment.client, connecting, self._showing)
            self.informers.append(self._membership.informers)
        health = HealthChecks()
        health.add("readyz", "clusters", environment.status.not_ready)
        health.remarks = environment.status.remarks
        self._metrics = metrics = DashboardMetrics(environment.registry)
        metrics.follow(self.collector.watches)
        self.collector.on_sample = metrics.sampled
        self._server = DashboardServer(self.collector, AccessGuard(token, hosts), health, metrics)
        self._host, self._port, self._token, self._certificate = host, port, token, certificate
        self._clock = environment.clock
        self.served: ServedDashboard | None = None

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Start the server. Raises OSError if the port is in use."""
        certificate = self._certificate
        try:
            runner = await listening(
                self._server.application(),
                self._host,
                self._port,
                tls=certificate.context if certificate is not None else None,
                max_line_size=_LINE_MAX,
                max_field_size=_HEADER_MAX,
                handler_cancellation=True,
            )
        except OSError as error:
            raise OSError(_not_listening(self._host, self._port, error)) from None
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(self.collector.close)
        if certificate is not None:
            await stack.enter_async_context(certificate.renewing(self._clock))
        shown = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "https" if certificate is not None else "http"
        url = f"{scheme}://{shown}:{runner.addresses[0][1]}/"
        self.served = ServedDashboard(url, self._token, self.collector)
        for watch in self.collector.watches.values() if self._objects is not None else ():
            watch.load([dict(obj) for obj in self._objects or ()])
        # Pages are served while clusters are still being listed.
        stack.callback(asyncio.create_task(self.collector.run(), name="dashboard").cancel)

    async def run(self, stop: Stop) -> None:
        if self._membership is not None:
            await self._membership.run(stop)
        else:
            await stop.wait()

    @asynccontextmanager
    async def _showing(self, name: str, client: Client) -> AsyncIterator[None]:
        if name in self.collector.watches:  # already shown as a cluster of its own
            await asyncio.get_running_loop().create_future()
        informers = self.collector.add(name, client)
        self._metrics.follow({name: self.collector.watches[name]})
        self.collector.bell.ring(ViewArea)
        try:
            async with watching_member(self._environment, informers):
                yield
        finally:
            self.collector.remove(name)
            self._metrics.forget(name)
            self.collector.bell.ring(ViewArea)


def _not_listening(host: str, port: int, error: OSError) -> str:
    hint = "choose another --port, or 0 for a free one"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        hint = "give --host an address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}; {hint}"


@asynccontextmanager
async def dashboard(clusters: Mapping[str, Client], **settings: Any) -> AsyncIterator[ServedDashboard]:
    """Watch the clusters and serve the dashboard during a block. Port 0 takes a free one.

    `settings` are those of Dashboard. Raises Invalid, and OSError if the port is in use.
    """
    client = next(iter(clusters.values()), None)
    if client is None:
        raise ValueError("a dashboard needs at least one cluster")
    environment = Environment(clusters, EventRecorder(client, "karpool-dashboard"))
    describe_process(environment.registry)
    environment.status.follow(environment.registry)
    async with Manager(Dashboard(environment, **settings), environment).running() as running:
        assert running.served is not None, "prepared"
        yield running.served
