"""The pod garbage collector: deletes pods on nodes that no longer exist.

A node may come back under its name, so the controller waits for a while and asks the server once more before
it deletes anything. Pods that had not ended are marked as failed by a disruption, as upstream, so that owners
see why.
"""

import asyncio

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import NotFound
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import NODES, PODS, ObjectKey
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.watched_cluster import PodsByNode
from karpool_fleet.runtime.writes import delete_object, patch_object

QUARANTINE_SECONDS = 40.0  # how long a node must be gone


class PodGC(QueueController[str]):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pods_by_node = PodsByNode()
        self._gone_since: dict[str, float] = {}
        self._nodes = context.informers.of(NODES, Node)
        self._pods = context.informers.of(PODS, Pod)
        self._nodes.on_change(self._on_node)
        self._pods.on_change(self._on_pod)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        for node in self._pods_by_node.nodes():
            self._suspect(node)
        await super()._work(group)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        if change.type == "DELETED":
            self._suspect(change.key.name)
        elif change.type == "ADDED":
            self._gone_since.pop(change.key.name, None)

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        if self._pods_by_node.take(change):
            self._suspect(self._pods_by_node.node_of(change.key))

    def _suspect(self, node: str) -> None:
        if ObjectKey("", node) in self._nodes or not self._pods_by_node.on(node):
            return
        self._gone_since.setdefault(node, self._clock.monotonic())
        self._queue.add_after(node, QUARANTINE_SECONDS)

    async def _reconcile(self, node: str) -> Requeue | None:
        since = self._gone_since.get(node)
        if since is None or ObjectKey("", node) in self._nodes or not self._pods_by_node.on(node):
            self._gone_since.pop(node, None)
            return None
        wait = since + QUARANTINE_SECONDS - self._clock.monotonic()
        if wait > 0:
            return Requeue(wait)
        if await self._exists(node):
            self._gone_since.pop(node, None)
            return None
        for pod in list(self._pods_by_node.on(node).values()):
            if (now := self._pods.get(ObjectKey(pod.metadata.namespace, pod.name))) is not None:
                await self._remove(now)
        self._gone_since.pop(node, None)
        return None

    async def _exists(self, node: str) -> bool:
        try:
            await self._client.get(NODES, node)
        except NotFound:
            return False
        return True

    async def _remove(self, pod: Pod) -> None:
        if not pod.is_terminal:
            status = {"status": self._ended(pod)}
            await patch_object(self._client, PODS, pod, status, status=True, how="strategic")
        await delete_object(self._client, PODS, pod, grace_seconds=0)

    def _ended(self, pod: Pod) -> dict[str, object]:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "DeletionByPodGC",
            "message": f"The node {pod.spec.node_name} no longer exists",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        return {"phase": "Failed", "conditions": [condition]}
