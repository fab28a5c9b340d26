"""The transport interface of the Kubernetes client.

Two implementations exist: HTTP (`kube.transport.http`) and direct calls into an embedded API server
(`karpool_fleet.apiserver.serve.inprocess`). All code above uses this interface and sees no difference.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""


class StreamResponse(Protocol):
    """A response whose body arrives in chunks; a chunk may end anywhere."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks. The reader must close the generator, whether or not it has ended."""


class Transport(Protocol):
    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        """Send a request.

        Raises `kube.errors.Unreachable` when no answer came; any HTTP status is an answer.
        """

    def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AbstractAsyncContextManager[StreamResponse]: ...

    async def close(self) -> None: ...
