"""A small fleet with a control plane, and a scheduler of a few lines that signs as schedulers do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import NotFound
from karpool.kube.work_queue import WorkQueue
from karpool.model.kubernetes.api_resources import (
    CLUSTERRESOURCEBINDINGS,
    CLUSTERS,
    DEPLOYMENTS,
    NODES,
    PROPAGATIONPOLICIES,
    RESOURCEBINDINGS,
    WORKS,
    ApiResource,
    ObjectKey,
)
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.apiserver.kinds.bundled_crds import KARMADA, bundled_crds
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.karmada import karmada_components
from karpool_fleet.karmada.members.members import JoinedMember, join
from karpool_fleet.karmada.propagation.names import APPLIED_PLACEMENT, CLAIM_LABELS, execution_space
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.workloads import workload_components
from tests.fleet.workloads.acting import Lifegiver, template

# Which clusters get how many: from a binding's spec and the clusters that take work now.
Decide = Callable[[Object, Sequence[str]], list[Object]]


def everywhere(spec: Object, clusters: Sequence[str]) -> list[Object]:
    """Split evenly when divided, the first clusters getting what is left over; else the whole count."""
    replicas = spec.get("replicas", 0)
    names = spec.get("placement", {}).get("clusterAffinity", {}).get("clusterNames") or clusters
    chosen = [name for name in clusters if name in names]
    if not replicas:
        return [{"name": name} for name in chosen]
    if not spec["placement"].get("replicaScheduling"):
        return [{"name": name, "replicas": replicas} for name in chosen]
    shares = [replicas // len(chosen) + (index < replicas % len(chosen)) for index in range(len(chosen))]
    return [{"name": name, "replicas": share} for name, share in zip(chosen, shares, strict=True) if share]


class StandIn:
    """Schedules every binding with `decide`, keeps away from tainted clusters and from those being left."""

    def __init__(self, context: Context, decide: Decide = everywhere) -> None:
        self._context, self._client, self._decide = context, context.client, decide
        self._queue: WorkQueue[tuple[ApiResource, ObjectKey]] = WorkQueue(
            context.clock, chance=context.random.random
        )
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._feeds: dict[ApiResource, Feed[Object]] = {
            each: context.informers.of(each) for each in (RESOURCEBINDINGS, CLUSTERRESOURCEBINDINGS)
        }
        for resource, feed in self._feeds.items():
            feed.on_change(self._told(resource))

    def _told(self, resource: ApiResource) -> Callable[[ObjectChange[Object]], None]:
        return lambda change: self._queue.add((resource, change.key))

    async def run(self) -> None:
        await self._context.informers.synced()
        await self._queue.run(self._schedule)

    async def _schedule(self, work: tuple[ApiResource, ObjectKey]) -> None:
        resource, key = work
        binding = self._feeds[resource].get(key)
        if binding is None or "deletionTimestamp" in binding["metadata"]:
            return
        meta, spec, status = binding["metadata"], binding["spec"], binding.get("status") or {}
        if not any((meta.get("labels") or {}).get(label) for label in CLAIM_LABELS):
            return
        if status.get("schedulerObservedGeneration") == meta["generation"]:
            return
        leaving = {task["fromCluster"] for task in spec.get("gracefulEvictionTasks") or ()}
        held = {each["name"] for each in spec.get("clusters") or ()}
        usable = [
            each["metadata"]["name"]
            for each in self._clusters.objects()
            if each["metadata"]["name"] not in leaving
            and (each["metadata"]["name"] in held or not each["spec"].get("taints"))
        ]
        wanted = self._decide(spec, sorted(usable))
        placement = json.dumps(spec["placement"], sort_keys=True)
        namespace = key.namespace or None
        if (spec.get("clusters") or []) != wanted or (meta.get("annotations") or {}).get(
            APPLIED_PLACEMENT
        ) != placement:
            notes = {
                "resourceVersion": meta["resourceVersion"],
                "annotations": {APPLIED_PLACEMENT: placement},
            }
            patch = {"metadata": notes, "spec": {"clusters": wanted or None}}
            binding = await self._client.patch(resource, key.name, patch, namespace=namespace)
        told = {
            "schedulerObservedGeneration": binding["metadata"]["generation"],
            "lastScheduledTime": rfc3339(self._context.clock.now()),
        }
        await self._client.patch(
            resource, key.name, {"status": told}, namespace=namespace, subresource="status"
        )


class Fleet:
    """A control plane and its members."""

    def __init__(self, control: EmbeddedCluster, members: dict[str, EmbeddedCluster]) -> None:
        self.control = control
        self.clusters = members
        self.admin = control.client("admin")
        self._admins = {name: cluster.client("admin") for name, cluster in members.items()}

    def at(self, name: str) -> Client:
        return self._admins[name]

    async def binding(self, name: str, namespace: str = "default") -> Object:
        return await self.admin.get(RESOURCEBINDINGS, name, namespace=namespace)

    async def works(self, cluster: str) -> list[Object]:
        page = await self.admin.list(WORKS)
        return [work for work in page.items if work["metadata"]["namespace"] == execution_space(cluster)]

    async def replicas(self, name: str = "web") -> dict[str, int]:
        """What each member's Deployment asks for; members without one are left out."""
        found = {}
        for cluster, client in self._admins.items():
            try:
                obj = await client.get(DEPLOYMENTS, name, namespace="default")
                found[cluster] = obj["spec"]["replicas"]
            except NotFound:
                continue
        return found

    async def everywhere(self, resource: ApiResource, name: str = "web") -> list[Object]:
        """The object of that name in every member."""
        return [await client.get(resource, name, namespace="default") for client in self._admins.values()]

    async def cluster(self, name: str) -> Object:
        return await self.admin.get(CLUSTERS, name)


