"""Faults hit whom they are aimed at, as often as they say, and nobody else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from karpool.kube.api.client import Client
from karpool.kube.errors import ApiUnreachable, Conflict, KubeError, NotFound
from karpool.kube.watch.informer import Informer
from karpool.model.kubernetes.api_resources import CONFIGMAPS, ObjectKey
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.runtime.supervisor import Context
from tests.kube.handlers import Handlers

Story = Callable[[EmbeddedCluster], Awaitable[object]]


def play(story: Story) -> object:
    async def main() -> object:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            return await story(cluster)

    return run_manual(main())


async def put(client: Client, name: str) -> None:
    await client.create(CONFIGMAPS, {"metadata": {"name": name, "namespace": "default"}})


async def names(client: Client) -> list[str]:
    return sorted(item["metadata"]["name"] for item in (await client.list(CONFIGMAPS)).items)


def test_an_error_hits_only_the_component_it_is_aimed_at() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        fault = cluster.faults.fail("unlucky", status=409, method="POST")

        await put(cluster.client("lucky"), "a")
        with pytest.raises(Conflict):
            await put(cluster.client("unlucky"), "b")

        assert fault.hits == 1
        assert await names(cluster.client("reader")) == ["a"]

    play(story)


def test_an_error_that_passes_is_retried_after_the_time_the_server_asked_for() -> None:
    async def story(cluster: EmbeddedCluster) -> float:
        client = cluster.client("patient")
        cluster.faults.fail("patient", status=429, method="GET", times=1, retry_after=7)
        start = cluster.clock.monotonic()
        await names(client)
        return cluster.clock.monotonic() - start

    assert play(story) >= 7  # type: ignore[operator]


def test_a_delay_takes_its_time_and_then_the_request_goes_through() -> None:
    async def story(cluster: EmbeddedCluster) -> tuple[float, list[str]]:
        cluster.faults.delay("slow", seconds=5)
        start = cluster.clock.monotonic()
        await put(cluster.client("slow"), "a")
        return cluster.clock.monotonic() - start, await names(cluster.client("reader"))

    assert play(story) == (5, ["a"])


def test_an_answer_that_is_lost_leaves_the_work_done() -> None:
    async def story(cluster: EmbeddedCluster) -> list[str]:
        cluster.faults.lose_answers("deaf", times=1)
        with pytest.raises(ApiUnreachable):
            await put(cluster.client("deaf"), "a")
        await put(cluster.client("deaf"), "b")
        return await names(cluster.client("reader"))

    assert play(story) == ["a", "b"]


def test_a_hanging_request_ends_with_the_callers_deadline_and_changes_nothing() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        cluster.faults.hang("stuck", method="POST")
        start = cluster.clock.monotonic()

        with pytest.raises(KubeError):
            await put(cluster.client("stuck"), "a")

        assert 0 < cluster.clock.monotonic() - start <= 120
        assert await names(cluster.client("reader")) == []

    play(story)


class Writer:
    """Creates ConfigMaps one to five, each once."""

    def __init__(self, context: Context) -> None:
        self._client = context.client

    async def run(self) -> None:
        for number in range(1, 6):
            try:
                await self._client.get(CONFIGMAPS, f"map-{number}", namespace="default")
            except NotFound:
                await put(self._client, f"map-{number}")
        await asyncio.Event().wait()


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize(("when", "survives"), [("before", 0), ("after", 1)])
def test_a_crash_happens_exactly_before_or_after_the_chosen_write(
    number: int, when: str, survives: int
) -> None:
    async def story(cluster: EmbeddedCluster) -> tuple[int, list[str]]:
        cluster.faults.crash_at_write("writer", number, when=when)
        cluster.add("writer", Writer)
        await asyncio.sleep(60)
        assert not cluster.components.is_running("writer")
        left = len(await names(cluster.client("reader")))
        cluster.components.start("writer")
        await asyncio.sleep(60)
        return left, await names(cluster.client("reader"))

    assert play(story) == (number - 1 + survives, [f"map-{each}" for each in range(1, 6)])


def test_a_paused_component_goes_on_where_it_stood() -> None:
    async def story(cluster: EmbeddedCluster) -> tuple[list[str], int]:
        cluster.faults.pause("writer")
        cluster.add("writer", Writer)
        await asyncio.sleep(600)
        paused = await names(cluster.client("reader"))
        cluster.faults.resume("writer")
        await asyncio.sleep(60)
        return paused, len(await names(cluster.client("reader")))

    assert play(story) == ([], 5)


async def informed(
    cluster: EmbeddedCluster, component: str
) -> tuple[Informer[dict[str, object]], asyncio.Task[object]]:
    informer = Informer(cluster.client(component), CONFIGMAPS, into=dict)
    task: asyncio.Task[object] = asyncio.ensure_future(informer.run())
    await informer.synced.wait()
    return informer, task


def knows(informer: Informer[dict[str, object]], name: str) -> bool:
    return ObjectKey("default", name) in informer


@pytest.mark.parametrize("expired", [False, True], ids=["cut", "expired"])
def test_an_informer_recovers_from_a_cut_watch(expired: bool) -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        informer, task = await informed(cluster, "viewer")
        await asyncio.sleep(1)
        assert cluster.faults.cut_watches("viewer", expired=expired) == 1
        await put(cluster.client("admin"), "a")
        await asyncio.sleep(60)
        assert knows(informer, "a")
        assert informer.relists == (2 if expired else 1)
        task.cancel()

    play(story)


def test_lost_events_are_found_after_the_next_list() -> None:
    async def story(cluster: EmbeddedCluster) -> None:
        informer, task = await informed(cluster, "viewer")
        await asyncio.sleep(1)
        fault = cluster.faults.lose_events("viewer")
        await put(cluster.client("admin"), "a")
        await asyncio.sleep(60)
        assert not knows(informer, "a")

        fault.end()
        cluster.faults.cut_watches("viewer", expired=True)
        await asyncio.sleep(60)
        assert knows(informer, "a")
        task.cancel()

    play(story)


def test_repeated_events_are_delivered_once() -> None:
    async def story(cluster: EmbeddedCluster) -> list[str]:
        informer, task = await informed(cluster, "viewer")
        seen: list[str] = []
        informer.add_sink(Handlers(on_add=lambda each: seen.append(each["metadata"]["name"])))  # type: ignore[index]
        await asyncio.sleep(1)
        cluster.faults.repeat_events("viewer")
        await put(cluster.client("admin"), "a")
        await put(cluster.client("admin"), "b")
        await asyncio.sleep(60)
        task.cancel()
        return seen

    assert play(story) == ["a", "b"]


def test_late_events_arrive_late() -> None:
    async def story(cluster: EmbeddedCluster) -> tuple[bool, bool]:
        informer, task = await informed(cluster, "viewer")
        await asyncio.sleep(1)
        cluster.faults.late_events("viewer", seconds=30)
        await put(cluster.client("admin"), "a")
        await asyncio.sleep(20)
        early = knows(informer, "a")
        await asyncio.sleep(20)
        late = knows(informer, "a")
        task.cancel()
        return early, late

    assert play(story) == (False, True)


def test_stale_reads_show_the_past_for_as_long_as_they_may() -> None:
    async def story(cluster: EmbeddedCluster) -> list[list[str]]:
        fault = cluster.faults.stale_reads("laggard", seconds=10)
        reader, seen = cluster.client("laggard"), []
        seen.append(await names(reader))
        await put(cluster.client("admin"), "a")
        seen.append(await names(reader))
        await asyncio.sleep(11)
        seen.append(await names(reader))
        fault.end()
        return seen

    assert play(story) == [[], [], ["a"]]
