"""Pods that the scheduler found no node for, and since when."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from karpool.cluster.pods.owner_store import controller_of
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.meta import NO_LABELS, Condition, Labels, OwnerReference, condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import is_provisionable
from karpool.model.kubernetes.times import parse_rfc3339

_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """`since`: when the scheduler found no node; None if it has not tried, or did not report it.

    `wants_node_since`: since when an autoscaler should make room for it; None if it need not.
    """

    key: ObjectKey
    labels: Labels
    controller: OwnerReference | None
    since: float | None
    wants_node_since: float | None = None
    nominated_node: str = ""  # where room is being made for it

    def is_overdue(self, now: float, threshold_seconds: float) -> bool:
        return self.since is not None and self.since + threshold_seconds < now


def waiting_since(conditions: list[Condition] | None) -> float | None:
    """Return when the scheduler found no node for a pod; None if it did, or has not tried yet."""
    scheduled = condition(conditions, "PodScheduled")
    if scheduled is None or scheduled.status != "False" or scheduled.reason != "Unschedulable":
        return None
    try:
        return parse_rfc3339(scheduled.last_transition_time or "")
    except ValueError:
        return _LONG_AGO  # Go's zero time


class WaitingPodStore:
    """Pending pods. `view` is immutable: the same mapping until something changes."""

    def __init__(self) -> None:
        self._pods: dict[ObjectKey, WaitingPod] = {}
        self._view: Mapping[ObjectKey, WaitingPod] | None = None

    def view(self) -> Mapping[ObjectKey, WaitingPod]:
        if self._view is None:
            self._view = MappingProxyType(self._pods)
        return self._view

    def put(self, key: ObjectKey, pod: Pod, now: float) -> None:
        if pod.spec.node_name or pod.is_terminal:
            self.drop(key)
            return
        since = waiting_since(pod.status.conditions)
        before = self._pods.get(key)
        wants_node_since = None
        if is_provisionable(pod) and not pod.is_terminating:
            waited_since = before.wants_node_since if before is not None else None
            wants_node_since = (
                since if since is not None and since > 0 else now if waited_since is None else waited_since
            )
        if since is None and wants_node_since is None:
            self.drop(key)
            return
        labels, controller = pod.metadata.labels or NO_LABELS, controller_of(pod.metadata)
        nominated = pod.status.nominated_node_name
        waiting = WaitingPod(key, labels, controller, since, wants_node_since, nominated)
        if waiting != before:
            self._own()
            self._pods[key] = waiting

    def drop(self, key: ObjectKey) -> None:
        if key in self._pods:
            self._own()
            del self._pods[key]

    def _own(self) -> None:
        """Copy before a write, because snapshots keep the current map."""
        if self._view is not None:
            self._pods, self._view = dict(self._pods), None
