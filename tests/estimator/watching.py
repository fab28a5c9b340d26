"""An estimator that watches an embedded cluster, in this process and on its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from karpool.estimator.framework import Outcome
from karpool.estimator.karpenter import KarpenterCapacity
from karpool.estimator.market import Market
from karpool.estimator.member import Member
from karpool.estimator.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.registry import Plugins
from karpool.estimator.running import Framework
from karpool.fleet.live import LiveCluster, catalogue_of
from karpool.wire.request import Component, ComponentSetsRequest, ReplicasRequest, requirements
from tests.fleet.living import until

Provider = Any
_NAMES = {"gpu": "nvidia.com/gpu"}


class Asking:
    """What a scheduler would be told."""

    def __init__(self, cluster: LiveCluster, member: Member, provider: Provider) -> None:
        self.cluster, self.member, self.provider = cluster, member, provider

    async def outcome(self, **request: str) -> Outcome:
        named = {_NAMES.get(name, name): text for name, text in request.items()}
        return await self.member.framework.run(
            self.member.question(ReplicasRequest(self.cluster.name, requirements(named)))
        )

    async def replicas(self, **request: str) -> int:
        return (await self.outcome(**request)).answer

    async def potential(self, **request: str) -> dict[str, int]:
        """By pool, without existing nodes."""
        found = await self.outcome(**request)
        return {part.name.partition("/")[2]: part.amount for part in found.parts if "/" in part.name}

    async def sets(self, **components: dict[str, Any]) -> int:
        parts = tuple(
            Component(name, each.pop("replicas", 1), requirements(each)) for name, each in components.items()
        )
        asked = ComponentSetsRequest(self.cluster.name, parts)
        return (await self.member.framework.run(self.member.question(asked))).answer


def karpenter(cluster: LiveCluster, **settings: Any) -> KarpenterCapacity:
    """With a catalogue of its own, as large as the cluster's."""
    return KarpenterCapacity(cluster.embedded.clock, Market(catalogue_of(cluster.spec)), **settings)


@asynccontextmanager
async def asking(cluster: LiveCluster, provider: Provider = None) -> AsyncIterator[Asking]:
    provider = provider or karpenter(cluster)
    plugins = Plugins([NodeAutoscalerEstimator([provider])])
    client = cluster.embedded.client("estimator")
    member = Member(cluster.name, client, plugins, Framework(plugins.ours))
    task = asyncio.create_task(member.run())
    try:

        async def counted() -> bool:
            return not member.not_ready()

        assert await until(counted, within=60)
        yield Asking(cluster, member, provider)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
