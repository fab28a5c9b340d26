"""The arithmetic of a Deployment's rollout from its old ReplicaSets to the new one.

Every function takes the current state and returns the sizes to set. Existing pods are counted by the larger
of requested and reported replicas, so that the surge is respected while deletions are in progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool.kube.api.decoding import Object
from karpool.model.errors import Invalid
from karpool.model.kubernetes.pod_disruption import scaled

Sizes = dict[str, int]  # by name of the ReplicaSet


@dataclass(frozen=True, slots=True)
class RolloutPart:
    """One ReplicaSet of a Deployment."""

    name: str
    created: str = ""
    size: int = 0  # requested
    replicas: int = 0  # reported
    ready: int = 0
    available: int = 0
    most: int = 0  # desired plus surge, when it was last scaled
    desired: int | None = None  # of the Deployment, when this part was last scaled


@dataclass(frozen=True, slots=True)
class Bounds:
    desired: int
    surge: int
    unavailable: int

    @property
    def most(self) -> int:
        return self.desired + self.surge

    @property
    def least_available(self) -> int:
        return self.desired - self.unavailable


def bounds_of(spec: Object) -> Bounds:
    """Return the bounds: surge percentages round up, unavailable ones down; both 0 would block a rollout."""
    desired = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return Bounds(desired, 0, 0)
    rolling = strategy.get("rollingUpdate") or {}
    try:
        surge = scaled(rolling.get("maxSurge", "25%"), desired, "maxSurge")
        unavailable = scaled(rolling.get("maxUnavailable", "25%"), desired, "maxUnavailable", down=True)
    except Invalid:  # the API server refuses such values
        surge, unavailable = 0, 1
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(desired, surge, min(unavailable, desired))


def grow_new(bounds: Bounds, new: RolloutPart, old: Sequence[RolloutPart]) -> int:
    """Return the size of the new ReplicaSet, as far as the surge allows now."""
    if new.size >= bounds.desired:
        return bounds.desired
    there = new.size + sum(max(part.size, part.replicas) for part in old)
    room = max(0, bounds.most - there)
    return min(new.size + room, bounds.desired)


def shrink_old(bounds: Bounds, new: RolloutPart, old: Sequence[RolloutPart]) -> Sizes:
    """Return the sizes of the old ReplicaSets: unavailable pods are removed first, oldest first."""
    everything = new.size + sum(part.size for part in old)
    spare = everything - bounds.least_available - (new.size - new.available)
    sizes = {part.name: part.size for part in old}
    oldest_first = sorted(old, key=lambda part: (part.created, part.name))
    if spare <= 0:
        return {}
    for part in oldest_first:
        broken = max(0, part.size - part.available)
        going = min(spare, broken)
        sizes[part.name] -= going
        spare -= going
    # A shrunk part may not have reported it yet, so its requested size counts.
    enough = new.available + sum(min(part.available, part.size) for part in old) - bounds.least_available
    for part in oldest_first:
        going = max(0, min(enough, sizes[part.name]))
        sizes[part.name] -= going
        enough -= going
    return {part.name: sizes[part.name] for part in old if sizes[part.name] != part.size}


def rescale(bounds: Bounds, parts: Sequence[RolloutPart], new: RolloutPart | None, reported: int) -> Sizes:
    """Return new sizes when a Deployment is scaled; during a rollout each part keeps its share.

    `reported` is the Deployment's own status.replicas, for parts that do not know their share.
    """
    active = [part for part in parts if part.size > 0]
    single = active[0] if len(active) == 1 else None
    if not active:
        single = new or max(parts, key=lambda part: (part.created, part.name), default=None)
    if single is not None:
        return {single.name: bounds.desired} if single.size != bounds.desired else {}
    if new is not None and new.size == new.available == new.desired == bounds.desired:
        return {part.name: 0 for part in active if part.name != new.name}
    allowed = bounds.most if bounds.desired > 0 else 0
    to_add = allowed - sum(part.size for part in active)
    # Larger parts first, so that rounding never takes a small one below zero.
    by_age = sorted(active, key=lambda part: (part.created, part.name), reverse=to_add > 0)
    ordered = sorted(by_age, key=lambda part: -part.size)
    sizes, added = {part.name: part.size for part in active}, 0
    for part in ordered:
        share = _share(part, bounds, reported, to_add - added) if to_add else 0
        sizes[part.name] += share
        added += share
    rest = to_add - added  # the rest from rounding, or from outdated shares
    for part in ordered:
        taken = max(rest, -sizes[part.name])
        sizes[part.name] += taken
        rest -= taken
    return {part.name: sizes[part.name] for part in active if sizes[part.name] != part.size}


def _share(part: RolloutPart, bounds: Bounds, reported: int, allowed: int) -> int:
    if bounds.desired == 0:
        change = -part.size
    else:
        before = part.most or reported or part.size
        change = _round(part.size * bounds.most, before) - part.size
    return min(change, allowed) if allowed > 0 else max(change, allowed)


def _round(numerator: int, denominator: int) -> int:
    """Divide and round to the nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


def obsolete(parts: Sequence[tuple[RolloutPart, int]], limit: int) -> list[str]:
    """Return the names of empty old ReplicaSets beyond the history limit."""
    idle = [
        (revision, part.created, part.name) for part, revision in parts if part.size == part.replicas == 0
    ]
    return [name for _, _, name in sorted(idle)[: max(0, len(parts) - limit)]]
