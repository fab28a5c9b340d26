"""Pods without a node carry the reason in upstream's words, and are tried again when it is worth it."""

import asyncio
from typing import Any

import pytest

from karpool.model.kubernetes.api_resources import NODES
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from tests.fleet.kube_scheduler.acting import Stage, near, play, settle, spread

NO_HELP = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"


async def message(stage: Stage, name: str) -> str:
    told = await stage.scheduled(name)
    assert (told.status, told.reason) == ("False", "Unschedulable")
    return told.message or ""


def test_without_nodes_there_is_nothing_to_count() -> None:
    async def story(stage: Stage) -> str:
        await stage.pod("web")
        await settle()
        return await message(stage, "web")

    assert play(story) == "no nodes available to schedule pods"


def required(kind: str, *terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def only_on(name: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}


@pytest.mark.parametrize(
    ("spec", "reasons"),
    [
        ({"cpu": "3"}, ["1 Insufficient cpu"]),
        ({"cpu": "3", "memory": "17Gi"}, ["1 Insufficient cpu", "1 Insufficient memory"]),
        ({"nodeSelector": {"disk": "ssd"}}, ["1 node(s) didn't match Pod's node affinity/selector"]),
        (only_on("cordoned"), ["2 node(s) didn't satisfy plugin(s) [NodeAffinity]"]),
        ({"container": PORT}, ["1 node(s) didn't have free ports for the requested pod ports"]),
        (required("podAffinity", near("none")), ["1 node(s) didn't match pod affinity rules"]),
        (required("podAntiAffinity", near("old")), ["1 node(s) didn't match pod anti-affinity rules"]),
        ({"labels": {"app": "shunned"}}, ["1 node(s) didn't satisfy existing pods anti-affinity rules"]),
        (
            {"topologySpreadConstraints": [spread("rack", "x")]},
            ["1 node(s) didn't match pod topology spread constraints (missing required label)"],
        ),
    ],
)
def test_each_node_counts_under_the_first_thing_that_rules_it_out(
    spec: dict[str, Any], reasons: list[str]
) -> None:
    async def story(stage: Stage) -> str:
        await stage.node("open")
        await stage.node("tainted", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])
        await stage.node("cordoned", unschedulable=True)
        apart = required("podAntiAffinity", near("shunned"))
        await stage.pod("old", labels={"app": "old"}, container=PORT, on="open", cpu="2", **apart)
        await settle()
        await stage.pod("new", **spec)
        await settle()
        return await message(stage, "new")

    everywhere = ["1 node(s) had untolerated taint {a: b}", "1 node(s) were unschedulable"]
    wanted = sorted({*reasons, *(everywhere[1:] if "NodeAffinity" in reasons[0] else everywhere)})
    assert play(story, preemption=False) == f"0/3 nodes are available: {', '.join(wanted)}."


def test_a_full_node_has_too_many_pods() -> None:
    async def story(stage: Stage) -> str:
        await stage.node("n1", pods="1")
        await stage.pod("first")
        await stage.pod("second")
        await settle()
        return await message(stage, "second")

    assert play(story) == (
        "0/1 nodes are available: 1 Too many pods. "
        f"preemption: 0/1 nodes are available: 1 {NO_VICTIMS}."
    )  # fmt: skip


def test_what_preemption_came_to_is_said_too() -> None:
    async def story(stage: Stage) -> tuple[str, str]:
        await stage.node("full", cpu="2")
        await stage.node("small", cpu="1")
        await stage.pod("old", cpu="2", on="full")
        await settle()
        await stage.pod("new", cpu="2")
        await stage.pod("polite", cpu="2", preemptionPolicy="Never")
        await settle()
        return await message(stage, "new"), await message(stage, "polite")

    new, polite = play(story)
    assert new == (
        "0/2 nodes are available: 2 Insufficient cpu. "
        f"preemption: 0/2 nodes are available: 1 {NO_VICTIMS}, 1 {NO_HELP}."
    )  # fmt: skip
    assert polite.endswith("preemption: not eligible due to preemptionPolicy=Never.")


def test_the_event_says_the_same_and_does_not_repeat_itself() -> None:
    async def story(stage: Stage) -> None:
        await stage.node("n1")
        await stage.pod("big", cpu="5")
        await settle(2000)

        (event,) = await stage.events("FailedScheduling")
        assert event["message"] == await message(stage, "big")
        assert event["type"] == "Warning"
        assert event["source"]["component"] == "kube-scheduler"
        assert stage.cluster.faults.writes["kube-scheduler"] == 2

    play(story)


