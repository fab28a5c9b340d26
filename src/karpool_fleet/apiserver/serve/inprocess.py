"""A transport that calls an API server in the same process: no sockets, no threads.

With a loop on virtual time everything between client and server happens in a fixed
order, so a simulation repeats exactly. Clients cannot tell it from HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from karpool.kube.errors import ApiUnreachable
from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse
from karpool_fleet.apiserver.serve.server import Answer, ApiServer


class _Stream:
    """A `StreamResponse` that ends with its `async with` block."""

    def __init__(self, answer: Answer) -> None:
        self.status = answer.status
        self.headers: Mapping[str, str] = answer.headers
        self._answer = answer
        self._open: list[AsyncGenerator[bytes, None]] = []

    def chunks(self) -> AsyncGenerator[bytes, None]:
        pieces = self._pieces()
        self._open.append(pieces)
        return pieces

    async def close(self) -> None:
        for pieces in self._open:
            await pieces.aclose()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        if isinstance(self._answer, HttpResponse):  # an error where a stream was asked for
            if self._answer.body:
                yield self._answer.body
            return
        async with aclosing(self._answer.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk


class InProcessTransport:
    """A `kube.transport.Transport`."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        answer = await self._call(request, timeout)
        if isinstance(answer, HttpResponse):
            return answer
        pieces = [piece async for piece in answer.chunks()]
        return HttpResponse(answer.status, answer.headers, b"".join(pieces))

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        stream = _Stream(await self._call(request, timeout))
        try:
            yield stream
        finally:
            await stream.close()

    async def close(self) -> None:
        pass

    async def _call(self, request: HttpRequest, timeout: float | None) -> Answer:
        # Yield to the loop once per request, as a network would: a tight loop of writes
        # must not keep watchers and background work from running.
        await asyncio.sleep(0)
        if timeout is None:
            return await self._server.handle(request)
        try:
            async with asyncio.timeout(timeout):
                return await self._server.handle(request)
        except TimeoutError:
            raise ApiUnreachable(f"{request.method} {request.path}: no answer in {timeout} s") from None
