"""Probes and metrics of every controller: /livez, /readyz, /healthz and /metrics.

A check returns None, or the reason why it fails. Readiness is false until every check passes, so a component
registers one check per cache. Request size and the number of concurrent requests are bounded.
"""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest

log = structlog.get_logger(__name__)

Check = Callable[[], str | None]
Probe = Literal["livez", "readyz"]

CONCURRENT_LIMIT = 32
# Limit for headers, for the TLS handshake, and for the next request on a connection. An open page
# asks often; Prometheus asks every minute on a new connection.
IDLE_SECONDS = 15.0


class HealthChecks:
    """The checks of one process. `ping` always passes: an answer is enough."""

    def __init__(self) -> None:
        self._checks: dict[Probe, dict[str, Check]] = {"livez": {}, "readyz": {}}
        self.remarks: Callable[[], Iterable[str]] = tuple  # shown by /readyz, ready or not

    def add(self, probe: Probe, name: str, check: Check) -> None:
        self._checks[probe][name] = check

    def failures(self, probe: Probe) -> Mapping[str, str | None]:
        """Return every check by name, with None or the reason for its failure."""
        checks = {"ping": _ping, **self._checks["livez"]}
        if probe == "readyz":
            checks.update(self._checks["readyz"])
        return {name: _outcome(check) for name, check in checks.items()}


class ProbeServer:
    """Serves until the context is left. Port 0 takes any free port; `port` returns it."""

    def __init__(
        self,
        health: HealthChecks,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.port = port
        self._health = health
        self._host = host
        self._registry = registry
        self._slots = asyncio.Semaphore(CONCURRENT_LIMIT)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "ProbeServer":
        app = web.Application(client_max_size=1024, middlewares=[self._bounded])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/healthz", self._livez)
        app.router.add_get("/metrics", self._metrics)
        try:
            self._runner = await listening(app, self._host, self.port, max_line_size=2048)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            hint = "choose another with --metrics-bind-address and --health-probe-bind-address"
            raise OSError(f"cannot serve on {self._host}:{self.port}: {reason}; {hint}") from error
        self.port = self._runner.addresses[0][1]
        log.info("health endpoint listening", host=self._host, port=self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _bounded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self._slots.locked():
            return web.Response(status=503, text="too many requests at once\n", headers={"retry-after": "1"})
        async with self._slots:
            return await handler(request)

    async def _livez(self, request: web.Request) -> web.Response:
        return self._answer("livez", request)

    async def _readyz(self, request: web.Request) -> web.Response:
        return self._answer("readyz", request)

    def _answer(self, probe: Probe, request: web.Request) -> web.Response:
        return probed(self._health, probe, request)

    async def _metrics(self, request: web.Request) -> web.Response:
        return exposed(self._registry)


async def listening(
    app: web.Application, host: str, port: int, *, tls: ssl.SSLContext | None = None, **limits: Any
) -> web.AppRunner:
    """Start an HTTP server that closes slow and idle connections. Raises OSError."""
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=IDLE_SECONDS, shutdown_timeout=1, **limits)
    await runner.setup()
    try:
        await _BoundedSite(runner, host, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner


class _BoundedSite(web.TCPSite):
    """A site that also limits the TLS handshake, for which asyncio waits a minute."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=IDLE_SECONDS if self._ssl_context is not None else None,
        )


def probed(health: HealthChecks, probe: Probe, request: web.Request) -> web.Response:
    """Return the answer to a probe: `ok`, or all checks and remarks."""
    outcomes = health.failures(probe)
    failed = any(outcomes.values())
    lines = [
        f"[-]{name} failed: {reason}" if reason else f"[+]{name} ok" for name, reason in outcomes.items()
    ]
    remarks = [f"[!]{remark}" for remark in health.remarks()] if probe == "readyz" else []
    verdict = f"{request.path[1:]} check {'failed' if failed else 'passed'}"
    whole = failed or bool(remarks) or "verbose" in request.query
    text = "\n".join((*lines, *remarks, verdict)) if whole else "ok"
    return web.Response(status=503 if failed else 200, text=text + "\n")


def exposed(registry: CollectorRegistry) -> web.Response:
    """Return the metrics as text."""
    return web.Response(body=generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})


def _ping() -> None:
    return None


def _outcome(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        log.warning("health check raised", reason=str(error))
        return f"the check raised {type(error).__name__}"
