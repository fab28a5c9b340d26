"""Serves an API server over HTTP or HTTPS, with one bearer token and bounded requests.

Requests become `HttpRequest` and answers become HTTP; no other decision is made here. Watches are written in
batches: at once after a quiet time, and at most every few milliseconds when a stream is busy.
"""

import asyncio
import hmac
import ssl
from dataclasses import dataclass

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.serve.status import ApiStatusError, bad_request, too_large, unauthorized
from karpool_fleet.apiserver.verbs.watch import WatchStream

MAX_BODY = 3 * 1024 * 1024  # as kube-apiserver
FIRST_REQUEST_SECONDS = 30.0  # for the first request of a new connection
READ_SECONDS = 30.0  # for the body of a request
WRITE_SECONDS = 60.0  # for a client to read a chunk of a watch
KEEPALIVE_SECONDS = 75.0
# 20 busy watchers then cost 1,000 writes a second instead of 20,000.
PACE_SECONDS = 0.02
_OPEN = ("/healthz", "/livez", "/readyz", "/version")


@dataclass(slots=True)
class Listening:
    """A server that accepts connections until `close`."""

    host: str
    port: int
    secure: bool
    _server: ApiServer
    _runner: web.ServerRunner

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"

    async def close(self) -> None:
        await self._server.close()
        await self._runner.cleanup()


async def serve(
    server: ApiServer,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    token: str | None = None,
) -> Listening:
    """Listen; port 0 takes a free one. Without a token every client that can connect is let in."""
    runner = web.ServerRunner(_Front(server, token), shutdown_timeout=2.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port, ssl_context=tls)
    await site.start()
    bound = runner.addresses[0][1]
    return Listening(host, bound, tls is not None, server, runner)


class _Front(web.Server):
    """Accepts connections and passes on their requests; a connection without requests is dropped."""

    def __init__(self, server: ApiServer, token: str | None) -> None:
        super().__init__(
            self._answer, handler_cancellation=True, keepalive_timeout=KEEPALIVE_SECONDS, access_log=None
        )
        self._server = server
        self._expected = f"Bearer {token}".encode() if token else None
        self._silent: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> RequestHandler:
        connection = super().__call__()
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(FIRST_REQUEST_SECONDS, self._drop, connection)
        return connection

    def _drop(self, connection: RequestHandler) -> None:
        del self._silent[connection]
        connection.force_close()

    async def _answer(self, incoming: web.BaseRequest) -> web.StreamResponse:
        if (timer := self._silent.pop(incoming.protocol, None)) is not None:
            timer.cancel()
        try:
            self._check_token(incoming)
            body = await _read_body(incoming)
        except ApiStatusError as error:
            return _whole(error.response())
        query = tuple(incoming.query.items()) if incoming.query_string else ()
        # These headers ignore case, as `HttpRequest` promises for lower-case names.
        request = HttpRequest(incoming.method, incoming.path, query, incoming.headers, body)
        answer = await self._server.handle(request)
        if isinstance(answer, HttpResponse):
            return _whole(answer)
        return await _stream(incoming, answer)

    def _check_token(self, incoming: web.BaseRequest) -> None:
        if self._expected is None:
            return
        credentials = incoming.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(credentials, self._expected) and incoming.path.rstrip("/") not in _OPEN:
            raise unauthorized()


async def _read_body(incoming: web.BaseRequest) -> bytes:
    if not incoming.can_read_body:
        return b""
    if (incoming.content_length or 0) > MAX_BODY:
        raise too_large(f"the body may have {MAX_BODY} bytes at most")
    if incoming.content.is_eof():  # small bodies arrive together with their headers
        whole = incoming.content.read_nowait()
        if len(whole) > MAX_BODY:
            raise too_large(f"the body may have {MAX_BODY} bytes at most")
        return whole
    body = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            while piece := await incoming.content.readany():
                body += piece
                if len(body) > MAX_BODY:
                    raise too_large(f"the body may have {MAX_BODY} bytes at most")
    except TimeoutError:
        raise bad_request(f"the body did not arrive within {READ_SECONDS:g} s") from None
    return bytes(body)


def _whole(answer: HttpResponse) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)


async def _stream(incoming: web.BaseRequest, answer: WatchStream) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.enable_chunked_encoding()
    await response.prepare(incoming)
    loop = asyncio.get_running_loop()
    written_at = 0.0
    chunks = answer.chunks()
    try:
        async for chunk in chunks:
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(chunk)
            pause = written_at + PACE_SECONDS - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            written_at = loop.time()
        await response.write_eof()
    except (ConnectionError, TimeoutError, ApiStatusError):
        if incoming.transport is not None:
            incoming.transport.abort()
    return response
