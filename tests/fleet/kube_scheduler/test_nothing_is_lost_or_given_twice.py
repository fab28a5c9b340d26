"""Whatever fails, and whenever it is killed: every pod is bound once, and no node is overfull."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.node import ZONE, Node, allocatable
from karpool.model.kubernetes.pod import effective_requests
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings
from tests.fleet.kube_scheduler.acting import Stage, near, play, settle, spread

NODES_WANTED, PODS_WANTED = 3, 10


async def fill(stage: Stage) -> None:
    for number in range(NODES_WANTED):
        await stage.node(f"n{number}", zone="abc"[number])
    for number in range(PODS_WANTED):
        await stage.pod(f"web-{number}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 14, 2))
def test_killed_at_any_write_it_ends_as_if_undisturbed(number: int, when: str) -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.faults.crash_at_write("kube-scheduler", number, when=when)
        await fill(stage)
        await settle(30)
        await stage.crash_and_restart()
        await settle(30)

        assert all((await stage.where()).values())
        assert await stage.overcommitted() == []

    play(story)


@pytest.mark.parametrize("number", range(1, 9))
def test_killed_and_restarted_with_late_events_it_does_not_give_the_same_room_again(number: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.node("n1", cpu="4")
        await settle(5)
        stage.cluster.faults.late_events("informers", path="/pods", seconds=1)
        stage.cluster.faults.crash_at_write("kube-scheduler", number, when="after")
        for each in range(8):
            await stage.pod(f"web-{each}")
        for _ in range(10):
            await settle(3)
            await stage.crash_and_restart()
        await settle(100)

        assert await stage.overcommitted() == []
        assert sum(bool(node) for node in (await stage.where()).values()) == 4

    play(story)


def test_what_was_bound_while_it_was_down_counts_although_no_event_has_said_so() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1", cpu="1")
        await settle(5)
        await stage.cluster.components.crash("kube-scheduler")
        await stage.pod("theirs")
        await stage.pod("mine")
        await settle(5)
        stage.cluster.faults.late_events("informers", path="/pods", seconds=60)
        await stage.client.bind("theirs", "n1", namespace="default")
        await stage.client.patch(PODS, "theirs", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
        stage.cluster.components.start("kube-scheduler")
        await settle(600)
        return await stage.where()

    assert play(story) == {"theirs": "n1", "mine": ""}


def test_late_events_never_put_two_pods_into_room_for_one() -> None:
    async def story(stage: Stage) -> tuple[list[str], int]:
        for number in range(4):
            await stage.node(f"n{number}", cpu="1")
        await settle(5)
        stage.cluster.faults.late_events("informers", path="/pods", seconds=5)
        for number in range(12):
            await stage.pod(f"web-{number}")
        await settle(300)
        return await stage.overcommitted(), sum(bool(node) for node in (await stage.where()).values())

    assert play(story) == ([], 4)


def test_a_bind_whose_answer_was_lost_is_neither_repeated_elsewhere_nor_forgotten() -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.faults.fail("kube-scheduler", status=0, method="POST", path="/binding", times=3)
        await fill(stage)
        await settle(60)

        assert all((await stage.where()).values())
        assert await stage.overcommitted() == []

    play(story)


@pytest.mark.parametrize("status", [409, 429, 500, 503])
def test_failing_requests_are_got_over(status: int) -> None:
    async def story(stage: Stage) -> None:
        stage.cluster.faults.fail("kube-scheduler", status=status, method="WRITE", times=7)
        await fill(stage)
        await settle(120)

        assert all((await stage.where()).values())
        assert await stage.overcommitted() == []

    play(story)


def test_a_pod_that_somebody_else_bound_first_counts_where_it_is() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1", cpu="2")
        await stage.node("n2", cpu="2")
        await settle(5)
        stage.cluster.faults.late_events("informers", path="/pods", seconds=20, times=50)
        stage.cluster.faults.delay("kube-scheduler", seconds=30, path="/binding", times=1)
        await stage.pod("web-0", cpu="2")
        await settle(25)
        await stage.client.bind("web-0", "n1", namespace="default")
        await settle(10)
        for number in range(1, 3):
            await stage.pod(f"web-{number}", cpu="2")
        await settle(400)
        assert await stage.overcommitted() == []
        return await stage.where()

    where = play(story)
    assert where["web-0"] == "n1"
    assert sorted(where.values()) == ["", "n1", "n2"]


def test_a_pod_deleted_while_it_is_being_bound_frees_its_room() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        await stage.node("n1", cpu="1")
        await settle(5)
        stage.cluster.faults.delay("kube-scheduler", seconds=10, path="/binding", times=1)
        await stage.pod("short-lived")
        await settle()
        await stage.delete("short-lived")
        await stage.pod("next")
        await settle(60)
        return await stage.where()

    assert play(story) == {"next": "n1"}


Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["pod", "pod", "pod", "big", "zonal", "lonely", "delete", "node", "drop", "crash", "wait"]
        ),
        st.integers(0, 30),
    ),
    min_size=5,
    max_size=35,
)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(steps=steps, seed=st.integers(0, 9), late=st.booleans())
def test_whatever_happens_no_node_is_overfull_and_every_rule_is_kept(
    steps: list[Step], seed: int, late: bool
) -> None:
    async def story(stage: Stage) -> None:
        if late:
            stage.cluster.faults.late_events("informers", seconds=0.4)
        for number in range(3):
            await stage.node(f"n{number}", cpu="3", zone="abc"[number], pods="6")
        made = 3
        for count, (what, number) in enumerate(steps):
            made += await act(stage, what, number, count, made)
            assert await stage.overcommitted() == []
        await settle(60)
        assert await stage.overcommitted() == []
        await check_lonely(stage)
        await check_nothing_waits_for_nothing(stage)

    play(story, seed=seed)


async def act(stage: Stage, what: str, number: int, count: int, made: int) -> int:
    match what:
        case "pod":
            await stage.pod(f"p-{count}", cpu=("200m", "500m", "1")[number % 3])
        case "big":
            await stage.pod(f"big-{count}", cpu="2500m")
        case "zonal":
            rule = [spread(ZONE, "zonal")]
            await stage.pod(f"z-{count}", cpu="100m", labels={"app": "zonal"}, topologySpreadConstraints=rule)
        case "lonely":
            apart = {"requiredDuringSchedulingIgnoredDuringExecution": [near("lonely")]}
            affinity = {"podAntiAffinity": apart}
            await stage.pod(f"l-{count}", cpu="100m", labels={"app": "lonely"}, affinity=affinity)
        case "delete":
            pods = await stage.pods()
            if pods:
                await stage.delete(pods[number % len(pods)].name)
        case "node":
            await stage.node(f"n{made}", cpu="2", zone="abc"[number % 3])
            return 1
        case "drop":
            pods, names = await stage.pods(), [f"n{each}" for each in range(made)]
            victim = names[number % len(names)]
            if not any(pod.spec.node_name == victim for pod in pods):
                taint = {"spec": {"unschedulable": True}}
                with_node = {node["metadata"]["name"] for node in (await stage.client.list(NODES)).items}
                if victim in with_node:
                    await stage.client.patch(NODES, victim, taint)
        case "crash":
            await stage.crash_and_restart()
        case "wait":
            await asyncio.sleep(number)
    return 0


async def check_lonely(stage: Stage) -> None:
    nodes = [pod.spec.node_name for pod in await stage.pods() if pod.name.startswith("l-")]
    used = [node for node in nodes if node]
    assert len(used) == len(set(used))


async def check_nothing_waits_for_nothing(stage: Stage) -> None:
    """A plain pod that still waits fits on no node that is open."""
    pods = await stage.pods()
    for node in (await stage.client.list(NODES, into=Node)).items:
        if node.spec.unschedulable:
            continue
        here = [pod for pod in pods if pod.spec.node_name == node.name]
        free = allocatable(node)["cpu"] - sum(effective_requests(pod)["cpu"] for pod in here)
        slots = allocatable(node)["pods"] - len(here)
        for pod in pods:
            if not pod.spec.node_name and pod.name.startswith(("p-", "big-")):
                assert slots < 1 or effective_requests(pod)["cpu"] > free, (pod.name, node.name)


def test_two_schedulers_share_a_cluster() -> None:
    async def story(stage: Stage) -> dict[str, str]:
        stage.cluster.add("second", kube_scheduler(KubeSchedulerSettings(name="second")))
        await stage.node("n1", cpu="4")
        for number in range(2):
            await stage.pod(f"first-{number}")
            await settle()
            await stage.pod(f"second-{number}", schedulerName="second")
            await settle()
        return await stage.where()

    where = play(story)
    assert len(where) == 4 and set(where.values()) == {"n1"}


def test_a_pod_that_cannot_be_read_is_told_so_and_hinders_nobody() -> None:
    async def story(stage: Stage) -> None:
        await stage.node("n1")
        odd = {"matchExpressions": [{"key": "-no-label-", "operator": "Exists"}]}
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [near("x") | {"labelSelector": odd}]}
        await stage.pod("odd", affinity={"podAffinity": rule})
        await stage.pod("plain")
        await settle(30)

        assert (await stage.where()) == {"odd": "", "plain": "n1"}
        told = await stage.scheduled("odd")
        assert told.reason == "SchedulerError"
        assert "matchExpressions[0].key" in (told.message or "")
        assert (await stage.client.get(PODS, "odd", namespace="default"))["status"]["phase"] == "Pending"

    play(story)
