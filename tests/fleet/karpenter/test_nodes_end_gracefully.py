"""However a node's end begins, its pods are moved within their rights and nothing is left behind."""

import asyncio

import pytest

from karpool.model.karpenter.objects import DISRUPTED, SPOT, TERMINATION_TIMESTAMP
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODES, PDBS, PODS
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.karpenter.settings import KarpenterSettings
from tests.fleet.karpenter.acting import Stage, play, pod, status_of

PROTECTED = {"karpenter.sh/do-not-disrupt": "true"}


async def one_node(stage: Stage, pods: int = 1, **template: object) -> str:
    """The name of the only claim, whose node runs all pods."""
    await stage.pool(types=("large",), template=template)
    await stage.pods(pods)
    await stage.all_run(pods)
    (claim,) = await stage.claims()
    return claim.name


@pytest.mark.parametrize("kind", ["claim", "node"])
def test_deleting_the_claim_or_the_node_comes_to_the_same(kind: str) -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage, 5)
        (node,) = await stage.nodes()
        if kind == "claim":
            await stage.admin.delete(NODECLAIMS, claim)
        else:
            await stage.admin.delete(NODES, node.name)
        await asyncio.sleep(1)
        (node,) = await stage.nodes()
        assert DISRUPTED in (node.spec.taints or ())
        assert node.labels["node.kubernetes.io/exclude-from-external-load-balancers"] == "karpenter"
        assert status_of((await stage.claims())[0], "Drained") == ("Unknown", "Draining")
        await stage.empty()
        assert len(await stage.events("Evicted")) == 5

    play(story)


def test_a_node_is_closed_for_five_seconds_at_least_and_outlived_by_its_claim() -> None:
    order: list[str] = []

    async def story(stage: Stage) -> None:
        claim = await one_node(stage)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(5)
        start = stage.now
        await stage.admin.delete(NODECLAIMS, claim)

        async def look() -> bool:
            claims, nodes = await stage.claims(), await stage.nodes()
            if claims and status_of(claims[0], "InstanceTerminating")[0] == "True":
                assert stage.now - start >= 4
                assert status_of(claims[0], "Drained")[0] == "True"
                assert status_of(claims[0], "VolumesDetached")[0] == "True"
            assert claims or not nodes, "the claim went before its node"
            assert not stage.cloud.instances or nodes, "the node went before its machine"
            if not order or order[-1] != f"{len(claims)}{len(nodes)}":
                order.append(f"{len(claims)}{len(nodes)}")
            return not claims

        for _ in range(2000):
            if await look():
                break
            await asyncio.sleep(0.01)
        assert stage.now - start >= 4 + 5  # times in conditions are whole seconds

    play(story)
    assert order[0] == "11"
    assert order[-1] == "00"


def test_a_budget_holds_the_drain_until_it_allows_it() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage, 3)
        await stage.budget("web", minAvailable=3)
        await asyncio.sleep(2)
        await stage.admin.delete(NODECLAIMS, claim)
        await asyncio.sleep(600)
        assert len(await stage.running()) == 3
        assert len(stage.cloud.instances) == 2  # room for the pods that have to go was bought at once
        assert await stage.events("FailedDraining")
        await stage.admin.patch(PDBS, "web", {"spec": {"minAvailable": 2}}, namespace="default")

        async def fewer() -> bool:
            return len(await stage.running()) == 2

        await stage.until(fewer, seconds=30)
        await asyncio.sleep(60)
        assert len(await stage.running()) == 2
        await stage.admin.delete(PDBS, "web", namespace="default")
        await stage.gone(claim)

    play(story)


def test_a_pod_that_must_not_be_disrupted_stalls_the_drain_for_ever() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage)
        await stage.admin.create(PODS, pod("precious", annotations=PROTECTED))
        await stage.all_run(2)
        await stage.admin.delete(NODECLAIMS, claim)
        await asyncio.sleep(2 * 3600)
        assert [each.name for each in await stage.running()] == ["precious"]
        await stage.admin.delete(PODS, "precious", namespace="default")
        await stage.empty(seconds=60)

    play(story)


def test_a_protection_that_runs_out_ends_the_stall() -> None:
    async def story(stage: Stage) -> float:
        claim = await one_node(stage)
        annotations = {"karpenter.sh/do-not-disrupt": "10m"}
        await stage.admin.create(PODS, pod("busy", annotations=annotations))
        await stage.all_run(2)
        start = stage.now
        await stage.admin.delete(NODECLAIMS, claim)
        await stage.empty(seconds=900)
        return stage.now - start

    assert 590 <= play(story) <= 630


def test_with_a_grace_period_the_deadline_wins_over_every_protection() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage, 2, terminationGracePeriod="10m")
        await stage.budget("web", minAvailable=2)
        await stage.admin.create(
            PODS, pod("precious", app="other", annotations=PROTECTED, terminationGracePeriodSeconds=120)
        )
        await stage.all_run(3)
        start = stage.now
        await stage.admin.delete(NODECLAIMS, claim)
        await asyncio.sleep(2)
        deadline = (await stage.admin.get(NODECLAIMS, claim))["metadata"]["annotations"][
            TERMINATION_TIMESTAMP
        ]
        assert parse_rfc3339(deadline) == parse_rfc3339(rfc3339(start)) + 600
        assert await stage.events("TerminationGracePeriodExpiring")
        await asyncio.sleep(start + 600 - 120 - 5 - stage.now)
        assert len(await stage.running()) == 3
        await asyncio.sleep(20)
        assert {each.name for each in await stage.running()} == {"web-000", "web-001"}  # it needed longer
        await asyncio.sleep(start + 600 - 30 + 5 - stage.now)
        assert await stage.running() == []
        await stage.gone(claim)

    play(story)


