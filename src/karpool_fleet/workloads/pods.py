"""Pod helpers of the workload controllers: which pods count, are ready, and are deleted first.

The deletion order is that of the ReplicaSet controller: first pods without effect (not placed, not running,
not ready), then the lower deletion cost, then those on nodes with more pods of the workload, then the
younger, by orders of magnitude of age.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.pod import Pod
from karpool.model.kubernetes.pod_disruption import DELETION_COST, is_active
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.labels import integer

__all__ = ["is_active", "is_available", "is_ready", "name_for", "new_pod", "removal_order"]

# No vowels and no 0, 1, 3: suffixes spell no words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX = 5
_NAME_MAX = 63
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def is_ready(pod: Pod) -> bool:
    ready = condition(pod.status.conditions, "Ready")
    return ready is not None and ready.status == "True"


def ready_since(pod: Pod) -> float | None:
    ready = condition(pod.status.conditions, "Ready")
    if ready is None or ready.status != "True" or not ready.last_transition_time:
        return None
    return parse_rfc3339(ready.last_transition_time)


def is_available(pod: Pod, min_ready_seconds: int, now: float) -> bool:
    """Whether the pod has been ready for `min_ready_seconds`."""
    if min_ready_seconds <= 0:
        return is_ready(pod)
    since = ready_since(pod)
    return since is not None and since + min_ready_seconds <= now


def available_in(pods: Iterable[Pod], min_ready_seconds: int, now: float) -> float | None:
    """Return the seconds until the next ready pod becomes available; None if none is waiting."""
    if min_ready_seconds <= 0:
        return None
    starts = (ready_since(pod) for pod in pods)
    waits = [since + min_ready_seconds - now for since in starts if since is not None]
    return min((wait for wait in waits if wait > 0), default=None)


def name_for(owner: str, random: Random) -> str:
    """Return the owner's name, a dash and five characters; a long name is cut to fit a host name."""
    suffix = "".join(random.choice(_LETTERS) for _ in range(_SUFFIX))
    return prefix_for(owner) + suffix


def prefix_for(owner: str) -> str:
    return f"{owner}-"[: _NAME_MAX - _SUFFIX]


def new_pod(
    template: Mapping[str, Any],
    reference: Object,
    namespace: str,
    name: str,
    *,
    generate_name: str = "",
    labels: Mapping[str, str] | None = None,
) -> Object:
    """Return a pod of a template. It shares the template: encode it, do not change it."""
    given = template.get("metadata") or {}
    metadata: Object = {"name": name, "namespace": namespace, "ownerReferences": [reference]}
    if generate_name:
        metadata["generateName"] = generate_name
    if all_labels := {**(given.get("labels") or {}), **(labels or {})}:
        metadata["labels"] = all_labels
    for field in ("annotations", "finalizers"):
        if given.get(field):
            metadata[field] = given[field]
    return {"metadata": metadata, "spec": template["spec"]}


def removal_order(pods: Sequence[Pod], related: Iterable[Pod], now: float) -> list[Pod]:
    """Return `pods` in deletion order. `related` are all pods of the workload, old revisions included."""
    neighbours = Counter(pod.spec.node_name for pod in related if pod.spec.node_name and is_active(pod))
    return sorted(pods, key=lambda pod: _removal_rank(pod, neighbours, now))


def _removal_rank(pod: Pod, neighbours: Counter[str], now: float) -> tuple[Any, ...]:
    since = ready_since(pod)
    created = pod.metadata.creation_timestamp
    return (
        bool(pod.spec.node_name),
        _PHASES.get(pod.status.phase, 0),
        is_ready(pod),
        integer(pod.annotations.get(DELETION_COST, "0")) or 0,
        -neighbours[pod.spec.node_name] if pod.spec.node_name else 0,
        _magnitude(now - since) if since is not None else -1,
        -sum(status.restart_count for status in pod.status.container_statuses or ()),
        _magnitude(now - parse_rfc3339(created)) if created else -1,
        pod.metadata.uid,
    )


def _magnitude(seconds: float) -> int:
    """Return the magnitude of an age: ages within a factor of two are equal, so that bursts are mixed."""
    return math.floor(math.log2(seconds)) if seconds >= 1 else 0
