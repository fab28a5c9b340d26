"""Sends requests over HTTP(S) with aiohttp.

Connections are reused. A changed certificate or CA opens new connections; requests on old ones finish. After
a 401 the credentials are refreshed once. Redirects are not followed. Our secrets are removed from every error
text, including the server's.
"""

import asyncio
import ipaddress
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from karpool.kube.clock import Clock, RealClock
from karpool.kube.config.credentials import DataOrFileReader, KubeCredentials, RequestIdentity
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.config.tls import client_context
from karpool.kube.errors import ApiUnreachable, describe
from karpool.kube.transport_interface import HttpRequest, HttpResponse

BODY_LIMIT = 512 * 1024 * 1024
CONNECT_SECONDS = 10.0
CONCURRENT_REQUESTS = 128
REDACTED = "[redacted]"
_BEFORE_SENDING = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


@dataclass(slots=True)
class _Connections:
    """A session made for one set of certificates; closed when outdated and idle."""

    session: aiohttp.ClientSession
    made_for: tuple[bytes, bytes, bytes]
    in_use: int = 0
    outdated: bool = False


class _Stream:
    def __init__(
        self, answer: aiohttp.ClientResponse, owner: "HttpTransport", what: str, identity: RequestIdentity
    ):
        self.status = answer.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in answer.headers.items()}
        self._answer, self._owner, self._what, self._identity = answer, owner, what, identity

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._answer.content.iter_any():
                # Error bodies are shown to people; a whole body arrives in one chunk.
                yield chunk if self.status < 400 else _strike_out(chunk, self._identity)
        except (aiohttp.ClientError, OSError) as error:
            raise self._owner.unreachable(error, self._what, self._identity) from error


class HttpTransport:
    """`kube.transport.Transport` for a real server."""

    def __init__(
        self, config: ClusterConfig, clock: Clock | None = None, *, env: Mapping[str, str] = os.environ
    ) -> None:
        self._config = config
        self._clock = clock or RealClock()
        self._credentials = KubeCredentials(config, self._clock)
        self._ca = DataOrFileReader(config.ca, self._clock)
        self._proxy = config.proxy_url or _proxy_of_environment(config.server, env)
        self._connections: _Connections | None = None
        self._outdated: list[_Connections] = []
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._closed = False

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        try:
            async with asyncio.timeout(timeout):
                await self._slots.acquire()
        except TimeoutError:
            message = (
                f"{describe(request)}: {CONCURRENT_REQUESTS} requests are under way and none ended in time"
            )
            raise ApiUnreachable(message, sent=False) from None
        try:
            limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
            async with self._answered(request, limits) as (answer, identity):
                body = await self._read(answer, request, identity)
        finally:
            self._slots.release()
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if answer.status >= 400:
            body = _strike_out(body, identity)
        return HttpResponse(answer.status, headers, body)

    @asynccontextmanager
    async def stream(self, request: HttpRequest, *, timeout: float | None = None) -> AsyncIterator[_Stream]:
        """Open a stream.

        `timeout` bounds the time until the answer starts; the reader handles later silence.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=timeout or CONNECT_SECONDS, sock_read=None)
        async with self._answered(request, limits, start_within=timeout) as (answer, identity):
            yield _Stream(answer, self, describe(request), identity)

    async def close(self) -> None:
        self._closed = True
        live = [self._connections] if self._connections else []
        for connections in (*live, *self._outdated):
            await connections.session.close()
        self._connections = None
        self._outdated.clear()

    @asynccontextmanager
    async def _answered(
        self, request: HttpRequest, limits: aiohttp.ClientTimeout, *, start_within: float | None = None
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, RequestIdentity]]:
        identity = await self._credentials.current()
        connections = await self._connections_for(identity)
        connections.in_use += 1
        try:
            answer = await self._send(connections, request, identity, limits, start_within)
            if answer.status == 401 and self._credentials.refused(identity):
                answer.release()
                identity = await self._credentials.current()
                connections = await self._switch(connections, identity)
                answer = await self._send(connections, request, identity, limits, start_within)
            try:
                yield answer, identity
            finally:
                # A stream that is left early cannot be reused; a finished answer has released its connection
                # already.
                answer.close()
        finally:
            connections.in_use -= 1
            await self._drop_outdated()

    async def _switch(self, old: _Connections, identity: RequestIdentity) -> _Connections:
        new = await self._connections_for(identity)
        old.in_use -= 1
        new.in_use += 1
        return new

    async def _send(
        self,
        connections: _Connections,
        request: HttpRequest,
        identity: RequestIdentity,
        limits: aiohttp.ClientTimeout,
        start_within: float | None,
    ) -> aiohttp.ClientResponse:
        headers = CIMultiDict(request.headers)
        headers.extend(identity.headers)
        # Inside a cluster, bandwidth is cheaper than decompression.
        headers["accept-encoding"] = "identity"
        try:
            async with asyncio.timeout(start_within):
                return await connections.session.request(
                    request.method,
                    self._url(request),
                    data=request.body or None,
                    headers=headers,
                    timeout=limits,
                    allow_redirects=False,
                    proxy=self._proxy or None,
                    server_hostname=self._config.tls_server_name or None,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.unreachable(error, describe(request), identity) from error

    async def _read(
        self, answer: aiohttp.ClientResponse, request: HttpRequest, identity: RequestIdentity
    ) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                size += len(piece)
                if size > BODY_LIMIT:
                    raise ApiUnreachable(f"{describe(request)}: the answer is larger than {BODY_LIMIT} bytes")
        except (aiohttp.ClientError, OSError) as error:
            raise self.unreachable(error, describe(request), identity) from error
        return b"".join(pieces)

    def unreachable(self, error: Exception, what: str, identity: RequestIdentity) -> ApiUnreachable:
        """Return our error for the library's error; its text is used only after our secrets are removed."""
        return ApiUnreachable(
            f"{what}: {self._config.server}: {_strike_out_text(_reason(error), identity, self._proxy)}",
            sent=not isinstance(error, _BEFORE_SENDING),
        )

    async def _connections_for(self, identity: RequestIdentity) -> _Connections:
        if self._closed:
            raise ApiUnreachable(f"cluster {self._config.name}: the connection has been closed", sent=False)
        credentials = (self._ca.read(), identity.certificate, identity.key)
        if self._connections is not None:
            if self._connections.made_for == credentials:
                return self._connections
            self._connections.outdated = True
            self._outdated.append(self._connections)
        self._connections = _Connections(self._session(*credentials), credentials)
        await self._drop_outdated()
        return self._connections

    async def _drop_outdated(self) -> None:
        idle = [connections for connections in self._outdated if connections.in_use == 0]
        self._outdated = [connections for connections in self._outdated if connections.in_use]
        for connections in idle:
            await connections.session.close()

    def _session(self, ca: bytes, certificate: bytes, key: bytes) -> aiohttp.ClientSession:
        tls: ssl.SSLContext | bool = True
        if self._config.server.startswith("https"):
            tls = client_context(
                self._config.name, ca=ca, certificate=certificate, key=key, insecure=self._config.insecure
            )
        # Watches keep their connections, so only other requests are limited, by `_slots`.
        connector = aiohttp.TCPConnector(ssl=tls, limit=0, keepalive_timeout=60)
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Content-Type"),
            read_bufsize=256 * 1024,
        )

    def _url(self, request: HttpRequest) -> URL:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return URL(f"{self._config.server}{quote(request.path, safe='/:@!$&()*+,;=~')}{query}", encoded=True)


