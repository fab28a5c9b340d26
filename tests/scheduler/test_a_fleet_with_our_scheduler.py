"""The whole way on an embedded fleet: policy, binding, our decision, works, pods on nodes, and back."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, PODS, PROPAGATIONPOLICIES, RESOURCEBINDINGS
from karpool.scheduler.controller.controller import Scheduler
from karpool.scheduler.controller.options import SCHEDULER_NAME
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.clusters.fleet_file import ClusterSpec, StaticNodes
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.karmada import karmada_components
from karpool_fleet.karmada.members.members import JoinedMember, join
from tests.fleet.living import deployment
from tests.scheduler.acting import AGGREGATED, condition, targets


def ours(context):
    """Our scheduler as a component of the control plane: killed and started again like any other."""
    return Manager.of(context.client, Scheduler)


def policy(name):
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": name}],
            "placement": {"replicaScheduling": AGGREGATED},
        },
    }


@asynccontextmanager
async def fleet(**members):
    """Members with so many machines of four cores, a control plane, and our scheduler."""
    clock = LoopClock()
    async with AsyncExitStack() as stack:
        known = {}
        for name, count in members.items():
            nodes = [StaticNodes(type="m5.xlarge", count=count)]
            live = LiveCluster(ClusterSpec(name=name, autoscaler="none", nodes=nodes), clock=clock)
            await stack.enter_async_context(live.running())
            await live.load(Path())
            # Without grades of nodes, which round 3.9 cores down to one.
            known[name] = JoinedMember(name, live.embedded.client, resource_models=())
        control = EmbeddedCluster("karmada", clock=clock, crds=bundled_crds(KARMADA))
        await stack.enter_async_context(control)
        for component, build in karmada_components(known).items():
            control.add(component, build)
        control.add("scheduler", ours)
        admin = control.client("admin")
        for member in known.values():
            await join(admin, member)
        await asyncio.sleep(30)
        yield control, admin, {name: member.connect("reader") for name, member in known.items()}


async def deploy(admin, *names, replicas=3):
    for name in names:
        await admin.create(PROPAGATIONPOLICIES, policy(name))
    # Each pod takes a whole machine.
    made = [deployment(name, replicas, cpu="3900m") for name in names]
    await asyncio.gather(*(admin.create(DEPLOYMENTS, each) for each in made))


async def pods(readers):
    found = {}
    for name, reader in readers.items():
        items = (await reader.list(PODS)).items
        found[name] = sorted(each["status"].get("phase", "") for each in items)
    return found


async def bindings(admin):
    found = (await admin.list(RESOURCEBINDINGS)).items
    return {each["spec"]["resource"]["name"]: each for each in found}


def test_of_two_deployments_exactly_one_lands_where_there_is_room_for_one_and_the_other_follows():
    async def story():
        async with fleet(m1=4) as (_, admin, readers):
            await deploy(admin, "one", "two")
            await asyncio.sleep(60)
            first = await bindings(admin), await pods(readers)
            landed = next(name for name, each in first[0].items() if targets(each))
            await admin.delete(DEPLOYMENTS, landed, namespace="default")
            await asyncio.sleep(60)
            return first, landed, await bindings(admin), await pods(readers)

    (first, running), landed, later, then = run_manual(story())
    states = {name: condition(each)[:2] for name, each in first.items()}
    other = ({"one", "two"} - {landed}).pop()
    assert states == {landed: ("True", "Success"), other: ("False", "Unschedulable")}
    assert running == {"m1": ["Running"] * 3}
    assert set(later) == {other}
    assert condition(later[other])[0] == "True"
    assert then == {"m1": ["Running"] * 3}


@pytest.mark.long
def test_a_burst_and_a_scheduler_that_dies_in_it_leave_no_pod_without_a_node():
    async def story():
        async with fleet(m1=5, m2=3) as (control, admin, readers):
            control.faults.crash_at_write("scheduler", 5, when="after")
            await deploy(admin, *(f"app{number}" for number in range(6)), replicas=2)
            await asyncio.sleep(5)
            control.components.start("scheduler")
            await asyncio.sleep(120)
            return await bindings(admin), await pods(readers)

    found, running = run_manual(story())
    placed = [name for name, each in found.items() if condition(each)[0] == "True"]
    # Eight machines hold four workloads of two; no cluster has a machine to spare for half of one.
    assert len(placed) == 4
    assert running == {"m1": ["Running"] * 5, "m2": ["Running"] * 3}
    assert all(each["status"].get("aggregatedStatus") for each in found.values() if targets(each))
