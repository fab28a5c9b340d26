"""Take back replicas that cannot start: the arithmetic of the descheduler.

A replica is taken back when it has waited too long for a node, and never one that
runs. Numbers that contradict each other change nothing.
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
    """Where fewer run than should; unknown counts as none. Only these need to be asked."""
    return [each.name for each in targets if _known(ready.get(each.name)) < each.replicas]


def lower_targets(
    targets: Sequence[TargetCluster], ready: Mapping[str, int | None], unschedulable: Mapping[str, int]
) -> tuple[list[TargetCluster], list[LoweredTarget]]:
    """The new `spec.clusters`, and what changed in it; entries stay, also with 0 replicas."""
    waiting = set(waiting_clusters(targets, ready))
    found = [
        _lowered(each, ready.get(each.name), unschedulable.get(each.name, 0))
        for each in targets
        if each.name in waiting
    ]
    changes = {each.cluster: each for each in found if each.taken_back}
    result = [
        each._replace(replicas=changes[each.name].after) if each.name in changes else each for each in targets
    ]
    return result, list(changes.values())


def _lowered(target: TargetCluster, ready: int | None, stuck: int) -> LoweredTarget:
    after = target.replicas
    if 0 < stuck <= target.replicas:
        after = max(target.replicas - stuck, _known(ready))
    return LoweredTarget(target.name, target.replicas, after, ready, stuck)


def _known(ready: int | None) -> int:
    return -1 if ready is None or ready < 0 else ready
