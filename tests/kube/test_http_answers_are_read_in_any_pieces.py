"""HTTP/1.1 answers: however they are cut on the way they say the same, and what is none is refused."""

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.transport.http1 import (
    HEAD_MAX,
    QUEUED_MAX,
    BadAnswer,
    Disconnected,
    HttpConnection,
    request_message,
)


class Wire:
    """A transport that nothing leaves."""

    def __init__(self):
        self.is_paused = self.is_aborted = False

    def write(self, data):
        pass

    def is_closing(self):
        return self.is_aborted

    def abort(self):
        self.is_aborted = True

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False


async def exchange(pieces, *, closes=False):
    """What is read of an answer that comes in these pieces, and the connection afterwards."""
    connection = HttpConnection()
    connection.connection_made(Wire())

    async def arrive():
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        if closes:
            connection.connection_lost(None)

    arriving = asyncio.create_task(arrive())
    try:
        head = await connection.send(b"GET / HTTP/1.1\r\n\r\n")
        body = b""
        while piece := await connection.piece():
            body += piece
        await arriving
        return head, body, connection
    finally:
        arriving.cancel()


def cut(data, places):
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def chunked(parts):
    body = b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\nTrailer: x\r\n\r\n"


def counted(parts):
    body = b"".join(parts)
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX: y\r\n\r\n%s" % (len(body), body)


def announced(parts):
    return b"HTTP/1.1 100 Continue\r\n\r\n" + counted(parts)


PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)


@given(PARTS, st.lists(st.integers(0, 1000), max_size=12), st.sampled_from([chunked, counted, announced]))
def test_every_cut_of_an_answer_says_the_same(parts, places, framing):
    head, body, connection = asyncio.run(exchange(cut(framing(parts), places)))

    assert (head.status, body) == (200, b"".join(parts))
    assert connection.is_reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
    ],
    ids=["old", "closing", "more than was asked for"],
)
async def test_a_connection_that_may_say_more_is_not_used_again(answer):
    _, body, connection = await exchange([answer])

    assert body == b"ok"
    assert not connection.is_reusable


async def test_an_answer_without_a_length_ends_with_its_connection():
    _, body, _ = await exchange([b"HTTP/1.1 200 OK\r\n\r\nso", b" on"], closes=True)

    assert body == b"so on"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_MAX,
    ],
)
async def test_what_is_no_answer_is_refused_and_the_connection_closed(answer):
    with pytest.raises(BadAnswer):
        await exchange([answer])


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
)
async def test_an_answer_that_is_cut_off_is_not_taken_for_whole(answer):
    with pytest.raises(Disconnected):
        await exchange([answer] if answer else [], closes=True)


async def test_what_nobody_reads_is_left_to_the_network():
    connection, wire = HttpConnection(), Wire()
    connection.connection_made(wire)
    asking = asyncio.create_task(connection.send(b"GET / HTTP/1.1\r\n\r\n"))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (3 * QUEUED_MAX))
    await asking

    connection.data_received(b"x" * (QUEUED_MAX + 1))
    assert wire.is_paused

    await connection.piece()
    assert not wire.is_paused


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
def test_nothing_breaks_out_of_a_header(value):
    with pytest.raises(ValueError, match="line break"):
        request_message("GET", "/", "host", [("authorization", value)], b"")
    with pytest.raises(ValueError, match="line break"):
        request_message("GET", f"/{value}", "host", [], b"")
