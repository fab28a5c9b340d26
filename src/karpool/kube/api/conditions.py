"""Status updates: merge patches of changed fields, and conditions with their transition times."""

from collections.abc import Sequence
from typing import Any

from karpool.kube.api.decoding import Object


def changed_fields(old: Any, new: Any) -> Object:
    """Return the merge patch that turns `old` into `new`; it is empty if they are equal."""
    patch: Object = {}
    for key, value in new.items():
        before = old.get(key)
        if before != value:
            nested = isinstance(before, dict) and isinstance(value, dict)
            patch[key] = changed_fields(before, value) if nested else value
    for key in old:
        if key not in new:
            patch[key] = None
    return patch


def condition_of(conditions: Sequence[Object] | None, condition_type: str) -> Object | None:
    return next(
        (condition for condition in conditions or () if condition.get("type") == condition_type), None
    )


def upsert_condition(conditions: Sequence[Object], condition: Object, now: str) -> list[Object]:
    """Return `conditions` with `condition` set; its transition time changes only with its status."""
    before = condition_of(conditions, condition["type"])
    if before is not None and all(before.get(key) == value for key, value in condition.items()):
        return list(conditions)
    since = (
        before.get("lastTransitionTime") if before and before.get("status") == condition["status"] else None
    )
    entry = {**condition, "lastTransitionTime": since or now}
    if before is None:
        return [*conditions, entry]
    return [entry if present is before else present for present in conditions]


def without_condition(conditions: Sequence[Object], condition_type: str) -> list[Object]:
    return [condition for condition in conditions if condition.get("type") != condition_type]
