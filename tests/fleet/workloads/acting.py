"""A scheduler and kubelet of a few lines, so that workloads have pods that live."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.work_queue import WorkQueue
from karpool.model.kubernetes.api_resources import (
    DEPLOYMENTS,
    NODES,
    PODS,
    REPLICASETS,
    ApiResource,
    ListOptions,
    ObjectKey,
)
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.clusters.clock import LoopClock
from karpool_fleet.clusters.embedded import EmbeddedCluster
from karpool_fleet.runtime.supervisor import Build, Context
from karpool_fleet.workloads import workload_components


class Lifegiver:
    """Binds pods, makes them ready after a second, and lets deleted ones go after another."""

    def __init__(self, context: Context, *, start: float = 1.0, stop: float = 1.0) -> None:
        self._client, self._clock = context.client, context.clock
        self._queue: WorkQueue[tuple[ObjectKey, str]] = WorkQueue(context.clock, chance=context.random.random)
        self._start, self._stop = start, stop
        self._pods = context.informers.of(PODS, Pod)
        context.informers.of(NODES, Node)
        self._synced = context.informers.synced
        self.fails: Callable[[Pod], bool] = lambda pod: "broken" in pod.labels
        self.ends: Callable[[Pod], str] = lambda pod: pod.labels.get("ends", "")
        self._pods.on_change(self._on_change)

    def _on_change(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if pod is None or change.type == "DELETED":
            return
        if pod.is_terminating:
            self._queue.add_after((change.key, "stop"), self._stop)
        elif not pod.spec.node_name:
            self._queue.add_after((change.key, "bind"), 0.1)
        elif pod.status.phase == "Pending" and not self.fails(pod):
            self._queue.add_after((change.key, "start"), self._start)
        elif pod.status.phase == "Running" and self.ends(pod):
            self._queue.add_after((change.key, "end"), self._start)

    async def run(self) -> None:
        await self._synced()
        await self._queue.run(self._act)

    async def _act(self, work: tuple[ObjectKey, str]) -> None:
        (namespace, name), what = work
        pod = self._pods.get(ObjectKey(namespace, name))
        if pod is None:
            return
        try:
            if what == "stop" and pod.is_terminating:
                await self._client.delete(
                    PODS, name, namespace=namespace, uid=pod.metadata.uid, grace_seconds=0
                )
            elif what == "bind" and not pod.spec.node_name:
                await self._client.bind(name, _target(pod), namespace=namespace)
            elif what == "start" and pod.status.phase == "Pending" and not pod.is_terminating:
                await self._set(pod, "Running", "True")
            elif what == "end" and pod.status.phase == "Running":
                await self._set(pod, self.ends(pod), "False")
        except KubeError:
            return

    async def _set(self, pod: Pod, phase: str, ready: str) -> None:
        await set_phase(self._client, pod.metadata.namespace, pod.name, phase, ready)


def _target(pod: Pod) -> str:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    for term in (required and required.node_selector_terms) or ():
        for entry in term.match_fields or ():
            return (entry.values or [""])[0]
    return "node-a"


async def set_phase(client: Client, namespace: str, name: str, phase: str, ready: str = "False") -> None:
    now = rfc3339(client.clock.now())
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": now}
    status = {"phase": phase, "conditions": [condition]}
    await client.patch(PODS, name, {"status": status}, namespace=namespace, subresource="status")


@asynccontextmanager
async def living(
    *,
    seed: int = 0,
    components: Mapping[str, Build] | None = None,
    start: float = 1.0,
    stop: float = 1.0,
) -> AsyncIterator[tuple[EmbeddedCluster, Client]]:
    """A cluster with workload controllers and pods that come to life."""
    async with EmbeddedCluster("east", clock=LoopClock(), seed=seed) as cluster:
        admin = cluster.client("admin")
        await admin.create(NODES, {"metadata": {"name": "node-a"}})
        for name, build in (workload_components() if components is None else components).items():
            cluster.add(name, build)
        cluster.add("lifegiver", lambda context: Lifegiver(context, start=start, stop=stop))
        yield cluster, admin


def template(app: str = "web", image: str = "web:1", **labels: str) -> Object:
    return {
        "metadata": {"labels": {"app": app, **labels}},
        "spec": {"containers": [{"name": "main", "image": image, "resources": {"requests": {"cpu": "1"}}}]},
    }


def workload(name: str = "web", *, image: str = "web:1", namespace: str = "default", **spec: Any) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, image),
            **spec,
        },
    }


async def pods(client: Client, app: str = "web") -> list[Pod]:
    return (await client.list(PODS, ListOptions("default", f"app={app}"), into=Pod)).items


async def active(client: Client, app: str = "web") -> list[Pod]:
    return [pod for pod in await pods(client, app) if not pod.is_terminating and not pod.is_terminal]


async def get(client: Client, resource: ApiResource, name: str) -> Object:
    return await client.get(resource, name, namespace="default")


async def until(condition: Callable[[], Awaitable[object]], *, seconds: float = 300.0) -> None:
    """Wait on the cluster's own time; fails when it never becomes true."""
    for _ in range(int(seconds * 2)):
        if await condition():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"not true after {seconds} s")


class Onlooker:
    """Calls `look` with all pods after every change of any of them."""

    def __init__(self, context: Context, look: Callable[[list[Pod]], None]) -> None:
        self._pods = context.informers.of(PODS, Pod)
        self._pods.on_change(lambda change: look(list(self._pods.objects())))

    async def run(self) -> None:
        await asyncio.Event().wait()


async def rollout_image(client: Client, image: str, name: str = "web") -> None:
    containers = [{"name": "main", "image": image}]
    patch = {"spec": {"template": {"spec": {"containers": containers}}}}
    await client.patch(DEPLOYMENTS, name, patch, how="strategic", namespace="default")


async def revisions(client: Client) -> dict[str, int]:
    """Sizes of the ReplicaSets by revision."""
    page = await client.list(REPLICASETS)
    return {
        item["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: item["spec"]["replicas"]
        for item in page.items
    }
