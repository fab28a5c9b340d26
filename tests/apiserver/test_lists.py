"""Lists: order, selectors, versions, and pages that agree with each other."""

import pytest

from karpool_fleet.apiserver.verbs import get_and_list
from tests.apiserver.serving import CONFIG_MAPS, PODS, Client, StillClock, config_map, pod


def names(answer: dict) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


async def fill(client: Client, count: int) -> None:
    for number in range(count):
        await client.create(CONFIG_MAPS, config_map(f"c{number:03d}"))


async def test_lists_are_sorted_by_namespace_and_name(client: Client) -> None:
    for namespace, name in (("kube-system", "a"), ("default", "z"), ("default", "b"), ("default", "m")):
        await client.create(f"/api/v1/namespaces/{namespace}/configmaps", config_map(name))
    await client.delete(f"{CONFIG_MAPS}/m")
    listed = await client.get("/api/v1/configmaps")
    assert names(listed) == ["b", "z", "a"]
    assert names(await client.get(CONFIG_MAPS)) == ["b", "z"]


async def test_pages_show_the_state_of_the_first_page(client: Client) -> None:
    await fill(client, 10)
    page = await client.get(CONFIG_MAPS, limit=4)
    version = page["metadata"]["resourceVersion"]
    assert page["metadata"]["remainingItemCount"] == 6
    found = names(page)
    await client.delete(f"{CONFIG_MAPS}/c007")
    await client.create(CONFIG_MAPS, config_map("c005a"))
    await client.merge(f"{CONFIG_MAPS}/c008", {"data": {"new": "yes"}})
    while token := page["metadata"].get("continue"):
        page = await client.get(CONFIG_MAPS, limit=4, **{"continue": token})
        assert page["metadata"]["resourceVersion"] == version
        assert not any("data" in item and "new" in item["data"] for item in page["items"])
        found += names(page)
    assert found == [f"c{number:03d}" for number in range(10)]


async def test_an_expired_page_offers_to_go_on_from_the_newest_state(
    client: Client, clock: StillClock
) -> None:
    await fill(client, 6)
    first = await client.get(CONFIG_MAPS, limit=2)
    await client.delete(f"{CONFIG_MAPS}/c003")
    clock.seconds += get_and_list._HELD_SECONDS + 1
    answer = await client.refused(
        410, "Expired", "GET", CONFIG_MAPS, limit=2, **{"continue": first["metadata"]["continue"]}
    )
    rest = await client.get(CONFIG_MAPS, **{"continue": answer["metadata"]["continue"]})
    assert names(rest) == ["c002", "c004", "c005"]


async def test_only_so_many_unfinished_lists_are_kept(client: Client) -> None:
    await fill(client, 3)
    first = await client.get(CONFIG_MAPS, limit=1)
    for _ in range(get_and_list._HELD_LISTS):
        await client.merge(f"{CONFIG_MAPS}/c000", {"data": {"n": str(_)}})
        await client.get(CONFIG_MAPS, limit=1)
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, **{"continue": first["metadata"]["continue"]})


@pytest.mark.parametrize("token", ["x", "bm9uc2Vuc2U", "WzEsMiwzXQ", "🦄"])
async def test_invented_tokens_are_refused(client: Client, token: str) -> None:
    await client.refused(400, "BadRequest", "GET", CONFIG_MAPS, **{"continue": token})


async def test_pages_of_a_selection_hold_only_what_is_selected(client: Client) -> None:
    for number in range(9):
        body = config_map(f"c{number}")
        body["metadata"]["labels"] = {"odd": str(number % 2)}
        await client.create(CONFIG_MAPS, body)
    page = await client.get(CONFIG_MAPS, limit=2, labelSelector="odd=1")
    assert names(page) == ["c1", "c3"] and "remainingItemCount" not in page["metadata"]
    rest = await client.get(
        CONFIG_MAPS, limit=2, labelSelector="odd=1", **{"continue": page["metadata"]["continue"]}
    )
    assert names(rest) == ["c5", "c7"] and "continue" not in rest["metadata"]