def test_ordinary_pods_leave_before_critical_ones() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage, 2)
        await stage.budget("web", minAvailable=2)
        await stage.admin.create(PODS, pod("vital", app="vital", priorityClassName="system-cluster-critical"))
        await stage.all_run(3)
        await stage.admin.delete(NODECLAIMS, claim)
        await asyncio.sleep(120)
        assert len(await stage.running()) == 3
        await stage.admin.delete(PDBS, "web", namespace="default")
        await stage.gone(claim)
        times = {
            event["involvedObject"]["name"]: parse_rfc3339(event["firstTimestamp"])
            for event in await stage.events("Evicted")
        }
        assert times["vital"] >= max(times["web-000"], times["web-001"])

    play(story)


def test_pods_that_tolerate_the_taint_go_down_with_the_node() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage)
        tolerations = [{"operator": "Exists"}]
        await stage.admin.create(PODS, pod("agent", tolerations=tolerations))
        await stage.all_run(2)
        await stage.admin.delete(NODECLAIMS, claim)
        await stage.gone(claim)
        assert {event["involvedObject"]["name"] for event in await stage.events("Evicted")} == {"web-000"}

    play(story)


def test_the_spot_market_takes_a_machine_back_after_its_pods_have_left() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(kinds=(SPOT,), types=("large",))
        await stage.pods(3)
        await stage.all_run(3)
        (claim,) = await stage.claims()
        (instance,) = stage.cloud.instances.values()
        stage.cloud.interrupt(instance.id)
        await asyncio.sleep(60)
        assert claim.name not in [each.name for each in await stage.claims()]
        assert instance.id not in stage.cloud.instances
        kinds = {event["involvedObject"]["kind"] for event in await stage.events("SpotInterrupted")}
        assert kinds == {"NodeClaim", "Node"}
        assert len(await stage.events("Evicted")) == 3
        await stage.pods(1, prefix="next")
        await stage.all_run(1)
        (other,) = stage.cloud.instances.values()
        assert other.offer != instance.offer

    play(story)


@pytest.mark.parametrize("hears", [True, False])
def test_a_machine_that_dies_unannounced_is_noticed(hears: bool) -> None:
    async def story(stage: Stage) -> float:
        await one_node(stage)
        (instance,) = stage.cloud.instances.values()
        start = stage.now
        stage.cloud.fail_zone(instance.offer.zone)

        async def noticed() -> bool:
            return all(instance.provider_id != claim.provider_id for claim in await stage.claims())

        await stage.until(noticed)
        assert all(node.spec.provider_id != instance.provider_id for node in await stage.nodes())
        return stage.now - start

    waited = play(story, settings=KarpenterSettings(hears_interruptions=hears))
    assert waited < 5 if hears else waited <= 121


def test_a_claim_expires_whatever_protects_its_pods() -> None:
    async def story(stage: Stage) -> None:
        await one_node(stage, 1, expireAfter="2h")
        (claim,) = await stage.claims()
        born = parse_rfc3339(claim.metadata.creation_timestamp or "")
        await asyncio.sleep(born + 7199 - stage.now)
        assert (await stage.claims())[0].metadata.deletion_timestamp is None
        await asyncio.sleep(2)
        assert (await stage.claims())[0].metadata.deletion_timestamp is not None
        await stage.gone(claim.name)

    play(story)


def test_a_machine_that_no_claim_speaks_for_is_terminated() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage)
        (node,) = await stage.nodes()
        stage.cluster.components.kill("karpenter")
        for resource, name in ((NODES, node.name), (NODECLAIMS, claim)):
            await stage.admin.patch(resource, name, {"metadata": {"finalizers": None}})
        await stage.admin.delete(NODECLAIMS, claim)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        stage.cluster.components.start("karpenter")
        await asyncio.sleep(140)
        assert not stage.cloud.instances

    play(story)


def test_a_claim_that_is_deleted_before_its_node_exists_leaves_nothing() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(1)
        for wait in (2.0, 5.0, 24.0):
            await asyncio.sleep(wait)
            for claim in await stage.claims():
                await stage.admin.delete(NODECLAIMS, claim.name)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        for claim in await stage.claims():
            await stage.admin.delete(NODECLAIMS, claim.name)
        await stage.empty(seconds=60)

    play(story)


def test_room_for_the_pods_of_a_draining_node_is_bought_before_they_leave() -> None:
    async def story(stage: Stage) -> None:
        claim = await one_node(stage, 3)
        await stage.budget("web", maxUnavailable=1)
        await asyncio.sleep(1)
        await stage.admin.delete(NODECLAIMS, claim)
        await asyncio.sleep(10)
        assert len([each for each in await stage.claims() if each.name != claim]) == 1

    play(story)
