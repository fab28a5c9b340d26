"""What a Kubernetes client needs from whatever carries its requests.

Two implementations exist: HTTP (`kube.transport.http`) and a call straight into an
embedded API server (`karpool_fleet.apiserver.serve.inprocess`). Everything above speaks this
interface and cannot tell them apart.
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
    """A response whose body arrives in pieces; pieces end anywhere."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """To be closed by who reads them, whether or not they end."""


class Transport(Protocol):
    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        """Raise `kube.errors.Unreachable` when no answer came; any HTTP status is an answer."""

    def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AbstractAsyncContextManager[StreamResponse]: ...

    async def close(self) -> None: ...
