"""A fleet that lives is followed: nodes that come, promises that end, and whatever the watches go through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from karpool.dashboard.pages.collector import LOOKED_AT_SECONDS, FleetCollector
from karpool.dashboard.process import NoServer
from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.kube.api.client import Client
from karpool.kube.clock import RealClock
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, EVENTS
from karpool.model.kubernetes.times import rfc3339
from karpool.scheduler.promises.promise_annotation import PROMISES, RecordedPromise, write
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.object_loader import load_objects
from tests.consolidation import cluster_objects
from tests.dashboard.fleets import clusters_of, control_plane, placed, scale_ups
from tests.fleet.living import deployment, play, pool, ready, until


@asynccontextmanager
async def following(clusters) -> AsyncIterator[FleetCollector]:
    collector = FleetCollector(clusters)
    following = (collector.run(), *(informers.run() for informers in collector.informers))
    running = asyncio.ensure_future(asyncio.gather(*following))
    try:
        with collector.bell.listen() as listener:
            while collector.not_ready() is not None:
                await listener.rung()
        yield collector
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def shown(collector: FleetCollector) -> dict[str, object]:
    """Everything that does not depend on the moment."""
    answers = {"fleet": collector.fleet(), "nodes": collector.nodes("east"), "events": collector.events()}
    found = {name: msgspec.to_builtins(each) for name, each in answers.items()}
    for each in found.values():
        del each["at"]
    found["nodes"]["items"].sort(key=lambda node: node["name"])
    return found


class SlowClock(RealClock):
    """A second goes by whenever somebody looks at the time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


async def test_clusters_that_change_all_the_time_are_looked_at_in_turn() -> None:
    names = ("a", "b", "c")
    clock = SlowClock()
    collector = FleetCollector({name: Client(NoServer(), clock, name=name) for name in names})

    def changed(nodes: int) -> None:
        for name in names:
            collector.watches[name].load(
                [cluster_objects.node(f"n{number}", "m5.large")[0] for number in range(nodes)]
            )

    def nodes() -> list[int]:
        return [row.nodes for row in collector.fleet().clusters]

    changed(1)
    assert nodes() == [1, 1, 1]  # who was never seen is looked at, whatever the time
    changed(2)
    assert nodes() == [2, 1, 1]  # the time was over after the first
    collector.watches["a"].load([cluster_objects.node("n2", "m5.large")[0]])
    assert nodes() == [2, 2, 1]  # those longest unseen come first
    assert nodes() == [2, 2, 2]
    assert nodes() == [3, 2, 2]
    before = collector.bell
    changed(4)
    nodes()
    with before.listen() as listener:
        collector._look_at_time()
        await listener.rung()  # whoever was shown what is old is told to ask again


def test_an_empty_cluster_is_read_too() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            clusters = await stack.enter_async_context(clusters_of({"east": []}, LoopClock()))
            clients = {"east": clusters["east"].client("dashboard")}
            collector = await stack.enter_async_context(following(clients))

            assert collector.fleet().clusters[0].not_ready == ""

    run_manual(main())


def test_events_are_watched_once_and_those_about_stock_are_understood() -> None:
    async def story(cluster):
        client = cluster.embedded.client("dashboard")
        async with following({"east": client}) as collector:
            watch = collector.watches["east"]
            assert [str(informer.resource) for informer in watch.informers.informers].count("events") == 1
            event = {
                "metadata": {"name": "e", "namespace": "default"},
                "involvedObject": {"kind": "NodeClaim", "name": "default-abcde"},
                "reason": "InsufficientCapacityError",
                "message": "no stock",
                "type": "Warning",
                "lastTimestamp": rfc3339(watch.clock.now()),
            }
            before = watch.version
            await cluster.embedded.client("user").create(EVENTS, event, namespace="default")

            async def closed() -> bool:
                watch.cluster.snapshot(watch.clock.now())  # events that waited for their claim are understood
                return bool(watch.cluster.failures.current(watch.clock.now()))

            assert await until(closed, within=60)
            assert watch.version > before

    play(story, pool("default", type=["m5.large"]))


def test_nodes_that_come_are_seen_coming_and_then_priced_and_explained() -> None:
    async def story(cluster):
        async with following({"east": cluster.embedded.client("dashboard")}) as collector:
            assert collector.fleet().nodes == 0
            await cluster.embedded.client("user").create(DEPLOYMENTS, deployment("web", 6, cpu="1500m"))
            coming = []

            async def all_ready() -> bool:
                coming.append(collector.fleet().clusters[0].pools[0].coming)
                return await ready(cluster, "web") == 6

            assert await until(all_ready, within=300)
            await asyncio.sleep(1)
            fleet = collector.fleet()
            (row,) = fleet.clusters
            node = collector.nodes("east").items[0]
            detail = collector.node("east", node.name)

        assert max(coming) > 0
        assert row.nodes == row.pools[0].nodes > 0
        assert row.price_per_hour > 0 and row.unpriced == 0
        assert row.amounts["cpu"].requested >= 9000
        assert row.pools[0].amounts["cpu"].potential < 40_000
        assert detail.why and detail.verdict != "not known yet"
        assert {pod.name.split("-")[0] for pod in detail.pods} >= {"default/web"}

    play(story, pool("default", limits={"cpu": "40"}, type=["m5.large", "m5.xlarge"]))


