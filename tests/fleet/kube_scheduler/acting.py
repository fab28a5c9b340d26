"""Sentences for stories about scheduling."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from karpool.model.kubernetes.api_resources import EVENTS, NODES, PODS, PRIORITYCLASSES
from karpool.model.kubernetes.meta import Condition, condition
from karpool.model.kubernetes.node import HOSTNAME, ZONE, Node, allocatable
from karpool.model.kubernetes.pod import Pod, effective_requests
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.kube_scheduler.scheduler import kube_scheduler
from karpool_fleet.kube_scheduler.settings import KubeSchedulerSettings

T = TypeVar("T")
Story = Callable[["Stage"], Awaitable[T]]


def play(story: Story[T], *, seed: int = 0, scheduler: bool = True, **settings: Any) -> T:
    async def main() -> T:
        async with EmbeddedCluster("east", clock=LoopClock(), seed=seed) as cluster:
            if scheduler:
                cluster.add("kube-scheduler", kube_scheduler(KubeSchedulerSettings(**settings)))
            return await story(Stage(cluster))

    return run_manual(main())


class Stage:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client("admin")

    async def node(
        self,
        name: str,
        *,
        cpu: str = "4",
        memory: str = "16Gi",
        pods: str = "110",
        zone: str = "a",
        labels: dict[str, str] | None = None,
        taints: Iterable[dict[str, str]] = (),
        **spec: Any,
    ) -> None:
        every = {HOSTNAME: name, ZONE: zone, **(labels or {})}
        body = {"metadata": {"name": name, "labels": every}, "spec": {"taints": list(taints), **spec}}
        await self.client.create(NODES, body)
        offered = {"cpu": cpu, "memory": memory, "pods": pods}
        status = {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
        await self.client.patch(NODES, name, {"status": status}, subresource="status")

    async def pod(
        self,
        name: str,
        *,
        cpu: str = "1",
        memory: str = "1Mi",
        labels: dict[str, str] | None = None,
        on: str = "",
        **spec: Any,
    ) -> None:
        requests = {"cpu": cpu, "memory": memory}
        container = {"name": "c", "image": "app:1", "resources": {"requests": requests}}
        body = {
            "metadata": {"name": name, "namespace": "default", "labels": labels or {}},
            "spec": {"containers": [container | spec.pop("container", {})], **spec},
        }
        await self.client.create(PODS, body)
        if on:
            await self.client.bind(name, on, namespace="default")

    async def priorities(self, **values: int) -> None:
        for name, value in values.items():
            await self.client.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})

    async def delete(self, name: str) -> None:
        await self.client.delete(PODS, name, namespace="default", grace_seconds=0)

    async def read(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace="default", into=Pod)

    async def pods(self) -> list[Pod]:
        return (await self.client.list(PODS, into=Pod)).items

    async def where(self) -> dict[str, str]:
        return {pod.name: pod.spec.node_name for pod in await self.pods()}

    async def scheduled(self, name: str) -> Condition:
        found = condition((await self.read(name)).status.conditions, "PodScheduled")
        assert found is not None, name
        return found

    async def events(self, reason: str) -> list[dict[str, Any]]:
        return [each for each in (await self.client.list(EVENTS)).items if each["reason"] == reason]

    async def zones(self) -> Counter[str]:
        nodes = {node.name: node.labels[ZONE] for node in (await self.client.list(NODES, into=Node)).items}
        return Counter(nodes[node] for node in (await self.where()).values() if node)

    async def crash_and_restart(self) -> None:
        if self.cluster.components.is_running("kube-scheduler"):
            await self.cluster.components.crash("kube-scheduler")
        self.cluster.components.start("kube-scheduler")

    async def overcommitted(self) -> list[str]:
        """Nodes whose pods ask for more than there is; counted the slow way."""
        nodes = (await self.client.list(NODES, into=Node)).items
        pods = await self.pods()
        found = []
        for node in nodes:
            here = [p for p in pods if p.spec.node_name == node.name and not p.is_terminal]
            offered = allocatable(node)
            used: Counter[str] = Counter(pods=len(here))
            for pod in here:
                used.update(effective_requests(pod))
            found += [f"{node.name} {name}" for name, units in used.items() if units > offered.get(name, 0)]
        return found


async def settle(seconds: float = 1.0) -> None:
    await asyncio.sleep(seconds)


def spread(key: str, app: str, *, skew: int = 1, soft: bool = False) -> dict[str, Any]:
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    }


def near(app: str, key: str = HOSTNAME) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
