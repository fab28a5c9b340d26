"""Whole clusters with preemption and consolidation: placeholders harm nobody and hold their node."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from karpool.fleet.live import LiveCluster
from karpool.kube.resource import DEPLOYMENTS, NODEPOOLS, PODS
from karpool.model.karpenter import DO_NOT_DISRUPT, NodePool, pool_of
from karpool.packing.offerings import Offerings
from karpool.provisioning.ask import Ask, Candidate, Purpose, unit
from karpool.provisioning.attempts import rests
from karpool.provisioning.candidates import Wish, ladder
from karpool.provisioning.claim_monitor import ClaimMonitor
from karpool.provisioning.groundwork import prepare
from karpool.provisioning.placeholders import Outlook
from karpool.provisioning.smart_pod_manager import SmartPods
from tests.fleet import living
from tests.fleet.living import deployment, nodes, pods, pool, ready, until
from tests.provisioning.acting import SETTINGS, followed

TYPE = "c7i.large"  # 2 CPU
PLACE = Candidate(pools=("general",), instance_types=(TYPE,))
ROOM = unit({"cpu": 1500, "memory": 2**30})
WANTED = Ask("move-1", 1, (ROOM,), (PLACE,), purpose=Purpose.REPLACEMENT, pool="general")


@asynccontextmanager
async def asking(cluster: LiveCluster) -> Any:
    client = cluster.embedded.client("desk")
    assert await prepare(client, SETTINGS) == []
    backend = SmartPods(client, SETTINGS, ClaimMonitor(cluster.embedded.clock))
    async with followed(client, (*backend.monitor.watches, *backend.watches)):
        yield backend


def play(story: Callable[[LiveCluster, SmartPods], Awaitable[None]], *objects: Any, **spec: Any) -> None:
    async def main(cluster: LiveCluster) -> None:
        async with asking(cluster) as backend:
            await story(cluster, backend)

    living.play(main, *objects, **spec)


def stands(backend: SmartPods) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        found = backend.placeholders()
        return bool(found) and all(each.outlook is Outlook.THERE for each in found)

    return there


def test_a_workload_takes_the_room_of_a_placeholder_by_preemption() -> None:
    """Hand-off without a race: nothing has to be withdrawn before the workload comes."""

    async def story(cluster: LiveCluster, backend: SmartPods) -> None:
        await backend.request(WANTED, PLACE)
        assert await until(stands(backend), within=300)
        node = backend.placeholders()[0].node
        await cluster.embedded.client("admin").scale(DEPLOYMENTS, "web", 1, namespace="default")

        async def runs() -> bool:
            return await ready(cluster, "web") == 1

        assert await until(runs, within=60)
        assert [each.spec.node_name for each in await pods(cluster)] == [node]
        assert len(await nodes(cluster)) == 1 and not backend.placeholders()

    play(story, pool("general", type=[TYPE]), deployment("web", 0, cpu="1500m"))


def test_a_placeholder_never_evicts_anybody() -> None:
    async def story(cluster: LiveCluster, backend: SmartPods) -> None:
        async def runs() -> bool:
            return await ready(cluster, "web") == 1

        assert await until(runs, within=300)
        (before,) = await pods(cluster)
        await backend.request(WANTED, PLACE)
        await asyncio.sleep(300)
        assert before.metadata.uid in [each.metadata.uid for each in await pods(cluster)]
        assert not (await stands(backend)()), "the pool's limit is reached, so it waits"

    # Workloads of the lowest priority that people use, and no room for anything else.
    lowest = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "lowest"},
        "value": -5000,
    }
    work = deployment("web", 1, cpu="1500m", priorityClassName="lowest")
    play(story, lowest, pool("general", type=[TYPE], limits={"cpu": "2"}), work)


def test_a_node_is_kept_while_its_placeholder_stands_and_goes_when_nobody_comes() -> None:
    async def story(cluster: LiveCluster, backend: SmartPods) -> None:
        await backend.request(WANTED, PLACE)
        assert await until(stands(backend), within=300)
        await asyncio.sleep(600)
        assert await stands(backend)(), "consolidation leaves it alone"
        raw = (await cluster.embedded.client("reader").list(PODS)).items
        assert [each["metadata"]["annotations"][DO_NOT_DISRUPT] for each in raw] == ["true"]
        for each in backend.placeholders():
            await backend.withdraw(each)

        async def empty() -> bool:
            return not await nodes(cluster)

        assert await until(empty, within=600), "an empty node is Karpenter's to remove"

    play(story, pool("general", type=[TYPE]), consolidation=True)


def test_the_next_rung_is_tried_after_a_stock_out_and_the_first_rests() -> None:
    async def story(cluster: LiveCluster, backend: SmartPods) -> None:
        out = cluster.cloud.stock_out(TYPE)
        client = cluster.embedded.client("admin")
        compiled = [pool_of(each) for each in (await client.list(NODEPOOLS, into=NodePool)).items]
        offerings = Offerings(cluster.catalogue)
        found = ladder(Wish(dict(ROOM.resources)), compiled, offerings)
        first, second = (Candidate(pools=(name,), instance_types=(each,)) for name, each in places)
        assert {*first.instance_types, *second.instance_types} == set(found.candidates[-1].instance_types)
        await backend.request(WANTED, first)
        offered = {each.name: offerings.of(each) for each in compiled}
        failures = backend.monitor.failures

        async def first_rests() -> bool:
            return first.key in rests([first, second], offered, failures, cluster.embedded.clock.now())

        assert await until(first_rests, within=60)
        now = cluster.embedded.clock.now()
        assert set(rests([first, second], offered, failures, now)) == {first.key}
        for each in backend.placeholders():
            await backend.withdraw(each)
        next_ = Ask("move-1", 2, (ROOM,), (first, second), purpose=Purpose.REPLACEMENT, pool="general")
        await backend.request(next_, second)
        assert await until(stands(backend), within=300)
        out.end()
        await asyncio.sleep(181)
        assert rests([first, second], offered, failures, cluster.embedded.clock.now()) == {}

    places = (("general", TYPE), ("second", "m7i.large"))
    play(story, *(pool(name, type=[each]) for name, each in places))
