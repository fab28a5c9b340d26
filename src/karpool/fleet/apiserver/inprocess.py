"""A transport that calls an API server in the same process: no sockets, no threads.

With a loop on virtual time everything between client and server happens in a fixed
order, so a simulation repeats exactly. Clients cannot tell it from HTTP.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from karpool.fleet.apiserver.server import Answer, ApiServer
from karpool.kube.errors import Unreachable
from karpool.kube.transport import Request, Response, StreamResponse


@dataclass(slots=True)
class _Whole:
    """A plain response where a stream was asked for: an error, usually."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body


class InProcess:
    """A `kube.transport.Transport`."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def request(self, request: Request, *, timeout: float | None = None) -> Response:
        answer = await self._call(request, timeout)
        if isinstance(answer, Response):
            return answer
        pieces = [piece async for piece in answer.chunks()]
        return Response(answer.status, answer.headers, b"".join(pieces))

    @asynccontextmanager
    async def stream(
        self, request: Request, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        answer = await self._call(request, timeout)
        if isinstance(answer, Response):
            yield _Whole(answer.status, answer.headers, answer.body)
        else:
            yield answer

    async def close(self) -> None:
        pass

    async def _call(self, request: Request, timeout: float | None) -> Answer:
        # One turn of the loop per request, as over a network: a tight loop of writes
        # must not keep watchers and background work from running.
        await asyncio.sleep(0)
        if timeout is None:
            return await self._server.handle(request)
        try:
            async with asyncio.timeout(timeout):
                return await self._server.handle(request)
        except TimeoutError:
            raise Unreachable(f"{request.method} {request.path}: no answer in {timeout} s") from None
