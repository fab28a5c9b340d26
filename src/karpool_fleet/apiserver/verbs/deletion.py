"""delete: at once, after a grace period, or when the last finalizer is gone.

Only pods that run on a node get a grace period: they stay, marked, until their kubelet deletes them again
with a period of zero. The finalizers `foregroundDeletion` and `orphan` stand for a propagation policy until
`garbage` has executed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from karpool.kube.transport_interface import HttpRequest
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.bodies import decode_object
from karpool_fleet.apiserver.serve.routes import Query
from karpool_fleet.apiserver.serve.status import bad_request, conflict
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import finished

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_POLICIES = ("Background", "Foreground", "Orphan")
_DEFAULT_GRACE = 30


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    grace_seconds: int | None = None
    policy: str = ""
    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DeletionOutcome:
    record: StoredObject  # the last state
    gone: bool


def read_options(request: HttpRequest, query: Query, *, dry_run: bool) -> DeleteOptions:
    """DeleteOptions from the body, else from the query."""
    body: Mapping[str, Any] = decode_object(request) if request.body else {}
    if body.get("gracePeriodSeconds") is None:
        body = {**body, "gracePeriodSeconds": query.number("gracePeriodSeconds")}
    policy = body.get("propagationPolicy") or query.text("propagationPolicy")
    if policy and policy not in _POLICIES:
        raise bad_request(f"propagationPolicy: {policy!r} must be one of {', '.join(_POLICIES)}")
    if not policy and (body.get("orphanDependents") or query.flag("orphanDependents")):
        policy = "Orphan"
    return options_of({**body, "propagationPolicy": policy}, dry_run=dry_run)


def options_of(body: Mapping[str, Any], path: str = "", *, dry_run: bool) -> DeleteOptions:
    """Read DeleteOptions; `path` is their place in the request."""
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (not isinstance(grace, int) or isinstance(grace, bool)):
        raise bad_request(f"{path}gracePeriodSeconds: {grace!r} is not a whole number")
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise bad_request(f"{path}preconditions: must be an object")
    return DeleteOptions(
        grace,
        str(body.get("propagationPolicy") or ""),
        str(preconditions.get("uid") or ""),
        str(preconditions.get("resourceVersion") or ""),
        dry_run or body.get("dryRun") == ["All"],
    )


def delete(
    cluster: ServedCluster, resource: ResourceType, record: StoredObject, options: DeleteOptions
) -> DeletionOutcome:
    _check_preconditions(resource, record, options)
    obj = record.object()
    cluster.admit("DELETE", resource, None, obj)
    before = record.object()
    _set_policy(obj, options.policy)
    _mark(cluster, resource, obj, options)
    if finished(obj):
        if options.dry_run:
            return DeletionOutcome(record, True)
        final = cluster.store.remove(record, obj if record.deleting else None)
        return DeletionOutcome(final, True)
    if obj == before or options.dry_run:
        return DeletionOutcome(record, False)
    return DeletionOutcome(cluster.store.put(record.collection, obj), False)


def _check_preconditions(resource: ResourceType, record: StoredObject, options: DeleteOptions) -> None:
    if options.uid and options.uid != record.uid:
        raise conflict(
            resource, record.name, f"uid {options.uid} was expected and {record.uid} is stored; read it again"
        )
    if options.resource_version and options.resource_version != str(record.version):
        raise conflict(
            resource,
            record.name,
            f"resourceVersion {options.resource_version} was expected and {record.version} is stored; "
            "read it again",
        )


def _set_policy(obj: Object, policy: str) -> None:
    if not policy:
        return
    metadata = obj["metadata"]
    kept = [f for f in metadata.get("finalizers") or () if f not in (FOREGROUND, ORPHAN)]
    if policy == "Foreground":
        kept.append(FOREGROUND)
    elif policy == "Orphan":
        kept.append(ORPHAN)
    if kept:
        metadata["finalizers"] = kept
    else:
        metadata.pop("finalizers", None)


def _mark(cluster: ServedCluster, resource: ResourceType, obj: Object, options: DeleteOptions) -> None:
    """Set or shorten the deletion fields."""
    metadata = obj["metadata"]
    grace = _grace(obj, options) if resource.group_resource == "pods" else 0
    if "deletionTimestamp" not in metadata:
        metadata["deletionTimestamp"] = rfc3339(cluster.clock.now() + grace)
        metadata["deletionGracePeriodSeconds"] = grace
        if metadata.get("generation"):
            metadata["generation"] += 1
        if resource.group_resource == "namespaces":
            obj.setdefault("status", {})["phase"] = "Terminating"
        return
    current = metadata.get("deletionGracePeriodSeconds") or 0
    if grace < current and (options.grace_seconds is not None or grace == 0):
        asked_at = parse_rfc3339(metadata["deletionTimestamp"]) - current
        metadata["deletionTimestamp"] = rfc3339(asked_at + grace)
        metadata["deletionGracePeriodSeconds"] = grace


def _grace(pod: Object, options: DeleteOptions) -> int:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0  # there is nothing to stop
    if options.grace_seconds is not None:
        return options.grace_seconds if options.grace_seconds >= 0 else 1
    grace = spec.get("terminationGracePeriodSeconds")
    return int(grace) if grace is not None else _DEFAULT_GRACE
