"""Evictions and the disruption budgets that limit them."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from karpool_fleet.apiserver.serve.server import ApiServer
from tests.apiserver.serving import PODS, Client, StillClock, counted, pod

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def budget(name: str = "b", **spec: object) -> dict:
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "a"}}, **spec}}


async def running(
    client: Client, name: str, *, ready: bool = True, app: str = "a", owner: dict | None = None
) -> None:
    body = pod(name, node="n1", labels={"app": app})
    if owner is not None:
        reference = {"apiVersion": "apps/v1", "kind": owner["kind"], "controller": True}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        body["metadata"]["ownerReferences"] = [reference]
    await client.create(PODS, body)
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    await client.merge(f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": [condition]}})


async def evict(client: Client, name: str, **options: object) -> tuple[int, dict]:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **options}
    return await client.call("POST", f"{PODS}/{name}/eviction", body)


async def status(client: Client, name: str = "b") -> dict:
    await client.server.settle()
    return (await client.get(f"{BUDGETS}/{name}"))["status"]


async def test_without_a_budget_an_eviction_is_a_deletion(client: Client) -> None:
    await running(client, "p")
    code, answer = await evict(client, "p", deleteOptions={"gracePeriodSeconds": 5})
    assert (code, answer["status"]) == (201, "Success")
    assert (await client.get(f"{PODS}/p"))["metadata"]["deletionGracePeriodSeconds"] == 5


async def test_a_budget_counts_its_pods(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=2))
    for number in range(3):
        await running(client, f"p{number}", ready=number != 1)
    await running(client, "other", app="z")
    found = await status(client)
    assert (found["expectedPods"], found["currentHealthy"], found["desiredHealthy"]) == (3, 2, 2)
    assert (found["disruptionsAllowed"], found["observedGeneration"]) == (0, 1)
    condition = {"type": "Ready", "status": "True"}
    await client.merge(f"{PODS}/p1/status", {"status": {"conditions": [condition]}})
    assert (await status(client))["disruptionsAllowed"] == 1
    await client.merge(f"{BUDGETS}/b", {"spec": {"minAvailable": 1}})
    found = await status(client)
    assert (found["disruptionsAllowed"], found["observedGeneration"]) == (2, 2)
    await client.merge(f"{PODS}/p0", {"metadata": {"labels": {"app": "z"}}})
    assert (await status(client))["expectedPods"] == 2


async def test_an_eviction_the_budget_cannot_bear_is_429(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=1))
    await running(client, "p")
    code, answer = await evict(client, "p")
    assert (code, answer["reason"]) == (429, "TooManyRequests")
    assert answer["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in (await client.get(f"{PODS}/p"))["metadata"]
    await running(client, "q")
    assert (await evict(client, "p"))[0] == 201


async def test_concurrent_evictions_never_spend_one_allowance_twice(client: Client) -> None:
    await client.create(BUDGETS, budget(maxUnavailable=1))
    for number in range(5):
        await running(client, f"p{number}")
    answers = await asyncio.gather(*(evict(client, f"p{number}") for number in range(5)))
    assert sorted(code for code, _ in answers) == [201, 429, 429, 429, 429]


async def test_an_allowance_comes_back_with_a_new_healthy_pod(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=2))
    for name in ("p", "q", "r"):
        await running(client, name)
    assert (await evict(client, "p"))[0] == 201
    assert (await evict(client, "q"))[0] == 429
    await client.delete(f"{PODS}/p", gracePeriodSeconds=0)
    assert (await evict(client, "q"))[0] == 429
    await running(client, "s")
    assert (await evict(client, "q"))[0] == 201


async def test_an_eviction_is_charged_before_the_pod_goes(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=1))
    for name in ("p", "q", "r"):
        await running(client, name)
    before = await status(client)
    version = (await client.get(BUDGETS))["metadata"]["resourceVersion"]
    async with client.watch(BUDGETS, resourceVersion=version) as watch:
        assert (await evict(client, "p"))[0] == 201
        charged = (await watch.next())["object"]
        deleted = await client.get(f"{PODS}/p")
    assert charged["status"]["disruptionsAllowed"] == before["disruptionsAllowed"] - 1
    assert list(charged["status"]["disruptedPods"]) == ["p"]
    assert int(charged["metadata"]["resourceVersion"]) < int(deleted["metadata"]["resourceVersion"])
    after = await status(client)
    assert (after["disruptionsAllowed"], after.get("disruptedPods")) == (1, None)


async def test_two_budgets_over_one_pod_are_a_mistake_worth_a_500(client: Client) -> None:
    for name in ("b", "c"):
        await client.create(BUDGETS, budget(name, maxUnavailable=1))
    await running(client, "p")
    code, answer = await evict(client, "p")
    assert code == 500 and "b, c" in answer["message"]


async def test_pods_that_serve_nobody_can_always_go(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=9))
    await client.create(PODS, pod("pending", labels={"app": "a"}))
    await running(client, "done")
    await client.merge(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    for name in ("pending", "done"):
        assert (await evict(client, name))[0] == 201


async def test_unready_pods_follow_the_policy_of_the_budget(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=1))
    await running(client, "sick", ready=False)
    assert (await evict(client, "sick"))[0] == 429  # nothing is healthy, so nothing may go
    await running(client, "well")
    assert (await evict(client, "sick"))[0] == 201  # the budget is healthy without it
    assert (await evict(client, "well"))[0] == 429
    always = {"spec": {"minAvailable": 5, "unhealthyPodEvictionPolicy": "AlwaysAllow"}}
    await client.merge(f"{BUDGETS}/b", always)
    await running(client, "sick2", ready=False)
    assert (await evict(client, "sick2"))[0] == 201


async def test_percentages_are_of_what_the_owner_asks_for(client: Client) -> None:
    template = {
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": 10, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    path = "/apis/apps/v1/namespaces/default/replicasets"
    owner = await client.create(path, {"metadata": {"name": "rs"}, "spec": spec})
    await client.create(BUDGETS, budget(maxUnavailable="25%"))
    for number in range(8):
        await running(client, f"p{number}", owner=owner)
    found = await status(client)
    assert (found["expectedPods"], found["desiredHealthy"], found["disruptionsAllowed"]) == (10, 7, 1)
    await client.merge(f"{path}/rs", {"spec": {"replicas": 4}})
    found = await status(client)
    assert (found["expectedPods"], found["desiredHealthy"], found["disruptionsAllowed"]) == (4, 3, 5)


async def test_a_dry_run_charges_nobody(client: Client) -> None:
    await client.create(BUDGETS, budget(minAvailable=1))
    for name in ("p", "q"):
        await running(client, name)
    before = await status(client)
    body = {"metadata": {"name": "p"}}
    code, _ = await client.call("POST", f"{PODS}/p/eviction", body, dryRun="All")
    assert code == 201 and await status(client) == before
    assert "deletionTimestamp" not in (await client.get(f"{PODS}/p"))["metadata"]


@settings(max_examples=25, deadline=None)
@given(
    pods=st.integers(1, 8),
    field=st.sampled_from(["minAvailable", "maxUnavailable"]),
    value=st.one_of(st.integers(0, 9), st.integers(0, 100).map(lambda n: f"{n}%")),
    order=st.lists(st.integers(0, 7), min_size=1, max_size=16),
)
def test_evictions_never_leave_fewer_healthy_pods_than_the_budget_wants(
    pods: int, field: str, value: object, order: list[int]
) -> None:
    async def story() -> None:
        client = Client(ApiServer(StillClock(), ids=counted()))
        await client.create(BUDGETS, budget(**{field: value}))
        for number in range(pods):
            await running(client, f"p{number}")
        desired = (await status(client))["desiredHealthy"]
        evicted = 0
        for number in order:
            if number < pods:
                before = await client.get(f"{PODS}/p{number}")
                code, _ = await evict(client, f"p{number}")
                evicted += code == 201 and "deletionTimestamp" not in before["metadata"]
        assert pods - evicted >= min(desired, pods)
        after = await status(client)
        assert after["currentHealthy"] == pods - evicted

    asyncio.run(story())
