"""The graceful eviction controller: a cluster is emptied only when its replacement is healthy.

A task ends when every target cluster is healthy and the scheduler has observed the binding, or when its grace
period is over; a task that suppresses the deletion waits for a person. The binding controller deletes the
works of emptied clusters.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from karpool.cluster.changes import ObjectChange
from karpool.kube.errors import NotFound
from karpool.kube.work_queue import Requeue
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.karmada.propagation.bindings import BindingFeeds, BindingRef, ref_of
from karpool_fleet.karmada.propagation.names import Object
from karpool_fleet.karmada.status.resource_interpreter import HEALTHY
from karpool_fleet.runtime.controller import QueueController
from karpool_fleet.runtime.supervisor import Context
from karpool_fleet.runtime.writes import patch_version

TIMEOUT_SECONDS = 600.0


class Assessment(NamedTuple):
    kept: list[Object]
    check_in: float | None  # seconds until a grace period ends; None without one


def assess(binding: Object, timeout: float, now: float) -> Assessment:
    """Return which tasks of a binding continue."""
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


class GracefulEvictionController(QueueController[BindingRef]):
    def __init__(self, context: Context, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        super().__init__(context)
        self._timeout = timeout_seconds
        self._bindings = BindingFeeds(context)
        self._bindings.on_change(self._on_binding)

    def _on_binding(self, change: ObjectChange[Object]) -> None:
        binding = change.object
        if change.type != "DELETED" and binding is not None and binding["spec"].get("gracefulEvictionTasks"):
            self._queue.add(ref_of(binding))

    async def _reconcile(self, ref: BindingRef) -> Requeue | None:
        binding = self._bindings.get(ref)
        if binding is None or "deletionTimestamp" in binding["metadata"]:
            return None
        tasks = binding["spec"].get("gracefulEvictionTasks") or []
        kept, check_in = assess(binding, self._timeout, self._clock.now())
        if kept == tasks:
            return None if check_in is None else Requeue(max(check_in, 0.1))
        with suppress(NotFound):
            patch = {"spec": {"gracefulEvictionTasks": kept or None}}
            await patch_version(self._client, ref.resource, binding, patch)
        return None