def test_after_bad_weather_it_shows_what_a_new_one_shows() -> None:
    async def story(cluster):
        faults = cluster.embedded.faults
        async with following({"east": cluster.embedded.client("dashboard")}) as collector:
            faults.repeat_events("dashboard")
            faults.late_events("dashboard", seconds=2)
            faults.fail("dashboard", status=503, times=5)
            user = cluster.embedded.client("user")
            await user.create(DEPLOYMENTS, deployment("web", 4, cpu="1500m"))
            for number in range(12):
                await asyncio.sleep(10)
                faults.cut_watches("dashboard", expired=number % 2 == 0)
            assert await until(lambda: _is_ready(cluster), within=300)
            await user.delete(DEPLOYMENTS, "web", namespace="default")
            await asyncio.sleep(300)

            async with following({"east": cluster.embedded.client("fresh")}) as fresh:
                assert shown(collector) == shown(fresh)

    play(story, pool("default", type=["m5.large"]))


async def _is_ready(cluster) -> bool:
    return await ready(cluster, "web") == 4


def test_promises_end_by_themselves_and_whoever_looks_is_told() -> None:
    async def main() -> None:
        clock = LoopClock()
        async with AsyncExitStack() as stack:
            fleet = {"karmada": list(control_plane(clock.now()))}
            clusters = await stack.enter_async_context(clusters_of(fleet, clock))
            clients = {"karmada": clusters["karmada"].client("dashboard")}
            collector = await stack.enter_async_context(following(clients))
            assert {each.cluster for each in collector.promises().items} == {"east", "west"}
            assert collector.fleet().promised_replicas == 24
            before = collector.bell.versions()["promises"]

            await asyncio.sleep(400)

            assert collector.promises().items == []
            assert collector.fleet().promised_replicas == 0
            assert collector.bell.versions()["promises"] > before

    run_manual(main())


def test_a_promise_ends_with_its_pods_also_after_a_workload_shrank_and_grew() -> None:
    """Nothing is reported of it; its pods on nodes are seen all the same, as by an estimator."""

    def pods(numbers: range) -> list[dict[str, object]]:
        found = [cluster_objects.pod(f"web-{number}", "ip-1", "1") for number in numbers]
        for each in found:
            each["metadata"]["namespace"] = "default"
        return found

    async def main() -> None:
        clock = LoopClock()
        binding = placed("web", 10, {"east": 10}, clock.now())
        del binding["status"]["aggregatedStatus"]
        record = {"east": RecordedPromise((((6,), 1.0),), shrank=True)}
        binding["metadata"]["annotations"][PROMISES] = write(record, {"east": (10,)}, clock.now())
        owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d", "controller": True}
        meta = {"name": "web", "namespace": "default", "uid": "web", "ownerReferences": [owner]}
        replicas = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta}
        async with AsyncExitStack() as stack:
            fleet = {"karmada": [binding], "east": [replicas, *pods(range(4))]}
            clusters = await stack.enter_async_context(clusters_of(fleet, clock))
            clients = {name: each.client("dashboard") for name, each in clusters.items()}
            collector = await stack.enter_async_context(following(clients))
            await asyncio.sleep(5)
            assert collector.fleet().promised_replicas == 6

            await load_objects(clusters["east"].client("admin"), pods(range(4, 8)))
            await asyncio.sleep(5)
            assert [each.replicas for each in collector.promises().items] == [2]

            await load_objects(clusters["east"].client("admin"), pods(range(8, 10)))
            await asyncio.sleep(5)
            assert collector.promises().items == []

    run_manual(main())


def test_a_plan_is_made_again_only_while_somebody_looks() -> None:
    async def story(cluster):
        async with following({"east": cluster.embedded.client("dashboard")}) as collector:
            first = collector.consolidation().boards[0].made_at
            await cluster.embedded.client("user").create(DEPLOYMENTS, deployment("web", 2))
            await asyncio.sleep(30)
            watched = collector.consolidation().boards[0].made_at
            await asyncio.sleep(90)
            await cluster.embedded.client("user").create(DEPLOYMENTS, deployment("more", 2))
            await asyncio.sleep(60)
            unwatched = collector.consolidation().boards[0].made_at

        assert first < watched
        # The last question came 30 s after the start, and is remembered for 60 s more.
        assert unwatched < watched + LOOKED_AT_SECONDS + 2

    play(story, pool("default", type=["m5.large"]))


def test_a_scale_up_that_is_over_can_still_be_looked_at() -> None:
    async def main() -> None:
        clock = LoopClock()
        async with AsyncExitStack() as stack:
            fleet = {"gpu": list(scale_ups(clock.now()))}
            clusters = await stack.enter_async_context(clusters_of(fleet, clock))
            collector = await stack.enter_async_context(
                following({"gpu": clusters["gpu"].client("dashboard")})
            )
            going = next(each for each in collector.scale_ups().items if each.state == "Launching")
            admin = clusters["gpu"].client("admin")
            await admin.delete(SCALEUPS, going.name, namespace="karpool-smart-pods")
            await asyncio.sleep(5)

            found = {each.name: each for each in collector.scale_ups().items}
            assert len(found) == 3
            assert (found[going.name].state, found[going.name].over) == ("Ended", True)

    run_manual(main())
