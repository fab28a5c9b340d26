"""Estimator and scheduler as people run them, on a fleet that lives: bursts, and room that appears."""

import pytest

from karpool.model.kubernetes.api_resources import NODEPOOLS, PODS
from karpool_fleet.clusters.fleet_file import ClusterSpec, TimingSpec
from tests.fleet.living import deployment, pool
from tests.scheduler.acting import AGGREGATED
from tests.scheduler.outside import OutsideFleet, outside_fleet, policy

BURST = 40


TIMING = TimingSpec(launch="1s", register="2s", ready="1s", pull="1s", start="1s")


def grows(limit):
    """A member without a node, whose machines of two cores hold two of our pods each."""
    pools = [pool("general", limits={"cpu": limit}, type=["m5.large"])]
    return ClusterSpec(name="grows", objects=pools, timing=TIMING)


def web(number):
    return deployment(f"web-{number:02}", 1, cpu="900m")


@pytest.mark.long
async def test_forty_deployments_of_one_replica_on_room_for_42_are_placed_and_none_is_refused(tmp_path):
    """No workload fills a node: with whole machines promised, half of them would wait."""
    async with outside_fleet(tmp_path, [grows("42")]) as fleet:
        await fleet.apply(policy("grows", scheduling=AGGREGATED))
        await fleet.apply(*(web(number) for number in range(BURST)))
        await fleet.until("all are placed", lambda: are_placed(fleet, BURST))
        assert refusals(fleet) == 0
        assert await fleet.refused() == {}

        await fleet.until("all run", lambda: run(fleet, BURST))
        await fleet.apply(*(web(number) for number in range(BURST, BURST + 4)))
        await fleet.until("two more are placed, and two refused", lambda: ends(fleet, 42, 2))
        await fleet.until("and run", lambda: run(fleet, 42))


@pytest.mark.long
async def test_who_waits_is_placed_when_limits_are_raised_and_when_a_pool_is_added(tmp_path):
    async with outside_fleet(tmp_path, [grows("2")]) as fleet:
        await fleet.apply(policy("grows", scheduling=AGGREGATED))
        await fleet.apply(deployment("first", 4, cpu="900m"), deployment("second", 6, cpu="900m"))
        await fleet.until("both are refused", lambda: ends(fleet, 0, 2))
        member = fleet.member("grows")

        await member.patch(NODEPOOLS, "general", {"spec": {"limits": {"cpu": "4"}}})
        await fleet.until("the first is placed", lambda: are_placed(fleet, 1))

        await member.create(NODEPOOLS, pool("more", limits={"cpu": "6"}, type=["m5.large"]))
        await fleet.until("the second is placed", lambda: are_placed(fleet, 2))
        await fleet.until("all run", lambda: run(fleet, 10))


async def are_placed(fleet: OutsideFleet, count):
    return len(await fleet.placed()) == count


async def ends(fleet, placed, refused):
    return (len(await fleet.placed()), len(await fleet.refused())) == (placed, refused)


async def run(fleet, count):
    pods = (await fleet.member("grows").list(PODS)).items
    return sum(found["status"].get("phase") == "Running" for found in pods) == count


def refusals(fleet):
    """How often the scheduler said that something does not fit, whatever became of it."""
    return (fleet.folder / "scheduler.log").read_text().count("not enough")
