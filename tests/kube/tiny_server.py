"""A few dozen lines of API server, behind the transport interface, that can be told to misbehave.

It keeps objects by path, numbers every write, remembers a bounded history for
watches, and asks `fault` before each request what should go wrong with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.kube.errors import ApiUnreachable
from karpool.kube.transport_interface import HttpRequest, HttpResponse

JSON = {"content-type": "application/json"}


@dataclass
class Fault:
    """Before: wait, then answer `response` or lose the request. After: wait, or lose the answer."""

    wait_before: float = 0.0
    response: HttpResponse | None = None
    lose_request: bool = False
    wait_after: float = 0.0
    lose_answer: bool = False


def answer(code: int, body: Any) -> HttpResponse:
    return HttpResponse(code, JSON, msgspec.json.encode(body))


def status(code: int, reason: str, message: str = "", **details: Any) -> HttpResponse:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return answer(code, body)


def line(type_: str, obj: Any) -> bytes:
    return msgspec.json.encode({"type": type_, "object": obj}) + b"\n"


class _Stream:
    def __init__(self, response: HttpResponse, chunks: AsyncIterator[bytes]) -> None:
        self.status = response.status
        self.headers = response.headers
        self._chunks = chunks

    def chunks(self) -> AsyncIterator[bytes]:
        return self._chunks


class TinyServer:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}  # item path -> object
        self.version = 100
        self.oldest = 0  # versions before this are forgotten
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []  # version, type, item path, object
        self.requests: list[HttpRequest] = []
        self.fault: Callable[[HttpRequest], Fault | None] = lambda request: None
        self.cut_watches = asyncio.Event()
        self.chunking: Callable[[bytes], list[bytes]] = lambda data: [data]
        self._changed = asyncio.Event()
        self.closed = False

    # What tests do to the cluster

    def put(self, path: str, obj: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        namespace, name = _names(path)
        known = self.objects.get(path)
        meta = {"name": name, "uid": known["metadata"]["uid"] if known else f"uid-{self.version + 1}"}
        if namespace:
            meta["namespace"] = namespace
        given = obj or {}
        whole = {**given, **fields, "metadata": {**given.get("metadata", {}), **meta}}
        return self._store(path, whole, "MODIFIED" if known else "ADDED")

    def remove(self, path: str) -> None:
        gone = self.objects.pop(path)
        self._note("DELETED", path, gone)

    def compact(self) -> None:
        """Forget the past: watches and continued lists from before are told 410."""
        self.oldest = self.version

    def cut(self) -> None:
        self.cut_watches.set()
        self.cut_watches = asyncio.Event()

    # The transport

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        self.requests.append(request)
        fault = self.fault(request) or Fault()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.sleep(fault.wait_before)
                if fault.lose_request:
                    raise ApiUnreachable("no route", sent=False)
                response = fault.response or self._handle(request)
                await asyncio.sleep(fault.wait_after)
        except TimeoutError:
            raise ApiUnreachable("no answer in time") from None
        if fault.lose_answer:
            raise ApiUnreachable("connection reset")
        return response

    @asynccontextmanager
    async def stream(self, request: HttpRequest, *, timeout: float | None = None) -> AsyncIterator[_Stream]:
        self.requests.append(request)
        fault = self.fault(request) or Fault()
        await asyncio.sleep(fault.wait_before)
        if fault.lose_request:
            raise ApiUnreachable("no route", sent=False)
        query = dict(request.query)
        since = int(query["resourceVersion"])
        response = fault.response
        if response is None and since < self.oldest:
            response = status(410, "Expired", "too old resource version")
        if response is not None:
            yield _Stream(response, _chunks_of(response.body))
            return
        yield _Stream(HttpResponse(200, JSON), self._follow(request.path, since))

    async def close(self) -> None:
        self.closed = True

    async def _follow(self, collection: str, since: int) -> AsyncIterator[bytes]:
        cut = self.cut_watches
        while not cut.is_set():
            due = [entry for entry in self.history if entry[0] > since and _below(entry[2], collection)]
            if due:
                since = due[-1][0]
                data = b"".join(line(type_, obj) for _, type_, _, obj in due)
                for chunk in self.chunking(data):
                    yield chunk
                continue
            changed, cutting = self._changed, cut
            waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(cutting.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    # The API

    def _handle(self, request: HttpRequest) -> HttpResponse:
        match request.method:
            case "GET":
                return self._get(request)
            case "POST":
                return self._create(request)
            case "PUT":
                return self._replace(request)
            case "PATCH":
                return self._merge(request)
            case "DELETE":
                return self._delete(request)
        return status(405, "MethodNotAllowed")

    def _get(self, request: HttpRequest) -> HttpResponse:
        if request.path in self.objects:
            return answer(200, self.objects[request.path])
        if "/" in request.path and _is_item(request.path):
            return status(404, "NotFound", f"{request.path} not found")
        query = dict(request.query)
        items = [obj for path, obj in sorted(self.objects.items()) if _below(path, request.path)]
        start, as_of = 0, self.version
        if token := query.get("continue"):
            start, as_of = map(int, token.split("@"))
            if as_of < self.oldest:
                return status(410, "Expired", "continue token too old")
        limit = int(query.get("limit", 0)) or len(items)
        meta: dict[str, Any] = {"resourceVersion": str(as_of)}
        if start + limit < len(items):
            meta["continue"] = f"{start + limit}@{as_of}"
        return answer(200, {"kind": "List", "metadata": meta, "items": items[start : start + limit]})

    def _create(self, request: HttpRequest) -> HttpResponse:
        obj = msgspec.json.decode(request.body)
        path = f"{request.path}/{obj['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists", f"{path} already exists")
        return answer(201, self.put(path, obj))

    def _replace(self, request: HttpRequest) -> HttpResponse:
        obj = msgspec.json.decode(request.body)
        known = self.objects.get(request.path)
        if known is None:
            return status(404, "NotFound")
        sent = obj["metadata"].get("resourceVersion")
        if sent and sent != known["metadata"]["resourceVersion"]:
            return status(409, "Conflict", "the object has been modified")
        return answer(200, self.put(request.path, obj))

    def _merge(self, request: HttpRequest) -> HttpResponse:
        known = self.objects.get(request.path)
        if known is None:
            return status(404, "NotFound")
        patch = msgspec.json.decode(request.body)
        return answer(200, self.put(request.path, {**known, **patch} if isinstance(patch, dict) else known))

    def _delete(self, request: HttpRequest) -> HttpResponse:
        if request.path not in self.objects:
            return status(404, "NotFound")
        self.remove(request.path)
        return status(200, "")

    def _store(self, path: str, obj: dict[str, Any], type_: str) -> dict[str, Any]:
        return self._note(type_, path, obj)

    def _note(self, type_: str, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        if type_ != "DELETED":
            self.objects[path] = stored
        self.history.append((self.version, type_, path, stored))
        self._changed.set()
        self._changed = asyncio.Event()
        return stored


async def _chunks_of(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _names(path: str) -> tuple[str, str]:
    parts = path.split("/")
    namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-2] else ""
    return namespace, parts[-1]


def _is_item(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return len(rest) > 1


def _below(item: str, collection: str) -> bool:
    """Is the item in the collection, or in that of all namespaces?"""
    parent = item.rpartition("/")[0]
    if parent == collection:
        return True
    parts = parent.split("/")
    if "namespaces" in parts[:-1]:
        index = parts.index("namespaces")
        return "/".join(parts[:index] + parts[index + 2 :]) == collection
    return False
