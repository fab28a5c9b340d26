"""DaemonSets have one pod on each node that suits them, and pods never outlive their node."""

import asyncio
from collections import Counter

import pytest

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import DAEMONSETS, NODES, PODS
from karpool.model.kubernetes.pod import Pod
from karpool_fleet.clusters.clock import run_manual
from karpool_fleet.workloads.daemonset import target_of
from tests.fleet.workloads.acting import Onlooker, get, living, pods, set_phase, template, workload


async def add_node(admin: Client, name: str, *, taints: list[Object] | None = None, **labels: str) -> None:
    spec = {"taints": taints} if taints else {}
    await admin.create(NODES, {"metadata": {"name": name, "labels": labels}, "spec": spec})


def placed(held: list[Pod]) -> list[str]:
    return sorted(pod.spec.node_name for pod in held if not pod.is_terminating)


def test_pods_come_and_go_with_their_nodes() -> None:
    async def story() -> list[list[str]]:
        seen = []
        async with living() as (_, admin):
            await admin.create(DAEMONSETS, workload("agent"))
            for name in ("b", "c"):
                await add_node(admin, name)
            await asyncio.sleep(5)
            seen.append(placed(await pods(admin, "agent")))
            await add_node(admin, "d")
            await admin.delete(NODES, "b")
            await asyncio.sleep(60)
            seen.append(placed(await pods(admin, "agent")))
        return seen

    assert run_manual(story()) == [["b", "c", "node-a"], ["c", "d", "node-a"]]


def test_selectors_and_taints_decide_and_cordoning_does_not() -> None:
    async def story() -> tuple[list[str], list[str], Object]:
        async with living() as (_, admin):
            no_schedule = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
            await add_node(admin, "plain", disk="ssd")
            await add_node(admin, "tainted", taints=[no_schedule], disk="ssd")
            await add_node(admin, "other", disk="hdd")
            obj = workload("agent")
            obj["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
            await admin.create(DAEMONSETS, obj)
            await admin.patch(NODES, "plain", {"spec": {"unschedulable": True}})
            await asyncio.sleep(5)
            first = placed(await pods(admin, "agent"))
            await admin.patch(NODES, "other", {"metadata": {"labels": {"disk": "ssd"}}})
            await admin.patch(NODES, "plain", {"spec": {"taints": [no_schedule]}})
            await asyncio.sleep(5)
            second = placed(await pods(admin, "agent"))
            return first, second, (await get(admin, DAEMONSETS, "agent"))["status"]

    first, second, status = run_manual(story())
    assert first == ["plain"]
    assert second == ["other", "plain"], "a new NoSchedule taint drives nobody out"
    assert status["desiredNumberScheduled"] == 1
    assert status["numberMisscheduled"] == 1


def test_a_no_execute_taint_drives_them_out() -> None:
    async def story() -> list[str]:
        async with living() as (_, admin):
            await admin.create(DAEMONSETS, workload("agent"))
            await asyncio.sleep(5)
            taint = {"key": "broken", "effect": "NoExecute"}
            await admin.patch(NODES, "node-a", {"spec": {"taints": [taint]}})
            await asyncio.sleep(5)
            return placed(await pods(admin, "agent"))

    assert run_manual(story()) == []


def test_pods_are_tied_to_their_node_and_tolerate_its_states() -> None:
    async def story() -> Object:
        async with living() as (_, admin):
            await admin.create(DAEMONSETS, workload("agent"))
            await asyncio.sleep(2)
            return await get(admin, PODS, (await pods(admin, "agent"))[0].name)

    pod = run_manual(story())
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]
    assert required == {"nodeSelectorTerms": [{"matchFields": fields}]}
    tolerated = {(each["key"], each["effect"]) for each in pod["spec"]["tolerations"]}
    assert ("node.kubernetes.io/unschedulable", "NoSchedule") in tolerated
    assert ("node.kubernetes.io/unreachable", "NoExecute") in tolerated


