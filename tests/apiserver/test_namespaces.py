"""Namespaces: born active, emptied when deleted, closed to new objects meanwhile."""

from tests.apiserver.serving import Client, config_map, pod

NAMESPACES = "/api/v1/namespaces"


async def test_some_namespaces_always_exist(client: Client) -> None:
    listed = await client.get(NAMESPACES)
    assert [item["metadata"]["name"] for item in listed["items"]] == [
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
    ]


async def test_a_namespace_is_born_active(client: Client) -> None:
    made = await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    assert made["status"] == {"phase": "Active"} and made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    await client.refused(422, "Invalid", "POST", NAMESPACES, {"metadata": {"name": "not.a.label"}})


async def test_an_empty_namespace_goes(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    marked = await client.delete(f"{NAMESPACES}/team")
    assert marked["status"]["phase"] == "Terminating"
    await client.server.settle()
    assert not await client.exists(f"{NAMESPACES}/team")


async def test_contents_go_first_and_nothing_new_comes_in(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    inside = f"{NAMESPACES}/team"
    for number in range(450):
        await client.create(f"{inside}/configmaps", config_map(f"c{number}"))
    await client.create(f"{inside}/pods", pod("p", node="n1"))
    await client.delete(inside)
    answer = await client.refused(403, "Forbidden", "POST", f"{inside}/configmaps", config_map("late"))
    assert answer["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await client.server.settle()
    assert (await client.get(f"{inside}/configmaps"))["items"] == []
    # The pod runs somewhere, so the namespace waits for it.
    assert (await client.get(inside))["status"]["phase"] == "Terminating"
    await client.delete(f"{inside}/pods/p", gracePeriodSeconds=0)
    await client.server.settle()
    assert not await client.exists(inside)
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    await client.create(f"{inside}/configmaps", config_map("again"))


async def test_other_finalizers_hold_a_namespace_too(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team", "finalizers": ["example.com/hold"]}})
    await client.delete(f"{NAMESPACES}/team")
    await client.server.settle()
    left = await client.get(f"{NAMESPACES}/team")
    assert left["spec"]["finalizers"] == []
    await client.merge(f"{NAMESPACES}/team", {"metadata": {"finalizers": None}})
    assert not await client.exists(f"{NAMESPACES}/team")


async def test_finalizers_of_the_spec_have_their_own_door(client: Client) -> None:
    await client.create(NAMESPACES, {"metadata": {"name": "team"}})
    kept = await client.merge(f"{NAMESPACES}/team", {"spec": {"finalizers": []}})
    assert kept["spec"]["finalizers"] == ["kubernetes"]
    kept["spec"]["finalizers"] = ["kubernetes", "example.com/more"]
    changed = await client.update(f"{NAMESPACES}/team/finalize", kept)
    assert changed["spec"]["finalizers"] == ["kubernetes", "example.com/more"]


async def test_the_namespaces_of_the_system_cannot_be_deleted(client: Client) -> None:
    for name in ("default", "kube-system", "kube-public"):
        await client.refused(403, "Forbidden", "DELETE", f"{NAMESPACES}/{name}")
