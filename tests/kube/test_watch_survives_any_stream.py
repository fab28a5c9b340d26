"""Whatever way the bytes arrive, the same events come out; what cannot be read stops nothing."""

import asyncio
from contextlib import aclosing
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.errors import Denied, Gone
from karpool.kube.transport_interface import HttpResponse
from karpool.kube.watch.watch import BrokenStream, LineSplitter, WatchEventReader
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.meta import WireObject
from karpool_fleet.clusters.clock import LoopClock
from tests.kube.tiny_server import Fault, TinyServer, line, status
from tests.kube.virtual import client_of, virtually

PODS_OF = "/api/v1/namespaces/default/pods"


def pod(name, version, **fields):
    return {"metadata": {"name": name, "namespace": "default", "resourceVersion": str(version)}, **fields}


def read(chunks, into=WireObject):
    bad = []
    reader = WatchEventReader(PODS, into, bad.extend)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events, bad, reader.failure


def cut(data, points):
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


STREAM = b"".join(
    (
        line("ADDED", pod("a", 1)),
        line("MODIFIED", pod("é" * 40, 2)),
        b"\n",
        line("BOOKMARK", {"metadata": {"resourceVersion": "5"}, "spec": {"containers": None}}),
        line("ADDED", {"metadata": {"name": "bad", "labels": 7, "resourceVersion": "6"}}),
        line("DELETED", pod("a", 7)),
        line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}),
        line("ADDED", pod("never", 9)),
    )
)


@given(st.lists(st.integers(min_value=0), max_size=60))
def test_any_chunking_gives_the_same_events(points):
    events, bad, failure = read(cut(STREAM, points))

    assert [(e.type, e.key.name, e.version, e.object is None) for e in events] == [
        ("ADDED", "a", "1", False),
        ("MODIFIED", "é" * 40, "2", False),
        ("BOOKMARK", "", "5", True),
        ("ADDED", "bad", "6", True),
        ("DELETED", "a", "7", False),
    ]
    assert [each.name for each in bad] == ["bad"]
    assert isinstance(failure, Gone)


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_arbitrary_bytes_never_raise(chunks):
    _, _, failure = read(chunks)

    assert failure is None or isinstance(failure, BrokenStream)


def test_an_event_larger_than_any_line_limit_is_read():
    big = pod("big", 1, data="x" * 3_000_000)
    data = line("ADDED", big)

    events, _, _ = read([data[i : i + 65536] for i in range(0, len(data), 65536)], dict)

    assert events[0].object == big


def test_a_line_without_end_is_refused():
    splitter = LineSplitter(limit=1000)
    splitter.feed(b"x" * 900)

    with pytest.raises(BrokenStream, match="longer than 1000"):
        splitter.feed(b"x" * 200)


@pytest.mark.parametrize("into", [WireObject, dict])
def test_objects_are_given_in_the_type_asked_for(into):
    events, _, _ = read([line("ADDED", pod("a", 1))], into)

    assert isinstance(events[0].object, into)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"type": "ADDED", "object": None}, id="null object"),
        pytest.param({"type": "ADDED", "object": {"metadata": None}}, id="null metadata"),
        pytest.param({"type": "ADDED", "object": {}}, id="no metadata"),
        pytest.param({"type": "WHATEVER", "object": {"metadata": {"name": "x"}}}, id="unknown type"),
    ],
)
@pytest.mark.parametrize("into", [WireObject, dict])
def test_a_nameless_or_unknown_event_is_reported_and_skipped(payload, into):
    events, bad, failure = read([msgspec.json.encode(payload) + b"\n", line("ADDED", pod("good", 2))], into)

    assert [event.key.name for event in events] == ["good"]
    assert len(bad) == 1
    assert failure is None


async def collect(client, version, count):
    seen = []
    async with aclosing(client.watch(PODS, version, into=dict)) as events:
        async for event in events:
            seen.append((event.type, event.key.name))
            if len(seen) == count:
                return seen
    return seen


def test_a_watch_goes_on_where_it_was_cut():
    async def scenario():
        server = TinyServer()

        async def life():
            for number in range(6):
                server.put(f"{PODS_OF}/p{number}")
                await asyncio.sleep(1)
                if number % 2:
                    server.cut()
                    await asyncio.sleep(10)

        async with asyncio.TaskGroup() as group:
            group.create_task(life())
            return await collect(client_of(server), "100", 6)

    assert virtually(scenario()) == [("ADDED", f"p{number}") for number in range(6)]


def test_a_silent_connection_is_replaced():
    async def scenario():
        server = TinyServer()
        clock = LoopClock()

        async def life():
            await asyncio.sleep(200)  # longer than the idle time
            server.put(f"{PODS_OF}/late")

        async with asyncio.TaskGroup() as group:
            group.create_task(life())
            seen = await collect(client_of(server, clock=clock), "100", 1)
        return seen, len(server.requests)

    assert virtually(scenario()) == ([("ADDED", "late")], 3)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(status(410, "Expired"), id="HTTP status"),
        pytest.param(
            HttpResponse(200, {}, line("ERROR", {"kind": "Status", "code": 410, "reason": "Gone"})),
            id="event in a healthy stream",
        ),
        pytest.param(
            status(504, "Timeout", causes=[{"reason": "ResourceVersionTooLarge"}]), id="history restarted"
        ),
    ],
)
def test_a_forgotten_version_is_gone(response):
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=response)
        await collect(client_of(server), "7", 1)

    with pytest.raises(Gone):
        virtually(scenario())


def test_a_refused_watch_is_not_repeated():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=status(403, "Forbidden"))
        with pytest.raises(Denied):
            await collect(client_of(server), "7", 1)
        return len(server.requests)

    assert virtually(scenario()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(lose_request=True), id="unreachable"),
        pytest.param(Fault(response=status(503, "ServiceUnavailable")), id="503"),
        pytest.param(Fault(response=HttpResponse(200, {}, b"")), id="ends at once"),
    ],
)
def test_a_failing_server_is_not_asked_in_a_tight_loop(fault):
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: fault
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await collect(client_of(server), "7", 1)
        return len(server.requests)

    assert virtually(scenario()) < 40


def test_a_stream_that_stays_unreadable_asks_for_a_new_list():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=HttpResponse(200, {}, b'{"type": garbage\n'))
        with pytest.raises(Gone):
            await collect(client_of(server), "7", 1)
        return len(server.requests)

    assert virtually(scenario()) == 3