def test_an_update_replaces_one_at_a_time() -> None:
    async def story() -> tuple[set[str], int, Object]:
        async with living() as (_, admin):
            for name in ("b", "c", "d"):
                await add_node(admin, name)
            await admin.create(DAEMONSETS, workload("agent"))
            await asyncio.sleep(5)
            patch = {"spec": {"template": template("agent", "agent:2")}}
            await admin.patch(DAEMONSETS, "agent", patch, namespace="default")
            fewest = 4
            for _ in range(100):
                await asyncio.sleep(0.3)
                held = await pods(admin, "agent")
                ready = [p for p in held if not p.is_terminating and p.status.phase == "Running"]
                fewest = min(fewest, len(ready))
            images = {(pod.spec.containers or [])[0].image for pod in await pods(admin, "agent")}
            return images, fewest, (await get(admin, DAEMONSETS, "agent"))["status"]

    images, fewest, status = run_manual(story())
    assert images == {"agent:2"}
    assert fewest == 3
    assert status["updatedNumberScheduled"] == status["numberAvailable"] == 4
    assert "numberUnavailable" not in status


def test_a_failed_daemon_pod_is_replaced() -> None:
    async def story() -> tuple[str, list[str]]:
        async with living() as (_, admin):
            await admin.create(DAEMONSETS, workload("agent"))
            await asyncio.sleep(5)
            name = (await pods(admin, "agent"))[0].name
            await set_phase(admin, "default", name, "Failed")
            await asyncio.sleep(10)
            return name, [pod.name for pod in await pods(admin, "agent")]

    old, now = run_manual(story())
    assert len(now) == 1
    assert now != [old]


def test_pods_on_a_node_that_vanished_are_removed_but_not_if_it_comes_back() -> None:
    async def story() -> tuple[int, int, int]:
        async with living() as (_, admin):
            bare = {"metadata": {"name": "bare", "namespace": "default", "labels": {"app": "bare"}}}
            await admin.create(PODS, bare | {"spec": template()["spec"]})
            await asyncio.sleep(5)
            await admin.delete(NODES, "node-a")
            await asyncio.sleep(20)
            await add_node(admin, "node-a")
            await asyncio.sleep(60)
            kept = len(await pods(admin, "bare"))
            await admin.delete(NODES, "node-a")
            await asyncio.sleep(30)
            waiting = len(await pods(admin, "bare"))
            await asyncio.sleep(30)
            return kept, waiting, len(await pods(admin, "bare"))

    assert run_manual(story()) == (1, 1, 0)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_write_each_node_still_has_one_pod_and_never_two(when: str) -> None:
    async def story(kill_at: int) -> tuple[bool, int, list[str], set[str]]:
        most = 0

        def look(held: list[Pod]) -> None:
            nonlocal most
            targets = Counter(target_of(pod) for pod in held if not pod.is_terminating)
            most = max(most, *targets.values(), 0)

        async with living() as (cluster, admin):
            cluster.add("onlooker", lambda context: Onlooker(context, look))
            for name in ("b", "c"):
                await add_node(admin, name)
            cluster.faults.crash_at_write("daemonset-controller", kill_at, when=when)
            await admin.create(DAEMONSETS, workload("agent"))
            await asyncio.sleep(5)
            patch = {"spec": {"template": template("agent", "agent:2")}}
            await admin.patch(DAEMONSETS, "agent", patch, namespace="default")
            await asyncio.sleep(20)
            died = not cluster.components.is_running("daemonset-controller")
            cluster.components.start("daemonset-controller")
            await asyncio.sleep(30)
            held = await pods(admin, "agent")
            return died, most, placed(held), {(pod.spec.containers or [])[0].image for pod in held}

    for kill_at in range(1, 60):
        died, most, nodes, images = run_manual(story(kill_at))
        assert (most, nodes, images) == (1, ["b", "c", "node-a"], {"agent:2"}), kill_at
        if not died:
            assert kill_at > 10
            return
    raise AssertionError("it never stops writing")
