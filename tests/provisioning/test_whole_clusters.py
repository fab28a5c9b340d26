"""Whole clusters with preemption and consolidation: placeholders harm nobody and hold their node."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from karpool.model.karpenter.objects import DO_NOT_DISRUPT, NodePool, pool_of
from karpool.model.kubernetes.api_resources import DEPLOYMENTS, NODEPOOLS, PODS
from karpool.packing.new_nodes.offerings import Offerings
from karpool.provisioning.candidates.attempts import resting_until
from karpool.provisioning.candidates.ladder import CandidateQuery, ladder
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.node_request import NodeCandidate, NodeRequest, RequestPurpose, unit
from karpool.provisioning.placeholders.placeholder import PlaceholderState
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.smart_pod_backend import SmartPodBackend
from karpool_fleet.clusters.live import LiveCluster
from tests.fleet import living
from tests.fleet.living import deployment, nodes, pods, pool, ready, until
from tests.provisioning.acting import SETTINGS, followed

TYPE = "c7i.large"  # 2 CPU
PLACE = NodeCandidate(pools=("general",), instance_types=(TYPE,))
ROOM = unit({"cpu": 1500, "memory": 2**30})
WANTED = NodeRequest("move-1", 1, (ROOM,), (PLACE,), purpose=RequestPurpose.REPLACEMENT, pool="general")


@asynccontextmanager
async def asking(cluster: LiveCluster) -> Any:
    client = cluster.embedded.client("desk")
    assert await ensure_prerequisites(client, SETTINGS) == []
    backend = SmartPodBackend(client, SETTINGS, ClaimMonitor(cluster.embedded.clock))
    async with followed(client, (*backend.monitor.watches, *backend.watches)):
        yield backend


def play(
    story: Callable[[LiveCluster, SmartPodBackend], Awaitable[None]], *objects: Any, **spec: Any
) -> None:
    async def main(cluster: LiveCluster) -> None:
        async with asking(cluster) as backend:
            await story(cluster, backend)

    living.play(main, *objects, **spec)


def stands(backend: SmartPodBackend) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        found = backend.placeholders()
        return bool(found) and all(each.outlook is PlaceholderState.THERE for each in found)

    return there


@pytest.mark.long
def test_a_workload_takes_the_room_of_a_placeholder_by_preemption() -> None:
    """Hand-off without a race: nothing has to be withdrawn before the workload comes."""

    async def story(cluster: LiveCluster, backend: SmartPodBackend) -> None:
        await backend.request(WANTED, PLACE)
        assert await until(stands(backend), within=300)
        node = backend.placeholders()[0].node
        await cluster.embedded.client("admin").scale(DEPLOYMENTS, "web", 1, namespace="default")

        async def runs() -> bool:
            return await ready(cluster, "web") == 1

        assert await until(runs, within=60)
        assert [pod.spec.node_name for pod in await pods(cluster)] == [node]
        assert len(await nodes(cluster)) == 1 and not backend.placeholders()

    play(story, pool("general", type=[TYPE]), deployment("web", 0, cpu="1500m"))


def test_a_placeholder_never_evicts_anybody() -> None:
    async def story(cluster: LiveCluster, backend: SmartPodBackend) -> None:
        async def runs() -> bool:
            return await ready(cluster, "web") == 1

        assert await until(runs, within=300)
        (before,) = await pods(cluster)
        await backend.request(WANTED, PLACE)
        await asyncio.sleep(300)
        assert before.metadata.uid in [pod.metadata.uid for pod in await pods(cluster)]
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
    async def story(cluster: LiveCluster, backend: SmartPodBackend) -> None:
        await backend.request(WANTED, PLACE)
        assert await until(stands(backend), within=300)
        await asyncio.sleep(600)
        assert await stands(backend)(), "consolidation leaves it alone"
        raw = (await cluster.embedded.client("reader").list(PODS)).items
        assert [each["metadata"]["annotations"][DO_NOT_DISRUPT] for each in raw] == ["true"]
        for placeholder in backend.placeholders():
            await backend.withdraw(placeholder)

        async def empty() -> bool:
            return not await nodes(cluster)

        assert await until(empty, within=600), "an empty node is Karpenter's to remove"

    play(story, pool("general", type=[TYPE]), consolidation=True)


@pytest.mark.long
def test_the_next_rung_is_tried_after_a_stock_out_and_the_first_rests() -> None:
    async def story(cluster: LiveCluster, backend: SmartPodBackend) -> None:
        out = cluster.cloud.stock_out(TYPE)
        client = cluster.embedded.client("admin")
        compiled = [pool_of(each) for each in (await client.list(NODEPOOLS, into=NodePool)).items]
        offerings = Offerings(cluster.catalogue)
        found = ladder(CandidateQuery(dict(ROOM.resources)), compiled, offerings)
        first, second = (NodeCandidate(pools=(name,), instance_types=(each,)) for name, each in places)
        assert {*first.instance_types, *second.instance_types} == set(found.candidates[-1].instance_types)
        await backend.request(WANTED, first)
        offered = {each.name: offerings.for_pool(each) for each in compiled}
        failures = backend.monitor.failures

        async def first_rests() -> bool:
            return first.key in resting_until(
                [first, second], offered, failures, cluster.embedded.clock.now()
            )

        assert await until(first_rests, within=60)
        now = cluster.embedded.clock.now()
        assert set(resting_until([first, second], offered, failures, now)) == {first.key}
        for each in backend.placeholders():
            await backend.withdraw(each)
        next_ = NodeRequest(
            "move-1", 2, (ROOM,), (first, second), purpose=RequestPurpose.REPLACEMENT, pool="general"
        )
        await backend.request(next_, second)
        assert await until(stands(backend), within=300)
        out.end()
        await asyncio.sleep(181)
        assert resting_until([first, second], offered, failures, cluster.embedded.clock.now()) == {}

    places = (("general", TYPE), ("second", "m7i.large"))
    play(story, *(pool(name, type=[each]) for name, each in places))
