"""Pods that fit nowhere make a group grow: the least wasteful, never beyond its size, not while it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.taints import Taint
from karpool_fleet.cluster_autoscaler.backoff import GroupBackoffs, GroupFailure
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings, NodeGroup, checked
from karpool_fleet.clusters.clock import run_manual
from tests.fleet.cluster_autoscaler.acting import BOOT_SECONDS, MACHINES, Stage, stage

SMALL = NodeGroup("small", "small", max_size=5)
LARGE = NodeGroup("large", "large", max_size=3)
ONE_CPU = {"cpu": "1", "memory": "1Gi"}


def play(
    groups: Sequence[NodeGroup],
    story: Callable[[Stage], Awaitable[None]],
    settings: AutoscalerSettings | None = None,
) -> None:
    async def main() -> None:
        async with stage(groups, settings) as on:
            await story(on)

    run_manual(main())


def test_the_group_that_wastes_least_is_grown_in_one_step() -> None:
    async def story(on: Stage) -> None:
        await on.deploy("web", 6, ONE_CPU)
        await asyncio.sleep(25)
        assert len(on.machines("small")) == 3
        await asyncio.sleep(BOOT_SECONDS + 30)
        assert len(on.cloud.instances) == 3
        assert len(await on.pods(on_nodes=True)) == 6
        said = (await on.reasons("Pod"))["TriggeredScaleUp"]
        assert said == ["pod triggered scale-up: [{small 0->3 (max: 5)}]"] * 6

    play([LARGE, SMALL], story)


def test_nodes_carry_the_labels_and_taints_of_their_group() -> None:
    taint = Taint(key="team", value="ml", effect="NoSchedule")
    group = NodeGroup("ml", "small", min_size=1, capacity_type="spot", labels={"team": "ml"}, taints=(taint,))

    async def story(on: Stage) -> None:
        await asyncio.sleep(BOOT_SECONDS + 20)
        (node,) = await on.nodes()
        assert node.labels["eks.amazonaws.com/nodegroup"] == "ml"
        assert node.labels["eks.amazonaws.com/capacityType"] == "SPOT"
        assert node.labels["team"] == "ml"
        assert node.spec.taints == [taint]

    play([group], story)


def test_a_group_never_grows_beyond_its_size_and_says_so() -> None:
    async def story(on: Stage) -> None:
        await on.deploy("web", 20, ONE_CPU)
        await asyncio.sleep(300)
        assert len(on.machines("small")) == 5
        said = (await on.reasons("Pod"))["NotTriggerScaleUp"]
        assert set(said) == {"pod didn't trigger scale-up: 1 max node group size reached"}

    play([SMALL], story)


def test_a_pod_that_no_group_can_take_changes_nothing() -> None:
    async def story(on: Stage) -> None:
        await on.deploy("huge", 1, {"cpu": "64"})
        await asyncio.sleep(120)
        assert not on.cloud.instances
        (said,) = (await on.reasons("Pod"))["NotTriggerScaleUp"]
        assert said.count("insufficient cpu") == 2

    play([SMALL, LARGE], story)


def test_machines_are_spread_over_the_zones_of_a_group() -> None:
    async def story(on: Stage) -> None:
        await on.deploy("web", 8, ONE_CPU)
        await asyncio.sleep(120)
        zones = [machine.offer.zone for machine in on.machines("small")]
        assert sorted(zones) == ["a", "a", "b", "b"]

    play([SMALL], story)


def test_a_zone_without_stock_is_made_up_for_in_the_others() -> None:
    async def story(on: Stage) -> None:
        on.cloud.stock_out(zone="a")
        await on.deploy("web", 4, ONE_CPU)
        await asyncio.sleep(120)
        assert [machine.offer.zone for machine in on.machines("small")] == ["b", "b"]

    play([SMALL], story)


def test_a_stock_out_backs_the_group_off_and_another_group_steps_in() -> None:
    async def story(on: Stage) -> None:
        out = on.cloud.stock_out("small")
        await on.deploy("web", 2, ONE_CPU)
        await asyncio.sleep(25)
        condition = (await on.group("small"))["scaleUp"]
        assert condition["status"] == "Backoff"
        assert condition["backoffInfo"]["errorCode"] == "placeholder-cannot-be-fulfilled"
        assert "small" in condition["backoffInfo"]["errorMessage"]
        await asyncio.sleep(60)
        assert len(on.machines("large")) == 1
        assert "FailedToScaleUpGroup" in await on.reasons("ConfigMap")
        out.end()
        await asyncio.sleep(300)
        assert (await on.group("small"))["scaleUp"]["status"] == "NoActivity"

    play([SMALL, LARGE], story)


@pytest.mark.long
def test_a_failing_group_is_tried_again_after_5_10_20_and_30_minutes() -> None:
    async def story(on: Stage) -> None:
        on.cloud.stock_out()
        await on.deploy("web", 1, ONE_CPU)
        refusals: list[float] = []
        for _ in range(60 * 110):
            before = on.cloud.refusals
            await asyncio.sleep(1)
            if on.cloud.refusals > before:
                refusals.append(on.cluster.clock.monotonic())
        gaps = [later - earlier for earlier, later in pairwise(refusals)]
        for gap, expected in zip(gaps, (300, 600, 1200, 1800, 1800), strict=True):
            assert expected <= gap <= expected + 15

    play([SMALL], story)


def test_back_offs_start_over_after_success_or_three_quiet_hours() -> None:
    backoffs = GroupBackoffs(AutoscalerSettings())
    why = GroupFailure("x", "y")
    backoffs.failed("g", why, 0)
    backoffs.failed("g", why, 10)  # of the same attempt
    assert backoffs.holding("g", 299) == why
    assert backoffs.holding("g", 300) is None
    backoffs.failed("g", why, 400)
    assert backoffs.holding("g", 999) == why
    backoffs.succeeded("g", 1000)
    backoffs.failed("g", why, 1100)
    assert backoffs.holding("g", 1400) is None
    backoffs.failed("g", why, 1100 + 10800)
    assert backoffs.holding("g", 1100 + 10800 + 300) is None


def test_a_machine_that_never_registers_is_given_back_and_counts_as_a_failure() -> None:
    async def story(on: Stage) -> None:
        on.cloud.boot_badly(registers=False)
        await on.deploy("web", 1, ONE_CPU)
        await asyncio.sleep(60)
        (lost,) = on.machines("small")
        assert (await on.group("small"))["health"]["nodeCounts"]["unregistered"] == 1
        await asyncio.sleep(15 * 60)
        assert lost.id not in on.cloud.instances
        assert (await on.group("small"))["scaleUp"]["status"] == "Backoff"
        said = await on.reasons("ConfigMap")
        assert "ScaleUpTimedOut" in said and "DeleteUnregistered" in said
        await asyncio.sleep(6 * 60)
        assert len(await on.pods(on_nodes=True)) == 1

    play([SMALL], story)


def test_a_gpu_node_counts_as_coming_until_its_devices_are_there() -> None:
    async def story(on: Stage) -> None:
        on.cloud.boot_badly(device_seconds=400)
        await on.deploy("train", 1, {"cpu": "1", "nvidia.com/gpu": "1"})
        await asyncio.sleep(300)
        counts = (await on.group("gpu"))["health"]["nodeCounts"]["registered"]
        assert counts["ready"] == 0 and counts["unready"]["resourceUnready"] == 1
        await asyncio.sleep(200)
        assert len(on.machines("gpu")) == 1
        assert len(await on.pods(on_nodes=True)) == 1

    play([NodeGroup("gpu", "accelerated", max_size=4)], story)


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([NodeGroup("g", "enormous")], "instanceType"),
        ([NodeGroup("g", "small", min_size=3, max_size=2)], "minSize"),
        ([NodeGroup("g", "small", zones=("z",))], "zones"),
        ([NodeGroup("g", "small", capacity_type="reserved")], "capacityType"),
        ([NodeGroup("g", "small"), NodeGroup("g", "large")], "name"),
    ],
)
def test_a_group_that_cannot_be_is_refused_by_name(groups: Sequence[NodeGroup], field: str) -> None:
    with pytest.raises(Invalid, match=field):
        checked(groups, Catalogue("test", "here", MACHINES))
