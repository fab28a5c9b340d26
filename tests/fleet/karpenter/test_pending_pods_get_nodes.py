"""Pods that find no room get nodes, through claims that say at every moment how far they are."""

import asyncio
from typing import Any

import pytest

from karpool.model.karpenter.objects import (
    CAPACITY_TYPE,
    INITIALIZED,
    NODEPOOL,
    ON_DEMAND,
    REGISTERED,
    SPOT,
    TERMINATION_FINALIZER,
    UNREGISTERED,
)
from karpool.model.kubernetes.api_resources import DAEMONSETS, NODECLAIMS, NODES, PODS
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE, ZONE
from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.karpenter.settings import KarpenterSettings
from tests.fleet.karpenter.acting import Stage, play, pod, since, status_of


def test_a_hundred_pods_get_the_nodes_they_need_and_no_more() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(100)
        await stage.all_run(100)

        claims = await stage.claims()
        assert len(claims) == len(stage.cloud.instances) == 15  # 7 pods on each of 8 CPUs, less what is kept
        assert all(status_of(claim, "Ready") == ("True", "Ready") for claim in claims)
        await asyncio.sleep(120)
        assert len(await stage.claims()) == 15

    play(story)


def test_a_claim_is_launched_registered_and_initialised_in_this_order() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(1)
        await stage.all_run(1)
        (claim,) = await stage.claims()
        created = parse_rfc3339(claim.metadata.creation_timestamp or "")

        assert since(claim, "Launched") == created + 3
        assert since(claim, "Registered") == created + 3 + 20
        assert since(claim, "Initialized") == since(claim, "Ready") == created + 3 + 20 + 10

    play(story)


def test_while_a_claim_waits_its_conditions_say_for_what() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(template={"startupTaints": [{"key": "agent", "effect": "NoSchedule"}]})
        await stage.pods(1)
        await asyncio.sleep(8)
        (claim,) = await stage.claims()
        assert status_of(claim, "Launched") == ("True", "Launched")
        assert status_of(claim, "Registered") == ("Unknown", "NodeNotFound")
        assert status_of(claim, "Ready") == ("Unknown", "ReconcilingDependents")
        assert since(claim, "Registered") == parse_rfc3339(claim.metadata.creation_timestamp or "")

        await asyncio.sleep(20)
        (claim,) = await stage.claims()
        assert status_of(claim, "Registered") == ("True", "Registered")
        assert status_of(claim, "Initialized") == ("Unknown", "NodeNotReady")

        await asyncio.sleep(10)
        (claim,) = await stage.claims()
        assert status_of(claim, "Initialized") == ("Unknown", "StartupTaintsExist")

        (node,) = await stage.nodes()
        assert await stage.running() == []
        await stage.admin.patch(NODES, node.name, {"spec": {"taints": None}})
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert status_of(claim, "Initialized") == ("True", "Initialized")

    play(story)


