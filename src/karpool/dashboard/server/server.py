"""The dashboard over HTTP: the page, the JSON API, and a stream of changes.

Read-only. Requests are bounded in size and number, every answer has the security headers of `access`, and
errors are problem+json. The stream has version numbers and no content: a browser that missed some asks again
and has missed nothing.
"""

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog
from aiohttp import web

from karpool.dashboard.api import openapi
from karpool.dashboard.api.endpoints import ENDPOINTS, NAME_MAX, PREFIX, Endpoint
from karpool.dashboard.api.response_cache import CachedBody, ResponseCache
from karpool.dashboard.api.views import ProblemDetails
from karpool.dashboard.pages.collector import FleetCollector
from karpool.dashboard.server.access import HEADERS, AccessDenied, AccessGuard
from karpool.dashboard.server.metrics import DashboardMetrics
from karpool.dashboard.server.page_files import PageFile, page_files
from karpool.manager.probes import HealthChecks, exposed, probed
from karpool.model.errors import Invalid

log = structlog.get_logger(__name__)

REQUESTS_MAX = 64  # concurrently
STREAMS_MAX = 100
METRICS = "/metrics"
HEARTBEAT_SECONDS = 15.0
WRITE_SECONDS = 30.0  # for a client to read a chunk of a stream
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class DashboardServer:
    """The HTTP server. `application` is what aiohttp serves."""

    collector: FleetCollector
    guard: AccessGuard
    health: HealthChecks
    metrics: DashboardMetrics

    def __post_init__(self) -> None:
        self._bodies = ResponseCache(secrets.token_hex(4))
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._streams = 0
        self._closing = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1024, middlewares=[self._answer])
        for endpoint in ENDPOINTS:
            app.router.add_get(endpoint.path, self._handler(endpoint))
        app.router.add_get(openapi.STREAM, self._stream)
        app.router.add_get("/openapi.json", _openapi)
        for probe in ("livez", "readyz", "healthz"):
            app.router.add_get(f"/{probe}", self._probe)
        app.router.add_get(METRICS, self._metrics)
        for path, file in page_files().items():
            app.router.add_get(path, _page_handler(file))
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, app: web.Application) -> None:
        self._closing.set()

    # Around every request

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        response = await self._guarded(request, handler)
        if request.path != openapi.STREAM:
            self.metrics.answered(response.status, time.perf_counter() - began)
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # Data of the fleet requires access; pages and probes contain none.
        tells = request.path.startswith(PREFIX) or request.path == METRICS
        refused = self.guard.refusal(request.method, request.headers, is_api=tells)
        if refused is not None:
            return _problem(refused)
        if request.path == openapi.STREAM:
            return await handler(request)
        if self._slots.locked():
            return _problem(AccessDenied(503, "busy", "too many requests at once; ask again in a second"))
        async with self._slots:
            try:
                response = await handler(request)
            except web.HTTPNotFound:
                return _problem(AccessDenied(404, "not found", f"{request.path[:200]} does not exist"))
            except Invalid as error:
                return _problem(AccessDenied(422, "unreadable", str(error)))
            except (web.HTTPException, asyncio.CancelledError):
                raise
            except Exception:
                log.exception("dashboard answer raised", path=request.path)
                return _problem(AccessDenied(500, "a bug", "check the log of the dashboard"))
        response.headers.update(HEADERS)
        return response

    # Answers

    def _handler(self, endpoint: Endpoint) -> Handler:
        query_names = {parameter.name for parameter in endpoint.parameters if not parameter.in_path}

        async def answer(request: web.Request) -> web.StreamResponse:
            parameters = dict(request.match_info) | {
                name: value for name, value in request.query.items() if name in query_names
            }
            if any(len(value) > NAME_MAX for value in parameters.values()):
                return _problem(AccessDenied(400, "bad name", f"names have at most {NAME_MAX} characters"))
            body = await self._body(endpoint, parameters)
            if body is None:
                named = " ".join(parameters.values())
                gone = f"{named} does not exist; it may have been deleted"
                return _problem(AccessDenied(404, "not found", gone))
            headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding, Authorization"}
            return _sent(request, body, headers | {"Content-Type": "application/json"})

        return answer

    async def _body(self, endpoint: Endpoint, parameters: dict[str, str]) -> CachedBody | None:
        version = self.collector.bell.version(*endpoint.areas)
        key = "\0".join((endpoint.path, *(f"{name}={parameters[name]}" for name in sorted(parameters))))
        held = self._bodies.get(key, version)
        if held is not None:
            return held
        answered = endpoint.answer(self.collector, parameters)
        answer = await answered if inspect.isawaitable(answered) else answered
        return None if answer is None else self._bodies.put(key, version, answer)

    async def _probe(self, request: web.Request) -> web.Response:
        return probed(self.health, "readyz" if request.path == "/readyz" else "livez", request)

    async def _metrics(self, request: web.Request) -> web.Response:
        return exposed(self.metrics.registry)

    # Changes

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= STREAMS_MAX:
            return _problem(AccessDenied(503, "busy", f"{STREAMS_MAX} pages are open already; close one"))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", **HEADERS}
        )
        self._streams += 1
        self.metrics.pages.inc()
        try:
            await response.prepare(request)
            await self._follow(response)
        except (ConnectionError, TimeoutError):
            pass  # the browser has disconnected or does not read
        finally:
            self._streams -= 1
            self.metrics.pages.dec()
        return response

    async def _follow(self, response: web.StreamResponse) -> None:
        bell = self.collector.bell
        with bell.listen() as listener:
            while not self._closing.is_set():
                data = msgspec.json.encode(bell.versions()).decode()
                await _send(response, f"event: versions\ndata: {data}\n\n")
                while not await self._rung(listener.rung()):
                    if self._closing.is_set():
                        return
                    await _send(response, ": still here\n\n")

    async def _rung(self, rung: Awaitable[None]) -> bool:
        """Return whether something changed before the next heartbeat or the end of the server."""
        tasks = [asyncio.ensure_future(rung), asyncio.ensure_future(self._closing.wait())]
        try:
            await asyncio.wait(tasks, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].done()
        finally:
            for task in tasks:
                task.cancel()


async def _send(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(text.encode())


def _sent(request: web.Request, body: CachedBody, headers: dict[str, str]) -> web.Response:
    """Return the smallest response: 304 if the browser has the body, else gzip if it is worth it."""
    headers = headers | {"ETag": body.tag}
    if request.headers.get("If-None-Match") == body.tag:
        return web.Response(status=304, headers=headers)
    packed = body.packed() if "gzip" in request.headers.get("Accept-Encoding", "") else None
    if packed is not None:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body.plain if packed is None else packed, headers=headers)


async def _openapi(request: web.Request) -> web.Response:
    return web.Response(body=openapi.document(), content_type="application/json")


def _page_handler(file: PageFile) -> Handler:
    async def page(request: web.Request) -> web.StreamResponse:
        headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        return _sent(request, file.body, headers | {"Content-Type": file.content_type})

    return page


def _problem(refused: AccessDenied) -> web.Response:
    headers = dict(HEADERS)
    if refused.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="karpool"'
    if refused.status == 405:
        headers["Allow"] = "GET, HEAD"
    if refused.status == 503:
        headers["Retry-After"] = "1"
    problem = ProblemDetails(title=refused.title, status=refused.status, detail=refused.detail)
    return web.Response(
        status=refused.status,
        body=msgspec.json.encode(problem),
        content_type="application/problem+json",
        headers=headers,
    )
