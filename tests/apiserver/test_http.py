"""The server over real sockets: tokens, limits, keep-alive and streams."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from karpool.kube.clock import RealClock
from karpool_fleet.apiserver.serve import http
from karpool_fleet.apiserver.serve.http import Listening, serve
from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.apiserver.storage.history import WatchHistory
from tests.apiserver.serving import CONFIG_MAPS, config_map

TOKEN = "a-token-of-some-length"


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    listening = await serve(ApiServer(RealClock()), token=TOKEN)
    yield listening
    await listening.close()


@pytest.fixture
async def session(listening: Listening) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(listening.url, headers=headers) as session:
        yield session


async def test_only_the_bearer_of_the_token_is_let_in(listening: Listening) -> None:
    async with aiohttp.ClientSession(listening.url) as stranger:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            async with stranger.get(CONFIG_MAPS, headers=headers) as answer:
                body = await answer.json()
                assert (answer.status, body["reason"], body["kind"]) == (401, "Unauthorized", "Status")
        for path in ("/healthz", "/version", "/readyz"):
            async with stranger.get(path) as answer:
                assert answer.status == 200


async def test_requests_and_their_errors_travel_as_they_are(session: aiohttp.ClientSession) -> None:
    async with session.post(CONFIG_MAPS, json=config_map("a", k="ü")) as answer:
        assert answer.status == 201 and answer.content_type == "application/json"
        made = await answer.json()
    async with session.get(f"{CONFIG_MAPS}/a") as answer:
        assert await answer.json() == made
    async with session.get(CONFIG_MAPS, params={"labelSelector": "a in (b,c)", "limit": "5"}) as answer:
        assert (await answer.json())["items"] == []
    async with session.get(f"{CONFIG_MAPS}/b") as answer:
        assert answer.status == 404


async def test_bodies_beyond_the_limit_are_413(session: aiohttp.ClientSession) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (http.MAX_BODY // 3)

    for body in (io.BytesIO(b"x" * (http.MAX_BODY + 1)), pieces()):
        async with session.post(CONFIG_MAPS, data=body) as answer:
            assert answer.status == 413
            assert (await answer.json())["reason"] == "RequestEntityTooLarge"


async def test_a_body_that_does_not_arrive_is_given_up(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "READ_SECONDS", 0.05)
    stuck = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await stuck.wait()

    async with session.post(CONFIG_MAPS, data=pieces()) as answer:
        assert answer.status == 400
    stuck.set()


async def test_connections_that_ask_nothing_are_dropped(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FIRST_REQUEST_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection(listening.host, listening.port)
    writer.write(b"GET /version HTTP/1.1\r\nHost:")  # and never the rest
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_watch_over_http_delivers_a_burst_without_loss(session: aiohttp.ClientSession) -> None:
    async with session.get(CONFIG_MAPS, params={"watch": "true"}) as stream:
        assert stream.status == 200
        for number in range(300):
            async with session.post(CONFIG_MAPS, json=config_map(f"c{number}")) as answer:
                assert answer.status == 201
        seen: list[str] = []
        rest = b""
        async for chunk in stream.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            seen += [json.loads(line)["object"]["metadata"]["name"] for line in lines]
            if len(seen) == 300:
                break
    assert seen == [f"c{number}" for number in range(300)]


async def test_a_watch_that_is_refused_is_a_plain_error(session: aiohttp.ClientSession) -> None:
    async with session.get(CONFIG_MAPS, params={"watch": "1", "resourceVersion": "x"}) as answer:
        assert answer.status == 400
    async with session.get(CONFIG_MAPS, params={"watch": "1", "timeoutSeconds": "1"}) as answer:
        assert await answer.read() == b""


async def test_leaving_a_watch_leaves_nothing_behind(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, left = asyncio.Event(), asyncio.Event()
    wait = WatchHistory.wait

    async def observed(history: WatchHistory, timeout: float) -> None:
        entered.set()
        try:
            await wait(history, timeout)
        finally:
            left.set()

    monkeypatch.setattr(WatchHistory, "wait", observed)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(listening.url, headers=headers) as session:
        stream = await session.get(CONFIG_MAPS, params={"watch": "true"})
        await entered.wait()
        stream.close()
        await left.wait()


async def test_closing_ends_streams_and_stops_listening(listening: Listening) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(listening.url, headers=headers) as session:
        async with session.get(CONFIG_MAPS, params={"watch": "true"}) as stream:
            await listening.close()
            assert await stream.read() == b""
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get("/healthz")
