import asyncio
import gc
from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.api.decoding import Undecodable, decode_page
from karpool.kube.errors import Gone, ServerFault
from karpool.kube.transport_interface import HttpResponse
from karpool.model.kubernetes.api_resources import NODES, PODS, ListOptions
from karpool.model.kubernetes.meta import WireObject
from tests.kube.tiny_server import Fault, TinyServer, answer
from tests.kube.virtual import client_of, virtually

PODS_OF = "/api/v1/namespaces/default/pods"


def crowded(count):
    server = TinyServer()
    for number in range(count):
        server.put(f"{PODS_OF}/p{number:05}")
    return server


def test_a_long_list_comes_in_pages_of_500():
    async def scenario():
        server = crowded(1201)
        pages = [len(page.items) async for page in client_of(server).pages(PODS, into=WireObject)]
        return pages, [dict(request.query)["limit"] for request in server.requests]

    assert virtually(scenario()) == ([500, 500, 201], ["500"] * 3)


@pytest.mark.parametrize(("asked", "given"), [(None, {30.0, 60.0}), (7.0, {7.0}), (inf, {60.0})])
def test_the_limit_of_a_request_holds_for_lists_too(asked, given):
    async def scenario():
        server = crowded(1)
        limits = set()
        original = server.request

        async def noting(request, *, timeout=None):
            limits.add(timeout)
            return await original(request, timeout=timeout)

        server.request = noting
        client = client_of(server, timeout=asked)
        await client.list(PODS)
        await client.get(PODS, "p00000", namespace="default")
        return limits

    assert virtually(scenario()) == given


def test_selectors_and_namespace_are_sent_with_every_page():
    async def scenario():
        server = crowded(600)
        chosen = ListOptions("default", "app=web", "spec.nodeName=n1")
        await client_of(server).list(PODS, chosen)
        return [(request.path, dict(request.query)) for request in server.requests]

    for path, query in virtually(scenario()):
        assert path == PODS_OF
        assert query["labelSelector"] == "app=web"
        assert query["fieldSelector"] == "spec.nodeName=n1"


def test_a_list_that_expires_half_way_is_started_again_and_at_last_taken_whole():
    async def scenario():
        server = crowded(1200)

        def fault(request):
            if "continue" in dict(request.query):
                server.put(f"{PODS_OF}/p99999")
                server.compact()

        server.fault = fault
        page = await client_of(server).list(PODS, into=WireObject)
        return len(page.items), ["limit" in dict(request.query) for request in server.requests]

    assert virtually(scenario()) == (1201, [True] * 4 + [False])


def test_pages_that_expire_say_so():
    async def scenario():
        server = crowded(1100)
        pages = client_of(server).pages(PODS)
        await anext(pages)
        server.put(f"{PODS_OF}/p99999")
        server.compact()
        await anext(pages)  # was asked for before
        await anext(pages)

    with pytest.raises(Gone):
        virtually(scenario())


def test_the_next_page_is_asked_for_while_one_is_read():
    async def scenario():
        server = crowded(1100)
        pages = client_of(server).pages(PODS, into=WireObject)
        return [(len(page.items), len(server.requests)) async for page in pages]

    assert virtually(scenario()) == [(500, 2), (500, 3), (100, 3)]


def test_who_stops_reading_leaves_nothing_behind():
    async def scenario():
        server = crowded(1100)
        server.fault = lambda request: Fault(wait_before=20.0) if "continue" in dict(request.query) else None
        pages = client_of(server).pages(PODS)
        await anext(pages)
        await pages.aclose()
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert virtually(scenario()) == set()


@pytest.mark.long
def test_a_page_that_failed_unread_is_not_complained_about():
    async def scenario():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        server = crowded(600)
        pages = client_of(server).pages(PODS)
        server.fault = lambda request: (
            Fault(response=HttpResponse(200, {}, b"<html>")) if "continue" in dict(request.query) else None
        )
        await anext(pages)
        for _ in range(20):
            await asyncio.sleep(0)
        await pages.aclose()
        del pages
        gc.collect()
        return complaints

    assert virtually(scenario()) == []


def test_one_bad_object_is_reported_and_the_others_are_there():
    async def scenario():
        server = TinyServer()
        bad = []
        items = [
            {"metadata": {"name": "a"}},
            {"metadata": {"name": "b", "namespace": "x", "labels": 3}},
            {"metadata": {"name": "c"}},
        ]
        server.fault = lambda request: Fault(response=answer(200, {"items": items}))
        page = await client_of(server, report=bad.extend).list(PODS, into=WireObject)
        return [obj.name for obj in page.items], [str(each) for each in bad]

    names, bad = virtually(scenario())
    assert names == ["a", "c"]
    assert len(bad) == 1
    assert bad[0].startswith("pods x/b: Expected `object | null`, got `int`")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items": 3}', b'{"items":[' + b"[" * 100_000])
def test_a_page_that_is_no_list_is_a_server_fault(body):
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=HttpResponse(200, {}, body))
        await client_of(server).list(NODES)

    with pytest.raises(ServerFault, match="unusable"):
        virtually(scenario())


def test_a_list_that_never_ends_is_refused():
    async def scenario():
        server = TinyServer()
        server.fault = lambda request: Fault(response=answer(200, {"metadata": {"continue": "again"}}))
        await client_of(server).list(NODES)

    with pytest.raises(ServerFault, match="same page"):
        virtually(scenario())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.long
@given(st.lists(JSON_VALUES, max_size=6), st.integers(0, 6))
def test_a_good_object_survives_among_any_others(others, position):
    items = [*others[:position], {"metadata": {"name": "good"}}, *others[position:]]

    page = decode_page(msgspec.json.encode({"items": items}), WireObject, PODS)

    assert "good" in [obj.name for obj in page.items]
    assert len(page.items) + len(page.bad) == len(items)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_page_or_undecodable(body):
    try:
        page = decode_page(body, WireObject, PODS)
    except Undecodable:
        return
    assert isinstance(page.items, list)
