"""The proxies of the campaign: every trouble does what its name says, and without any they are not felt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import aiohttp
import msgspec
import pytest

from karpool.kube.clock import RealClock
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.server import ApiServer
from tests.chaos.processes.fault_proxy import FaultProxy, events
from tests.chaos.processes.http_messages import ProxiedRequest
from tests.chaos.processes.network_faults import NetworkWeather, Trouble
from tests.chaos.processes.stream_proxy import StreamProxy

NODES = "/api/v1/nodes"


class Seen:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self.answers: list[int] = []

    def asked(self, replica: str, request: ProxiedRequest) -> None:
        self.requests.append(f"{replica} {request.method} {request.path}")

    def answered(self, replica: str, request: ProxiedRequest, status: int, body: bytes) -> None:
        self.answers.append(status)


class Behind:
    """An API server behind a proxy, and somebody who asks it."""

    def __init__(self, proxy: FaultProxy, session: aiohttp.ClientSession, seen: Seen) -> None:
        self.weather, self._url, self._session, self.seen = proxy.weather, proxy.url, session, seen

    async def ask(
        self, method: str, path: str = NODES, body: object = None
    ) -> tuple[int, dict[str, str], bytes]:
        async with self._session.request(method, self._url + path, json=body) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()

    async def create(self, name: str) -> int:
        status, _, _ = await self.ask("POST", NODES, {"metadata": {"name": name}})
        return status

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[aiohttp.StreamReader]:
        async with self._session.get(f"{self._url}{NODES}?watch=true&resourceVersion=0") as answer:
            yield answer.content


@asynccontextmanager
async def behind() -> AsyncIterator[Behind]:
    server = ApiServer(RealClock())
    listening = await serve(server)
    seen = Seen()
    proxy = FaultProxy(listening.url, NetworkWeather(Random(1)), replica="r", observer=seen)
    await proxy.start()
    async with aiohttp.ClientSession() as session:
        try:
            yield Behind(proxy, session, seen)
        finally:
            await proxy.close()
            await listening.close()


async def test_without_trouble_it_is_not_felt() -> None:
    async with behind() as line:
        assert await line.create("n") == 201
        status, _, body = await line.ask("GET")
        assert status == 200 and len(msgspec.json.decode(body)["items"]) == 1
        async with line.watching() as events_of:
            assert msgspec.json.decode(await events_of.readline())["object"]["metadata"]["name"] == "n"
            assert await line.create("m") == 201
            assert msgspec.json.decode(await events_of.readline())["type"] == "ADDED"
        assert line.seen.requests[:2] == [f"r POST {NODES}", f"r GET {NODES}"]
        assert line.seen.answers == [201, 200, 201]


@pytest.mark.parametrize(
    ("trouble", "status"), [(Trouble.THROTTLED, 429), (Trouble.SERVER_ERROR, 500), (Trouble.UNAVAILABLE, 503)]
)
async def test_refusals_do_not_reach_the_server(trouble: Trouble, status: int) -> None:
    async with behind() as line:
        active = line.weather.begin(trouble)
        given, headers, _ = await line.ask("POST", NODES, {"metadata": {"name": "n"}})
        assert given == status and ("retry-after" in headers) == (status == 429)
        line.weather.end(active)
        assert msgspec.json.decode((await line.ask("GET"))[2])["items"] == []
        assert line.weather.hits == {trouble: 1}


async def test_conflicts_are_for_writes() -> None:
    async with behind() as line:
        line.weather.begin(Trouble.CONFLICT)
        assert await line.create("n") == 409
        assert (await line.ask("GET"))[0] == 200


@pytest.mark.parametrize("trouble", [Trouble.BLACK_HOLE, Trouble.HALF_OPEN])
async def test_silence_ends_with_a_reset(trouble: Trouble) -> None:
    """What went into the black hole was not done; what went half-open was, and nobody heard of it."""
    async with behind() as line:
        active = line.weather.begin(trouble)
        asking = asyncio.ensure_future(line.create("n"))
        await line.weather.struck.wait()
        assert not asking.done()
        line.weather.end(active)
        with pytest.raises(aiohttp.ClientError):
            await asking
        items = msgspec.json.decode((await line.ask("GET"))[2])["items"]
        assert len(items) == (1 if trouble is Trouble.HALF_OPEN else 0)


async def test_an_answer_is_cut_in_the_middle_after_the_work_was_done() -> None:
    async with behind() as line:
        active = line.weather.begin(Trouble.CUT)
        with pytest.raises(aiohttp.ClientError):
            await line.create("n")
        line.weather.end(active)
        assert len(msgspec.json.decode((await line.ask("GET"))[2])["items"]) == 1


async def test_new_connections_are_reset() -> None:
    async with behind() as line:
        line.weather.begin(Trouble.RESET)
        with pytest.raises(aiohttp.ClientError):
            await line.ask("GET")
        assert line.seen.requests == []


async def test_every_watch_expires() -> None:
    async with behind() as line:
        line.weather.begin(Trouble.EXPIRED)
        async with line.watching() as events_of:
            event = msgspec.json.decode(await events_of.readline())
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
            assert await events_of.readline() == b""
        assert (await line.ask("GET"))[0] == 200


async def test_a_slow_list_arrives_whole() -> None:
    async with behind() as line:
        for number in range(20):
            await line.create(f"n{number}")
        line.weather.begin(Trouble.SLOW_LISTS)
        status, _, body = await line.ask("GET")
        assert status == 200 and len(msgspec.json.decode(body)["items"]) == 20
        assert line.weather.hits == {Trouble.SLOW_LISTS: 1}


def _event(kind: str, uid: str, version: int) -> bytes:
    meta = {"uid": uid, "resourceVersion": str(version)}
    return msgspec.json.encode({"type": kind, "object": {"metadata": meta}}) + b"\n"


async def _through(weather: NetworkWeather, data: bytes) -> list[bytes]:
    async def pieces() -> AsyncIterator[bytes]:
        yield data[:50]  # in the middle of a line
        yield data[50:]

    return [line async for line in events(pieces(), weather)]


async def test_events_are_repeated_and_change_places_but_never_those_of_one_object() -> None:
    lines = [
        _event("ADDED", "a", 1),
        _event("MODIFIED", "a", 2),
        _event("ADDED", "b", 3),
        _event("DELETED", "a", 4),
    ]
    weather = NetworkWeather(Random(1))
    weather.begin(Trouble.REORDERED)
    given = await _through(weather, b"".join(lines))
    assert given != lines and sorted(given) == sorted(lines)
    assert [line for line in given if b'"a"' in line] == [line for line in lines if b'"a"' in line]
    weather = NetworkWeather(Random(1))
    weather.begin(Trouble.REPEATED)
    assert await _through(weather, lines[0]) == [lines[0], lines[0]]


async def test_a_bookmark_keeps_its_place() -> None:
    bookmark = (
        msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}) + b"\n"
    )
    lines = [_event("ADDED", "a", 8), bookmark, _event("ADDED", "b", 10)]
    weather = NetworkWeather(Random(1))
    weather.begin(Trouble.REORDERED)
    assert await _through(weather, b"".join(lines)) == lines


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def connected(
    *ports: int,
) -> AsyncIterator[tuple[StreamProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    proxy = StreamProxy(ports, NetworkWeather(Random(1)))
    await proxy.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield proxy, reader, writer
    finally:
        writer.close()
        await proxy.close()


async def test_a_stream_goes_to_whoever_is_there() -> None:
    async with echo() as dead:
        pass
    async with echo() as alive, connected(alive, dead) as (_, reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"


async def test_a_stream_is_cut_inside_what_was_sent() -> None:
    async with echo() as port, connected(port) as (proxy, reader, writer):
        proxy.weather.begin(Trouble.CUT)
        writer.write(b"0123456789")
        received = b""
        try:
            while piece := await reader.read(100):
                received += piece
        except ConnectionResetError:
            pass
        assert len(received) < 10


async def test_a_stream_that_is_slow_loses_nothing() -> None:
    async with echo() as port, connected(port) as (proxy, reader, writer):
        proxy.weather.begin(Trouble.BANDWIDTH)
        writer.write(b"x" * 200)
        assert await reader.readexactly(200) == b"x" * 200


@pytest.mark.parametrize("trouble", [Trouble.BLACK_HOLE, Trouble.HALF_OPEN])
async def test_a_stream_swallows_one_way(trouble: Trouble) -> None:
    async with echo() as port, connected(port) as (proxy, reader, writer):
        active = proxy.weather.begin(trouble)
        writer.write(b"lost")
        await proxy.weather.struck.wait()
        proxy.weather.end(active)
        writer.write(b"heard")
        assert await reader.readexactly(5) == b"heard"
