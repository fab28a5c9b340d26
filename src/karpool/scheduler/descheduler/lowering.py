"""The arithmetic of the descheduler: lowers targets by the replicas that cannot start.

A replica is taken if it has been pending for too long; a running one never is. Contradictory numbers change
nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from karpool.model.karmada.binding import TargetCluster


class LoweredTarget(NamedTuple):
    cluster: str
    before: int
    after: int
    ready: int | None
    unschedulable: int

    @property
    def taken_back(self) -> int:
        return self.before - self.after


def waiting_clusters(targets: Sequence[TargetCluster], ready: Mapping[str, int | None]) -> list[str]:
    """Clusters with fewer ready replicas than desired, or unknown ones. Only these are asked."""
    return [target.name for target in targets if _known(ready.get(target.name)) < target.replicas]


def lower_targets(
    targets: Sequence[TargetCluster], ready: Mapping[str, int | None], unschedulable: Mapping[str, int]
) -> tuple[list[TargetCluster], list[LoweredTarget]]:
    """The new `spec.clusters`, and its changes; entries stay, even with 0 replicas."""
    waiting = set(waiting_clusters(targets, ready))
    lowered = [
        _lowered(target, ready.get(target.name), unschedulable.get(target.name, 0))
        for target in targets
        if target.name in waiting
    ]
    changes = {target.cluster: target for target in lowered if target.taken_back}
    result = [
        cluster._replace(replicas=changes[cluster.name].after) if cluster.name in changes else cluster
        for cluster in targets
    ]
    return result, list(changes.values())


def _lowered(target: TargetCluster, ready: int | None, stuck: int) -> LoweredTarget:
    after = target.replicas
    if 0 < stuck <= target.replicas:
        after = max(target.replicas - stuck, _known(ready))
    return LoweredTarget(target.name, target.replicas, after, ready, stuck)


def _known(ready: int | None) -> int:
    return -1 if ready is None or ready < 0 else ready
