"""Scheduler and estimator as they run, over gRPC: room for one is given to one."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from karpool.model.kubernetes.api_resources import (
    CRDS,
    DEPLOYMENTS,
    NODEPOOLS,
    REPLICASETS,
    RESOURCEBINDINGS,
)
from karpool.scheduler.controller.controller import SchedulerSettings
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from tests.estimator.serving import World, node, pod
from tests.estimator.serving import serving as estimating
from tests.fleet.living import pool
from tests.scheduler.acting import AGGREGATED, binding, staged
from tests.scheduler.estimators import asking

PROTECTED = {"feature_gates": "SchedulingOvercommitProtection=true", "cluster_name": "member1"}


@asynccontextmanager
async def fleet(rooms=False, **flags):
    """One member with eight cores on two nodes; its summary claims a hundred. `rooms`: the scheduler keeps a
    copy of the member's room, and has it before anything is to be placed."""
    world = World()
    await world.add(node("a"), node("b"))
    async with staged() as stage, estimating({"member1": world.transport}, **flags) as estimator:

        async def address(_):
            return [f"127.0.0.1:{estimator.port}"]

        await stage.join("member1", 100)
        chosen = SchedulerSettings(max_room_age_seconds=60.0 if rooms else 0.0)
        async with (
            asking({}, resolver=address) as clients,
            stage.scheduling(chosen, estimators=clients) as scheduler,
        ):
            while rooms and not scheduler.rooms.is_current("member1"):  # noqa: ASYNC110 - a state, no event
                await asyncio.sleep(0.01)
            yield stage, world, scheduler
            if rooms:
                assert scheduler.rooms.answered


async def bound(world, name, count):
    """Pods of a Deployment that was placed get their nodes."""
    owner = await world.workload(DEPLOYMENTS, name)
    by = await world.workload(REPLICASETS, f"{name}-1", owner)
    for number in range(count):
        where = "a" if number < 4 else "b"
        await world.add(pod(f"{name}-{number}", node=where, metadata={"ownerReferences": [by]}))


async def outcome(stage, *names):
    found = {}
    for name in names:
        await stage.until(lambda name=name: has_condition(stage, name))
        found[name] = (await stage.condition(name))[1]
    return found


async def has_condition(stage, name):
    return (await stage.condition(name))[0]


kept_or_asked = pytest.mark.parametrize("rooms", [True, False], ids=["room kept", "asked"])


@pytest.mark.long
@kept_or_asked
@pytest.mark.parametrize("flags", [PROTECTED, {"cluster_name": "member1"}], ids=["verifies", "ignores"])
async def test_two_deployments_created_together_and_room_for_one(flags, rooms):
    async with fleet(rooms, **flags) as (stage, _, scheduler):
        await stage.create(binding("one", 5, how=AGGREGATED), binding("two", 5, how=AGGREGATED))

        assert sorted((await outcome(stage, "one", "two")).values()) == ["Success", "Unschedulable"]
        assert [promise.replicas for promise in scheduler.view.ledger.promises("member1")] == [5]


@pytest.mark.long
@kept_or_asked
async def test_what_is_left_beside_promises_and_pods_is_the_same_while_pods_start(rooms):
    async with fleet(rooms, **PROTECTED) as (stage, world, scheduler):
        await stage.create(binding("one", 5, how=AGGREGATED))
        await stage.until_placed("one")
        await bound(world, "one", 5)
        ledger = scheduler.view.ledger
        await stage.until(lambda: nothing_in_flight(ledger))

        await stage.create(binding("four", 4, how=AGGREGATED), binding("three", 3, how=AGGREGATED))

        assert await outcome(stage, "three", "four") == {"three": "Success", "four": "Unschedulable"}


async def nothing_in_flight(ledger):
    return not any(promise.replicas for promise in ledger.promises())


@kept_or_asked
async def test_room_that_is_given_back_goes_to_who_waits(rooms):
    async with fleet(rooms, **PROTECTED) as (stage, _, scheduler):
        await stage.create(binding("one", 5, how=AGGREGATED), binding("two", 5, how=AGGREGATED))
        found = await outcome(stage, "one", "two")
        placed, waits = sorted(found, key=lambda name: found[name] != "Success")

        await stage.admin.delete(RESOURCEBINDINGS, f"{placed}-deployment", namespace="default")

        await stage.until_placed(waits)
        assert [promise.binding.name for promise in scheduler.view.ledger.promises()] == [
            f"{waits}-deployment"
        ]


async def test_forty_deployments_of_one_replica_share_the_machines_that_could_be_bought():
    """21 machines with room for two each: a promise takes half of one, and nobody is sent away."""
    world = World()
    for crd in bundled_crds(KARPENTER):
        await world.client.create(CRDS, crd)
    await world.create(NODEPOOLS, pool("general", limits={"cpu": "42"}, type=["m5.large"]))
    flags = {**PROTECTED, "node_capacity_providers": ["karpenter"], "region": "us-east-1"}
    async with staged() as stage, estimating({"member1": world.transport}, **flags) as estimator:

        async def address(_):
            return [f"127.0.0.1:{estimator.port}"]

        await stage.join("member1", 0)
        async with asking({}, resolver=address) as clients, stage.scheduling(asker=clients) as scheduler:
            names = [f"web-{number:02}" for number in range(44)]
            await stage.create(*(binding(name, 1, how=AGGREGATED, cpu="900m") for name in names[:40]))
            assert set((await outcome(stage, *names[:40])).values()) == {"Success"}

            promised = scheduler.view.ledger.promises("member1")
            assert sum(promise.replicas for promise in promised) == 40
            await stage.create(*(binding(name, 1, how=AGGREGATED, cpu="900m") for name in names[40:]))
            last = (await outcome(stage, *names[40:])).values()
            assert sorted(last) == ["Success", "Success", "Unschedulable", "Unschedulable"]
