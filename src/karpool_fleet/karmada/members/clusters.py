"""The cluster controller: execution namespaces, taints for conditions, and removal of members.

A member that is not ready gets no new work (NoSchedule). Its existing work stays: since v1.15 upstream leaves
that to the operator.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from karpool.kube.api.conditions import condition_of
from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.event_recorder import ref as event_ref
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.api_resources import (
    CLUSTERS,
    NAMESPACES,
    ObjectKey,
)
from karpool.model.kubernetes.times import rfc3339
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE
from karpool_fleet.karmada.propagation.bindings import BindingFeeds
from karpool_fleet.karmada.propagation.names import (
    CLUSTER_FINALIZER,
    LEASE_NAMESPACE,
    NOT_READY,
    SYSTEM_NAMESPACE,
    TERMINATING,
    UNREACHABLE,
    Object,
    execution_space,
)
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_version

LEAVE_RETRY = Requeue(1.0)


_OWN = frozenset(((NOT_READY, NO_SCHEDULE), (UNREACHABLE, NO_SCHEDULE), (TERMINATING, NO_EXECUTE)))


def taints_for(cluster: Object) -> list[tuple[str, str]]:
    """Return the controller's own taints of a cluster, as key and effect."""
    ready = condition_of((cluster.get("status") or {}).get("conditions"), "Ready")
    taints = []
    if ready is None or ready["status"] != "True":
        is_unknown = ready is not None and ready["status"] == "Unknown"
        taints.append((UNREACHABLE if is_unknown else NOT_READY, NO_SCHEDULE))
    if "deletionTimestamp" in cluster["metadata"]:
        taints.append((TERMINATING, NO_EXECUTE))
    return taints


def with_taints(held: Sequence[Object], own: Sequence[tuple[str, str]], now: float) -> list[Object]:
    """Return the taints of a cluster with the controller's own updated and all others unchanged."""
    kept = [entry for entry in held if (pair := _pair(entry)) not in _OWN or pair in own]
    there = {_pair(entry) for entry in kept}
    added = [
        {"key": key, "effect": effect, "timeAdded": rfc3339(now)}
        for key, effect in own
        if (key, effect) not in there
    ]
    return [*kept, *added]


def _pair(taint: Object) -> tuple[str, str]:
    return taint["key"], taint["effect"]


class ClusterController(QueueController[str]):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._spaces: Feed[Object] = context.informers.of(NAMESPACES)
        self._bindings = BindingFeeds(context)
        self._clusters.on_change(lambda change: self._queue.add(change.key.name))

    async def _work(self, group: asyncio.TaskGroup) -> None:
        for namespace in (SYSTEM_NAMESPACE, LEASE_NAMESPACE):
            await self._make(namespace)
        await super()._work(group)

    async def _reconcile(self, name: str) -> Requeue | None:
        cluster = self._clusters.get(ObjectKey("", name))
        if cluster is None:
            return None
        if "deletionTimestamp" in cluster["metadata"]:
            return await self._remove(name, cluster)
        if ObjectKey("", execution_space(name)) not in self._spaces:
            await self._make(execution_space(name))
            message = f"Created execution space({execution_space(name)}) for cluster({name})."
            self._context.events.record(
                event_ref(CLUSTERS, cluster), "Normal", "CreateExecutionSpaceSucceed", message
            )
        cluster = await self._taint(cluster)
        finalizers = cluster["metadata"].get("finalizers") or []
        if CLUSTER_FINALIZER not in finalizers:
            patch = {"metadata": {"finalizers": [*finalizers, CLUSTER_FINALIZER]}}
            await patch_version(self._client, CLUSTERS, cluster, patch)
        return None

    async def _make(self, namespace: str) -> None:
        with suppress(AlreadyExists):
            await self._client.create(NAMESPACES, {"metadata": {"name": namespace}})

    async def _taint(self, cluster: Object) -> Object:
        held, now = cluster["spec"].get("taints") or [], self._clock.now()
        taints = with_taints(held, taints_for(cluster), now)
        if taints == held:
            return cluster
        patch = {"spec": {"taints": taints or None}}
        return await patch_version(self._client, CLUSTERS, cluster, patch)

    async def _remove(self, name: str, cluster: Object) -> Requeue | None:
        """Remove a member step by step: workloads, works, targets, then the Cluster."""
        finalizers = cluster["metadata"].get("finalizers") or []
        if CLUSTER_FINALIZER not in finalizers:
            return None
        cluster = await self._taint(cluster)
        try:
            space = await self._client.get(NAMESPACES, execution_space(name))
            if "deletionTimestamp" not in space["metadata"]:
                await self._client.delete(NAMESPACES, execution_space(name))
            return LEAVE_RETRY
        except NotFound:
            pass
        if self._is_target(name):
            return LEAVE_RETRY
        kept = [finalizer for finalizer in finalizers if finalizer != CLUSTER_FINALIZER]
        await patch_version(self._client, CLUSTERS, cluster, {"metadata": {"finalizers": kept or None}})
        return None

    def _is_target(self, name: str) -> bool:
        return any(
            target["name"] == name
            for binding in self._bindings.objects()
            for target in binding["spec"].get("clusters") or ()
        )
