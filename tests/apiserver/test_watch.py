"""Watches: every change once, in order, from any point that is still known."""

import asyncio
import json

import pytest

from karpool_fleet.apiserver.serve.server import ApiServer
from karpool_fleet.clusters.clock import LoopClock, run_manual
from tests.apiserver.serving import (
    CONFIG_MAPS,
    PODS,
    Client,
    StillClock,
    config_map,
    counted,
    pod,
    seen,
)


async def version(client: Client) -> int:
    return int((await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"])


async def test_a_watch_sees_each_change_once_and_in_order(client: Client) -> None:
    async with client.watch(CONFIG_MAPS, resourceVersion=await version(client)) as watch:
        made = await client.create(CONFIG_MAPS, config_map("a"))
        made["data"] = {"k": "v"}
        await client.update(f"{CONFIG_MAPS}/a", made)
        await client.update(f"{CONFIG_MAPS}/a", config_map("a", k="v"))  # changes nothing
        await client.delete(f"{CONFIG_MAPS}/a")
        events = await watch.take(3)
    assert [e["type"] for e in events] == ["ADDED", "MODIFIED", "DELETED"]
    versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
    assert versions == sorted(set(versions))
    assert events[2]["object"]["data"] == {"k": "v"}


async def test_a_watch_resumes_where_it_ended(client: Client) -> None:
    start = await version(client)
    for name in "abcdef":
        await client.create(CONFIG_MAPS, config_map(name))
    async with client.watch(CONFIG_MAPS, resourceVersion=start) as watch:
        first = await watch.take(3)
    reached = first[-1]["object"]["metadata"]["resourceVersion"]
    async with client.watch(CONFIG_MAPS, resourceVersion=reached) as watch:
        second = await watch.take(3)
    assert [e["object"]["metadata"]["name"] for e in first + second] == list("abcdef")


@pytest.mark.parametrize("start", [{}, {"resourceVersion": "0"}])
async def test_without_a_version_the_present_comes_first(client: Client, start: dict) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    await client.create(CONFIG_MAPS, config_map("b"))
    async with client.watch(CONFIG_MAPS, **start) as watch:
        await client.create(CONFIG_MAPS, config_map("c"))
        assert [seen(e) for e in await watch.take(3)] == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


async def test_initial_events_end_with_a_marked_bookmark(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    current = await version(client)
    options = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with client.watch(CONFIG_MAPS, **options) as watch:
        first, mark = await watch.take(2)
    assert seen(first) == ("ADDED", "a")
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) == current
    await client.refused(400, "BadRequest", "GET", CONFIG_MAPS, watch="true", sendInitialEvents="true")


async def test_a_forgotten_version_and_one_of_another_life_are_410(clock: StillClock) -> None:
    client = Client(ApiServer(clock, ids=counted(), history_events=100))
    start = await version(client)
    for number in range(1000):
        await client.create(CONFIG_MAPS, config_map(f"c{number}"))
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, watch="true", resourceVersion=start)
    late = await version(client) + 100
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, watch="true", resourceVersion=late)


async def test_changes_are_forgotten_when_they_are_ten_minutes_old(client: Client, clock: StillClock) -> None:
    old = await version(client)
    await client.create(CONFIG_MAPS, config_map("old"))
    clock.seconds += 300
    young = await version(client)
    await client.create(CONFIG_MAPS, config_map("young"))
    async with client.watch(CONFIG_MAPS, resourceVersion=old) as watch:
        assert [seen(each)[1] for each in await watch.take(2)] == ["old", "young"]
    clock.seconds += 300
    await client.create(CONFIG_MAPS, config_map("new"))
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, watch="true", resourceVersion=old)
    async with client.watch(CONFIG_MAPS, resourceVersion=young) as watch:
        assert [seen(each)[1] for each in await watch.take(2)] == ["young", "new"]
    last = await version(client)
    clock.seconds += 86_400
    await client.create(CONFIG_MAPS, config_map("newest"))
    async with client.watch(CONFIG_MAPS, resourceVersion=last) as watch:
        assert seen((await watch.take(1))[0])[1] == "newest"
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, watch="true", resourceVersion=young)


