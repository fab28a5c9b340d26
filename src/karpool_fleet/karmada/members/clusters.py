"""The cluster controller: room for each member's works, taints for its condition, an orderly leave.

A member that is not ready, or of whose agent nothing was heard for the grace period,
takes no new work (NoSchedule). Whether it also loses what it has (NoExecute) is
a setting: upstream has left that to the operator since v1.15.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from karpool.cluster.changes import ObjectChange
from karpool.kube.api.conditions import condition_of, upsert_condition
from karpool.kube.errors import AlreadyExists, NotFound
from karpool.kube.event_recorder import ref as event_ref
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import (
    CLUSTERRESOURCEBINDINGS,
    CLUSTERS,
    LEASES,
    NAMESPACES,
    RESOURCEBINDINGS,
    ObjectKey,
)
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.model.taints import NO_EXECUTE, NO_SCHEDULE
from karpool_fleet.karmada.propagation.conflicts import looking_again
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
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context

LEAVE_RETRY = Requeue(1.0)


@dataclass(frozen=True)
class ClusterSettings:
    monitor_period: float = 5.0
    grace: float = 40.0  # how long an agent may be silent
    startup_grace: float = 60.0  # the same for a member that has never been heard of
    # How long a member may be not ready before it loses its workloads; None: it keeps them.
    no_execute_after: float | None = None


def taints_for(cluster: Object, settings: ClusterSettings, now: float) -> list[tuple[str, str]]:
    """Which of the controller's own taints a cluster must have, as key and effect."""
    if "deletionTimestamp" in cluster["metadata"]:
        return [*_by_condition(cluster, settings, now), (TERMINATING, NO_EXECUTE)]
    return _by_condition(cluster, settings, now)


def _by_condition(cluster: Object, settings: ClusterSettings, now: float) -> list[tuple[str, str]]:
    ready = condition_of((cluster.get("status") or {}).get("conditions"), "Ready")
    if ready is None:
        return [(NOT_READY, NO_SCHEDULE)]
    if ready["status"] == "True":
        return []
    key = UNREACHABLE if ready["status"] == "Unknown" else NOT_READY
    taints = [(key, NO_SCHEDULE)]
    lasted = now - parse_rfc3339(ready["lastTransitionTime"])
    if settings.no_execute_after is not None and lasted >= settings.no_execute_after:
        taints.append((key, NO_EXECUTE))
    return taints


_OWN = frozenset(
    ((NOT_READY, NO_SCHEDULE), (UNREACHABLE, NO_SCHEDULE), (TERMINATING, NO_EXECUTE)),
)
_OWN_EVICTING = frozenset(((NOT_READY, NO_EXECUTE), (UNREACHABLE, NO_EXECUTE)))


def with_taints(
    held: Sequence[Object], wanted: Sequence[tuple[str, str]], settings: ClusterSettings, now: float
) -> list[Object]:
    """A cluster's taints with the controller's own as wanted, and everybody else's as they are."""
    own = _OWN if settings.no_execute_after is None else _OWN | _OWN_EVICTING
    kept = [entry for entry in held if (pair := _pair(entry)) not in own or pair in wanted]
    there = {_pair(entry) for entry in kept}
    added = [
        {"key": key, "effect": effect, "timeAdded": rfc3339(now)}
        for key, effect in wanted
        if (key, effect) not in there
    ]
    return [*kept, *added]


def _pair(taint: Object) -> tuple[str, str]:
    return taint["key"], taint["effect"]


