"""Decides whether a binding is scheduled now, and how: Karmada's decision table.

A divided workload is never moved because labels, taints or capacity of clusters changed; only a change of its
spec, or a person's request, moves it.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from karpool.model.karmada.binding import Binding
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.scheduler.cycle.decision import SchedulingMode
from karpool.scheduler.cycle.settings import SchedulingSettings


class TriggerAction(StrEnum):
    SCHEDULE = "schedule"
    OBSERVE = "observe"  # nothing to schedule; only record the generation
    REFUSE = "refuse"  # being deleted
    NOTHING = "nothing"


class ScheduleType(StrEnum):
    """Label of metrics."""

    RECONCILE = "ReconcileSchedule"
    SCALE = "ScaleSchedule"


@dataclass(frozen=True, slots=True)
class ScheduleTrigger:
    action: TriggerAction
    why: str
    schedule_type: ScheduleType = ScheduleType.RECONCILE
    mode: SchedulingMode = SchedulingMode.STEADY


def trigger(binding: Binding, deleting: Container[str], settings: SchedulingSettings) -> ScheduleTrigger:
    """`deleting` are the names of clusters that are being deleted. First match wins."""
    if binding.is_deleting:
        kind = binding.key.kind[0].lower() + binding.key.kind[1:]
        return ScheduleTrigger(TriggerAction.REFUSE, f"skip schedule deleting {kind}: {binding.key}")
    mode = SchedulingMode.FRESH if is_reschedule_due(binding) else SchedulingMode.STEADY
    if placement_changed(binding):
        return ScheduleTrigger(TriggerAction.SCHEDULE, "the placement changed", mode=mode)
    if replicas_changed(binding, settings):
        return ScheduleTrigger(
            TriggerAction.SCHEDULE, "the number of replicas changed", ScheduleType.SCALE, mode
        )
    if mode is SchedulingMode.FRESH:
        return ScheduleTrigger(TriggerAction.SCHEDULE, "rescheduling was requested", mode=mode)
    if not binding.is_workload or binding.placement.is_duplicated:
        return ScheduleTrigger(TriggerAction.SCHEDULE, "it goes to every cluster that fits", mode=mode)
    if any(target.name in deleting for target in binding.targets):
        return ScheduleTrigger(TriggerAction.SCHEDULE, "a cluster of the result is being deleted", mode=mode)
    if binding.generation != binding.observed_generation:
        return ScheduleTrigger(TriggerAction.OBSERVE, "nothing relevant changed")
    return ScheduleTrigger(TriggerAction.NOTHING, "nothing changed")


def is_reschedule_due(binding: Binding) -> bool:
    """Times that cannot be read request nothing."""
    if not binding.reschedule_triggered_at or not binding.last_scheduled_time:
        return False
    try:
        asked, done = map(parse_rfc3339, (binding.reschedule_triggered_at, binding.last_scheduled_time))
    except (ValueError, OverflowError):
        return False
    return asked > done


def replicas_changed(binding: Binding, settings: SchedulingSettings) -> bool:
    if not binding.placement.has_replica_scheduling:
        return False
    if settings.multiple_pod_templates and binding.components and not binding.targets:
        return True
    if binding.placement.is_duplicated:
        return any(target.replicas != binding.replicas for target in binding.targets)
    return sum(target.replicas for target in binding.targets) != binding.replicas


_WHOLE = ("clusterAffinity", "clusterTolerations", "spreadConstraints", "replicaScheduling")
_BY_TERM = ("clusterAffinities", "workloadAffinity")


def placement_changed(binding: Binding) -> bool:
    """Whether the placement differs from that of the current result; not if it is unreadable."""
    text = binding.applied_placement
    if text is None:
        return True
    try:
        applied = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    if not isinstance(applied, dict):
        return False
    now = binding.raw_placement
    if any(_differ(applied, now, field) for field in _WHOLE):
        return True
    if not any(_differ(applied, now, field) for field in _BY_TERM):
        return False
    name = binding.observing_affinity_name
    before, after = _term(applied, name), _term(now, name)
    return not name or before is None or after is None or stripped(before) != stripped(after)


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], field: str) -> bool:
    first, second = one.get(field), other.get(field)
    return first != second and stripped(first) != stripped(second)


def _term(placement: Mapping[str, Any], name: str) -> Any:
    terms = placement.get("clusterAffinities")
    entries = terms if isinstance(terms, list) else []
    return next((e for e in entries if isinstance(e, dict) and e.get("affinityName") == name), None)


def stripped(value: Any, field: str = "") -> Any:
    """The value without what Go omits: absent, null, empty and zero are the same."""
    if isinstance(value, dict):
        fields = {key: stripped(item, key) for key, item in value.items()}
        return {key: item for key, item in fields.items() if item is not None} or None
    if isinstance(value, list):
        return [stripped(item) for item in value] or None
    if field == "tolerationSeconds":  # a pointer in Go: 0 is not absent
        return value
    return value or None
