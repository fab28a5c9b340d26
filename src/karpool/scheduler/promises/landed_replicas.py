"""Reads how much of a workload has landed in a member from the status that the member reports.

Kinds report different fields; missing ones are not guessed. `ready` never exceeds the pods on nodes, so it
may end a promise; `created` are all existing pods, which a cluster's summary counts. Health alone proves
nothing: a kind without a health hook is `Healthy` before it has a pod. Only a kind that was `Unhealthy` has a
hook.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from karpool.model.karmada.binding import AggregatedStatus, WorkloadTemplate

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


class LandedReplicas(NamedTuple):
    """Replicas as reported; None if the status does not say."""

    ready: int | None = None
    created: int | None = None
    health: str = ""


NOTHING = LandedReplicas()
_COUNTS = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "unavailableReplicas")


def landing_of(template: WorkloadTemplate, item: AggregatedStatus | None) -> LandedReplicas:
    """Without a report, or if the workload was not applied, nothing is known to have landed."""
    if item is None or not item.applied:
        return NOTHING
    health, status = item.health, item.status
    match template.api_version, template.kind:
        case "batch/v1", "Job":
            done = _count(status, "succeeded")
            created = _count(status, "active") + done + _count(status, "failed")
            return LandedReplicas(_count(status, "ready") + done, created, health)
        case "v1", "Pod":
            running = status.get("phase") in ("Running", "Succeeded", "Failed")
            return LandedReplicas(int(running), int(bool(status)), health)
    # Go omits zeros: a status with any of these fields has the others as zero.
    if not any(name in status for name in _COUNTS):
        return LandedReplicas(None, None, health)
    ready = max(_count(status, "readyReplicas"), _count(status, "availableReplicas"))
    created = _count(status, "replicas") if "replicas" in status else ready
    return LandedReplicas(ready, created, health)


def _count(status: Mapping[str, Any], name: str) -> int:
    value = status.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return max(0, min(value, 2**31 - 1))
