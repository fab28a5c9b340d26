"""Carry requests over HTTP(S).

Connections are reused; a changed certificate or CA opens new ones and lets the
old finish. A 401 asks the credentials once for something better. Redirects
are not followed and no error text carries a secret: what the server says is
searched for ours first.
"""

import asyncio
import ipaddress
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode, urlsplit

from karpool.kube.clock import Clock, RealClock
from karpool.kube.config.credentials import DataOrFileReader, KubeCredentials, RequestIdentity
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.config.tls import client_context
from karpool.kube.errors import ApiUnreachable, describe
from karpool.kube.transport import http1
from karpool.kube.transport.http1 import Disconnected, HttpConnection, ResponseHead
from karpool.kube.transport_interface import HttpRequest, HttpResponse

BODY_LIMIT = 512 * 1024 * 1024
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 60.0  # a connection that waited longer may be gone without our knowing
CONCURRENT_REQUESTS = 128
REDACTED = "[redacted]"
_REPEATED = ("GET", "PUT", "DELETE")  # on another connection, when a kept one turns out to be gone


@dataclass(slots=True)
class _Connections:
    """Made for one set of certificates; closed when outdated and idle."""

    tls: ssl.SSLContext | None
    made_for: tuple[bytes, bytes, bytes]
    idle: list[HttpConnection] = field(default_factory=list)  # the last used is the last
    in_use: set[HttpConnection] = field(default_factory=set)
    outdated: bool = False

    def take(self) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while self.idle and (now - self.idle[0].idle_since > IDLE_SECONDS or not self.idle[0].is_reusable):
            self.idle.pop(0).close()
        while self.idle:
            if (connection := self.idle.pop()).is_reusable:
                self.in_use.add(connection)
                return connection
        return None

    def give_back(self, connection: HttpConnection) -> None:
        self.in_use.discard(connection)
        if self.outdated or not connection.is_reusable:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self.idle.append(connection)

    def close(self) -> None:
        for connection in (*self.idle, *self.in_use):
            connection.close()
        self.idle.clear()


@dataclass(slots=True)
class _Answer:
    """The head has come; the body is to be read from the connection."""

    head: ResponseHead
    connection: HttpConnection
    connections: _Connections

    def done(self) -> None:
        """A stream that is left early cannot be reused."""
        self.connections.give_back(self.connection)


