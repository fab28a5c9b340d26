"""What happens to dependents when their owners go."""

from tests.apiserver.serving import CONFIG_MAPS, Client, config_map


def owned(name: str, *owners: dict, block: bool = True) -> dict:
    body = config_map(name)
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return body


async def names(client: Client) -> list[str]:
    await client.server.settle()
    return [item["metadata"]["name"] for item in (await client.get(CONFIG_MAPS))["items"]]


async def family(client: Client) -> None:
    """a owns b and c; b owns d."""
    a = await client.create(CONFIG_MAPS, config_map("a"))
    b = await client.create(CONFIG_MAPS, owned("b", a))
    await client.create(CONFIG_MAPS, owned("c", a))
    await client.create(CONFIG_MAPS, owned("d", b))


async def test_background_takes_the_owner_first_and_then_everything_below(client: Client) -> None:
    await family(client)
    await client.delete(f"{CONFIG_MAPS}/a", propagationPolicy="Background")
    assert not await client.exists(f"{CONFIG_MAPS}/a")
    assert await names(client) == []


async def test_no_policy_means_background(client: Client) -> None:
    await family(client)
    await client.delete(f"{CONFIG_MAPS}/a")
    assert await names(client) == []


async def test_foreground_keeps_the_owner_until_its_dependents_have_gone(client: Client) -> None:
    await family(client)
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    await client.merge(f"{CONFIG_MAPS}/d", hold)
    marked = await client.delete(f"{CONFIG_MAPS}/a", {"propagationPolicy": "Foreground"})
    assert marked["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert await names(client) == ["a", "b", "d"]
    await client.merge(f"{CONFIG_MAPS}/d", {"metadata": {"finalizers": None}})
    assert await names(client) == []


async def test_foreground_does_not_wait_for_dependents_that_do_not_block(client: Client) -> None:
    a = await client.create(CONFIG_MAPS, config_map("a"))
    body = owned("b", a, block=False)
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await client.create(CONFIG_MAPS, body)
    await client.delete(f"{CONFIG_MAPS}/a", {"propagationPolicy": "Foreground"})
    assert await names(client) == ["b"]
    assert "deletionTimestamp" in (await client.get(f"{CONFIG_MAPS}/b"))["metadata"]


async def test_orphan_leaves_the_dependents_without_an_owner(client: Client) -> None:
    await family(client)
    await client.delete(f"{CONFIG_MAPS}/a", {"propagationPolicy": "Orphan"})
    assert await names(client) == ["b", "c", "d"]
    assert "ownerReferences" not in (await client.get(f"{CONFIG_MAPS}/b"))["metadata"]
    assert "ownerReferences" in (await client.get(f"{CONFIG_MAPS}/d"))["metadata"]


async def test_one_living_owner_is_enough(client: Client) -> None:
    a = await client.create(CONFIG_MAPS, config_map("a"))
    b = await client.create(CONFIG_MAPS, config_map("b"))
    await client.create(CONFIG_MAPS, owned("c", a, b))
    await client.delete(f"{CONFIG_MAPS}/a")
    assert await names(client) == ["b", "c"]
    references = (await client.get(f"{CONFIG_MAPS}/c"))["metadata"]["ownerReferences"]
    assert [r["name"] for r in references] == ["b"]
    await client.delete(f"{CONFIG_MAPS}/b")
    assert await names(client) == []


async def test_an_object_born_without_its_owner_is_collected(client: Client) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "11111111-0000-4000-8000-000000000000"}}
    await client.create(CONFIG_MAPS, owned("a", ghost))
    assert await names(client) == []


async def test_owners_of_unknown_kinds_are_taken_to_exist(client: Client) -> None:
    body = owned("a", {"metadata": {"name": "x", "uid": "u"}})
    body["metadata"]["ownerReferences"][0] |= {"apiVersion": "example.com/v1", "kind": "Unicorn"}
    await client.create(CONFIG_MAPS, body)
    assert await names(client) == ["a"]


async def test_an_owner_in_another_namespace_does_not_count(client: Client) -> None:
    a = await client.create("/api/v1/namespaces/kube-system/configmaps", config_map("a"))
    await client.create(CONFIG_MAPS, owned("b", a))
    assert await names(client) == []


async def test_adding_an_owner_that_is_gone_collects_the_object(client: Client) -> None:
    a = await client.create(CONFIG_MAPS, config_map("a"))
    await client.create(CONFIG_MAPS, config_map("b"))
    await client.delete(f"{CONFIG_MAPS}/a")
    await client.merge(f"{CONFIG_MAPS}/b", {"metadata": owned("b", a)["metadata"]})
    assert await names(client) == []


async def test_a_thousand_dependents_do_not_keep_requests_waiting(client: Client) -> None:
    a = await client.create(CONFIG_MAPS, config_map("a"))
    for number in range(1000):
        await client.create(CONFIG_MAPS, owned(f"d{number}", a))
    await client.delete(f"{CONFIG_MAPS}/a")
    during = len((await client.get(CONFIG_MAPS))["items"])
    assert 0 < during < 1001
    assert await names(client) == []
