"""Pod events open and close the window in which a node may be consolidated."""

import asyncio

from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.api_resources import PODS
from karpool.model.kubernetes.times import parse_rfc3339
from tests.fleet.karpenter.acting import Stage, play, since, status_of


async def the_claim(stage: Stage) -> NodeClaim:
    (claim,) = await stage.claims()
    return claim


def last_event(claim: NodeClaim) -> float:
    return parse_rfc3339(claim.status.last_pod_event_time or "")


def test_a_claim_is_consolidatable_when_its_window_has_passed_and_not_before() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(disruption={"consolidateAfter": "60s"})
        await stage.pods(1)
        await stage.all_run(1)
        claim = await the_claim(stage)
        assert status_of(claim, "Consolidatable") == ("", "")
        assert last_event(claim) >= since(claim, "Initialized")

        await asyncio.sleep(last_event(claim) + 59 - stage.now)
        assert status_of(await the_claim(stage), "Consolidatable") == ("", "")
        await asyncio.sleep(1.5)
        assert status_of(await the_claim(stage), "Consolidatable") == ("True", "Consolidatable")

        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(1)
        assert status_of(await the_claim(stage), "Consolidatable") == ("", "")

    play(story)


def test_never_means_never_and_zero_means_at_once() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.pool("never", labels={"pool": "never"}, disruption={"consolidateAfter": "Never"})
        await stage.pool("at-once", labels={"pool": "at-once"}, disruption={"consolidateAfter": "0s"})
        for name in ("never", "at-once"):
            await stage.pods(1, prefix=name, nodeSelector={"pool": name})
        await stage.all_run(2)
        return {claim.pool_name: status_of(claim, "Consolidatable")[0] for claim in await stage.claims()}

    assert play(story) == {"never": "", "at-once": "True"}


def test_pod_events_within_ten_seconds_are_one() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool(types=("large",))
        await stage.pods(5)
        await stage.all_run(5)
        before = last_event(await the_claim(stage))
        await asyncio.sleep(before + 9 - stage.now)
        await stage.admin.delete(PODS, "web-000", namespace="default")
        await asyncio.sleep(0.5)
        assert last_event(await the_claim(stage)) == before
        await asyncio.sleep(3)
        await stage.admin.delete(PODS, "web-001", namespace="default")
        await asyncio.sleep(0.5)
        assert last_event(await the_claim(stage)) > before

    play(story)
