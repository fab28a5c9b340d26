"""Create, read, update and delete, and the errors they answer with."""

from tests.apiserver.serving import CONFIG_MAPS, Client, config_map


async def test_a_created_object_is_read_back_as_it_was_answered(client: Client) -> None:
    created = await client.create(CONFIG_MAPS, config_map("a", key="value"))
    assert created["metadata"]["uid"] and created["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert await client.get(f"{CONFIG_MAPS}/a") == created
    listed = await client.get(CONFIG_MAPS)
    assert listed["items"] == [created]
    assert listed["kind"] == "ConfigMapList"


async def test_a_watch_sees_each_change_once_and_in_order(client: Client) -> None:
    start = (await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    async with client.watch(CONFIG_MAPS, resourceVersion=start) as watch:
        made = await client.create(CONFIG_MAPS, config_map("a"))
        made["data"] = {"k": "v"}
        await client.update(f"{CONFIG_MAPS}/a", made)
        await client.delete(f"{CONFIG_MAPS}/a")
        assert [e["type"] for e in await watch.take(3)] == ["ADDED", "MODIFIED", "DELETED"]


async def test_what_is_not_there_is_a_404_status(client: Client) -> None:
    answer = await client.refused(404, "NotFound", "GET", f"{CONFIG_MAPS}/missing")
    assert answer["details"] == {"name": "missing", "kind": "configmaps"}
    await client.refused(404, "NotFound", "GET", "/api/v1/unicorns")
    await client.refused(404, "NotFound", "GET", "/nowhere")
