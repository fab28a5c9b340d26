"""HTTP/1.1 as a proxy needs it: heads, bodies of a known length, and pieces."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError"}


class Gone(Exception):
    """The other side closed the connection."""


@dataclass
class Head:
    """The first line and the headers; names in lower case."""

    first: str
    headers: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "")


@dataclass
class ProxiedRequest:
    head: Head
    body: bytes

    @property
    def method(self) -> str:
        return self.head.first.split(" ")[0]

    @property
    def target(self) -> str:
        return self.head.first.split(" ")[1]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def is_write(self) -> bool:
        return self.method in WRITES

    @property
    def is_watch(self) -> bool:
        return "watch=" in self.target.partition("?")[2]

    @property
    def is_list(self) -> bool:
        """Or a single read; both may be slow."""
        return self.method == "GET" and not self.is_watch

    def encode(self) -> bytes:
        return self.head.encode() + self.body


async def read_head(reader: asyncio.StreamReader) -> Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        raise Gone from None
    first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Head(first, {name.strip().lower(): value.strip() for name, _, value in pairs})


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    if head.is_chunked:
        return b"".join([piece async for piece in pieces(reader)])
    try:
        return await reader.readexactly(int(head.headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, OSError):
        raise Gone from None


async def read_request(reader: asyncio.StreamReader) -> ProxiedRequest:
    head = await read_head(reader)
    body = await read_body(reader, head)
    head.headers.pop("transfer-encoding", None)
    head.headers["content-length"] = str(len(body))
    return ProxiedRequest(head, body)


async def pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Of a body that is sent in chunks, until its end."""
    try:
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
    except (asyncio.IncompleteReadError, ValueError, OSError):
        raise Gone from None


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"


def status_object(code: int) -> dict[str, object]:
    reason = _REASONS.get(code, "ServiceUnavailable")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": "injected",
        "code": code,
    }


def refusal(code: int, retry_after: float | None = None) -> bytes:
    """A whole answer."""
    body = msgspec.json.encode(status_object(code))
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:g}"
    return Head(f"HTTP/1.1 {code} Injected", headers).encode() + body


def expired_event() -> bytes:
    return msgspec.json.encode({"type": "ERROR", "object": status_object(410)}) + b"\n"
