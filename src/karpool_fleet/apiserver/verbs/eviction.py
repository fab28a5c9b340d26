"""Evicts a pod: deletes it if its disruption budget allows that.

Checking the budget, charging it and deleting the pod are one synchronous step, so two evictions can never use
the same allowance.
"""

from typing import Any

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.metadata import metadata_of
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.serve.status import bad_request, internal, too_many_requests
from karpool_fleet.apiserver.storage.record import READY, StoredObject
from karpool_fleet.apiserver.verbs.deletion import DeleteOptions, delete, options_of

_MAX_DISRUPTED = 2000
_UNOBSERVED_RETRY_SECONDS = 10
# Such pods serve no requests, so no budget counts them.
_IDLE_PHASES = ("Succeeded", "Failed", "Pending")


def evict(cluster: ServedCluster, record: StoredObject, eviction: Object, *, dry_run: bool) -> None:
    if eviction.get("kind", "Eviction") != "Eviction":
        raise bad_request(f"kind: {eviction['kind']!r} was sent where 'Eviction' is expected")
    name = metadata_of(eviction).get("name")
    if name and name != record.name:
        raise bad_request(f"metadata.name: {name!r} is not the pod of the request, {record.name!r}")
    options = _options(eviction, dry_run)
    pods = cluster.types.preferred("pods")
    assert pods is not None
    if not record.deleting and record.field("status.phase") not in _IDLE_PHASES:
        _charge(cluster, record, dry_run=options.dry_run)
    if not (record.deleting or options.dry_run or options.resource_version):
        record = _told_to_leave(cluster, record)
    delete(cluster, pods, record, options)


def _told_to_leave(cluster: ServedCluster, pod: StoredObject) -> StoredObject:
    """Set the condition that shows why the pod is deleted."""
    obj = pod.object()
    status = obj.setdefault("status", {})
    told = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": cluster.now(),
    }
    others = [before for before in status.get("conditions") or () if before.get("type") != told["type"]]
    status["conditions"] = [*others, told]
    return cluster.store.put(pod.collection, obj)


def _options(eviction: Object, dry_run: bool) -> DeleteOptions:
    body: Any = eviction.get("deleteOptions") or {}
    if not isinstance(body, dict):
        raise bad_request("deleteOptions: must be an object")
    return options_of(body, "deleteOptions.", dry_run=dry_run)


def _charge(cluster: ServedCluster, pod: StoredObject, *, dry_run: bool) -> None:
    """Take one disruption from the pod's budget, if it has one; raise when none is left."""
    budgets = cluster.budgets.selecting(pod)
    if not budgets:
        return
    if len(budgets) > 1:
        names = ", ".join(budget.name for budget in budgets)
        raise internal(f"pod {pod.name} has more than one PodDisruptionBudget ({names}); keep one of them")
    record = cluster.budgets.refresh(budgets[0])
    obj = record.object()
    spec, status = obj.get("spec") or {}, obj.setdefault("status", {})
    if pod.field(READY) != "true" and _unhealthy_may_go(spec, status):
        return
    if (status.get("observedGeneration") or 0) < (obj["metadata"].get("generation") or 0):
        raise too_many_requests(
            f"the disruption budget {record.name} has not been counted yet",
            retry_seconds=_UNOBSERVED_RETRY_SECONDS,
            causes=[_cause(f"the disruption budget {record.name} is still being processed")],
        )
    disrupted = status.setdefault("disruptedPods", {})
    if status.get("disruptionsAllowed", 0) <= 0 or len(disrupted) > _MAX_DISRUPTED:
        needed, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
        raise too_many_requests(
            f"cannot evict pod {pod.name}: it would violate the disruption budget {record.name}",
            retry_seconds=0,
            causes=[
                _cause(f"the disruption budget {record.name} needs {needed} healthy pods and has {healthy}")
            ],
        )
    if dry_run:
        return
    status["disruptionsAllowed"] -= 1
    disrupted[pod.name] = cluster.now()
    cluster.store.put(record.collection, obj)


def _unhealthy_may_go(spec: Object, status: Object) -> bool:
    if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = status.get("desiredHealthy", 0)
    return bool(desired > 0 and status.get("currentHealthy", 0) >= desired)


def _cause(message: str) -> Object:
    return {"reason": "DisruptionBudget", "message": message}
