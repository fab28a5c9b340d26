"""Components of an embedded cluster are restarted when they fail, and stay down when they are crashed."""

import asyncio

from karpool.model.kubernetes.api_resources import CONFIGMAPS, NODES
from karpool.model.kubernetes.node import Node
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.runtime.supervisor import Context


class Greeter:
    """Writes a ConfigMap for every node it sees."""

    def __init__(self, context: Context) -> None:
        self._client = context.client
        self._nodes = context.informers.of(NODES, Node)
        self._waiting: asyncio.Queue[str] = asyncio.Queue()
        self._nodes.on_change(lambda change: self._waiting.put_nowait(change.key.name))

    async def run(self) -> None:
        while True:
            name = await self._waiting.get()
            if name == "cursed":
                raise ValueError("cannot greet")
            await self._client.create(CONFIGMAPS, {"metadata": {"name": name, "namespace": "default"}})


async def greeted(cluster: EmbeddedCluster) -> list[str]:
    await asyncio.sleep(120)
    page = await cluster.client("reader").list(CONFIGMAPS)
    return sorted(item["metadata"]["name"] for item in page.items)


def test_a_component_acts_on_what_it_sees() -> None:
    async def story() -> list[str]:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            cluster.add("greeter", Greeter)
            for name in ("a", "b"):
                await cluster.client("admin").create(NODES, {"metadata": {"name": name}})
            return await greeted(cluster)

    assert run_manual(story()) == ["a", "b"]


def test_a_component_that_raises_is_started_again() -> None:
    async def story() -> int:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            cluster.add("greeter", Greeter)
            await cluster.client("admin").create(NODES, {"metadata": {"name": "cursed"}})
            await asyncio.sleep(60)
            assert cluster.components.is_running("greeter")
            return cluster.components.restarts["greeter"]

    assert run_manual(story()) >= 2


def test_a_crashed_component_stays_down_until_it_is_started() -> None:
    async def story() -> tuple[list[str], list[str]]:
        async with EmbeddedCluster("east", clock=LoopClock()) as cluster:
            cluster.add("greeter", Greeter)
            await cluster.components.crash("greeter")
            await cluster.client("admin").create(NODES, {"metadata": {"name": "a"}})
            before = await greeted(cluster)
            cluster.components.start("greeter")
            return before, await greeted(cluster)

    assert run_manual(story()) == ([], ["a"])


def test_the_same_seed_gives_the_same_bytes() -> None:
    async def story(seed: int) -> list[dict[str, object]]:
        async with EmbeddedCluster("east", clock=LoopClock(), seed=seed) as cluster:
            cluster.add("greeter", Greeter)
            await cluster.client("admin").create(NODES, {"metadata": {"generateName": "node-"}})
            await asyncio.sleep(1)
            return (await cluster.client("reader").list(CONFIGMAPS)).items

    assert run_manual(story(1)) == run_manual(story(1))
    assert run_manual(story(1)) != run_manual(story(2))
