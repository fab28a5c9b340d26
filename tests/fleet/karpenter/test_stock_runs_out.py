"""What is out of stock is left alone for a while; another offering or pool takes over."""

import asyncio

import pytest

from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT
from karpool.model.kubernetes.api_resources import NODEPOOLS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import INSTANCE_TYPE, ZONE
from karpool_fleet.cloud.cloud import CloudSettings
from karpool_fleet.cloud.delays import constant
from tests.fleet.karpenter.acting import Stage, play


def test_a_claim_that_cannot_be_launched_goes_at_once_and_leaves_an_event() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.stock_out()
        await stage.pool()
        await stage.pods(1)
        await asyncio.sleep(30)
        assert await stage.claims() == []
        events = await stage.events("InsufficientCapacityError")
        assert events
        for event in events:
            name = event["involvedObject"]["name"]
            assert event["type"] == "Warning"
            assert event["message"].startswith(f"NodeClaim {name} event: ")
            assert len(event["message"]) <= 300

    play(story)


def test_another_offering_takes_over_when_spot_has_run_out() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.stock_out(capacity_type=SPOT)
        await stage.pool(kinds=(SPOT, ON_DEMAND))
        await stage.pods(1)
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert claim.labels[CAPACITY_TYPE] == ON_DEMAND

    play(story)


@pytest.mark.long
def test_the_next_offer_of_the_same_launch_takes_over_when_one_zone_has_run_out() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.stock_out(instance_type="small", zone="zone-a")
        await stage.pool()
        await stage.pods(1)
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert (claim.labels[INSTANCE_TYPE], claim.labels[ZONE]) == ("small", "zone-b")
        assert await stage.events("InsufficientCapacityError") == []

    play(story)


def test_another_pool_takes_over_when_the_first_has_nothing_left() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.stock_out(instance_type="large")
        await stage.pool("first", types=("large",), weight=10)
        await stage.pool("second", types=("medium",))
        await stage.pods(1)
        await stage.all_run(1)
        assert [claim.pool_name for claim in await stage.claims()] == ["second"]

    play(story)


@pytest.mark.long
def test_an_offering_is_tried_again_after_three_minutes() -> None:
    async def story(stage: Stage) -> tuple[float, int]:
        rule = stage.cloud.stock_out()
        await stage.pool(types=("small",))
        start = stage.now
        await stage.pods(1)

        async def refused() -> bool:
            return stage.cloud.refusals > 0

        first = await stage.until(refused)
        rule.end()
        await stage.all_run(1)
        assert first - start < 10
        return stage.now - first, stage.cloud.refusals

    waited, refusals = play(story)
    assert 180 <= waited <= 180 + 10 + 3 + 35
    assert refusals == 1


def test_when_nothing_at_all_is_left_it_does_not_ask_again_and_again() -> None:
    async def story(stage: Stage) -> int:
        stage.cloud.stock_out()
        await stage.pool(types=("small",))
        await stage.pods(1)
        await asyncio.sleep(170)
        return stage.cloud.refusals

    assert play(story) == 1


@pytest.mark.long
def test_a_machine_that_never_registers_is_given_up_after_fifteen_minutes() -> None:
    async def story(stage: Stage) -> None:
        stage.cloud.boot_badly(registers=False)
        await stage.pool()
        await stage.pods(1)
        await asyncio.sleep(10)
        (first,) = await stage.claims()
        await asyncio.sleep(880)
        assert [claim.name for claim in await stage.claims()] == [first.name]
        await stage.all_run(1)
        (claim,) = await stage.claims()
        assert claim.name != first.name
        assert len(stage.cloud.instances) == 1

    play(story)


def test_a_launch_that_hangs_is_given_up_after_five_minutes() -> None:
    async def story(stage: Stage) -> None:
        await stage.pool()
        await stage.pods(1)
        await asyncio.sleep(280)
        (claim,) = await stage.claims()
        assert claim.status.conditions is None
        await asyncio.sleep(40)
        (other,) = await stage.claims()
        assert other.name != claim.name

    play(story, cloud_settings=CloudSettings(launch=constant(3600), terminate=constant(5)))


def test_a_pool_whose_launches_fail_says_so_until_it_is_changed() -> None:
    async def story(stage: Stage) -> None:
        async def health() -> str:
            status = (await stage.get_pool()).status
            found = condition(status.conditions, "NodeRegistrationHealthy") if status else None
            return found.status if found else ""

        stage.cloud.boot_badly(2, registers=False)
        await stage.pool(types=("small",))
        await asyncio.sleep(1)
        assert await health() == "Unknown"
        await stage.pods(2)
        await asyncio.sleep(910)
        assert await health() == "False"
        ready = condition((await stage.get_pool()).status.conditions, "Ready")  # type: ignore[union-attr]
        assert ready is not None and ready.status == "True"
        await stage.admin.patch(NODEPOOLS, "general", {"spec": {"weight": 3}})
        await asyncio.sleep(1)
        assert await health() == "Unknown"
        await stage.all_run(2)
        assert await health() == "True"

    play(story)
