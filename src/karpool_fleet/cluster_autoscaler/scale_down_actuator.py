"""Removes an unneeded node: taints it, evicts its pods, terminates its machine.

Nothing is remembered across a restart: a node in removal loses its taint and is evaluated again, as upstream.
A pod that does not leave in time ends the attempt.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from karpool.kube.api.client import Client
from karpool.kube.errors import Conflict, KubeError, NotFound, Throttled
from karpool.kube.event_recorder import EventType, ref
from karpool.model.kubernetes.api_resources import NODES, PODS
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.pod import Pod
from karpool.model.taints import Taint
from karpool_fleet.cloud.cloud import Cloud
from karpool_fleet.cluster_autoscaler.group_counts import (
    CANDIDATE,
    TO_BE_DELETED,
    candidate_taint,
    deletion_taint,
    has_taint,
)
from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings
from karpool_fleet.cluster_autoscaler.scale_down import moves
from karpool_fleet.cluster_autoscaler.watched import AutoscalerState
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_version

log = structlog.get_logger(__name__)
_TAINT_TRIES = 3
_LOOK_SECONDS = 5.0
_EXTRA_SECONDS = 30.0  # added to the grace period of the last pod


class GroupScaleDownActuator:
    """Removals in progress. `on_failure` is called when one is given up."""

    def __init__(
        self,
        context: Context,
        cloud: Cloud,
        watched: AutoscalerState,
        settings: AutoscalerSettings,
        on_failure: Callable[[], None],
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._client = context.client
        self._cloud = cloud
        self._watched = watched
        self._settings = settings
        self._on_failure = on_failure
        self.under_way: dict[str, bool] = {}  # node name -> whether it is drained

    @property
    def draining(self) -> int:
        return sum(self.under_way.values())

    def begin(self, group: asyncio.TaskGroup, node: Node, pods: Sequence[str]) -> None:
        self.under_way[node.name] = bool(pods)
        group.create_task(self._remove(node, pods))

    async def _remove(self, node: Node, pods: Sequence[str]) -> None:
        try:
            if not await retaint(self._client, node.name, TO_BE_DELETED, deletion_taint(self._clock.now())):
                return
            self._say(node, "Normal", "ScaleDown", "marked the node as toBeDeleted/unschedulable")
            await self._clock.sleep(self._settings.node_delete_delay_seconds)
            reason = await self._empty(node, pods)
            if reason:
                await self._give_up(node, reason)
            else:
                await self._cloud.terminate(node.name)
                self._say(node, "Normal", "ScaleDown", "node removed by cluster autoscaler")
        except KubeError as error:
            log.info("node not removed", node=node.name, reason=str(error))
            self._on_failure()
        finally:
            del self.under_way[node.name]

    async def _give_up(self, node: Node, reason: str) -> None:
        self._say(node, "Warning", "ScaleDownFailed", f"failed to delete the node: {reason}")
        self._on_failure()
        await retaint(self._client, node.name, TO_BE_DELETED, None)

    async def _empty(self, node: Node, expected: Sequence[str]) -> str:
        """Evict the pods; return why that failed, or an empty text."""
        moving = {name: pod for name, pod in self._watched.pods_on(node.name).items() if moves(pod)}
        if arrived := [name for name in moving if name not in expected]:
            return f"pod {arrived[0]} came in the meantime"
        deadline = self._clock.monotonic() + self._settings.pod_eviction_seconds
        outcomes = await asyncio.gather(*(self._evict(pod, deadline) for pod in moving.values()))
        if refused := [outcome for outcome in outcomes if outcome]:
            return refused[0]
        limit = self._settings.max_graceful_termination_seconds
        grace = max((min(_grace(pod), limit) for pod in moving.values()), default=0)
        until = self._clock.monotonic() + grace + _EXTRA_SECONDS
        while left := self._remaining(node.name, moving):
            if self._clock.monotonic() >= until:
                return f"pod {left} did not end"
            await self._clock.sleep(_LOOK_SECONDS)
        return ""

    async def _evict(self, pod: Pod, deadline: float) -> str:
        namespace, name, uid = pod.metadata.namespace, pod.name, pod.metadata.uid
        limit = self._settings.max_graceful_termination_seconds
        while True:
            try:
                grace = limit if _grace(pod) > limit else None
                await self._client.evict(name, namespace=namespace, uid=uid, grace_seconds=grace)
            except (NotFound, Conflict):  # deleted, or another pod of that name
                return ""
            except KubeError as error:
                if self._clock.monotonic() + self._settings.pod_eviction_retry_seconds > deadline:
                    why = "its disruption budget forbids it" if isinstance(error, Throttled) else str(error)
                    return f"pod {namespace}/{name} could not be evicted: {why}"
                await self._clock.sleep(self._settings.pod_eviction_retry_seconds)
            else:
                message = "deleting pod for node scale down"
                self._context.events.record(ref(PODS, pod), "Normal", "ScaleDown", message)
                return ""

    def _remaining(self, node: str, pods: dict[str, Pod]) -> str:
        """Return one of these pods that is still on the node, or an empty text."""
        there = self._watched.pods_on(node)
        for name, pod in pods.items():
            now = there.get(name)
            if now is not None and now.metadata.uid == pod.metadata.uid and not now.is_terminal:
                return name
        return ""

    def _say(self, node: Node, event_type: EventType, reason: str, message: str) -> None:
        self._context.events.record(ref(NODES, node), event_type, reason, message)

    # Taints

    async def reset(self) -> None:
        """Remove the deletion taints that a former process left."""
        for node in list(self._watched.nodes()):
            if has_taint(node, TO_BE_DELETED):
                await retaint(self._client, node.name, TO_BE_DELETED, None)

    async def mark_candidates(self, unneeded: Sequence[str]) -> None:
        """Taint nodes that may be removed soon, so that the scheduler avoids them; a few at a time."""
        names = set(unneeded)
        limit = self._settings.max_bulk_soft_taint_count
        stale = [
            node.name
            for node in self._watched.nodes()
            if has_taint(node, CANDIDATE) and node.name not in names
        ]
        fresh = [
            name
            for name in unneeded
            if (node := self._watched.node(name)) is not None and not has_taint(node, CANDIDATE)
        ]
        for name in stale[:limit]:
            await retaint(self._client, name, CANDIDATE, None)
        for name in fresh[:limit]:
            await retaint(self._client, name, CANDIDATE, candidate_taint(self._clock.now()))


async def retaint(client: Client, name: str, key: str, taint: Taint | None) -> bool:
    """Replace the taint of one key and keep the others; return False if the node is gone."""
    for attempt in range(_TAINT_TRIES):
        try:
            node = await client.get(NODES, name)
            kept = [taint for taint in node["spec"].get("taints") or () if taint["key"] != key]
            if taint is not None:
                kept.append({"key": taint.key, "value": taint.value, "effect": taint.effect})
            await patch_version(client, NODES, node, {"spec": {"taints": kept}})
            return True
        except NotFound:
            return False
        except Conflict:
            if attempt == _TAINT_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _grace(pod: Pod) -> int:
    seconds = pod.spec.termination_grace_period_seconds
    return 30 if seconds is None else seconds
