"""HTTP/1.1 as an API server speaks it: one request at a time on a connection, answers in bounded pieces.

General clients do a hundred things per request that an API server never needs (cookies, redirects,
compression, multipart); a scheduler writes four requests a binding, and those took a third of its time.
What is not plain HTTP/1.1 is refused: the connection is closed and `BadAnswer` says why.
"""

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast
from urllib.parse import SplitResult, unquote

HEAD_MAX = 64 * 1024  # of a status line with its headers; a server's answers have about one KiB
CHUNK_LINE_MAX = 1024
QUEUED_MAX = 1024 * 1024  # of an answer that nobody reads: more is left to the network


class BadAnswer(ConnectionError):
    """What came is no HTTP/1.1 answer."""


class Disconnected(ConnectionError):
    """The server closed the connection before it had answered."""


class ResponseHead(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    keeps_alive: bool


def read_head(text: bytes) -> ResponseHead:
    """A status line and its headers, without the empty line. Raises BadAnswer."""
    first, *lines = text.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (
        code.isdecimal() and code.isascii() and len(code) == 3
    ):
        raise BadAnswer(f"not an HTTP answer: {first[:60]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadAnswer(f"not a header: {line[:60]!r}")
        headers[name.lower()] = value.strip()
    keeps_alive = version == "HTTP/1.1" and "close" not in headers.get("connection", "").lower()
    return ResponseHead(int(code), headers, keeps_alive)


# Where an answer ends


class _Counted:
    """So many bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self.is_done = not size

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Pieces of the body, and what comes after it."""
        piece, rest = data[: self._left], data[self._left :]
        self._left -= len(piece)
        self.is_done = not self._left
        return [piece], rest


class _Chunked:
    """Pieces that say their size, then one of none."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0  # of the present chunk, with the line end after it
        self._in_trailer = False
        self.is_done = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        data = self._buffer + data if self._buffer else data
        pieces: list[bytes] = []
        at = 0
        while not self.is_done:
            if self._left:
                at = self._take(data, at, pieces)
                if self._left:
                    break
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                if len(data) - at > CHUNK_LINE_MAX:
                    raise BadAnswer("a chunk's size is not told")
                break
            line, at = data[at:end], end + 2
            self._read_line(line)
        self._buffer = b"" if self.is_done else data[at:]
        return pieces, data[at:] if self.is_done else b""

    def _take(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """As much of the chunk as is there; its line end is taken, too, and checked."""
        if self._left > 2 and (piece := data[at : at + self._left - 2]):
            pieces.append(piece)
            self._left -= len(piece)
            at += len(piece)
        if self._left == 2 and len(data) - at >= 2:
            if data[at : at + 2] != b"\r\n":
                raise BadAnswer("a chunk is longer than it says")
            self._left = 0
            at += 2
        return at

    def _read_line(self, line: bytes) -> None:
        if self._in_trailer:
            self.is_done = not line
            return
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
            raise BadAnswer(f"not the size of a chunk: {line[:20]!r}")
        size = int(digits, 16)
        self._left, self._in_trailer = (size + 2, False) if size else (0, True)


class _UntilClosed:
    """All that comes."""

    is_done = False

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        return [data], b""


def body_of(head: ResponseHead) -> _Counted | _Chunked | _UntilClosed:
    """What tells where the answer's body ends. Raises BadAnswer."""
    if head.status in (204, 304):
        return _Counted(0)
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise BadAnswer(f"transfer coding {coding[:40]!r} is not understood")
        return _Chunked()
    length = head.headers.get("content-length")
    if length is None:
        return _UntilClosed()
    if not (length.isdecimal() and length.isascii() and len(length) < 16):
        raise BadAnswer(f"not a content length: {length[:40]!r}")
    return _Counted(int(length))


# A connection


class HttpConnection(asyncio.Protocol):
    """To one server. Whoever does not read an answer to its end closes the connection."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.is_used = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._body: _Counted | _Chunked | _UntilClosed | None = None
        self._pieces: deque[bytes] = deque()
        self._queued = 0
        self._is_paused = False
        self._news: asyncio.Future[None] | None = None  # somebody waits for a head or a piece

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether the answer was read to its end, and another may follow."""
        ended = self._body is None or (self._body.is_done and not self._pieces)
        return self.is_open and ended and (self._head is None or self._head.keeps_alive)

    async def send(self, message: bytes) -> ResponseHead:
        """The head of the answer. Raises OSError."""
        assert self._transport is not None
        self._head, self._body = None, None
        self._pieces.clear()
        self._queued = 0
        self.is_used = True
        self._transport.write(message)
        return await self._answer()

    async def _answer(self) -> ResponseHead:
        while (head := self._head) is None:
            await self._wait()
        return head

    async def piece(self) -> bytes:
        """The next of the body; empty at its end. Raises OSError."""
        while not self._pieces:
            if self._body is None or self._body.is_done:
                return b""
            if isinstance(self._body, _UntilClosed) and isinstance(self._error, Disconnected):
                return b""
            await self._wait()
        piece = self._pieces.popleft()
        self._queued -= len(piece)
        if self._is_paused and self._queued < QUEUED_MAX and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return piece

    def tunnel(self) -> asyncio.Transport:
        """What is under it, for another protocol to take over."""
        assert self._transport is not None
        return self._transport

    def close(self) -> None:
        self._error = self._error or Disconnected("closed here")
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._error is not None:
            raise self._error
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._read(data)
        except BadAnswer as error:
            self._error = error
            if self._transport is not None:
                self._transport.abort()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = self._error or (
            exc if isinstance(exc, OSError) else Disconnected("closed by the server")
        )
        self._tell()

    def _read(self, data: bytes) -> None:
        while data:
            if self._body is None:
                rest = self._read_head(data)
                if rest is None:
                    return
                data = rest
            elif self._body.is_done:
                raise BadAnswer("more came than was asked for")
            else:
                pieces, data = self._body.feed(data)
                for piece in pieces:
                    self._pieces.append(piece)
                    self._queued += len(piece)
        if self._queued > QUEUED_MAX and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _read_head(self, data: bytes) -> bytes | None:
        """What follows the head; None while it is not complete."""
        if not self.is_used:
            raise BadAnswer("an answer came before a question")
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_MAX:
                raise BadAnswer(f"the head of the answer is longer than {HEAD_MAX} bytes")
            return None
        head, rest = read_head(self._buffer[:end]), self._buffer[end + 4 :]
        self._buffer = b""
        if head.status >= 200:  # what is below only announces the answer
            self._body = body_of(head)
            self._head = head
        return rest


# Requests


def request_message(
    method: str, target: str, host: str, headers: Iterable[tuple[str, str]], body: bytes
) -> bytes:
    """Raises ValueError for what would break out of its line."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise ValueError("a header has a line break in it")
    return text.encode() + b"\r\n\r\n" + body


# Connecting


async def connect(host: str, port: int, tls: ssl.SSLContext | None, server_name: str) -> HttpConnection:
    """Raises OSError."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        HttpConnection, host, port, ssl=tls, server_hostname=server_name if tls is not None else None
    )
    return connection


async def connect_through(
    proxy: SplitResult, host: str, port: int, tls: ssl.SSLContext, server_name: str
) -> HttpConnection:
    """Through a proxy's tunnel, which sees nothing of what is said. Raises OSError."""
    first = await connect_to_proxy(proxy)
    try:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head = await first.send(request_message("CONNECT", target, target, proxy_headers(proxy), b""))
        if head.status != 200:
            raise BadAnswer(f"the proxy answers {head.status}")
        loop, connection = asyncio.get_running_loop(), HttpConnection()
        transport = await loop.start_tls(first.tunnel(), connection, tls, server_hostname=server_name)
        if transport is None:
            raise Disconnected("closed by the proxy")
        connection.connection_made(transport)
        return connection
    except BaseException:
        first.close()
        raise


async def connect_to_proxy(proxy: SplitResult) -> HttpConnection:
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise ValueError("a proxy's address begins with http:// or https://")
    secure = ssl.create_default_context() if proxy.scheme == "https" else None
    return await connect(proxy.hostname, proxy.port or (443 if secure else 80), secure, proxy.hostname)


def proxy_headers(proxy: SplitResult) -> list[tuple[str, str]]:
    if proxy.username is None:
        return []
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return [("proxy-authorization", "Basic " + base64.b64encode(pair.encode()).decode())]
