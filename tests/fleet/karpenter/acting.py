"""Stages for stories about Karpenter: a cluster with machines, kubelets and a plain scheduler."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.watch.feed import ClusterSink
from karpool.model.catalogue.catalogue import Catalogue, InstanceType, Offering
from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, SPOT, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import EVENTS, NODECLAIMS, NODEPOOLS, NODES, PDBS, PODS
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import ARCH, INSTANCE_TYPE, OS, ZONE, Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.model.requirements import ValueSet
from karpool.packing.new_nodes.pack import pack_new_nodes
from karpool.packing.new_nodes.pack_result import PendingPod
from karpool_fleet.apiserver.kinds.bundled_crds import KARPENTER, bundled_crds
from karpool_fleet.cloud.cloud import Cloud, CloudSettings
from karpool_fleet.cloud.delays import constant
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.karpenter import karpenter_components
from karpool_fleet.karpenter.settings import KarpenterSettings
from karpool_fleet.kubelet.kubelet import KubeletSettings, kubelet
from karpool_fleet.runtime.supervisor import Context

GIB = 2**30
ZONES = ("zone-a", "zone-b")


def machine(name: str, cpu: int, memory_gib: int, price: float, **devices: int) -> InstanceType:
    """0.1 CPU and 0.5 GiB of it are kept for the system; spot costs a third."""
    capacity = {"cpu": cpu * 1000, "memory": memory_gib * GIB, "pods": 50, "ephemeral-storage": 20 * GIB}
    capacity |= {f"nvidia.com/{kind}": count for kind, count in devices.items()}
    allocatable = {**capacity, "cpu": cpu * 1000 - 100, "memory": memory_gib * GIB - GIB // 2}
    offerings = [
        Offering(zone, kind, price if kind == ON_DEMAND else price / 3)
        for zone in ZONES
        for kind in (ON_DEMAND, SPOT)
    ]
    labels = {INSTANCE_TYPE: name, ARCH: "amd64", OS: "linux"}
    requirements = {key: ValueSet(frozenset((value,))) for key, value in labels.items()}
    return InstanceType(name, requirements, capacity, allocatable).sold_as(offerings)


@cache
def catalogue() -> Catalogue:
    types = [
        machine("small", 2, 8, 0.10),
        machine("medium", 4, 16, 0.20),
        machine("large", 8, 32, 0.40),
        machine("accelerated", 8, 32, 3.00, gpu=1),
    ]
    return Catalogue("test", "here", types)


class Scheduler:
    """Binds pods to the first node that takes them, and says so when none does."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster = Cluster(Aspect.ROOM)
        self._wake = asyncio.Event()
        self._pods = context.informers.of(PODS, Pod)
        self._nodes = context.informers.of(NODES, Node)

    async def run(self) -> None:
        await self._context.informers.synced()
        self._nodes.add_sink(ClusterSink(self._cluster, kinds.NODES, self._context.clock))
        self._pods.add_sink(ClusterSink(self._cluster, kinds.PODS, self._context.clock))
        for feed in (self._pods, self._nodes):
            feed.on_change(lambda _: self._wake.set())
        while True:
            await self._wake.wait()
            await self._context.clock.sleep(0.1)
            self._wake.clear()
            await self._schedule()

    async def _schedule(self) -> None:
        waiting = [p for p in self._pods.objects() if not p.spec.node_name and not p.is_terminating]
        snapshot = self._cluster.room.snapshot()
        pods = [
            PendingPod(pod.metadata.key, snapshot.shapes[snapshot.pending[pod.metadata.key]], pod.name)
            for pod in waiting
            if pod.metadata.key in snapshot.pending
        ]
        placed = pack_new_nodes(snapshot, pods, (), catalogue()).placed
        for pod in waiting:
            try:
                await self._settle(pod, placed.get(pod.metadata.key))
            except KubeError:
                self._wake.set()

    async def _settle(self, pod: Pod, node: str | None) -> None:
        client, meta = self._context.client, pod.metadata
        if node is not None:
            await client.bind(meta.name, node, namespace=meta.namespace, uid=meta.uid)
        elif condition(pod.status.conditions, "PodScheduled") is None:
            entry = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": rfc3339(self._context.clock.now()),
            }
            status = {"status": {"conditions": [entry]}}
            await client.patch(
                PODS, meta.name, status, namespace=meta.namespace, how="strategic", subresource="status"
            )


STEADY = CloudSettings(launch=constant(3), terminate=constant(5))
BOOTS = KubeletSettings(register=constant(20), ready=constant(10), pull=constant(0), heartbeat_seconds=None)


