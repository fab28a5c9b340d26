"""Whatever dies, and whenever, the fleet comes to the same state; and the same seed gives the same run."""

import asyncio
import re
from typing import Any

import pytest

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import (
    CLUSTERS,
    CONFIGMAPS,
    DEPLOYMENTS,
    NAMESPACES,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
    WORKS,
)
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.karmada import karmada_components
from karpool_fleet.karmada.members.members import JoinedMember, join
from tests.fleet.karmada.acting import Fleet, deploy, deployment, fleet, policy

COMPONENTS = tuple(karmada_components({}))
EVICTION_SECONDS = 20.0
# What is new in every run, counts attempts, or (a template's observedGeneration) remembers the way.
_PASSING = (
    "resourceVersion",
    "uid",
    "generation",
    "observedGeneration",
    "schedulerObservedGeneration",
    "lastScheduledTime",
)
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: scrubbed(each) for key, each in sorted(value.items()) if key not in _PASSING}
    if isinstance(value, list):
        return [scrubbed(each) for each in value]
    return _TIME.sub("<time>", _ID.sub("<id>", value)) if isinstance(value, str) else value


async def state(world: Fleet) -> Object:
    """Everything that was propagated, and the way there."""
    kinds = (CLUSTERS, NAMESPACES, PROPAGATIONPOLICIES, RESOURCEBINDINGS, WORKS, DEPLOYMENTS, CONFIGMAPS)
    found: Object = {str(kind): (await world.admin.list(kind)).items for kind in kinds}
    for name in world.clusters:
        for kind in (DEPLOYMENTS, CONFIGMAPS, NAMESPACES):
            found[f"{name} {kind}"] = (await world.at(name).list(kind)).items
    return {key: sorted(map(scrubbed, items), key=str) for key, items in found.items()}


async def life(world: Fleet) -> None:
    """Come, grow, move, go: every controller has something to write."""
    await world.admin.create(NAMESPACES, {"metadata": {"name": "shop"}})
    await deploy(world, 4)
    await world.admin.create(PROPAGATIONPOLICIES, policy("brief"))
    await world.admin.create(DEPLOYMENTS, deployment("brief", 2))
    await asyncio.sleep(8)
    await world.admin.scale(DEPLOYMENTS, "web", 6, namespace="default")
    await asyncio.sleep(8)
    taints = [{"key": "maintenance", "effect": "NoExecute"}]
    await world.admin.patch(CLUSTERS, "west", {"spec": {"taints": taints}})
    await world.admin.delete(DEPLOYMENTS, "brief", namespace="default")
    await asyncio.sleep(60)


async def revive(world: Fleet) -> None:
    """What dies is started again, after a while in which it is missed."""
    while True:
        await asyncio.sleep(0.7)
        for name in COMPONENTS:
            world.control.components.start(name)


def kill(world: Fleet, name: str) -> None:
    if world.control.components.is_running(name):
        world.control.components.kill(name)


async def run(number: int, when: str, *, in_members: bool = False) -> tuple[Object, int]:
    """The end of a life in which everybody dies at the n-th write, and how many died."""
    async with fleet("east", "west", lively=False, graceful_eviction_timeout=EVICTION_SECONDS) as world:
        world.control.faults.crash = lambda name: kill(world, name)
        faults = []
        if number and in_members:
            for cluster in world.clusters.values():
                cluster.faults.crash = lambda _: kill(world, "execution-controller")
                faults.append(cluster.faults.crash_at_write("karmada", number, when=when))
        elif number:
            faults = [
                world.control.faults.crash_at_write(name, number, when=when)
                for name in COMPONENTS
                if name not in ("cluster-controller", "cluster-status-controller")
            ]
        reviver = asyncio.get_running_loop().create_task(revive(world))
        await life(world)
        reviver.cancel()
        return await state(world), sum(fault.hits for fault in faults)


@pytest.fixture(scope="module")
def undisturbed() -> Object:
    return run_manual(run(0, "before"))[0]


