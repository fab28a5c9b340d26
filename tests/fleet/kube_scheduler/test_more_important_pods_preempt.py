"""Preemption takes the fewest and least important pods, and breaks budgets only if it must."""

from typing import Any

import pytest

from karpool.model.kubernetes.api_resources import PDBS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool_fleet.cloud.delays import constant
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet
from tests.fleet.kube_scheduler.acting import Stage, near, play, settle, spread

SLOW = KubeletSettings(pull=constant(0), start=constant(0), stop=constant(20))


async def survivors(stage: Stage) -> set[str]:
    return {pod.name for pod in await stage.pods() if not pod.is_terminating}


async def cast(stage: Stage, pods: dict[str, tuple[str, str, str]]) -> None:
    """Running pods: name to node, cpu and priority class."""
    await stage.priorities(low=10, middle=50, high=1000)
    stage.cluster.add("kubelet", kubelet(None, SLOW))
    nodes = dict.fromkeys(node for node, _, _ in pods.values())
    for node in nodes:
        await stage.node(node)
    for name, (node, cpu, priority) in pods.items():
        spec = {"priorityClassName": priority} if priority else {}
        await stage.pod(name, cpu=cpu, labels={"app": name}, on=node, **spec)
        await settle()


async def budget(stage: Stage, app: str, allowed: int) -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    await stage.client.create(PDBS, {"metadata": {"name": app, "namespace": "default"}, "spec": spec})
    status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    await stage.client.patch(PDBS, app, {"status": status}, namespace="default", subresource="status")


async def high(stage: Stage, cpu: str = "4", **spec: Any) -> None:
    await stage.pod("vip", cpu=cpu, priorityClassName="high", **spec)


def test_the_pod_waits_for_its_victims_and_then_takes_the_node() -> None:
    async def story(stage: Stage) -> None:
        await cast(stage, {"old": ("n1", "4", "low")})
        await high(stage)
        await settle(10)

        vip, old = await stage.read("vip"), await stage.read("old")
        assert (vip.spec.node_name, vip.status.nominated_node_name) == ("", "n1")
        assert old.is_terminating
        target = condition(old.status.conditions, "DisruptionTarget")
        assert target is not None and target.reason == "PreemptionByScheduler"
        (event,) = await stage.events("Preempted")
        assert event["message"] == f"Preempted by pod {vip.metadata.uid} on node n1"

        await settle(15)
        assert await stage.where() == {"vip": "n1"}

    play(story)


def test_switched_off_nobody_goes() -> None:
    async def story(stage: Stage) -> tuple[set[str], str]:
        await cast(stage, {"old": ("n1", "4", "low")})
        await high(stage)
        await settle(60)
        return await survivors(stage), (await stage.scheduled("vip")).message or ""

    assert play(story, preemption=False) == ({"old", "vip"}, "0/1 nodes are available: 1 Insufficient cpu.")


def test_policy_never_takes_nothing_from_anyone() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"old": ("n1", "4", "low")})
        await high(stage, preemptionPolicy="Never")
        await settle(60)
        return await survivors(stage)

    assert play(story) == {"old", "vip"}


def test_equal_priority_is_not_enough() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"old": ("n1", "4", "high")})
        await high(stage)
        await settle(60)
        return await survivors(stage)

    assert play(story) == {"old", "vip"}


@pytest.mark.parametrize(
    ("pods", "asked", "gone"),
    [
        pytest.param(
            {"a": ("n1", "1", "low"), "b": ("n1", "1", "low"), "c": ("n1", "2", "middle")},
            "2",
            {"a", "b"},
            id="the least important of a node go first",
        ),
        pytest.param(
            {"a": ("n1", "2", "low"), "b": ("n1", "1", "low"), "c": ("n1", "1", "low")},
            "1",
            {"c"},
            id="no more than needed, and the youngest",
        ),
        pytest.param(
            {"a": ("n1", "4", "middle"), "b": ("n2", "4", "low")},
            "4",
            {"b"},
            id="the node with the lower priorities",
        ),
        pytest.param(
            {"a": ("n1", "2", "low"), "b": ("n1", "2", "low"), "c": ("n2", "4", "low")},
            "4",
            {"c"},
            id="the node with fewer victims",
        ),
        pytest.param(
            {"a": ("n1", "4", "low"), "b": ("n2", "4", "low")},
            "4",
            {"b"},
            id="the node whose victim has run for the shortest time",
        ),
    ],
)
def test_victims_are_as_few_and_as_unimportant_as_possible(
    pods: dict[str, tuple[str, str, str]], asked: str, gone: set[str]
) -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, pods)
        await high(stage, cpu=asked)
        await settle(60)
        assert (await stage.where())["vip"]
        return set(pods) - await survivors(stage)

    assert play(story) == gone


def test_a_budget_is_respected_where_there_is_a_choice() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"kept": ("n1", "4", "low"), "other": ("n2", "4", "middle")})
        await budget(stage, "kept", allowed=0)
        await high(stage)
        await settle(60)
        return await survivors(stage)

    assert play(story) == {"kept", "vip"}


def test_a_budget_does_not_stop_preemption_when_there_is_no_choice() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"kept": ("n1", "4", "low")})
        await budget(stage, "kept", allowed=0)
        await high(stage)
        await settle(60)
        return await survivors(stage)

    assert play(story) == {"vip"}


def test_room_that_was_made_is_not_taken_by_lesser_pods() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await cast(stage, {"a": ("n1", "2", "low"), "b": ("n1", "2", "low")})
        await high(stage)
        await settle(5)
        for number in range(3):
            await stage.pod(f"late-{number}", cpu="1", priorityClassName="low")
        await settle(60)
        return await stage.where()

    assert play(story) == {"vip": "n1", "late-0": "", "late-1": "", "late-2": ""}


def test_two_pods_do_not_rely_on_the_same_victims() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await cast(stage, {name: (node, "4", "low") for name, node in (("a", "n1"), ("b", "n2"))})
        await stage.pod("vip-1", cpu="3", priorityClassName="high")
        await stage.pod("vip-2", cpu="3", priorityClassName="high")
        await settle(60)
        return await stage.where()

    assert sorted(play(story).values()) == ["n1", "n2"]


def test_the_one_in_the_way_of_an_anti_affinity_goes() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"near": ("n1", "1", "low"), "bystander": ("n1", "1", "low")})
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [near("near", HOSTNAME)]}
        await high(stage, cpu="1", affinity={"podAntiAffinity": rule})
        await settle(60)
        return await survivors(stage)

    assert play(story) == {"bystander", "vip"}


def test_a_spread_that_preemption_cannot_help_costs_nobody_a_place() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"old": ("n1", "1", "low")})
        await high(stage, cpu="1", topologySpreadConstraints=[spread("rack", "vip")])
        await settle(60)
        return await survivors(stage)

    assert ZONE != "rack"
    assert play(story) == {"old", "vip"}


def test_late_events_do_not_make_it_preempt_twice() -> None:
    async def story(stage: Stage) -> set[str]:
        await cast(stage, {"a": ("n1", "4", "low"), "b": ("n2", "4", "low")})
        stage.cluster.faults.late_events("informers", path="/pods", seconds=2, times=40)
        await high(stage)
        for number in range(5):
            await settle(3)
            await stage.node(f"tiny-{number}", cpu="10m")
        await settle(100)
        assert (await stage.where())["vip"]
        return await survivors(stage)

    left = play(story)
    assert len(left) == 2 and "vip" in left
