"""The graceful eviction controller: a cluster is emptied only when its replacement is well.

A task ends when every cluster of the present result is healthy and the scheduler has
seen the binding as it is, or when its grace period is over; one that suppresses the
deletion waits for a person. Works of emptied clusters are the binding controller's.
"""

from collections.abc import Sequence
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import NotFound
from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model.kubernetes.api_resources import CLUSTERRESOURCEBINDINGS, RESOURCEBINDINGS
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.karmada.propagation.bindings import BindingRef, ref_of
from karpool_fleet.karmada.propagation.conflicts import looking_again
from karpool_fleet.karmada.propagation.names import Object
from karpool_fleet.karmada.status.resource_interpreter import HEALTHY
from karpool_fleet.runtime.informers import Feed
from karpool_fleet.runtime.supervisor import Context

TIMEOUT_SECONDS = 600.0


class Assessment(NamedTuple):
    kept: list[Object]
    check_in: float | None  # seconds until a grace period ends; None: nothing to wait for


def assess(binding: Object, timeout: float, now: float) -> Assessment:
    """Which tasks of a binding go on."""
    spec, status = binding["spec"], binding.get("status") or {}
    observed = status.get("schedulerObservedGeneration") == binding["metadata"].get("generation")
    replaced = observed and _all_healthy(spec.get("clusters") or (), status.get("aggregatedStatus") or ())
    kept: list[Object] = []
    waits: list[float] = []
    for task in spec.get("gracefulEvictionTasks") or ():
        if not task.get("creationTimestamp"):
            kept.append({**task, "creationTimestamp": rfc3339(now)})
            waits.append(0.0)
            continue
        if "suppressDeletion" in task:
            if task["suppressDeletion"]:
                kept.append(task)
            continue
        grace = task.get("gracePeriodSeconds", timeout)
        left = parse_rfc3339(task["creationTimestamp"]) + grace - now
        if left > 0 and not replaced:
            kept.append(task)
            waits.append(left)
    return Assessment(kept, min(waits) if waits else None)


def _all_healthy(clusters: Sequence[Object], items: Sequence[Object]) -> bool:
    health = {item["clusterName"]: item.get("health") for item in items}
    return all(health.get(cluster["name"]) == HEALTHY for cluster in clusters)


class GracefulEvictionController:
    def __init__(self, context: Context, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._context = context
        self._client = context.client
        self._timeout = timeout_seconds
        self._queue: WorkQueue[BindingRef] = WorkQueue(context.clock, chance=context.random.random)
        self._bindings: dict[bool, Feed[Object]] = {
            True: context.informers.of(RESOURCEBINDINGS),
            False: context.informers.of(CLUSTERRESOURCEBINDINGS),
        }
        for feed in self._bindings.values():
            feed.on_change(self._on_binding)

    async def run(self) -> None:
        await self._context.informers.synced()
        await self._queue.run(looking_again(self._reconcile))

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        binding = change.object
        if change.type != "DELETED" and binding is not None and binding["spec"].get("gracefulEvictionTasks"):
            self._queue.add(ref_of(binding))

    async def _reconcile(self, ref: BindingRef) -> Requeue | None:
        binding = self._bindings[bool(ref.namespace)].get(ref.key)
        if binding is None or "deletionTimestamp" in binding["metadata"]:
            return None
        tasks = binding["spec"].get("gracefulEvictionTasks") or []
        kept, check_in = assess(binding, self._timeout, self._context.clock.now())
        if kept == tasks:
            return None if check_in is None else Requeue(max(check_in, 0.1))
        patch = {
            "metadata": {"resourceVersion": binding["metadata"]["resourceVersion"]},
            "spec": {"gracefulEvictionTasks": kept or None},
        }
        try:
            await self._client.patch(ref.resource, ref.name, patch, namespace=ref.where)
        except NotFound:
            return None
        return None
