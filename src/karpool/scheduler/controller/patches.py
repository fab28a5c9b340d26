"""What is written to a binding: the result, and how scheduling went. Plain values, no I/O.

A patch carries the version that was read, so that nobody's change is undone, and only
what differs, so that a second pass over an unchanged binding has nothing to write.
Lists are replaced by merge patches as a whole, which is why `conditions` are always
those of the version that the patch names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.kube.api.conditions import upsert_condition
from karpool.kube.api.decoding import Object
from karpool.model.karmada.binding import Binding, TargetCluster
from karpool.model.karmada.names import APPLIED_PLACEMENT
from karpool.scheduler.cycle.decision import ScheduleReason, SchedulingDecision

SCHEDULED = "Scheduled"
MESSAGE_MAX = 4096  # of a condition; the API allows 32768, people read less


@dataclass(frozen=True, slots=True)
class ScheduledCondition:
    """How a pass over a binding ended, as its condition says it."""

    reason: ScheduleReason
    message: str
    affinity_name: str | None = None  # of the group in use; None: leave it as it is
    is_partial: bool = False  # a result was written, and more is wanted

    @property
    def is_success(self) -> bool:
        return self.reason is ScheduleReason.SUCCESS

    def condition(self) -> Object:
        return {
            "type": SCHEDULED,
            "status": "True" if self.is_success else "False",
            "reason": str(self.reason),
            "message": self.message[:MESSAGE_MAX],
        }


def outcome_of(decision: SchedulingDecision) -> ScheduledCondition:
    placed = decision.targets is not None and (decision.is_success or decision.is_partial)
    name = decision.group if placed and decision.group else None
    return ScheduledCondition(decision.reason, decision.message, name, decision.is_partial)


def result_patch(
    binding: Binding, targets: Sequence[TargetCluster], annotations: Mapping[str, str | None]
) -> Object | None:
    """A merge patch that makes `targets` the result; None when there is nothing to change.

    `annotations` are written along with a change of the targets: what has to become known in the
    same instant.
    """
    changed: Object = {}
    if not same_placement(binding.applied_placement, binding.raw_placement):
        changed[APPLIED_PLACEMENT] = placement_text(binding.raw_placement)
    patch: Object = {"metadata": {"resourceVersion": binding.resource_version}}
    if tuple(targets) != binding.targets:
        patch["spec"] = {"clusters": [target.to_json() for target in targets] or None}
        held = binding.annotations
        changed |= {name: text for name, text in annotations.items() if held.get(name) != text}
    if changed:
        patch["metadata"]["annotations"] = changed
    return patch if changed or "spec" in patch else None


def status_patch(
    binding: Binding, outcome: ScheduledCondition, now: str, *, scheduled_now: bool = False
) -> Object | None:
    """A merge patch of the status; None when it says so already.

    With `scheduled_now` the time of the last success moves even if nothing else does: a requested
    rescheduling is answered by that.
    """
    conditions = [dict(condition) for condition in binding.raw_conditions]
    wanted = upsert_condition(conditions, outcome.condition(), now)
    changed: Object = {}
    if wanted != conditions:
        changed["conditions"] = wanted
    if outcome.is_success or outcome.is_partial:
        # After a partial placement too: members report only of bindings that were scheduled once.
        if binding.observed_generation != binding.generation:
            changed["schedulerObservedGeneration"] = binding.generation
        if outcome.affinity_name is not None and outcome.affinity_name != binding.observing_affinity_name:
            changed["schedulerObservingAffinityName"] = outcome.affinity_name
        if changed or scheduled_now or not binding.last_scheduled_time:
            changed["lastScheduledTime"] = now
    return _of_version(binding, changed)


def observed_patch(binding: Binding) -> Object | None:
    """For a binding that needed no scheduling: others wait to see that this generation was looked at."""
    if binding.observed_generation == binding.generation:
        return None
    return _of_version(binding, {"schedulerObservedGeneration": binding.generation})


def placement_text(placement: Mapping[str, Any]) -> str:
    return msgspec.json.encode(placement).decode()


def same_placement(text: str | None, placement: Mapping[str, Any]) -> bool:
    """Whether an annotation says what the placement says: absent, null and empty are the same."""
    if text is None:
        return False
    try:
        held = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return bool(_pruned(held) == _pruned(placement))


def _pruned(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {name: _pruned(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each not in (None, "", 0, False, {}, [])}
    if isinstance(value, list):
        return [_pruned(each) for each in value]
    return value


def _of_version(binding: Binding, changed: Object) -> Object | None:
    if not changed:
        return None
    return {"metadata": {"resourceVersion": binding.resource_version}, "status": changed}
