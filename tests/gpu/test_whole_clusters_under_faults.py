"""Whatever goes wrong around the scaler: every request is served, by as few nodes, and nothing is left."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from karpool.model.kubernetes.api_resources import EVENTS, PODS
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool_fleet.faults.faults import Fault
from tests.fleet.living import claims, nodes, until
from tests.gpu.whole import COMPONENT, Story, gpu_pool, tell, worker

ONE, TWO = gpu_pool("one", "g6.xlarge", weight=10), gpu_pool("two", "g5.xlarge")
# What it must never do to anybody: delete machines, claims or foreign pods, evict, cordon, taint.
FORBIDDEN = (
    ("DELETE", r"/(nodes|nodeclaims|nodepools)/"),
    ("DELETE", r"/namespaces/(?!karpool-smart-pods/)[^/]+/pods/"),
    ("POST", r"/eviction$"),
    ("POST", r"/nodeclaims$"),
    ("PATCH", r"/(nodes|nodeclaims|nodepools)/"),
    ("PUT", r"/(nodes|nodeclaims|nodepools)/"),
)


def watched(told: Story) -> list[Fault]:
    """Count forbidden requests; a delay of nothing changes nothing."""
    faults = told.cluster.embedded.faults
    return [faults.delay(COMPONENT, seconds=0, method=how, path=path) for how, path in FORBIDDEN]


def restarting(told: Story, condition: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        components = told.cluster.embedded.components
        if not components.is_running(COMPONENT):
            components.start(COMPONENT)
        return await condition()

    return check


async def served(told: Story, *names: str, nodes_wanted: int = 1) -> None:
    counted = watched(told)
    own = told.cluster.embedded.faults.delay(
        COMPONENT, seconds=0, method="POST", path="/namespaces/karpool-smart-pods/pods$"
    )
    await told.add(*(worker(name) for name in names))
    assert await until(restarting(told, lambda: told.bound(*names)), within=900), await told.records()
    assert await until(restarting(told, told.clean), within=300), await told.smart_pods()
    assert len(await nodes(told.cluster)) == len(await claims(told.cluster)) == nodes_wanted
    assert [fault.hits for fault in counted] == [0] * len(FORBIDDEN)
    assert own.hits >= 1, "requests are seen at all"


# Dying before a write is dying after the one before it: odd numbers of both are every gap there is.
@pytest.mark.long
@pytest.mark.parametrize("when", ["after", "before"])
def test_a_crash_between_any_two_writes_changes_nothing(when: str) -> None:
    async def writes(told: Story) -> int:
        await served(told, "infer")
        return told.cluster.embedded.faults.writes[COMPONENT]

    total = tell(writes, ONE)
    assert total > 5
    for number in range(1, total, 2):

        async def story(told: Story, number: int = number) -> None:
            fault = told.cluster.embedded.faults.crash_at_write(COMPONENT, number, when=when)
            await served(told, "infer")
            assert fault.hits == 1

        tell(story, ONE)


def test_a_stock_out_of_the_first_candidate_turns_to_the_next() -> None:
    async def story(told: Story) -> None:
        told.cluster.cloud.stock_out("g6.xlarge")
        await served(told, "infer")
        (node,) = await nodes(told.cluster)
        assert node.labels[INSTANCE_TYPE] == "g5.xlarge"

    tell(story, ONE, TWO)


@pytest.mark.long
def test_when_everything_is_sold_out_it_starts_over_and_is_served_in_the_end() -> None:
    async def story(told: Story) -> None:
        out = told.cluster.cloud.stock_out()
        await told.add(worker("infer"))
        await asyncio.sleep(900)
        assert not await told.bound("infer") and not await nodes(told.cluster)
        assert len(await told.smart_pods()) <= 1
        out.end()
        assert await until(lambda: told.bound("infer"), within=1500)
        assert await until(told.clean, within=120)
        assert len(await nodes(told.cluster)) == 1

    tell(story, ONE, TWO)


@pytest.mark.long
def test_a_node_that_never_shows_its_devices_is_reported_and_another_serves() -> None:
    async def story(told: Story) -> None:
        told.cluster.cloud.boot_badly(1, device_seconds=10**6)
        counted = watched(told)
        await told.add(worker("infer"))
        assert await until(lambda: told.bound("infer"), within=3600)
        assert await until(told.clean, within=120)
        pod = await told.pod("infer")
        assert pod.annotations["tensor-fusion.ai/gpu-ids"].startswith(pod.spec.node_name)
        said = [each["message"] for each in (await told.client.list(EVENTS)).items]
        assert any("DeviceNotReady" in message for message in said), said
        assert [fault.hits for fault in counted] == [0] * len(FORBIDDEN), "the bad node is not ours to delete"

    tell(story, ONE, TWO)


def test_a_request_that_is_deleted_on_the_way_leaves_no_pod_and_no_record() -> None:
    async def story(told: Story) -> None:
        await told.add(worker("infer"))

        async def launching() -> bool:
            return bool(await claims(told.cluster))

        assert await until(launching, within=120)
        await told.client.delete(PODS, "infer", namespace="default")
        assert await until(told.clean, within=300)
        assert len(await claims(told.cluster)) <= 1, "the node itself is Karpenter's"

    tell(story, ONE)


@pytest.mark.long
def test_bad_weather_changes_nothing() -> None:
    async def story(told: Story) -> None:
        faults = told.cluster.embedded.faults
        faults.fail(COMPONENT, status=409, method="WRITE", times=4)
        faults.fail(COMPONENT, status=503, method="WRITE", times=4)
        faults.fail(COMPONENT, status=0, method="WRITE", times=4)
        faults.fail(COMPONENT, status=500, method="GET", times=4)
        faults.repeat_events(COMPONENT)
        faults.late_events(COMPONENT, seconds=4, times=30)
        await served(told, "infer", "other")

    tell(story, ONE)


def test_events_that_get_lost_are_made_up_for_by_the_next_list() -> None:
    async def story(told: Story) -> None:
        faults = told.cluster.embedded.faults
        lost = faults.lose_events(COMPONENT)

        def hear() -> None:
            lost.end()
            faults.cut_watches(COMPONENT, expired=True)

        asyncio.get_running_loop().call_later(150, hear)
        await served(told, "infer")

    tell(story, ONE)


def test_several_requests_that_fit_one_device_bring_one_node() -> None:
    async def story(told: Story) -> None:
        await served(told, "a", "b")

    tell(story, ONE)
