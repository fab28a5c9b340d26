"""A server, a clock that stands still unless moved, and a client of a few lines."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from karpool.kube.transport_interface import HttpRequest, HttpResponse
from karpool_fleet.apiserver.serve.inprocess import InProcessTransport
from karpool_fleet.apiserver.serve.server import ApiServer

Object = dict[str, Any]


class StillClock:
    def __init__(self) -> None:
        self.seconds = 1_767_225_600.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        await asyncio.sleep(0)


def counted() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012d}"


class Client:
    """Requests by method and path; bodies and answers are decoded JSON."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.transport = InProcessTransport(server)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        headers: Any = None,
        **query: Any,
    ) -> HttpResponse:
        pairs = [(key, str(value)) for key, value in query.items()]
        raw = b"" if body is None else json.dumps(body).encode()
        return await self.transport.request(
            HttpRequest(method, path, pairs, {"content-type": kind, **(headers or {})}, raw)
        )

    async def call(self, method: str, path: str, body: Any = None, **rest: Any) -> tuple[int, Object]:
        response = await self.send(method, path, body, **rest)
        return response.status, json.loads(response.body)

    async def ok(self, method: str, path: str, body: Any = None, **rest: Any) -> Object:
        status, answer = await self.call(method, path, body, **rest)
        assert status in (200, 201), answer
        return answer

    async def refused(
        self, code: int, reason: str, method: str, path: str, body: Any = None, **rest: Any
    ) -> Object:
        status, answer = await self.call(method, path, body, **rest)
        assert (status, answer.get("reason")) == (code, reason), answer
        assert answer["kind"] == "Status" and answer["code"] == code and answer["message"]
        return answer

    async def get(self, path: str, **query: Any) -> Object:
        return await self.ok("GET", path, **query)

    async def create(self, path: str, body: Object, **query: Any) -> Object:
        return await self.ok("POST", path, body, **query)

    async def update(self, path: str, body: Object, **query: Any) -> Object:
        return await self.ok("PUT", path, body, **query)

    async def merge(self, path: str, body: Object, **query: Any) -> Object:
        return await self.ok("PATCH", path, body, kind="application/merge-patch+json", **query)

    async def delete(self, path: str, body: Any = None, **query: Any) -> Object:
        return await self.ok("DELETE", path, body, **query)

    async def exists(self, path: str) -> bool:
        status, _ = await self.call("GET", path)
        assert status in (200, 404)
        return status == 200

    @asynccontextmanager
    async def watch(self, path: str, **query: Any) -> AsyncIterator["Watch"]:
        pairs = [("watch", "true"), *((key, str(value)) for key, value in query.items())]
        async with self.transport.stream(HttpRequest("GET", path, pairs)) as stream:
            watch = Watch(stream.status, stream.chunks())
            try:
                yield watch
            finally:
                await watch.close()


class Watch:
    def __init__(self, status: int, chunks: Any) -> None:
        self.status = status
        self._chunks = chunks
        self._lines: list[bytes] = []
        self._rest = b""

    async def next(self) -> Object:
        while not self._lines:
            chunk = await anext(self._chunks)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines += [line for line in lines if line]
        return json.loads(self._lines.pop(0))

    async def take(self, count: int) -> list[Object]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[Object]:
        """Everything until the server ends the stream."""
        found = []
        try:
            while True:
                found.append(await self.next())
        except StopAsyncIteration:
            return found

    async def close(self) -> None:
        await self._chunks.aclose()


def seen(event: Object) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


def pod(name: str, *, node: str = "", labels: Any = None, **spec: Any) -> Object:
    body: Object = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "app", "image": "registry.example/app:1"}], **spec},
    }
    if node:
        body["spec"]["nodeName"] = node
    return body


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
