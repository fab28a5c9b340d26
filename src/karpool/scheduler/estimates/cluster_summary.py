"""Computes availability from a cluster's own summary: Karmada's general estimator.

It sees sums, and with resource models nodes by grade, but no constraints. Promises to other workloads are
subtracted first. CPU counts in milli units, everything else in whole ones.
"""

from collections.abc import Iterable, Sequence
from weakref import WeakKeyDictionary

from karpool.model import resources
from karpool.model.karmada.member_cluster import ResourceSummary
from karpool.model.karmada.replica_requirements import Component, ReplicaRequirements
from karpool.model.resources import PODS, Resources
from karpool.scheduler.cycle.decision import MANY
from karpool.scheduler.estimates.graded_nodes import GradedNodes, Requests
from karpool.wire.requests import AssumedWorkload

_Parts = list[tuple[Requests, int]]


def replicas(
    summary: ResourceSummary | None,
    requirements: ReplicaRequirements | None,
    assumed: "Assumed" = (),
    *,
    models: bool = True,
) -> int:
    """How many replicas of one template fit; 0 if the cluster reports nothing."""
    promised = _promised(assumed)
    slots = _open_slots(summary, promised)
    if summary is None or not slots:
        return 0
    if requirements is None:
        return min(slots, MANY)
    needs = requirements.shape.requests
    if models and summary.has_models:
        slots = min(slots, _on_nodes(summary, needs, promised))
        # Grades rarely include devices; resources that they lack are counted in sums.
        nodes = _nodes(summary)
        needs = tuple(need for need in needs if not nodes.knows(need[0]))
    return min(slots, _by_sums(summary, promised.taken, needs), MANY)


def sets(
    summary: ResourceSummary | None,
    components: Sequence[Component],
    assumed: "Assumed" = (),
    *,
    models: bool = True,
) -> int:
    """How many complete sets of components fit."""
    promised = _promised(assumed)
    slots = _open_slots(summary, promised)
    if summary is None or not slots:
        return 0
    parts = _parts(components)
    pods = sum(count for _, count in parts)
    if not pods:
        return min(slots, MANY)
    together = _together(parts)
    bound = min(slots // pods, _by_sums(summary, promised.taken, together.items()), MANY)
    if not bound or not models or not summary.has_models:
        return bound
    return _filled(summary, promised).place_sets(parts, bound)


def _open_slots(summary: ResourceSummary | None, promised: "PromisedTotals") -> int:
    return 0 if summary is None else max(0, summary.free(PODS) - promised.taken.get(PODS, 0))


class PromisedTotals:
    """The promised amounts: as sums, and as groups that occupy nodes. The ledger maintains them."""

    __slots__ = ("_alike", "_groups", "changes", "taken")

    def __init__(self) -> None:
        self.changes = 0  # different after every change
        self.taken: Resources = {}
        self._alike: dict[Requests, int] = {}  # workloads of one template fill nodes alike
        self._groups: list[_Parts] = []

    def add(self, requests: Requests, replicas: int) -> None:
        """Add replicas of one template; a negative number removes them."""
        self.changes += 1
        taken = self.taken
        for name, units in requests:
            taken[name] = taken.get(name, 0) + units * replicas
        taken[PODS] = taken.get(PODS, 0) + replicas
        total = self._alike.get(requests, 0) + replicas
        if total:
            self._alike[requests] = total
        else:
            self._alike.pop(requests, None)

    def add_group(self, parts: _Parts) -> None:
        """Add components that are placed together."""
        self.changes += 1
        resources.add(self.taken, _together(parts))
        resources.add(self.taken, {PODS: sum(count for _, count in parts)})
        self._groups.append(parts)

    @property
    def pods(self) -> int:
        return self.taken.get(PODS, 0)

    def groups(self) -> list[_Parts]:
        return [*([part] for part in self._alike.items()), *self._groups]


Assumed = Sequence[AssumedWorkload] | PromisedTotals
_NOTHING = PromisedTotals()


def _promised(assumed: Assumed) -> PromisedTotals:
    if isinstance(assumed, PromisedTotals):
        return assumed
    if not assumed:
        return _NOTHING
    totals = PromisedTotals()
    for workload in assumed:
        parts = _parts(workload.components)
        if len(parts) == 1:
            totals.add(*parts[0])
        elif parts:
            totals.add_group(parts)
    return totals


def _by_sums(summary: ResourceSummary, taken: Resources, needs: Iterable[tuple[str, int]]) -> int:
    least = MANY
    for name, units in needs:
        free = summary.free(name) - taken.get(name, 0)
        if free < units:
            return 0
        if (count := free // units) < least:
            least = count
    return least


def _on_nodes(summary: ResourceSummary, needs: Requests, promised: PromisedTotals) -> int:
    if not promised.pods:
        return _untouched(summary, needs)
    return _filled(summary, promised).count(needs)


def _filled(summary: ResourceSummary, promised: PromisedTotals) -> GradedNodes:
    nodes = _nodes(summary).copy()
    for group in promised.groups():
        nodes.place(group)
    return nodes


# A summary stays the same for many decisions; it is compared by identity, and its cached results are dropped
# with it.
_KNOWN: WeakKeyDictionary[ResourceSummary, tuple[GradedNodes, dict[Requests, int]]] = WeakKeyDictionary()
_COUNTS_MAX = 1024


def _known(summary: ResourceSummary) -> tuple[GradedNodes, dict[Requests, int]]:
    memo = _KNOWN.get(summary)
    if memo is None:
        memo = _KNOWN[summary] = GradedNodes(summary.grades or ()), {}
    return memo


def _nodes(summary: ResourceSummary) -> GradedNodes:
    return _known(summary)[0]


def _untouched(summary: ResourceSummary, needs: Requests) -> int:
    nodes, counts = _known(summary)
    count = counts.get(needs)
    if count is None:
        if len(counts) >= _COUNTS_MAX:
            counts.clear()
        count = counts[needs] = nodes.count(needs)
    return count


def _parts(components: Iterable[Component]) -> _Parts:
    return [
        (component.shape.requests, component.replicas) for component in components if component.replicas > 0
    ]


def _together(parts: _Parts) -> Resources:
    """The sum of all requests, without pods."""
    total: Resources = {}
    for requests, count in parts:
        for name, units in requests:
            total[name] = total.get(name, 0) + units * count
    return total
