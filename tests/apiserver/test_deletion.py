"""Deletion: at once, after a grace period, or when the last finalizer has gone."""

from tests.apiserver.serving import CONFIG_MAPS, PODS, Client, StillClock, config_map, pod

HELD = "example.com/hold"


async def test_a_plain_object_goes_at_once_and_says_what_it_was(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a"))
    answer = await client.delete(f"{CONFIG_MAPS}/a")
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert not await client.exists(f"{CONFIG_MAPS}/a")


async def test_finalizers_hold_an_object_until_the_last_is_removed(client: Client) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = [HELD, "example.com/other"]
    await client.create(CONFIG_MAPS, body)
    marked = await client.delete(f"{CONFIG_MAPS}/a")
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    again = await client.delete(f"{CONFIG_MAPS}/a")
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    kept = await client.merge(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": [HELD]}})
    assert kept["metadata"]["finalizers"] == [HELD]
    more = {"metadata": {"finalizers": [HELD, "example.com/third"]}}
    await client.refused(
        422, "Invalid", "PATCH", f"{CONFIG_MAPS}/a", more, kind="application/merge-patch+json"
    )
    await client.merge(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})
    assert not await client.exists(f"{CONFIG_MAPS}/a")


async def test_preconditions_protect_from_deleting_another_object(client: Client) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a"))
    for wrong in ({"uid": "other"}, {"resourceVersion": "1"}):
        await client.refused(409, "Conflict", "DELETE", f"{CONFIG_MAPS}/a", {"preconditions": wrong})
    right = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    await client.delete(f"{CONFIG_MAPS}/a", {"preconditions": right})


async def test_a_running_pod_stays_until_its_node_lets_it_go(client: Client, clock: StillClock) -> None:
    await client.create(PODS, pod("p", node="n1", terminationGracePeriodSeconds=20))
    marked = await client.delete(f"{PODS}/p")
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:20Z"
    clock.seconds += 5
    longer = await client.delete(f"{PODS}/p", {"gracePeriodSeconds": 60})
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 20
    shorter = await client.delete(f"{PODS}/p", gracePeriodSeconds=10)
    assert shorter["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:10Z"
    assert await client.exists(f"{PODS}/p")
    await client.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert not await client.exists(f"{PODS}/p")


async def test_pods_that_run_nowhere_go_at_once(client: Client) -> None:
    await client.create(PODS, pod("pending"))
    await client.create(PODS, pod("done", node="n1"))
    await client.merge(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    await client.create(PODS, pod("forced", node="n1"))
    for name, options in (("pending", None), ("done", None), ("forced", {"gracePeriodSeconds": 0})):
        answer = await client.delete(f"{PODS}/{name}", options)
        assert answer["kind"] == "Pod"
        assert not await client.exists(f"{PODS}/{name}")


async def test_a_pod_with_finalizers_outlives_its_grace_period(client: Client) -> None:
    body = pod("p", node="n1")
    body["metadata"]["finalizers"] = [HELD]
    await client.create(PODS, body)
    await client.delete(f"{PODS}/p")
    await client.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})
    assert (await client.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 0
    await client.merge(f"{PODS}/p", {"metadata": {"finalizers": []}})
    assert not await client.exists(f"{PODS}/p")


async def test_deleting_a_collection_deletes_what_is_selected(client: Client) -> None:
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        body = config_map(name)
        body["metadata"]["labels"] = {"l": label}
        await client.create(CONFIG_MAPS, body)
    await client.create("/api/v1/namespaces/kube-system/configmaps", config_map("a"))
    await client.delete(CONFIG_MAPS, labelSelector="l=x", dryRun="All")
    assert len((await client.get(CONFIG_MAPS))["items"]) == 3
    await client.delete(CONFIG_MAPS, labelSelector="l=x")
    left = await client.get("/api/v1/configmaps")
    assert [item["metadata"]["name"] for item in left["items"]] == ["b", "a"]


async def test_options_that_make_no_sense_are_refused(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map("a"))
    for body in ({"propagationPolicy": "Sideways"}, {"gracePeriodSeconds": "soon"}, {"preconditions": 1}):
        await client.refused(400, "BadRequest", "DELETE", f"{CONFIG_MAPS}/a", body)