class ClusterController:
    def __init__(
        self, context: Context, settings: ClusterSettings | None = None, *, evicts: bool = True
    ) -> None:
        """`evicts`: a taint manager runs, so that a cluster which leaves is no target in the end."""
        self._context = context
        self._client = context.client
        self._settings = settings or ClusterSettings()
        self._evicts = evicts
        self._queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._clusters: Feed[Object] = context.informers.of(CLUSTERS)
        self._spaces: Feed[Object] = context.informers.of(NAMESPACES)
        self._leases: Feed[Object] = context.informers.of(LEASES)
        self._bindings: list[Feed[Object]] = [
            context.informers.of(RESOURCEBINDINGS),
            context.informers.of(CLUSTERRESOURCEBINDINGS),
        ]
        self._heard: dict[str, float] = {}  # when an agent last gave a sign of life, on our clock
        self._clusters.on_change(self._on_cluster)
        self._leases.on_change(self._on_lease)

    async def run(self) -> None:
        await self._context.informers.synced()
        for namespace in (SYSTEM_NAMESPACE, LEASE_NAMESPACE):
            await self._make(namespace)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._monitor(), name="cluster health monitor")
            await self._queue.run(looking_again(self._reconcile))

    def _on_cluster(self, change: ObjectChange[Object]) -> None:
        if change.type == "DELETED":
            self._heard.pop(change.key.name, None)
        self._queue.add(change.key.name)

    def _on_lease(self, change: ObjectChange[Object]) -> None:
        if change.key.namespace == LEASE_NAMESPACE and change.type != "DELETED":
            self._heard[change.key.name] = self._context.clock.monotonic()

    async def _monitor(self) -> None:
        """Agents that fall silent send no event; somebody has to look."""
        while True:
            await self._context.clock.sleep(self._settings.monitor_period)
            for cluster in self._clusters.objects():
                if cluster["spec"].get("syncMode") == "Pull":
                    self._queue.add(cluster["metadata"]["name"])

    # What it does

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
        cluster = await self._mark_silent(cluster)
        cluster = await self._taint(cluster)
        finalizers = cluster["metadata"].get("finalizers") or []
        if CLUSTER_FINALIZER not in finalizers:
            await self._patch(cluster, {"metadata": {"finalizers": [*finalizers, CLUSTER_FINALIZER]}})
        return self._next_look(cluster)

    def _next_look(self, cluster: Object) -> Requeue | None:
        """When an unready cluster will have to lose its workloads."""
        limit = self._settings.no_execute_after
        ready = condition_of((cluster.get("status") or {}).get("conditions"), "Ready")
        if limit is None or ready is None or ready["status"] == "True":
            return None
        left = parse_rfc3339(ready["lastTransitionTime"]) + limit - self._context.clock.now()
        return Requeue(left) if left > 0 else None

    async def _make(self, namespace: str) -> None:
        try:
            await self._client.create(NAMESPACES, {"metadata": {"name": namespace}})
        except AlreadyExists:
            return

    async def _mark_silent(self, cluster: Object) -> Object:
        """Ready becomes Unknown when a member's agent has not been heard of for the grace period."""
        if cluster["spec"].get("syncMode") != "Pull":
            return cluster
        name, held = cluster["metadata"]["name"], (cluster.get("status") or {}).get("conditions") or []
        ready = condition_of(held, "Ready")
        grace = self._settings.startup_grace if ready is None else self._settings.grace
        heard = self._heard.setdefault(name, self._context.clock.monotonic())
        if self._context.clock.monotonic() - heard <= grace:
            return cluster
        never = ready is None
        if ready is not None and ready["status"] == "Unknown":
            return cluster
        reason = "ClusterStatusNeverUpdated" if never else "ClusterStatusUnknown"
        message = (
            f"Cluster status controller {'never posted' if never else 'stopped posting'} cluster status."
        )
        condition = {"type": "Ready", "status": "Unknown", "reason": reason, "message": message}
        conditions = upsert_condition(held, condition, rfc3339(self._context.clock.now()))
        return await self._patch(cluster, {"status": {"conditions": conditions}}, subresource="status")

    async def _taint(self, cluster: Object) -> Object:
        held, now = cluster["spec"].get("taints") or [], self._context.clock.now()
        taints = with_taints(held, taints_for(cluster, self._settings, now), self._settings, now)
        if taints == held:
            return cluster
        return await self._patch(cluster, {"spec": {"taints": taints or None}})

    async def _remove(self, name: str, cluster: Object) -> Requeue | None:
        """Step by step: no more workloads, no more works, no more targets, gone."""
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
        if self._evicts and self._is_target(name):
            return LEAVE_RETRY
        kept = [finalizer for finalizer in finalizers if finalizer != CLUSTER_FINALIZER]
        await self._patch(cluster, {"metadata": {"finalizers": kept or None}})
        return None

    def _is_target(self, name: str) -> bool:
        return any(
            target["name"] == name
            for feed in self._bindings
            for binding in feed.objects()
            for target in binding["spec"].get("clusters") or ()
        )

    async def _patch(self, cluster: Object, patch: Object, *, subresource: str = "") -> Object:
        """Raises Conflict when the cluster is not as we know it: look again."""
        meta = cluster["metadata"]
        precondition = {"resourceVersion": meta["resourceVersion"]}
        patch = {**patch, "metadata": {**patch.get("metadata", {}), **precondition}}
        return await self._client.patch(CLUSTERS, meta["name"], patch, subresource=subresource)