def test_a_node_is_not_initialised_before_its_devices_are_there() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.boot_badly(device_seconds=300)
        await stage.pool()
        body = pod("trainer")
        body["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
        await stage.admin.create(PODS, body)
        await asyncio.sleep(60)
        (claim,) = await stage.claims()
        assert claim.labels[INSTANCE_TYPE] == "accelerated"
        assert status_of(claim, "Registered")[0] == "True"
        assert status_of(claim, "Initialized") == ("Unknown", "ResourceNotRegistered")
        await asyncio.sleep(200)
        assert len(await stage.claims()) == 1  # what the claim promises counts until then
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert status_of(claim, "Initialized")[0] == "True"

    play(story)


def test_the_claim_is_shaped_as_karpenter_shapes_it() -> None:
    async def story(stage: Stage) -> dict[str, Any]:
        await stage.pool(
            types=("medium", "large"),
            labels={"team": "a"},
            template={
                "taints": [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}],
                "expireAfter": "100h",
                "terminationGracePeriod": "1h",
            },
        )
        tolerations = [{"key": "dedicated", "operator": "Exists"}]
        await stage.pods(2, tolerations=tolerations, nodeSelector={ZONE: "zone-b"})
        await stage.all_run(2)
        return (await stage.admin.list(NODECLAIMS)).items[0]

    claim = play(story)
    meta, spec = claim["metadata"], claim["spec"]
    assert meta["name"].startswith("general-")
    assert meta["finalizers"] == [TERMINATION_FINALIZER]
    assert meta["ownerReferences"][0]["kind"] == "NodePool"
    assert meta["ownerReferences"][0]["blockOwnerDeletion"] is True
    assert meta["annotations"]["karpenter.sh/nodepool-hash-version"] == "v3"
    assert meta["labels"] == {
        **meta["labels"],
        NODEPOOL: "general",
        "team": "a",
        "karpenter.kwok.sh/kwoknodeclass": "default",
        ZONE: "zone-b",
        INSTANCE_TYPE: "medium",
        CAPACITY_TYPE: ON_DEMAND,
    }
    wanted = {each["key"]: each.get("values") for each in spec["requirements"]}
    assert wanted[INSTANCE_TYPE] == ["large", "medium"]
    assert wanted[ZONE] == ["zone-b"]
    assert wanted[CAPACITY_TYPE] == [ON_DEMAND]
    assert spec["resources"]["requests"] == {"cpu": "2", "memory": "2Gi", "pods": "2"}
    assert spec["taints"] == [{"key": "dedicated", "value": "a", "effect": "NoSchedule"}]
    assert (spec["expireAfter"], spec["terminationGracePeriod"]) == ("100h", "1h")
    assert claim["status"]["capacity"]["cpu"] == "4"
    assert claim["status"]["allocatable"]["cpu"] == "3900m"
    assert claim["status"]["providerID"].startswith("embedded:///zone-b/")


def test_registration_brings_the_node_in_line_with_its_claim() -> None:
    async def story(stage: Stage) -> tuple[Any, Any]:
        await stage.pool(labels={"team": "a"}, template={"taints": [{"key": "d", "effect": "NoSchedule"}]})
        await stage.pods(1, tolerations=[{"key": "d", "operator": "Exists"}])
        await stage.all_run(1)
        return (await stage.nodes())[0], (await stage.claims())[0]

    node, claim = play(story)
    assert node.labels[REGISTERED] == node.labels[INITIALIZED] == "true"
    assert node.labels["team"] == "a"
    assert UNREGISTERED not in node.spec.taints
    assert [taint.key for taint in node.spec.taints] == ["d"]
    assert node.metadata.finalizers == [TERMINATION_FINALIZER]
    assert [owner.uid for owner in node.metadata.owner_references] == [claim.metadata.uid]
    assert node.annotations["karpenter.sh/nodepool-hash"] == claim.annotations["karpenter.sh/nodepool-hash"]
    assert claim.status.node_name == node.name
    assert claim.provider_id == node.spec.provider_id


@pytest.mark.parametrize(("gap", "batches"), [(0.5, 1), (2.0, 2)])
def test_pods_that_come_close_together_are_planned_together(gap: float, batches: int) -> None:
    async def story(stage: Stage) -> int:
        await stage.pool(types=("small",))
        await asyncio.sleep(1)
        for number in range(3):
            await stage.admin.create(PODS, pod(f"p-{number}"))
            await asyncio.sleep(gap)
        await stage.all_run(3)
        return len({claim.metadata.creation_timestamp for claim in await stage.claims()})

    # While the first claim has no machine nothing is planned, so the other two wait for their next turn.
    assert play(story) == batches


def test_every_pod_is_told_where_it_should_go() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(5)
        await stage.all_run(5)
        (claim,) = await stage.claims()
        events = await stage.events("Nominated")
        assert {event["involvedObject"]["name"] for event in events} == {f"web-{n:03}" for n in range(5)}
        first = [event for event in events if event["message"].endswith(f"nodeclaim/{claim.name}")]
        assert len(first) == 5

    play(story)