async def test_a_watcher_that_falls_behind_is_told_to_list_again(clock: StillClock) -> None:
    server = ApiServer(clock, ids=counted(), history_events=100)
    client = Client(server)
    async with client.watch(CONFIG_MAPS, resourceVersion=await version(client)) as watch:
        for number in range(2000):
            await client.create(CONFIG_MAPS, config_map(f"c{number}"))
        events = await watch.rest()
    assert events[-1]["type"] == "ERROR"
    assert (events[-1]["object"]["code"], events[-1]["object"]["reason"]) == (410, "Expired")


async def test_a_selecting_watch_sees_objects_come_and_go(client: Client) -> None:
    await client.create(PODS, pod("p", labels={"app": "a"}))
    async with client.watch(PODS, resourceVersion=await version(client), labelSelector="app=a") as watch:
        for label in ("b", "b2", "a"):
            await client.merge(f"{PODS}/p", {"metadata": {"labels": {"app": label}}})
        await client.merge(f"{PODS}/p", {"metadata": {"labels": {"x": "y"}}})
        await client.delete(f"{PODS}/p")
        assert [e["type"] for e in await watch.take(4)] == ["DELETED", "ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_of_one_node_or_one_name(client: Client) -> None:
    start = await version(client)
    async with (
        client.watch(PODS, resourceVersion=start, fieldSelector="spec.nodeName=n1") as on_node,
        client.watch(f"{PODS}/b", resourceVersion=start) as of_b,
    ):
        for name in ("a", "b"):
            await client.create(PODS, pod(name))
        await client.create(f"{PODS}/b/binding", {"target": {"name": "n1"}})
        assert seen(await on_node.next()) == ("ADDED", "b")
        assert [seen(e) for e in await of_b.take(2)] == [("ADDED", "b"), ("MODIFIED", "b")]


async def test_a_watch_stays_in_its_namespace(client: Client) -> None:
    async with client.watch(CONFIG_MAPS, resourceVersion=await version(client)) as watch:
        await client.create("/api/v1/namespaces/kube-system/configmaps", config_map("elsewhere"))
        await client.create(CONFIG_MAPS, config_map("here"))
        assert seen(await watch.next()) == ("ADDED", "here")


async def test_table_watches_name_their_columns_once(client: Client) -> None:
    accept = {"accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    for name in "ab":
        await client.create(CONFIG_MAPS, config_map(name))
    response = await client.send("GET", CONFIG_MAPS, headers=accept, watch="true", timeoutSeconds=1)
    first, second = (json.loads(line)["object"] for line in response.body.splitlines())
    assert first["kind"] == second["kind"] == "Table"
    assert first["columnDefinitions"] and not second["columnDefinitions"]


def on_manual_time(story) -> None:
    async def main() -> None:
        client = Client(ApiServer(LoopClock(), ids=counted()))
        await story(client)

    run_manual(main())


def test_bookmarks_come_every_minute_and_at_the_end() -> None:
    async def story(client: Client) -> None:
        loop = asyncio.get_running_loop()
        start = await version(client)
        query = {"resourceVersion": start, "allowWatchBookmarks": "true", "timeoutSeconds": 150}
        async with client.watch(CONFIG_MAPS, **query) as watch:
            await client.create("/api/v1/nodes", {"metadata": {"name": "n"}})
            first = await watch.next()
            assert loop.time() == pytest.approx(60.0)
            rest = await watch.rest()
        assert loop.time() == pytest.approx(150)
        assert [e["type"] for e in (first, *rest)] == ["BOOKMARK"] * 3
        # A bookmark moves on although nothing that is watched has changed.
        assert int(first["object"]["metadata"]["resourceVersion"]) > start
        assert first["object"]["kind"] == "ConfigMap"

    on_manual_time(story)


def test_a_watch_ends_after_its_timeout_without_bookmarks() -> None:
    async def story(client: Client) -> None:
        async with client.watch(CONFIG_MAPS, timeoutSeconds=10) as watch:
            assert await watch.rest() == []
        assert asyncio.get_running_loop().time() == pytest.approx(10)

    on_manual_time(story)


def test_closing_the_server_ends_its_watches() -> None:
    async def story(client: Client) -> None:
        async with client.watch(CONFIG_MAPS) as watch:
            await client.create(CONFIG_MAPS, config_map("a"))
            closing = asyncio.get_running_loop().create_task(client.server.close())
            assert [seen(e) for e in await watch.rest()] == [("ADDED", "a")]
            await closing

    on_manual_time(story)