def test_the_transition_time_is_that_of_the_first_refusal() -> None:
    async def story(stage: Stage) -> tuple[str | None, str | None]:
        await stage.pod("big", cpu="5")
        await settle(100)
        first = (await stage.scheduled("big")).last_transition_time
        await stage.node("n1")
        await settle(400)
        assert "Insufficient cpu" in await message(stage, "big")
        return first, (await stage.scheduled("big")).last_transition_time

    first, second = play(story)
    assert first == second


async def taken_after(stage: Stage, name: str, limit: float = 400) -> float:
    """Seconds until a pod has a node."""
    start = stage.cluster.clock.monotonic()
    while not (await stage.read(name)).spec.node_name:
        assert stage.cluster.clock.monotonic() - start < limit
        await asyncio.sleep(0.1)
    return stage.cluster.clock.monotonic() - start


def test_a_pod_is_tried_at_once_when_a_node_comes_that_fits() -> None:
    async def story(stage: Stage) -> float:
        await stage.pod("web")
        await settle(100)
        await stage.node("n1")
        return await taken_after(stage, "web")

    assert play(story) < 0.5


def test_a_pod_is_tried_at_once_when_another_leaves() -> None:
    async def story(stage: Stage) -> float:
        await stage.node("n1")
        await stage.pod("old", cpu="4")
        await settle()
        await stage.pod("new", cpu="4")
        await settle(100)
        await stage.delete("old")
        return await taken_after(stage, "new")

    assert play(story) < 0.5


def test_a_pod_is_tried_at_once_when_a_taint_goes() -> None:
    async def story(stage: Stage) -> float:
        await stage.node("n1", taints=[{"key": "a", "effect": "NoSchedule"}])
        await stage.pod("web")
        await settle(100)
        await stage.client.patch(NODES, "n1", {"spec": {"taints": None}})
        return await taken_after(stage, "web")

    assert play(story) < 0.5


def test_a_pod_is_tried_at_once_when_the_pod_comes_that_it_wants_to_be_near() -> None:
    async def story(stage: Stage) -> float:
        await stage.node("n1")
        await stage.pod("web", **required("podAffinity", near("db", ZONE)))
        await settle(100)
        await stage.pod("db", labels={"app": "db"})
        return await taken_after(stage, "web")

    assert play(story) < 0.5


def test_events_that_cannot_help_wake_nobody() -> None:
    async def story(stage: Stage) -> int:
        for number in range(50):
            await stage.pod(f"big-{number}", cpu="5")
        await settle()
        before = stage.cluster.faults.writes["kube-scheduler"]
        for number in range(20):
            await stage.node(f"n{number}")
            await settle()
        return stage.cluster.faults.writes["kube-scheduler"] - before

    assert play(story) == 0


def test_pods_of_one_shape_all_get_in_when_room_comes_bit_by_bit() -> None:
    async def story(stage: Stage) -> list[int]:
        for number in range(30):
            await stage.pod(f"web-{number}")
        await settle(50)
        seen = []
        for number in range(8):
            await stage.node(f"n{number}")
            await settle()
            seen.append(sum(bool(node) for node in (await stage.where()).values()))
        return seen

    assert play(story) == [4, 8, 12, 16, 20, 24, 28, 30]


def test_pods_that_wait_learn_what_keeps_them_waiting() -> None:
    async def story(stage: Stage) -> set[str]:
        for number in range(5):
            await stage.pod(f"web-{number}", cpu="3")
        await settle()
        await stage.node("n1")
        await settle(60)
        return {(await stage.scheduled(f"web-{number}")).message or "" for number in range(1, 5)}

    (text,) = play(story)
    assert text.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_pod_is_tried_again_after_five_minutes_even_if_nothing_has_happened() -> None:
    async def story(stage: Stage) -> str:
        await stage.pod("big", cpu="5")
        await stage.node("n1")
        await settle()
        await stage.node("n2", labels={HOSTNAME: "n2"})
        await settle(290)
        early = await message(stage, "big")
        assert early.startswith(("no nodes", "0/1"))
        await settle(60)
        return await message(stage, "big")

    assert play(story).startswith("0/2 nodes are available: 2 Insufficient cpu.")