class _Stream:
    def __init__(self, answer: _Answer, owner: "HttpTransport", what: str, identity: RequestIdentity):
        self.status, self.headers = answer.head.status, answer.head.headers
        self._connection, self._owner, self._what, self._identity = (
            answer.connection,
            owner,
            what,
            identity,
        )

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while chunk := await self._connection.piece():
                # Error bodies are shown to people; a whole one arrives in one piece.
                yield chunk if self.status < 400 else _strike_out(chunk, self._identity)
        except OSError as error:
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
        self._server = urlsplit(config.server)
        self._connections: _Connections | None = None
        self._outdated: list[_Connections] = []
        self._slots = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._closed = False

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        await self._take_slot(request, timeout)
        try:
            identity = await self._credentials.current()
            try:
                async with asyncio.timeout(timeout):
                    answer, identity = await self._answered(request, identity)
                    try:
                        body = await self._read(answer, request, identity)
                    finally:
                        answer.done()
            except TimeoutError as error:
                raise self.unreachable(error, describe(request), identity) from error
        finally:
            self._slots.release()
        status = answer.head.status
        return HttpResponse(
            status, answer.head.headers, body if status < 400 else _strike_out(body, identity)
        )

    @asynccontextmanager
    async def stream(self, request: HttpRequest, *, timeout: float | None = None) -> AsyncIterator[_Stream]:
        """`timeout` bounds the time until the answer starts; silence after that is the reader's affair."""
        identity = await self._credentials.current()
        try:
            async with asyncio.timeout(timeout):
                answer, identity = await self._answered(request, identity)
        except TimeoutError as error:
            raise self.unreachable(error, describe(request), identity) from error
        try:
            yield _Stream(answer, self, describe(request), identity)
        finally:
            answer.done()

    async def close(self) -> None:
        self._closed = True
        live = [self._connections] if self._connections else []
        for connections in (*live, *self._outdated):
            connections.close()
        self._connections = None
        self._outdated.clear()

    async def _take_slot(self, request: HttpRequest, timeout: float | None) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(timeout):
                await self._slots.acquire()
        except TimeoutError:
            message = (
                f"{describe(request)}: {CONCURRENT_REQUESTS} requests are under way and none ended in time"
            )
            raise ApiUnreachable(message, sent=False) from None

    async def _answered(
        self, request: HttpRequest, identity: RequestIdentity
    ) -> tuple[_Answer, RequestIdentity]:
        """The answer's head, and who it was given to."""
        answer = await self._send(request, identity)
        if answer.head.status == 401 and self._credentials.refused(identity):
            answer.done()
            identity = await self._credentials.current()
            answer = await self._send(request, identity)
        return answer, identity

    async def _send(self, request: HttpRequest, identity: RequestIdentity) -> _Answer:
        connections = self._connections_for(identity)
        try:
            message = self._message(request, identity)
        except ValueError as error:
            raise self.unreachable(error, describe(request), identity, sent=False) from error
        connection = connections.take()
        if connection is not None:
            try:
                return await self._exchange(connections, connection, message)
            except ConnectionError as error:
                if request.method not in _REPEATED:
                    raise self.unreachable(error, describe(request), identity) from error
        connection = await self._connected(connections, request, identity)
        try:
            return await self._exchange(connections, connection, message)
        except OSError as error:
            raise self.unreachable(error, describe(request), identity) from error

    async def _exchange(
        self, connections: _Connections, connection: HttpConnection, message: bytes
    ) -> _Answer:
        try:
            return _Answer(await connection.send(message), connection, connections)
        except BaseException:
            connection.close()
            connections.in_use.discard(connection)
            raise

    async def _connected(
        self, connections: _Connections, request: HttpRequest, identity: RequestIdentity
    ) -> HttpConnection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._connect(connections.tls)
        except (OSError, ValueError) as error:
            raise self.unreachable(error, describe(request), identity, sent=False) from error
        connections.in_use.add(connection)
        return connection

    async def _connect(self, tls: ssl.SSLContext | None) -> HttpConnection:
        server = self._server
        host = server.hostname or ""
        port = server.port or (80 if tls is None else 443)
        name = self._config.tls_server_name or host
        if not self._proxy:
            return await http1.connect(host, port, tls, name)
        proxy = urlsplit(self._proxy)
        if tls is None:
            return await http1.connect_to_proxy(proxy)
        return await http1.connect_through(proxy, host, port, tls, name)

    async def _read(self, answer: _Answer, request: HttpRequest, identity: RequestIdentity) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            while piece := await answer.connection.piece():
                pieces.append(piece)
                size += len(piece)
                if size > BODY_LIMIT:
                    raise ApiUnreachable(f"{describe(request)}: the answer is larger than {BODY_LIMIT} bytes")
        except OSError as error:
            raise self.unreachable(error, describe(request), identity) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def unreachable(
        self, error: Exception, what: str, identity: RequestIdentity, *, sent: bool = True
    ) -> ApiUnreachable:
        """Our words for the system's error; its own text is used only with our secrets struck out."""
        return ApiUnreachable(
            f"{what}: {self._config.server}: {_strike_out_text(_reason(error, sent), identity, self._proxy)}",
            sent=sent,
        )

    def _connections_for(self, identity: RequestIdentity) -> _Connections:
        if self._closed:
            raise ApiUnreachable(f"cluster {self._config.name}: the connection has been closed", sent=False)
        credentials = (self._ca.read(), identity.certificate, identity.key)
        if self._connections is not None:
            if self._connections.made_for == credentials:
                return self._connections
            self._connections.outdated = True
            self._outdated.append(self._connections)
        self._connections = _Connections(self._tls(*credentials), credentials)
        self._drop_outdated()
        return self._connections

    def _drop_outdated(self) -> None:
        for connections in self._outdated:
            for connection in connections.idle:
                connection.close()
            connections.idle.clear()
        self._outdated = [connections for connections in self._outdated if connections.in_use]

    def _tls(self, ca: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext | None:
        if not self._config.server.startswith("https"):
            return None
        return client_context(
            self._config.name, ca=ca, certificate=certificate, key=key, insecure=self._config.insecure
        )

    def _message(self, request: HttpRequest, identity: RequestIdentity) -> bytes:
        server = self._server
        query = f"?{urlencode(request.query)}" if request.query else ""
        target = f"{server.path.rstrip('/')}{quote(request.path, safe='/:@!$&()*+,;=~')}{query}"
        # Inside a cluster bandwidth is cheaper than unpacking.
        headers = [*request.headers.items(), *identity.headers, ("accept-encoding", "identity")]
        host = server.netloc.rpartition("@")[2]
        if self._proxy and server.scheme == "http":
            target = f"http://{host}{target}"
            headers += http1.proxy_headers(urlsplit(self._proxy))
        return http1.request_message(request.method, target, host, headers, request.body)


def _reason(error: Exception, sent: bool) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"certificate not accepted: {error.verify_message or error}"
        case TimeoutError():
            return "no answer in time"
        case Disconnected():
            return "the connection was closed before the answer"
        case OSError() if not sent and error.strerror:
            return f"no connection: {error.strerror}"
        case OSError() if not sent:
            return f"no connection: {error}"
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
    """HTTPS_PROXY and NO_PROXY, in either case, as kubectl honours them."""
    parts = urlsplit(server)
    lower = {name.lower(): value for name, value in env.items() if name.lower().endswith("_proxy")}
    proxy = lower.get(f"{parts.scheme}_proxy", "")
    return "" if _goes_direct(parts.hostname or "", lower.get("no_proxy", "")) else proxy


def _goes_direct(host: str, no_proxy: str) -> bool:
    """Hosts, domains with all below them, and networks, as Go's clients read NO_PROXY."""
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
