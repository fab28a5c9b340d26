"""Conditions as in Karpenter: a root `Ready` that follows from its dependents.

A transition time changes only with the status. Dependents start as Unknown at the creation of their object.
Other conditions are optional. Pure: from the current conditions to the new ones.
"""

from collections.abc import Sequence
from typing import Any

from karpool.model.kubernetes.meta import Condition, condition

READY = "Ready"
LAUNCHED = "Launched"
REGISTERED = "Registered"
INITIALIZED = "Initialized"
CONSOLIDATABLE = "Consolidatable"
DRIFTED = "Drifted"
DISRUPTION_REASON = "DisruptionReason"
DRAINED = "Drained"
VOLUMES_DETACHED = "VolumesDetached"
INSTANCE_TERMINATING = "InstanceTerminating"
VALIDATION_SUCCEEDED = "ValidationSucceeded"
NODE_CLASS_READY = "NodeClassReady"
REGISTRATION_HEALTHY = "NodeRegistrationHealthy"

OF_CLAIM = (LAUNCHED, REGISTERED, INITIALIZED)
OF_POOL = (VALIDATION_SUCCEEDED, NODE_CLASS_READY)

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"


class Conditions:
    """The conditions of one object during a reconciliation."""

    def __init__(
        self,
        before: Sequence[Condition] | None,
        dependents: Sequence[str],
        *,
        created: str,
        generation: int,
        now: str,
    ) -> None:
        self._before = list(before or ())
        self._dependents = dependents
        self._generation = generation
        self._now = now
        self._held = {condition.type: condition for condition in self._before}
        for kind in dependents:
            if kind not in self._held:
                self._held[kind] = Condition(
                    type=kind,
                    status=UNKNOWN,
                    reason="AwaitingReconciliation",
                    message="object is awaiting reconciliation",
                    last_transition_time=created,
                    observed_generation=generation,
                )
        self._started = created

    def get(self, kind: str) -> Condition | None:
        return self._held.get(kind)

    def is_true(self, kind: str) -> bool:
        condition = self._held.get(kind)
        return condition is not None and condition.status == TRUE

    def set(self, kind: str, status: str, reason: str = "", message: str = "") -> None:
        before = self._held.get(kind)
        since = before.last_transition_time if before is not None and before.status == status else self._now
        self._held[kind] = Condition(
            type=kind,
            status=status,
            reason=reason or kind,
            message=message or None,
            last_transition_time=since,
            observed_generation=self._generation,
        )

    def clear(self, kind: str) -> None:
        self._held.pop(kind, None)

    def wire(self) -> list[dict[str, Any]] | None:
        """Return the whole list, or None if nothing changed."""
        self._set_ready()
        conditions = list(self._held.values())
        if _plain(conditions) == _plain(self._before):
            return None
        return [_wire(condition) for condition in conditions]

    def _set_ready(self) -> None:
        states = [(kind, self._held[kind].status) for kind in self._dependents]
        shown = ", ".join(f"{kind}={status}" for kind, status in states if status != TRUE)
        before = condition(self._before, READY)
        if READY not in self._held and before is None:
            self._held[READY] = Condition(type=READY, status=UNKNOWN, last_transition_time=self._started)
        if not shown:
            self.set(READY, TRUE)
        elif any(status == FALSE for _, status in states):
            self.set(READY, FALSE, "UnhealthyDependents", shown)
        else:
            self.set(READY, UNKNOWN, "ReconcilingDependents", shown)


def _plain(conditions: Sequence[Condition]) -> list[tuple[str, str, str, str, int]]:
    """Return the fields that count as a difference; Go writes an absent message as an empty one."""
    return [
        (
            condition.type,
            condition.status,
            condition.reason or "",
            condition.message or "",
            condition.observed_generation,
        )
        for condition in conditions
    ]


def _wire(one: Condition) -> dict[str, Any]:
    return {
        "type": one.type,
        "status": one.status,
        "reason": one.reason or "",
        "message": one.message or "",
        "lastTransitionTime": one.last_transition_time,
        "observedGeneration": one.observed_generation,
    }
