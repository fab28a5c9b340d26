"""The transport without sockets behaves as one with them."""

import asyncio

import pytest

from karpool.kube.errors import ApiUnreachable
from karpool.kube.transport_interface import HttpRequest
from tests.apiserver.serving import CONFIG_MAPS, Client, config_map


async def test_a_stream_ends_with_its_context(client: Client) -> None:
    history = client.server.cluster.store.collection("configmaps").history
    async with client.transport.stream(HttpRequest("GET", CONFIG_MAPS, [("watch", "1")])) as stream:
        chunks = stream.chunks()
        await client.create(CONFIG_MAPS, config_map("a"))
        assert b'"ADDED"' in await anext(chunks)
    assert history._waiting == []
    with pytest.raises(StopAsyncIteration):
        await anext(chunks)


async def test_a_refused_stream_carries_the_status(client: Client) -> None:
    query = [("watch", "1"), ("resourceVersion", "x")]
    async with client.transport.stream(HttpRequest("GET", CONFIG_MAPS, query)) as stream:
        assert stream.status == 400
        assert b"resourceVersion" in b"".join([chunk async for chunk in stream.chunks()])


async def test_an_answer_that_takes_too_long_is_unreachable(client: Client) -> None:
    async def stuck(request, handler):
        await asyncio.Event().wait()

    client.server.around = stuck
    with pytest.raises(ApiUnreachable):
        await client.transport.request(HttpRequest("GET", CONFIG_MAPS), timeout=0.01)


async def test_a_loop_of_writes_lets_watchers_run(client: Client) -> None:
    seen = 0

    async def follow() -> None:
        nonlocal seen
        async with client.watch(CONFIG_MAPS) as watch:
            while True:
                await watch.next()
                seen += 1

    task = asyncio.create_task(follow())
    for number in range(100):
        await client.create(CONFIG_MAPS, config_map(f"c{number}"))
    assert seen > 90
    task.cancel()
