"""Indexes the promises of all bindings by cluster, with what summaries do not show yet, and by due time.

Sums are maintained, not computed: a decision asks every cluster for them, and each may have thousands of
promises. Callers report every change of a promise (`changed`).
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator

from karpool.model.karmada.binding import BindingKey
from karpool.model.karmada.replica_requirements import ReplicaRequirements
from karpool.scheduler.estimates.cluster_summary import PromisedTotals
from karpool.scheduler.promises.promise import Promise, PromiseLifetime

_Charge = tuple[tuple[ReplicaRequirements | None, ...], tuple[int, ...]]


class _Sums:
    """The amounts to subtract from one cluster's summary, by requests."""

    def __init__(self) -> None:
        self._charges: dict[BindingKey, _Charge] = {}
        self.promised = PromisedTotals()

    def charge(self, promise: Promise, amounts: tuple[int, ...]) -> None:
        charge = (promise.workload.requirements, amounts)
        before = self._charges.get(promise.binding)
        if charge != before:
            if before is not None:
                self._add(*before, sign=-1)
            self._add(*charge)
            self._charges[promise.binding] = charge

    def discharge(self, binding: BindingKey) -> None:
        charge = self._charges.pop(binding, None)
        if charge is not None:
            self._add(*charge, sign=-1)

    def _add(
        self, requirements: tuple[ReplicaRequirements | None, ...], amounts: tuple[int, ...], sign: int = 1
    ) -> None:
        for component_requirements, replicas in zip(requirements, amounts, strict=True):
            if replicas:
                requests = () if component_requirements is None else component_requirements.shape.requests
                self.promised.add(requests, sign * replicas)


class PromiseIndex:
    def __init__(self, lifetime: PromiseLifetime) -> None:
        self._lifetime = lifetime
        self._held: dict[str, dict[BindingKey, Promise]] = {}
        self._sums: dict[str, _Sums] = {}
        # Promises with pods that the summary may not have counted yet.
        self._settling: dict[str, dict[BindingKey, Promise]] = {}
        self._summaries: dict[str, tuple[object, int]] = {}  # the last one, and how many came after the first
        # By the whole second in which they are due; most of thousands share one.
        self._due: dict[float, list[Promise]] = {}
        self._due_seconds: list[float] = []  # a heap
        self._changes: Counter[str] = Counter()
        self._clearings = 0

    def enter(self, promise: Promise, now: float) -> None:
        self._held.setdefault(promise.cluster, {})[promise.binding] = promise
        self.changed(promise, now)

    def drop(self, promise: Promise) -> None:
        held = self._held.get(promise.cluster, {})
        if held.get(promise.binding) is not promise:
            return
        del held[promise.binding]
        self._changes[promise.cluster] += 1
        self._settling.get(promise.cluster, {}).pop(promise.binding, None)
        self._sums[promise.cluster].discharge(promise.binding)
        if not held:
            del self._held[promise.cluster], self._sums[promise.cluster]
            self._settling.pop(promise.cluster, None)

    def clear(self) -> None:
        for held in (self._held, self._sums, self._settling, self._due, self._due_seconds):
            held.clear()
        self._clearings += 1

    def changed(self, promise: Promise, now: float) -> None:
        """Call after every change of a stored promise."""
        if self.get(promise.cluster, promise.binding) is not promise:
            return
        self._changes[promise.cluster] += 1
        uncounted = promise.uncounted(now, self.summaries(promise.cluster), self._lifetime.settle_seconds)
        sums = self._sums.get(promise.cluster)
        if sums is None:
            sums = self._sums[promise.cluster] = _Sums()
        sums.charge(promise, uncounted)
        if promise.is_settling:
            self._settling.setdefault(promise.cluster, {})[promise.binding] = promise
        self._schedule_check(promise, now)

    def changes(self, cluster: str) -> tuple[int, int]:
        """A value that differs after every change of the cluster's promises."""
        return self._clearings, self._changes[cluster]

    def get(self, cluster: str, binding: BindingKey) -> Promise | None:
        held = self._held.get(cluster)
        return held.get(binding) if held is not None else None

    def names(self) -> list[str]:
        return sorted(self._held)

    def in_cluster(self, cluster: str) -> list[Promise]:
        """Oldest first, so that they are subtracted in a fixed order."""
        held = self._held.get(cluster)
        if not held:
            return []
        return sorted(held.values(), key=lambda promise: (promise.made_at, promise.binding))

    def all(self) -> Iterator[Promise]:
        for name in self.names():
            yield from self.in_cluster(name)

    # Summaries

    def summarised(self, cluster: str, summary: object, now: float) -> list[Promise] | None:
        """Handle a summary: return the promises that it may have counted; None if it is unchanged."""
        if cluster not in self._summaries:  # the age of the first one is unknown
            self._summaries[cluster] = (summary, 0)
            return None
        last, number = self._summaries[cluster]
        if summary == last:
            return None
        self._summaries[cluster] = (summary, number + 1)
        settling = list(self._settling.get(cluster, {}).values())
        for promise in settling:
            self.changed(promise, now)
        return settling

    def forget_cluster(self, cluster: str) -> None:
        self._summaries.pop(cluster, None)

    def summaries(self, cluster: str) -> int:
        return self._summaries.get(cluster, (None, 0))[1]

    def is_over(self, promise: Promise, now: float) -> bool:
        return promise.is_over(now, self.summaries(promise.cluster), self._lifetime.settle_seconds)

    def charged(self, cluster: str) -> PromisedTotals | None:
        """The amounts to subtract from the cluster's summary. For use at once: they change."""
        sums = self._sums.get(cluster)
        return None if sums is None else sums.promised

    # Time

    def due(self, now: float) -> list[Promise]:
        """Promises whose time may have come; the caller checks each and calls `changed`."""
        due: list[Promise] = []
        while self._due_seconds and self._due_seconds[0] <= now:
            at = heapq.heappop(self._due_seconds)
            for promise in self._due.pop(at):
                if promise.due_at == at:
                    promise.due_at = math.inf
                    if self.get(promise.cluster, promise.binding) is promise:
                        due.append(promise)
        return due

    def next_due(self) -> float | None:
        return self._due_seconds[0] if self._due_seconds else None

    def _schedule_check(self, promise: Promise, now: float) -> None:
        settles_at = promise.settles_at(now, self._lifetime.settle_seconds)
        # On whole seconds: many end together, and a little delay does no harm.
        at = min(promise.ends_at(self._lifetime), settles_at)
        at = math.ceil(at) if math.isfinite(at) else at
        if at < promise.due_at:
            promise.due_at = at
            if at not in self._due:
                self._due[at] = []
                heapq.heappush(self._due_seconds, at)
            self._due[at].append(promise)
