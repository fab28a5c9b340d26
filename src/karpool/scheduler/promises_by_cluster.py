"""The promises of all bindings, by cluster, and what the clusters' summaries do not show of them."""

from collections.abc import Iterable, Iterator

from karpool.model.karmada.binding import BindingKey
from karpool.model.karmada.replica_requirements import NO_SHAPE, Component, ReplicaRequirements
from karpool.model.shape import PodShape
from karpool.scheduler.promise import Promise
from karpool.wire.request import AssumedWorkload

# Settling is a matter of half a minute; a sum that is a second old does no harm, as it is too large.
_SUM_SECONDS = 1.0


class PromisesByCluster:
    def __init__(self, settle_seconds: float) -> None:
        self._settle_seconds = settle_seconds
        self._held: dict[str, dict[BindingKey, Promise]] = {}
        self._summaries: dict[str, tuple[object, int]] = {}  # the last one, and how many there were
        self._sums: dict[str, tuple[float, tuple[AssumedWorkload, ...]]] = {}

    def enter(self, promise: Promise) -> None:
        self._held.setdefault(promise.cluster, {})[promise.binding] = promise
        self.changed(promise.cluster)

    def drop(self, promise: Promise) -> None:
        held = self._held.get(promise.cluster)
        if held is not None and held.get(promise.binding) is promise:
            del held[promise.binding]
            if not held:
                del self._held[promise.cluster]
        self.changed(promise.cluster)

    def clear(self) -> None:
        self._held.clear()
        self._sums.clear()

    def changed(self, cluster: str) -> None:
        """Sums of the cluster are to be worked out anew."""
        self._sums.pop(cluster, None)

    def get(self, cluster: str, binding: BindingKey) -> Promise | None:
        return self._held.get(cluster, {}).get(binding)

    def names(self) -> list[str]:
        return sorted(self._held)

    def of(self, cluster: str) -> list[Promise]:
        """Oldest first, so that whoever takes them off does it in a fixed order."""
        held = self._held.get(cluster)
        if not held:
            return []
        return sorted(held.values(), key=lambda each: (each.made_at, each.binding))

    def all(self) -> Iterator[Promise]:
        for name in self.names():
            yield from self.of(name)

    # Summaries

    def summarised(self, cluster: str, summary: object) -> bool:
        """Whether the cluster wrote another summary than the last one."""
        last, count = self._summaries.get(cluster, (None, 0))
        if summary == last:
            return False
        self._summaries[cluster] = (summary, count + 1)
        self.changed(cluster)
        return True

    def forget_cluster(self, cluster: str) -> None:
        self._summaries.pop(cluster, None)

    def summaries(self, cluster: str) -> int:
        return self._summaries.get(cluster, (None, 0))[1]

    def is_over(self, promise: Promise, now: float) -> bool:
        return promise.is_over(now, self.summaries(promise.cluster), self._settle_seconds)

    def uncounted(self, cluster: str, now: float) -> tuple[AssumedWorkload, ...]:
        """What to take off the cluster's summary, replicas with the same needs added up."""
        if cluster not in self._held:
            return ()
        made_at, found = self._sums.get(cluster, (float("-inf"), ()))
        if now - made_at >= _SUM_SECONDS:
            found = self._sum(self.of(cluster), now)
            self._sums[cluster] = (now, found)
        return found

    def _sum(self, promises: Iterable[Promise], now: float) -> tuple[AssumedWorkload, ...]:
        amounts: dict[PodShape, tuple[ReplicaRequirements | None, int]] = {}
        for promise in promises:
            left = promise.uncounted(now, self.summaries(promise.cluster), self._settle_seconds)
            for replicas, wanted in zip(left, promise.wanted.requirements, strict=True):
                if replicas:
                    shape = wanted.shape if wanted is not None else NO_SHAPE
                    amounts[shape] = (wanted, replicas + amounts.get(shape, (wanted, 0))[1])
        return tuple(
            AssumedWorkload("", (Component("", replicas, wanted),)) for wanted, replicas in amounts.values()
        )