def test_the_undisturbed_end_is_the_one_meant(undisturbed: Object) -> None:
    (binding,) = undisturbed["resourcebindings.work.karmada.io"]
    assert binding["spec"]["clusters"] == [{"name": "east", "replicas": 6}]
    assert [each["spec"]["replicas"] for each in undisturbed["east deployments.apps"]] == [6]
    assert undisturbed["west deployments.apps"] == []
    # Of the works only those of the namespace and of the template are left.
    assert len(undisturbed["works.work.karmada.io"]) == 3


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7, 9, 12, 14])
def test_everybody_dying_at_a_write_changes_nothing_in_the_end(
    number: int, when: str, undisturbed: Object
) -> None:
    end, died = run_manual(run(number, when))

    assert died > 0
    assert end == undisturbed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_dying_at_a_write_to_a_member_changes_nothing_in_the_end(
    number: int, when: str, undisturbed: Object
) -> None:
    end, died = run_manual(run(number, when, in_members=True))

    assert died > 0
    assert end == undisturbed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_join_survives_the_death_of_those_who_carry_it_out(number: int, when: str) -> None:
    async def story(crash: bool) -> Object:
        async with fleet("east", lively=False) as world:
            world.control.faults.crash = lambda name: kill(world, name)
            faults = [
                world.control.faults.crash_at_write(name, number, when=when)
                for name in ("cluster-controller", "cluster-status-controller")
                if crash
            ]
            reviver = asyncio.get_running_loop().create_task(revive(world))
            await join(world.admin, JoinedMember("nowhere", world.clusters["east"].client))
            world.clusters["east"].faults.fail("karmada", status=0)
            await asyncio.sleep(90)
            reviver.cancel()
            assert not crash or any(fault.hits for fault in faults)
            return await state(world)

    assert run_manual(story(True)) == run_manual(story(False))


def test_the_same_seed_gives_the_same_run() -> None:
    async def story() -> list[list[Object]]:
        async with fleet("east", "west", seed=7) as world:
            await life(world)
            kinds = (CLUSTERS, RESOURCEBINDINGS, WORKS, DEPLOYMENTS)
            return [(await world.admin.list(kind)).items for kind in kinds]

    assert run_manual(story()) == run_manual(story())


@pytest.mark.long
def test_lost_events_and_cut_watches_are_survived(undisturbed: Object) -> None:
    async def story() -> Object:
        async with fleet("east", "west", lively=False, graceful_eviction_timeout=EVICTION_SECONDS) as world:
            lost = [each.faults.lose_events() for each in (world.control, *world.clusters.values())]

            async def recover() -> None:
                while True:
                    await asyncio.sleep(3)
                    for cluster in (world.control, *world.clusters.values()):
                        cluster.faults.cut_watches(expired=True)

            recovering = asyncio.get_running_loop().create_task(recover())
            await life(world)
            for fault in lost:
                fault.end()
            await asyncio.sleep(60)
            recovering.cancel()
            return await state(world)

    assert run_manual(story()) == undisturbed


def test_errors_of_the_servers_are_survived(undisturbed: Object) -> None:
    async def story() -> Object:
        async with fleet("east", "west", lively=False, graceful_eviction_timeout=EVICTION_SECONDS) as world:
            for cluster in (world.control, *world.clusters.values()):
                for status in (409, 500, 0):
                    for name in (*COMPONENTS, "karmada"):
                        cluster.faults.fail(name, status=status, method="WRITE", times=3)
            await life(world)
            await asyncio.sleep(60)
            return await state(world)

    assert run_manual(story()) == undisturbed


def test_works_that_the_watch_has_not_told_of_are_not_forgotten() -> None:
    async def story() -> tuple[list[Object], dict[str, int]]:
        async with fleet("east", "west", lively=False) as world:
            world.control.faults.late_events("informers", seconds=5.0, path="/works")
            await deploy(world, 4)
            await asyncio.sleep(2)
            await world.admin.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(60)
            return (await world.admin.list(WORKS)).items, await world.replicas()

    assert run_manual(story()) == ([], {})


def test_a_report_that_changes_faster_than_the_watch_tells_is_right_in_the_end() -> None:
    async def story() -> list[int]:
        async with fleet("east", lively=False) as world:
            await deploy(world, 2)

            async def report(ready: int) -> None:
                status = {"observedGeneration": 1, "replicas": 2, "readyReplicas": ready}
                await world.at("east").patch(
                    DEPLOYMENTS, "web", {"status": status}, namespace="default", subresource="status"
                )

            await asyncio.sleep(5)
            await report(1)
            await asyncio.sleep(5)
            for path in ("/works", "/deployments"):
                world.control.faults.late_events("informers", seconds=3.0, path=path)
            await report(2)
            await asyncio.sleep(1)
            await report(1)  # which is what the watch still says was told
            await asyncio.sleep(60)
            (work,) = await world.works("east")
            (item,) = (await world.binding("web-deployment"))["status"]["aggregatedStatus"]
            whole = await world.admin.get(DEPLOYMENTS, "web", namespace="default")
            told = (work["status"]["manifestStatuses"][0], item, whole)
            return [each["status"]["readyReplicas"] for each in told]

    assert run_manual(story()) == [1, 1, 1]
