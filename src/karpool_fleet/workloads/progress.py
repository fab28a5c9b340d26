"""The status of a Deployment and its progress.

`kubectl rollout status` reads the counts and the reason of the Progressing condition; the reasons are those
of upstream.
"""

from collections.abc import Sequence
from typing import NamedTuple

from karpool.kube.api.conditions import condition_of, upsert_condition, without_condition
from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.workloads.rollout import Bounds, RolloutPart

AVAILABLE, PROGRESSING, FAILURE = "Available", "Progressing", "ReplicaFailure"
CREATED, FOUND, UPDATED = "NewReplicaSetCreated", "FoundNewReplicaSet", "ReplicaSetUpdated"
DONE, LATE = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
PAUSED, RESUMED = "DeploymentPaused", "DeploymentResumed"
NO_DEADLINE = 2**31 - 1  # "never" in the API


class ProgressEvent(NamedTuple):
    """What just happened to a ReplicaSet; an empty reason if nothing did."""

    subject: str
    reason: str = ""


def counts_of(parts: Sequence[RolloutPart], new: RolloutPart | None) -> Object:
    available = sum(part.available for part in parts)
    counts = {
        "replicas": sum(part.replicas for part in parts),
        "updatedReplicas": new.replicas if new else 0,
        "readyReplicas": sum(part.ready for part in parts),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(part.size for part in parts) - available),
    }
    return {field: count for field, count in counts.items() if count}


def status_of(
    obj: Object,
    bounds: Bounds,
    parts: Sequence[RolloutPart],
    new: RolloutPart | None,
    *,
    event: ProgressEvent,
    failure: Object | None = None,
    now: float,
) -> Object:
    """Return the status to write; the status in `obj` is the last one."""
    before: Object = obj.get("status") or {}
    status = counts_of(parts, new)
    status["observedGeneration"] = obj["metadata"].get("generation", 0)
    if before.get("collisionCount"):
        status["collisionCount"] = before["collisionCount"]
    conditions: list[Object] = list(before.get("conditions") or ())
    if "deletionTimestamp" not in obj["metadata"]:
        conditions = _available(conditions, bounds, status, now)
        conditions = _progressing(conditions, obj, bounds, status, now, event=event)
        conditions = (
            without_condition(conditions, FAILURE)
            if failure is None
            else upsert_condition(conditions, {"lastUpdateTime": rfc3339(now)} | failure, rfc3339(now))
        )
    status["conditions"] = conditions
    return status


def deadline_of(obj: Object) -> int | None:
    seconds = obj["spec"].get("progressDeadlineSeconds")
    return None if seconds is None or seconds >= NO_DEADLINE else int(seconds)


def check_again_in(obj: Object, status: Object, now: float) -> float | None:
    """Return the seconds until the progress deadline; None if it does not apply."""
    deadline = deadline_of(obj)
    condition = condition_of(status.get("conditions"), PROGRESSING)
    if deadline is None or condition is None or obj["spec"].get("paused"):
        return None
    if condition["reason"] in (DONE, LATE, PAUSED):
        return None
    return max(1.0, parse_rfc3339(condition["lastUpdateTime"]) + deadline - now + 1.0)


def is_complete(bounds: Bounds, status: Object) -> bool:
    counts = ("updatedReplicas", "replicas", "availableReplicas")
    return all(status.get(count, 0) == bounds.desired for count in counts)


def _available(conditions: list[Object], bounds: Bounds, status: Object, now: float) -> list[Object]:
    available = status.get("availableReplicas", 0)
    enough = available >= bounds.least_available
    next_status = {
        "type": AVAILABLE,
        "status": "True" if enough else "False",
        "reason": "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        "message": "Enough replicas are available." if enough else "Too few replicas are available.",
    }
    return _updated(conditions, next_status, now)


def _progressing(
    conditions: list[Object], obj: Object, bounds: Bounds, status: Object, now: float, *, event: ProgressEvent
) -> list[Object]:
    deadline = deadline_of(obj)
    if deadline is None:
        return without_condition(conditions, PROGRESSING)
    subject = event.subject
    current = condition_of(conditions, PROGRESSING)
    reason = current.get("reason", "") if current else ""
    if obj["spec"].get("paused"):
        return conditions if reason in (PAUSED, LATE) else _say(conditions, "Unknown", PAUSED, subject, now)
    if reason == PAUSED:
        conditions, reason = _say(conditions, "Unknown", RESUMED, subject, now), RESUMED
    if event.reason == CREATED or (event.reason == FOUND and not reason):
        conditions, reason = _say(conditions, "True", event.reason, subject, now), event.reason
    rolled_out = status.get("replicas", 0) == status.get("updatedReplicas", 0)
    if reason == DONE and rolled_out:
        return conditions
    if is_complete(bounds, status):
        return _say(conditions, "True", DONE, subject, now)
    if _moved(obj.get("status") or {}, status):
        return _say(conditions, "True", UPDATED, subject, now, moved=True)
    current = condition_of(conditions, PROGRESSING)
    running = current is not None and current["reason"] not in (DONE, LATE)
    if current is not None and running and parse_rfc3339(current["lastUpdateTime"]) + deadline < now:
        return _say(conditions, "False", LATE, subject, now)
    return conditions


def _moved(before: Object, status: Object) -> bool:
    def count(of: Object, field: str) -> int:
        return int(of.get(field) or 0)

    old_before = count(before, "replicas") - count(before, "updatedReplicas")
    old_now = count(status, "replicas") - count(status, "updatedReplicas")
    grown = ("updatedReplicas", "readyReplicas", "availableReplicas")
    return old_now < old_before or any(count(status, field) > count(before, field) for field in grown)


_WORDS = {
    CREATED: "The ReplicaSet {} was created.",
    FOUND: "The ReplicaSet {} was found again.",
    UPDATED: "The ReplicaSet {} makes progress.",
    DONE: "The ReplicaSet {} has all its pods, and no others are left.",
    LATE: "The ReplicaSet {} made no progress within the deadline.",
    PAUSED: "The rollout is paused.",
    RESUMED: "The rollout goes on.",
}


def _say(
    conditions: list[Object], status: str, reason: str, subject: str, now: float, *, moved: bool = False
) -> list[Object]:
    desired = {
        "type": PROGRESSING,
        "status": status,
        "reason": reason,
        "message": _WORDS[reason].format(f'"{subject}"'),
    }
    return _updated(conditions, desired, now, touch=moved)


def _updated(conditions: list[Object], wanted: Object, now: float, *, touch: bool = False) -> list[Object]:
    """Update a condition; `lastUpdateTime`, which only Deployments have, changes with any field."""
    before = condition_of(conditions, wanted["type"])
    same = before is not None and all(before.get(key) == value for key, value in wanted.items())
    if same and not touch:
        return conditions
    return upsert_condition(conditions, {**wanted, "lastUpdateTime": rfc3339(now)}, rfc3339(now))
