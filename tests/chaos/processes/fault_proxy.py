"""A proxy of our own between one process and its API server, that can be told to misbehave.

Every replica has a proxy of its own, so whoever listens (`Observer`) knows who sent what, before any
fault, and what the server answered, also when the answer never arrives. Connections are one to one:
a client's second connection is a second one to the server.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from tests.chaos.processes.http_messages import (
    LAST_CHUNK,
    Gone,
    Head,
    ProxiedRequest,
    chunk,
    expired_event,
    pieces,
    read_body,
    read_head,
    read_request,
    refusal,
)
from tests.chaos.processes.network_faults import (
    PIECE_BYTES,
    PIECE_SECONDS,
    STATUS,
    NetworkWeather,
    Trouble,
)

_LIMIT = 2**20  # of a head or a line
RETRY_AFTER = 2.0


class Observer(Protocol):
    def asked(self, replica: str, request: ProxiedRequest) -> None:
        """A request arrived whole; nothing went wrong with it yet."""

    def answered(self, replica: str, request: ProxiedRequest, status: int, body: bytes) -> None:
        """What the server answered to anything but a watch."""


class Unobserved:
    def asked(self, replica: str, request: ProxiedRequest) -> None:
        pass

    def answered(self, replica: str, request: ProxiedRequest, status: int, body: bytes) -> None:
        pass


class FaultProxy:
    """Plain HTTP on loopback, to an API server with or without TLS."""

    def __init__(
        self,
        upstream: str,
        weather: NetworkWeather,
        *,
        replica: str = "",
        observer: Observer | None = None,
        tls: ssl.SSLContext | None = None,
        token: str = "",
    ) -> None:
        """`token`: who the server takes the replica for."""
        address = urlsplit(upstream)
        assert address.hostname is not None and address.port is not None, upstream
        self._upstream = (address.hostname, address.port)
        self.weather = weather
        self._replica = replica
        self._observer: Observer = observer or Unobserved()
        self._tls = tls
        self._token = token
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None, "the proxy was not started"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_LIMIT)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if self.weather.strikes(Trouble.RESET):
                reset(writer)
                return
            await self._connected(reader, writer)
        except (Gone, OSError, asyncio.CancelledError):
            pass  # streams would report a task that was cancelled as a failure
        finally:
            self._open.discard(task)
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(
            *self._upstream, ssl=self._tls, limit=_LIMIT
        )
        try:
            line = _Line(self, reader, writer, server_reader, server_writer)
            while await line.exchange():
                pass
        finally:
            server_writer.close()

    def asked(self, request: ProxiedRequest) -> None:
        if self._token:
            request.head.headers["authorization"] = f"Bearer {self._token}"
        self._observer.asked(self._replica, request)

    def answered(self, request: ProxiedRequest, head: Head, body: bytes) -> None:
        self._observer.answered(self._replica, request, int(head.first.split(" ")[1]), body)


class _Line:
    """A client's connection and the one to the server that belongs to it."""

    def __init__(
        self,
        proxy: FaultProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy, self._weather = proxy, proxy.weather
        self._reader, self._writer = reader, writer
        self._server_reader, self._server_writer = server_reader, server_writer

    async def exchange(self) -> bool:
        """One request and its answer; False when the connection is of no more use."""
        request = await read_request(self._reader)
        self._proxy.asked(request)
        if late := self._weather.strikes(Trouble.LATENCY):
            await asyncio.sleep(late.seconds)
        if self._weather.strikes(Trouble.BLACK_HOLE):
            await self._silence(Trouble.BLACK_HOLE)
            return False
        if (refused := self._refusal(request)) is not None:
            self._writer.write(refused)
            await self._writer.drain()
            return True
        self._server_writer.write(request.encode())
        await self._server_writer.drain()
        head = await read_head(self._server_reader)
        if request.is_watch and head.is_chunked:
            await self._watch(head)
            return False
        return await self._whole(request, head)

    def _refusal(self, request: ProxiedRequest) -> bytes | None:
        troubles = [Trouble.THROTTLED, Trouble.SERVER_ERROR, Trouble.UNAVAILABLE]
        if request.is_write:
            troubles.append(Trouble.CONFLICT)
        if struck := self._weather.strikes(*troubles):
            return refusal(
                STATUS[struck.trouble], RETRY_AFTER if struck.trouble is Trouble.THROTTLED else None
            )
        if request.is_watch and self._weather.strikes(Trouble.EXPIRED):
            event = expired_event()
            headers = {"content-type": "application/json", "content-length": str(len(event))}
            return Head("HTTP/1.1 200 OK", headers).encode() + event
        return None

    async def _silence(self, trouble: Trouble) -> None:
        """Until the trouble is over or the client gives up; then the connection is reset."""
        leaving = asyncio.ensure_future(self._reader.read(1))
        while self._weather.is_on(trouble) and not leaving.done():
            await asyncio.wait((leaving,), timeout=0.2)
        leaving.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await leaving
        reset(self._writer)

    # Answers

    async def _whole(self, request: ProxiedRequest, head: Head) -> bool:
        has_body = request.method != "HEAD" and head.first.split(" ")[1] not in ("204", "304")
        body = await read_body(self._server_reader, head) if has_body else b""
        self._proxy.answered(request, head, body)
        head.headers.pop("transfer-encoding", None)
        head.headers["content-length"] = str(len(body))
        answer = head.encode() + body
        if self._weather.strikes(Trouble.HALF_OPEN):
            await self._silence(Trouble.HALF_OPEN)
            return False
        if self._weather.strikes(Trouble.CUT):
            self._writer.write(answer[: len(answer) // 2])
            await self._writer.drain()
            reset(self._writer)
            return False
        slow = self._weather.strikes(Trouble.BANDWIDTH) or (
            request.is_list and self._weather.strikes(Trouble.SLOW_LISTS)
        )
        await self._send(answer, slow=bool(slow))
        return "close" not in head.headers.get("connection", "")

    async def _send(self, data: bytes, *, slow: bool) -> None:
        if not slow:
            self._writer.write(data)
            await self._writer.drain()
            return
        for start in range(0, len(data), PIECE_BYTES):
            self._writer.write(data[start : start + PIECE_BYTES])
            await self._writer.drain()
            await asyncio.sleep(PIECE_SECONDS)

    async def _watch(self, head: Head) -> None:
        """Until either side has enough. What the client sends meanwhile is its end."""
        self._writer.write(head.encode())
        await self._writer.drain()
        relaying = asyncio.ensure_future(self._relay())
        leaving = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
            if relaying.done():
                await relaying
        finally:
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)

    async def _relay(self) -> None:
        async for line in events(pieces(self._server_reader), self._weather):
            if self._weather.is_on(Trouble.BLACK_HOLE) or self._weather.is_on(Trouble.HALF_OPEN):
                await self._silence(
                    Trouble.BLACK_HOLE if self._weather.is_on(Trouble.BLACK_HOLE) else Trouble.HALF_OPEN
                )
                return
            if late := self._weather.strikes(Trouble.LATENCY):
                await asyncio.sleep(late.seconds)
            if self._weather.strikes(Trouble.CUT):
                self._writer.write(chunk(line)[: len(line) // 2])
                await self._writer.drain()
                reset(self._writer)
                return
            await self._send(chunk(line), slow=bool(self._weather.strikes(Trouble.BANDWIDTH)))
        self._writer.write(LAST_CHUNK)
        await self._writer.drain()


async def events(data: AsyncIterator[bytes], weather: NetworkWeather) -> AsyncIterator[bytes]:
    """Lines of a watch, some twice, some in another order.

    Only neighbours of different objects change places: no API server sends the versions of one
    object in another order, and a client could not tell which came last.
    """
    pending = b""
    async for piece in data:
        *lines, pending = (pending + piece).split(b"\n")
        number = 0
        while number < len(lines):
            line = lines[number]
            after = lines[number + 1] if number + 1 < len(lines) else None
            if after and _may_change_places(line, after) and weather.strikes(Trouble.REORDERED):
                yield after + b"\n"
                yield line + b"\n"
                number += 2
                continue
            yield line + b"\n"
            if weather.strikes(Trouble.REPEATED):
                yield line + b"\n"
            number += 1


def _may_change_places(line: bytes, after: bytes) -> bool:
    return bool(_uid(line)) and bool(_uid(after)) and _uid(line) != _uid(after)


def _uid(line: bytes) -> str:
    """Empty for a bookmark, which must keep its place."""
    event = msgspec.json.decode(line)
    if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
        return ""
    return str(event["object"]["metadata"].get("uid", ""))


def reset(writer: asyncio.StreamWriter) -> None:
    """RST instead of FIN: what was not read is lost."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