def test_a_pod_that_no_pool_can_hold_is_told_why_once() -> None:
    async def story(stage: Stage) -> list[Any]:
        await stage.pool()
        await stage.pods(1, cpu="64")
        await asyncio.sleep(100)
        assert await stage.claims() == []
        return await stage.events("FailedScheduling")

    (event,) = play(story)
    assert event["type"] == "Warning"
    assert event["count"] == 1
    assert "64 cpu" in event["message"]


def test_daemons_are_counted_before_they_run() -> None:
    async def story(stage: Stage) -> str:
        await stage.admin.create(
            DAEMONSETS,
            {
                "metadata": {"name": "agent", "namespace": "default"},
                "spec": {
                    "selector": {"matchLabels": {"app": "agent"}},
                    "template": {
                        "metadata": {"labels": {"app": "agent"}},
                        "spec": {
                            "containers": [
                                {"name": "a", "image": "a", "resources": {"requests": {"cpu": "1"}}}
                            ]
                        },
                    },
                },
            },
        )
        await stage.pool()
        await stage.pods(1, cpu="1500m")
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert claim.spec.resources is not None and claim.spec.resources.requests is not None
        assert claim.spec.resources.requests["cpu"] == "2500m"
        return claim.labels[INSTANCE_TYPE]

    assert play(story) == "medium"  # 1.5 would fit on two CPUs, 2.5 does not


def test_a_node_still_on_its_way_is_room_for_the_next_pod() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("large",))
        await stage.pods(1, prefix="first")
        await asyncio.sleep(10)
        await stage.pods(4, prefix="later")
        await stage.all_run(5)
        assert len(await stage.claims()) == 1

    play(story)


def test_the_cheapest_way_to_buy_is_taken_and_spot_where_it_is_allowed() -> None:
    async def story(stage: Stage) -> tuple[str, str]:
        await stage.pool(kinds=(ON_DEMAND, SPOT))
        await stage.pods(1)
        await stage.all_run(1)
        (claim,) = await stage.claims()
        return claim.labels[INSTANCE_TYPE], claim.labels[CAPACITY_TYPE]

    assert play(story) == ("small", SPOT)


def test_the_heavier_pool_comes_first() -> None:
    async def story(stage: Stage) -> list[str]:
        await stage.pool("light", weight=1)
        await stage.pool("heavy", weight=10)
        await stage.pods(3)
        await stage.all_run(3)
        return [claim.pool_name for claim in await stage.claims()]

    assert play(story) == ["heavy"]


def test_the_same_seed_gives_the_same_cluster() -> None:
    async def story(stage: Stage) -> list[Any]:
        await stage.pool(kinds=(ON_DEMAND, SPOT))
        await stage.pods(20)
        await stage.all_run(20)
        return [(await stage.admin.list(kind)).items for kind in (NODECLAIMS, NODES, PODS)]

    assert play(story, seed=3) == play(story, seed=3)
    assert play(story, seed=3) != play(story, seed=4)


def test_an_idle_cluster_is_left_alone() -> None:
    async def story(stage: Stage) -> int:
        await stage.pool()
        await stage.pods(3)
        await stage.all_run(3)
        await asyncio.sleep(60)
        before = stage.cluster.faults.writes["karpenter"]
        await asyncio.sleep(3600)
        return stage.cluster.faults.writes["karpenter"] - before

    assert play(story, settings=KarpenterSettings()) == 0


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["i-1"]}]}, HOSTNAME),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["i-1"]}]}, "matchFields"),
        ({"matchExpressions": [{"key": "karpenter.sh/registered", "operator": "Exists"}]}, "registered"),
    ],
)
def test_a_pod_that_says_too_much_about_its_node_is_refused(entry: Any, word: str) -> None:
    """Even where any new node would do: upstream looks at the key alone."""

    async def story(stage: Stage) -> None:
        await stage.pool()
        terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [entry]}}
        await stage.pods(1, affinity={"nodeAffinity": terms})
        await asyncio.sleep(30)
        assert await stage.claims() == []
        (event,) = await stage.events("FailedScheduling")
        assert word in event["message"]

    play(story)