@asynccontextmanager
async def fleet(
    *names: str,
    decide: Decide = everywhere,
    graceful_eviction_timeout: float = 600.0,
    crds: Sequence[Object] = (),
    lively: bool = True,
    seed: int = 0,
    **about: Any,
) -> AsyncIterator[Fleet]:
    """Members `names` have joined; with `lively` their workloads have pods that start."""
    clock = LoopClock()
    async with AsyncExitStack() as stack:
        members: dict[str, EmbeddedCluster] = {}
        for name in names:
            cluster = await stack.enter_async_context(
                EmbeddedCluster(name, clock=clock, seed=seed, crds=crds)
            )
            members[name] = cluster
            admin = cluster.client("admin")
            await admin.create(NODES, {"metadata": {"name": "node-a"}})
            status = {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"}}
            ready = {"type": "Ready", "status": "True"}
            await admin.patch(
                NODES, "node-a", {"status": {**status, "conditions": [ready]}}, subresource="status"
            )
            if lively:
                for component, build in workload_components().items():
                    cluster.add(component, build)
                cluster.add("lifegiver", Lifegiver)
        control = await stack.enter_async_context(
            EmbeddedCluster("karmada", clock=clock, seed=seed, crds=[*bundled_crds(KARMADA), *crds])
        )
        known = {name: JoinedMember(name, cluster.client, **about) for name, cluster in members.items()}
        for component, build in karmada_components(
            known, graceful_eviction_timeout=graceful_eviction_timeout
        ).items():
            control.add(component, build)
        control.add("scheduler", lambda context: StandIn(context, decide))
        for member in known.values():
            await join(control.client("admin"), member)
        await asyncio.sleep(1)
        yield Fleet(control, members)


def policy(name: str = "web", kind: str = "Deployment", **spec: Any) -> Object:
    selector = {"apiVersion": "apps/v1", "kind": kind, "name": name}
    divided = {"replicaSchedulingType": "Divided"}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "resourceSelectors": [selector],
            "placement": {"replicaScheduling": divided},
            **spec,
        },
    }


def deployment(name: str = "web", replicas: int = 4, **meta: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": "default", **meta},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name),
        },
    }


async def deploy(fleet_: Fleet, replicas: int = 4, **spec: Any) -> None:
    await fleet_.admin.create(PROPAGATIONPOLICIES, policy(**spec))
    await fleet_.admin.create(DEPLOYMENTS, deployment(replicas=replicas))


async def until(condition: Callable[[], Awaitable[object]], *, seconds: float = 120.0) -> None:
    for _ in range(int(seconds * 4)):
        if await condition():
            return
        await asyncio.sleep(0.25)
    raise AssertionError(f"not true after {seconds} s")


def condition(obj: Object, kind: str) -> tuple[str, str]:
    found = next(each for each in obj["status"]["conditions"] if each["type"] == kind)
    return found["status"], found["reason"]
