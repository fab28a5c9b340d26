"""How long a binding waits after room appeared that only an estimator sees; on manual time, so exactly."""

import asyncio

import pytest

from karpool.model.kubernetes.api_resources import (
    DEPLOYMENTS,
    EVENTS,
    NODEPOOLS,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
)
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.controllers import add_controllers
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import ClusterSpec, FleetFile, KarmadaSpec
from tests.fleet.living import deployment, pool
from tests.scheduler.acting import AGGREGATED, condition
from tests.scheduler.outside import policy

WAKING_SECONDS = 2.0
CONTROLLERS = {
    "estimator": {"node-capacity-providers": ("karpenter",), "recovery-interval": "5m"},
    "scheduler": {},
}


async def raised_limits(member):
    await member.patch(NODEPOOLS, "general", {"spec": {"limits": {"cpu": "100"}}})


async def added_pool(member):
    await member.create(NODEPOOLS, pool("second", limits={"cpu": "100"}, type=["m5.large"]))


async def widened_requirements(member):
    spec = pool("general", limits={"cpu": "100"}, type=["m5.large"])["spec"]
    await member.patch(NODEPOOLS, "general", {"spec": spec})


@pytest.mark.long
@pytest.mark.parametrize("appears", [raised_limits, added_pool, widened_requirements])
@pytest.mark.parametrize("waited", [0.0, 1.1])
def test_room_that_appears_is_used_within_two_seconds(appears, waited):
    """However long the binding had waited: also when it was refused a moment ago."""

    async def story():
        spec = ClusterSpec(name="m1", objects=[pool("general", limits={"cpu": "0"}, type=["m5.large"])])
        file = FleetFile(clusters=[spec], karmada=KarmadaSpec())
        async with EmbeddedFleet(file, LoopClock()) as fleet:
            add_controllers(fleet, CONTROLLERS)
            people = fleet.karmada.client("people")
            await people.create(PROPAGATIONPOLICIES, policy("m1", scheduling=AGGREGATED))
            await people.create(DEPLOYMENTS, deployment("web", 3, cpu="900m"))
            await until(lambda: says(people, "False"))
            await asyncio.sleep(waited)
            begun = fleet.clock.monotonic()
            await appears(fleet.clusters["m1"].embedded.client("people"))
            await until(lambda: says(people, "True"))
            return fleet.clock.monotonic() - begun

    assert run_manual(story()) <= WAKING_SECONDS


@pytest.mark.long
def test_stock_that_is_back_is_used_within_two_seconds_of_the_probe():
    """A launch failed, so the pool counts for nothing for five minutes; then one node of it is offered."""

    async def story():
        general = pool("general", limits={"cpu": "100"}, type=["m5.large"], capacity=["on-demand"])
        file = FleetFile(clusters=[ClusterSpec(name="m1", objects=[general])], karmada=KarmadaSpec())
        async with EmbeddedFleet(file, LoopClock()) as fleet:
            add_controllers(fleet, CONTROLLERS)
            member = fleet.clusters["m1"]
            local = member.embedded.client("people")
            empty = member.cloud.stock_out("m5.large")
            await local.create(DEPLOYMENTS, deployment("tries", 1, cpu="900m"))

            async def failed():
                events = (await local.list(EVENTS)).items
                return any(event["reason"] == "InsufficientCapacityError" for event in events)

            await until(failed)
            begun = fleet.clock.monotonic()
            await local.patch(DEPLOYMENTS, "tries", {"spec": {"replicas": 0}}, namespace="default")
            people = fleet.karmada.client("people")
            await people.create(PROPAGATIONPOLICIES, policy("m1", scheduling=AGGREGATED))
            await people.create(DEPLOYMENTS, deployment("web", 1, cpu="900m"))
            await until(lambda: says(people, "False"))
            empty.left = 100
            await until(lambda: says(people, "True"))
            return fleet.clock.monotonic() - begun

    assert 290 <= run_manual(story()) <= 300 + WAKING_SECONDS


async def says(people, status):
    found = (await people.list(RESOURCEBINDINGS)).items
    return bool(found) and condition(found[0])[0] == status


async def until(is_so, seconds=600.0):
    for _ in range(int(seconds / 0.05)):
        if await is_so():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not so after {seconds} s")