async def test_label_selectors(client: Client) -> None:
    for name, labels in {"a": {"app": "x"}, "b": {"app": "y", "old": ""}, "c": {}}.items():
        body = config_map(name)
        body["metadata"]["labels"] = labels
        await client.create(CONFIG_MAPS, body)
    for selector, expected in {
        "app=x": ["a"],
        "app!=x": ["b", "c"],
        "app in (x,y),!old": ["a"],
        "app notin (x)": ["b", "c"],
        "old": ["b"],
        "": ["a", "b", "c"],
    }.items():
        assert names(await client.get(CONFIG_MAPS, labelSelector=selector)) == expected, selector
    await client.refused(400, "BadRequest", "GET", CONFIG_MAPS, labelSelector="a==(")


async def test_field_selectors(client: Client) -> None:
    await client.create(PODS, pod("a", node="n1"))
    await client.create(PODS, pod("b", node="n2", restartPolicy="Never"))
    await client.create(PODS, pod("c"))
    for selector, expected in {
        "spec.nodeName=n1": ["a"],
        "spec.nodeName=": ["c"],
        "spec.nodeName!=n1": ["b", "c"],
        "spec.nodeName!=n1,spec.restartPolicy==Always": ["c"],
        "metadata.name=b": ["b"],
        "metadata.namespace=default,metadata.name!=b": ["a", "c"],
        "metadata.name=unknown": [],
        "status.phase=Pending": ["a", "b", "c"],
        "status.phase=Running": [],
    }.items():
        assert names(await client.get(PODS, fieldSelector=selector)) == expected, selector
    for wrong in ("spec.unicorn=1", "status.conditions[Ready]=true", "nonsense"):
        await client.refused(400, "BadRequest", "GET", PODS, fieldSelector=wrong)


async def test_nodes_and_events_and_secrets_have_their_own_fields(client: Client) -> None:
    await client.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}})
    await client.create("/api/v1/nodes", {"metadata": {"name": "n2"}})
    assert names(await client.get("/api/v1/nodes", fieldSelector="spec.unschedulable=true")) == ["n1"]
    assert names(await client.get("/api/v1/nodes", fieldSelector="spec.unschedulable=false")) == ["n2"]
    events = "/api/v1/namespaces/default/events"
    about = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "Started"}
    await client.create(events, {"metadata": {"name": "e"}, "type": "Normal", **about})
    assert names(await client.get(events, fieldSelector="involvedObject.name=p,type=Normal")) == ["e"]
    assert names(await client.get(events, fieldSelector="reason=Killing")) == []


async def test_list_versions(client: Client) -> None:
    await fill(client, 2)
    current = int((await client.get(CONFIG_MAPS))["metadata"]["resourceVersion"])
    for version in ("0", str(current), "1"):
        assert len(names(await client.get(CONFIG_MAPS, resourceVersion=version))) == 2
    at_least = {"resourceVersionMatch": "NotOlderThan"}
    assert len(names(await client.get(CONFIG_MAPS, resourceVersion=1, **at_least))) == 2
    exact = {"resourceVersionMatch": "Exact"}
    assert len(names(await client.get(CONFIG_MAPS, resourceVersion=current, **exact))) == 2
    await client.refused(410, "Expired", "GET", CONFIG_MAPS, resourceVersion=2, **exact)
    await client.refused(504, "Timeout", "GET", CONFIG_MAPS, resourceVersion=current + 1)
    for wrong in ({"resourceVersion": "x"}, exact, {"resourceVersion": "0", **exact}, {"limit": "-1"}):
        await client.refused(400, "BadRequest", "GET", CONFIG_MAPS, **wrong)


async def test_lists_come_as_tables_or_metadata_when_asked(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a", k="v"))
    as_ = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
    table = await client.get(CONFIG_MAPS, headers={"accept": as_.format("Table")})
    assert table["kind"] == "Table" and table["rows"][0]["cells"][0] == "a"
    partial = await client.get(CONFIG_MAPS, headers={"accept": as_.format("PartialObjectMetadataList")})
    assert partial["kind"] == "PartialObjectMetadataList"
    assert partial["items"][0]["metadata"]["name"] == "a" and "data" not in partial["items"][0]
    one = await client.get(f"{CONFIG_MAPS}/a", headers={"accept": as_.format("PartialObjectMetadata")})
    assert one["kind"] == "PartialObjectMetadata" and "data" not in one
    await client.refused(406, "NotAcceptable", "GET", CONFIG_MAPS, headers={"accept": "text/html"})
