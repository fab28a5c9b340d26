"""An estimator that watches an embedded cluster, in this process and on its time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from karpool.cluster.cluster import Cluster
from karpool.cluster.market.failures import RECOVERY_SECONDS, THRESHOLD_SECONDS, LaunchFailures
from karpool.cluster.market.market import Market
from karpool.estimator.plugins.framework import Framework
from karpool.estimator.plugins.interface import MergedEstimate
from karpool.estimator.plugins.node_autoscaler import NodeAutoscalerEstimator
from karpool.estimator.providers.karpenter import KarpenterProvider
from karpool.estimator.serving.member import MEMBER_ASPECTS, MemberEstimator
from karpool.model.karmada.replica_requirements import Component, requirements
from karpool.wire.requests import ComponentSetsRequest, ReplicasRequest
from karpool_fleet.clusters.live import LiveCluster, catalogue_of
from tests.fleet.living import until

Provider = Any
_NAMES = {"gpu": "nvidia.com/gpu"}


class Asking:
    """What a scheduler would be told."""

    def __init__(self, cluster: LiveCluster, member: MemberEstimator, provider: Provider) -> None:
        self.cluster, self.member, self.provider = cluster, member, provider

    async def outcome(self, **request: str) -> MergedEstimate:
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


def karpenter(cluster: LiveCluster, **settings: Any) -> KarpenterProvider:
    failures = LaunchFailures(
        threshold_seconds=settings.pop("failure_threshold_seconds", THRESHOLD_SECONDS),
        recovery_seconds=settings.pop("recovery_interval_seconds", RECOVERY_SECONDS),
    )
    return KarpenterProvider(cluster.embedded.clock, failures, **settings)


@asynccontextmanager
async def asking(cluster: LiveCluster, provider: Provider = None) -> AsyncIterator[Asking]:
    """With a catalogue of its own, as large as the cluster's."""
    provider = provider or karpenter(cluster)
    plugin = NodeAutoscalerEstimator([provider])
    failures = getattr(provider, "failures", None)
    picture = Cluster(
        MEMBER_ASPECTS | plugin.aspects,
        market=Market(catalogue_of(cluster.spec)),
        failures=failures,
        group_failures=failures,
    )
    client = cluster.embedded.client("estimator")
    member = MemberEstimator(cluster.name, client, picture, Framework([plugin]))
    task = asyncio.create_task(member.informers.run())
    try:

        async def counted() -> bool:
            return not member.not_ready()

        assert await until(counted, within=60)
        yield Asking(cluster, member, provider)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
