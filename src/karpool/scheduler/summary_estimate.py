"""Availability from a cluster's own summary: Karmada's general estimator.

It sees sums, and with resource models nodes by grade, but no constraints. What is
promised to other workloads is taken off first. CPU counts in milli units, all
else in whole ones.
"""

from collections.abc import Iterable, Mapping, Sequence

from karpool.model import resources
from karpool.model.karmada.cluster import Summary
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.resources import PODS, Resources
from karpool.model.shape import PodShape
from karpool.scheduler.merging import MANY
from karpool.scheduler.virtual_nodes import VirtualNodes
from karpool.wire.request import AssumedWorkload


def replicas(
    summary: Summary | None,
    requirements: ReplicaRequirements | None,
    assumed: Sequence[AssumedWorkload] = (),
    *,
    models: bool = True,
) -> int:
    """How many replicas of one template fit; 0 when the cluster reports nothing."""
    if summary is None:
        return 0
    taken = _taken(assumed)
    slots = summary.free(PODS) - taken.get(PODS, 0)
    if slots <= 0:
        return 0
    if requirements is None:
        return min(slots, MANY)
    nodes = _nodes(summary, assumed) if models else None
    needs: Iterable[tuple[str, int]] = requirements.shape.requests
    if nodes is not None:
        slots = min(slots, nodes.count(requirements.shape))
        # Grades rarely mention devices; what they do not mention is counted in sums.
        needs = [(name, units) for name, units in needs if not nodes.knows(name)]
    return min(slots, _by_sums(summary, taken, needs), MANY)


def sets(
    summary: Summary | None,
    components: Sequence[Component],
    assumed: Sequence[AssumedWorkload] = (),
    *,
    models: bool = True,
) -> int:
    """How many complete sets of components fit."""
    if summary is None:
        return 0
    taken = _taken(assumed)
    slots = summary.free(PODS) - taken.get(PODS, 0)
    if slots <= 0:
        return 0
    pods = sum(max(each.replicas, 0) for each in components)
    if not pods:
        return min(slots, MANY)
    bound = min(slots // pods, _by_sums(summary, taken, _together(components).items()), MANY)
    nodes = _nodes(summary, assumed) if models and bound else None
    return bound if nodes is None else nodes.place_sets(_parts(components), bound)


def _by_sums(summary: Summary, taken: Mapping[str, int], needs: Iterable[tuple[str, int]]) -> int:
    least = MANY
    for name, units in needs:
        if units > 0:
            free = summary.free(name) - taken.get(name, 0)
            least = min(least, max(free, 0) // units)
    return least


def _nodes(summary: Summary, assumed: Iterable[AssumedWorkload]) -> VirtualNodes | None:
    """The nodes by grade, with promised workloads in place; None without models."""
    if not summary.has_modelings or summary.grades is None:
        return None
    nodes = VirtualNodes(summary.grades)
    for workload in assumed:
        nodes.place(_parts(workload.components))
    return nodes


def _parts(components: Iterable[Component]) -> list[tuple[PodShape, int]]:
    return [(each.shape, each.replicas) for each in components]


def _together(components: Iterable[Component]) -> Resources:
    """What one set asks for, pods apart."""
    total: Resources = {}
    for each in components:
        if each.replicas > 0:
            resources.add(total, {name: units * each.replicas for name, units in each.shape.requests})
    return total


def _taken(assumed: Iterable[AssumedWorkload]) -> Resources:
    total: Resources = {}
    for workload in assumed:
        resources.add(total, _together(workload.components))
        pods = sum(max(each.replicas, 0) for each in workload.components)
        resources.add(total, {PODS: pods})
    return total