@dataclass
class Stage:
    cluster: EmbeddedCluster
    cloud: Cloud
    admin: Client
    crashes: int = 0

    @property
    def now(self) -> float:
        return self.cluster.clock.now()

    async def pool(self, name: str = "general", **changes: Any) -> None:
        await self.admin.create(NODEPOOLS, pool(name, **changes))

    async def pods(self, count: int, prefix: str = "web", **changes: Any) -> None:
        for number in range(count):
            await self.admin.create(PODS, pod(f"{prefix}-{number:03}", **changes))

    async def claims(self) -> list[NodeClaim]:
        return (await self.admin.list(NODECLAIMS, into=NodeClaim)).items

    async def nodes(self) -> list[Node]:
        return (await self.admin.list(NODES, into=Node)).items

    async def all_pods(self) -> list[Pod]:
        return (await self.admin.list(PODS, into=Pod)).items

    async def running(self) -> list[Pod]:
        return [
            pod for pod in await self.all_pods() if pod.status.phase == "Running" and not pod.is_terminating
        ]

    async def get_pool(self, name: str = "general") -> NodePool:
        return await self.admin.get(NODEPOOLS, name, into=NodePool)

    async def events(self, reason: str) -> list[Object]:
        page = await self.admin.list(EVENTS)
        return [item for item in page.items if item["reason"] == reason]

    async def budget(self, app: str, **spec: Any) -> None:
        await self.admin.create(
            PDBS,
            {
                "metadata": {"name": app, "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
            },
        )

    async def until(self, condition: Callable[[], Awaitable[object]], *, seconds: float = 600.0) -> float:
        """When it became true; fails when it never does."""
        for _ in range(int(seconds * 4)):
            if await condition():
                return self.now
            await asyncio.sleep(0.25)
        raise AssertionError(f"not true after {seconds} s")

    async def all_run(self, count: int) -> None:
        async def enough() -> bool:
            return len(await self.running()) == count

        await self.until(enough)

    async def gone(self, claim: str, *, seconds: float = 60.0) -> None:
        """Until nothing is left of one claim."""

        async def over() -> bool:
            tags = [instance.tags["karpenter.sh/nodeclaim"] for instance in self.cloud.instances.values()]
            return claim not in [each.name for each in await self.claims()] and claim not in tags

        await self.until(over, seconds=seconds)

    async def empty(self, *, seconds: float = 600.0) -> None:
        """Until nothing is left of any node: no claim, no node, no machine."""

        async def gone() -> bool:
            return not await self.claims() and not await self.nodes() and not self.cloud.instances

        await self.until(gone, seconds=seconds)


def pool(
    name: str = "general",
    *,
    types: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (ON_DEMAND,),
    template: Object | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    requirements: list[Object] = [{"key": CAPACITY_TYPE, "operator": "In", "values": list(kinds)}]
    if types:
        requirements.append({"key": INSTANCE_TYPE, "operator": "In", "values": list(types)})
    ref = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    inner = {"nodeClassRef": ref, "requirements": requirements, **(template or {})}
    metadata = {"metadata": {"labels": labels}} if labels else {}
    return {"metadata": {"name": name}, "spec": {"template": {**metadata, "spec": inner}, **spec}}


def pod(
    name: str, *, cpu: str = "1", memory: str = "1Gi", app: str = "web", annotations: Any = None, **spec: Any
) -> Object:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": app},
            "annotations": annotations or {},
        },
        "spec": {"containers": [{"name": "main", "image": "web:1", "resources": resources}], **spec},
    }


@asynccontextmanager
async def staged(
    *,
    seed: int = 0,
    settings: KarpenterSettings | None = None,
    cloud_settings: CloudSettings = STEADY,
    boots: KubeletSettings = BOOTS,
) -> AsyncIterator[Stage]:
    clock = LoopClock()
    async with EmbeddedCluster("east", clock=clock, seed=seed, crds=bundled_crds(KARPENTER)) as cluster:
        cloud = Cloud(catalogue(), clock, cluster.random("cloud"), cloud_settings)
        for name, build in karpenter_components(cloud, settings).items():
            cluster.add(name, build)
        cluster.add("kubelet", kubelet(cloud, boots))
        cluster.add("scheduler", Scheduler)
        yield Stage(cluster, cloud, cluster.client("admin"))


def play(story: Callable[[Stage], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with staged(**options) as stage:
            return await story(stage)

    return run_manual(main())


def status_of(claim: NodeClaim, kind: str) -> tuple[str, str]:
    found = condition(claim.status.conditions, kind)
    return ("", "") if found is None else (found.status, found.reason or "")


def since(claim: NodeClaim, kind: str) -> float:
    found = condition(claim.status.conditions, kind)
    assert found is not None and found.last_transition_time is not None, (kind, claim.status.conditions)
    return parse_rfc3339(found.last_transition_time)


def zone_of(node: Node) -> str:
    return node.labels[ZONE]
