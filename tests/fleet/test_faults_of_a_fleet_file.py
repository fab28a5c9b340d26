"""Every fault that a fleet file can name begins at its time, is noticed, and ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from karpool.kube.api.client import Client
from karpool.kube.errors import KubeError
from karpool.kube.transport.rest import NEVER
from karpool.model.kubernetes.api_resources import CONFIGMAPS, NODES
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import parse_fleet
from karpool_fleet.clusters.strict_file import FleetError

FILE = """
clusters: [{{name: east}}]
faults: [{{cluster: east, at: 10s, lasts: 20s, {fault}}}]
"""


def play(fault: str, story: Callable[[EmbeddedFleet], Awaitable[object]]) -> object:
    async def main() -> object:
        async with EmbeddedFleet(parse_fleet(FILE.format(fault=fault).encode()), LoopClock()) as fleet:
            return await story(fleet)

    return run_manual(main())


def impatient(fleet: EmbeddedFleet, component: str) -> Client:
    """A client that tries once."""
    client = fleet.clusters["east"].embedded.client(component)
    return Client(client.rest.transport, fleet.clock, qps=None, retry=NEVER, timeout=3.0)


async def works(fleet: EmbeddedFleet, component: str = "someone") -> bool:
    try:
        await impatient(fleet, component).list(CONFIGMAPS)
    except KubeError:
        return False
    return True


@pytest.mark.parametrize(
    "fault",
    [
        "apiErrors: {component: someone, status: 503}",
        "apiErrors: {component: someone, status: 0}",
        "apiHang: {component: someone}",
        "apiDelay: {component: someone, seconds: 5}",
    ],
)
def test_requests_suffer_while_the_fault_lasts(fault: str) -> None:
    async def story(fleet: EmbeddedFleet) -> list[bool]:
        seen = [await works(fleet)]
        await asyncio.sleep(15)
        start = fleet.clock.monotonic()
        answered = await works(fleet)
        seen.append(answered and fleet.clock.monotonic() - start < 1)
        await asyncio.sleep(30)
        return [*seen, await works(fleet)]

    assert play(fault, story) == [True, False, True]


def test_answers_to_writes_are_lost_and_the_writes_are_not() -> None:
    async def story(fleet: EmbeddedFleet) -> list[bool]:
        client = impatient(fleet, "someone")
        await asyncio.sleep(15)
        reads = await works(fleet)
        with pytest.raises(KubeError):
            await client.create(CONFIGMAPS, {"metadata": {"name": "a", "namespace": "default"}})
        written = {
            item["metadata"]["name"] for item in (await impatient(fleet, "other").list(CONFIGMAPS)).items
        }
        await asyncio.sleep(30)
        await client.create(CONFIGMAPS, {"metadata": {"name": "b", "namespace": "default"}})
        return [reads, "a" in written]

    assert play("loseAnswers: {component: someone}", story) == [True, True]


def test_a_crashed_component_comes_back_when_the_fault_is_over() -> None:
    async def story(fleet: EmbeddedFleet) -> list[bool]:
        seen = []
        for _ in range(3):
            seen.append(fleet.clusters["east"].embedded.components.is_running("karpenter"))
            await asyncio.sleep(15)
        return seen

    assert play("crash: karpenter", story) == [True, False, True]


def test_a_jump_moves_the_wall_clock() -> None:
    async def story(fleet: EmbeddedFleet) -> float:
        before, steady = fleet.clock.now(), fleet.clock.monotonic()
        await asyncio.sleep(15)
        return round(fleet.clock.now() - before - (fleet.clock.monotonic() - steady))

    assert play("clockJump: -1h", story) == -3600


@pytest.mark.parametrize(
    "fault", ["stockOut: {type: 'c7i.*'}", "zoneOutage: us-east-1a"], ids=["stock-out", "zone outage"]
)
def test_nothing_is_sold_while_the_cloud_is_out(fault: str) -> None:
    from karpool_fleet.cloud.cloud import CloudOffer

    async def story(fleet: EmbeddedFleet) -> list[bool]:
        seen = []
        for _ in range(3):
            offer = CloudOffer("c7i.large", "us-east-1a", "on-demand")
            seen.append(fleet.clusters["east"].cloud.is_in_stock(offer))
            await asyncio.sleep(15)
        return seen

    assert play(fault, story) == [True, False, True]


@pytest.mark.parametrize(
    "fault",
    [
        "cutWatches: {expired: true}",
        "loseEvents: {component: informers}",
        "repeatEvents: {}",
        "lateEvents: {seconds: 3}",
        "staleReads: {component: someone, seconds: 5}",
        "pause: kubelet",
        "interruptSpot: 1",
        "badBoots: 2",
        "slowDevices: {machines: 1, seconds: 60}",
        "crashAtWrite: {component: kubelet, number: 1, when: after}",
    ],
)
def test_the_cluster_outlives_it(fault: str) -> None:
    async def story(fleet: EmbeddedFleet) -> int:
        await asyncio.sleep(60)
        client = fleet.clusters["east"].embedded.client("someone")
        await client.create(NODES, {"metadata": {"name": "late"}})
        await asyncio.sleep(60)
        return len((await client.list(NODES)).items)

    assert play(fault, story) == 1


def test_a_component_that_is_not_there_is_named() -> None:
    async def story(fleet: EmbeddedFleet) -> None:
        raise AssertionError("it must not start")

    with pytest.raises((FleetError, ExceptionGroup)) as caught:
        play("crash: karpentre", story)

    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert "no component 'karpentre'" in str(error)
    assert "karpenter" in str(error)
