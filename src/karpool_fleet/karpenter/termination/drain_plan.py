"""Plans the drain of a node: which pods to evict now, which to wait for, and when to plan again.

Pure. Pods are evicted in tiers, each after the previous one has left: ordinary pods, ordinary daemons,
critical pods, critical daemons. With a deadline, a pod that would not end in time is deleted, whatever
protects it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DISRUPTED
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import (
    is_daemon,
    is_mirror,
    is_protected,
    protected_seconds,
    running_seconds,
)
from karpool.model.kubernetes.priority import is_critical
from karpool.model.kubernetes.times import parse_rfc3339

_DEFAULT_GRACE_SECONDS = 30
# The kubelet of a pod that is this much past its end will never report it.
STUCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Forced:
    pod: Pod
    grace_seconds: int


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """A drain plan. `again_seconds`: when it may change without a change of a pod."""

    evict: tuple[Pod, ...] = ()
    force: tuple[Forced, ...] = ()
    waiting: int = 0
    again_seconds: float | None = None

    @property
    def is_drained(self) -> bool:
        return self.waiting == 0


def drain_plan(pods: Iterable[Pod], now: float, deadline: float | None) -> DrainPlan:
    held = [pod for pod in pods if is_waited_for(pod, now)]
    force = [forced for pod in held if (forced := _forced(pod, now, deadline)) is not None]
    tiers: dict[int, list[Pod]] = {}
    for pod in held:
        tiers.setdefault(_tier(pod), []).append(pod)
    first = tiers[min(tiers)] if tiers else []
    hurried = {eviction.pod.metadata.uid for eviction in force}
    evict = [
        pod
        for pod in first
        if not pod.is_terminating
        and pod.metadata.uid not in hurried
        and not is_protected(pod, running_seconds(pod, now))
    ]
    changes = [seconds for pod in held for seconds in _changes(pod, now, deadline)]
    return DrainPlan(tuple(evict), tuple(force), len(held), min(changes, default=None))


def is_waited_for(pod: Pod, now: float) -> bool:
    if pod.is_terminal or is_mirror(pod) or _tolerates_draining(pod):
        return False
    ends = _ends_at(pod)
    return ends is None or now <= ends + STUCK_SECONDS


def _tolerates_draining(pod: Pod) -> bool:
    return any(toleration.tolerates(DISRUPTED) for toleration in pod.spec.tolerations or ())


def _tier(pod: Pod) -> int:
    return 2 * is_critical(pod) + is_daemon(pod)


def _ends_at(pod: Pod) -> float | None:
    """Return when a terminating pod should be gone."""
    text = pod.metadata.deletion_timestamp
    return None if text is None else parse_rfc3339(text)


def _grace(pod: Pod) -> int:
    grace = pod.spec.termination_grace_period_seconds
    return _DEFAULT_GRACE_SECONDS if grace is None else grace


def _forced(pod: Pod, now: float, deadline: float | None) -> Forced | None:
    """Return how a pod must be deleted to end by the deadline; None if that is not necessary yet."""
    if deadline is None:
        return None
    ends = _ends_at(pod)
    if ends is not None and ends <= deadline:
        return None
    if ends is None and now <= deadline - _grace(pod):
        return None
    grace = max(1, math.floor(deadline - now))
    # Deleting again with an end that is not earlier would change nothing.
    return None if ends is not None and now + grace >= ends else Forced(pod, grace)


def _changes(pod: Pod, now: float, deadline: float | None) -> Iterable[float]:
    """Return the seconds until this pod's part of the plan changes by time alone."""
    ends = _ends_at(pod)
    if ends is not None:
        yield max(0.0, ends + STUCK_SECONDS - now) + 1.0
    elif deadline is not None:
        until = deadline - _grace(pod) - now
        yield until + 1.0 if until >= 0 else 1.0
    if ends is None and (left := _protected_for(pod, now)) is not None:
        yield max(0.0, left)


def _protected_for(pod: Pod, now: float) -> float | None:
    """Return the seconds for which the pod is still protected from disruption, if that ends."""
    running = running_seconds(pod, now)
    try:
        wish = protected_seconds(pod)
    except Invalid:
        return None
    if running is None or not wish or math.isinf(wish) or wish <= running:
        return None
    return wish - running