def _reason(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"certificate not accepted: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            return f"no connection: {error.os_error.strerror or error.os_error}"
        case aiohttp.ServerDisconnectedError():
            return "the connection was closed before the answer"
        case TimeoutError():
            return "no answer in time"
        case _:
            return f"{type(error).__name__}: {error}"


def _strike_out(body: bytes, identity: RequestIdentity) -> bytes:
    for secret in identity.secrets:
        body = body.replace(secret.encode(), REDACTED.encode())
    return body


def _strike_out_text(text: str, identity: RequestIdentity, proxy: str) -> str:
    password = urlsplit(proxy).password if proxy else None
    secrets: Iterable[str] = (*identity.secrets, *([password] if password else []))
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


def _proxy_of_environment(server: str, env: Mapping[str, str]) -> str:
    """Return the proxy of HTTPS_PROXY and NO_PROXY, in upper or lower case, as kubectl does."""
    parts = urlsplit(server)
    lower = {name.lower(): value for name, value in env.items() if name.lower().endswith("_proxy")}
    proxy = lower.get(f"{parts.scheme}_proxy", "")
    return "" if _goes_direct(parts.hostname or "", lower.get("no_proxy", "")) else proxy


def _goes_direct(host: str, no_proxy: str) -> bool:
    """Match hosts, domains with their subdomains, and networks, as Go's clients interpret NO_PROXY."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for entry in (part.strip().lower() for part in no_proxy.split(",")):
        domain = entry.removeprefix("*").lstrip(".")
        if entry == "*" or (domain and (host == domain or host.endswith("." + domain))):
            return True
        if address is not None and "/" in entry:
            with suppress(ValueError):
                if address in ipaddress.ip_network(entry, strict=False):
                    return True
    return False
