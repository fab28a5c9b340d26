"""The ledger of promises: capacity that decisions use and no other source shows yet.

Every binding that places a workload is in it, of any scheduler. A promise is made before its decision is
written (`promise`), confirmed or undone after the answer (`confirm`, `undo`), shrinks as pods land
(`observe`, `report`) and expires (`expire`). Everything is level-based: seeing a version twice, or missing
one, changes nothing in the end. Pure: no I/O, and time is passed in, `now` monotonic and `wall` for what is
stored. Methods that free capacity return the clusters.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from operator import sub
from typing import NamedTuple

from karpool.model.karmada.binding import AggregatedStatus, Binding, BindingKey, TargetCluster
from karpool.scheduler.cycle.components import desired_of, workload_of
from karpool.scheduler.estimates.cluster_summary import PromisedTotals
from karpool.scheduler.promises import promise_annotation
from karpool.scheduler.promises.index import PromiseIndex
from karpool.scheduler.promises.landed_replicas import landing_of
from karpool.scheduler.promises.promise import (
    Amounts,
    Promise,
    PromiseIncrement,
    PromiseLifetime,
    WorkloadRequirements,
)
from karpool.scheduler.promises.promise_annotation import RecordedPromise
from karpool.wire.requests import ArrivedReplicas


class PromiseEnd(StrEnum):
    """Why replicas are no longer promised."""

    BOUND = "bound"  # an estimator saw the pods on nodes
    READY = "ready"  # the member reports that many ready
    HEALTHY = "healthy"  # a workload without counts became healthy
    SCALED_DOWN = "scaled_down"
    REMOVED = "removed"  # the cluster is no longer a target
    DELETED = "deleted"  # the binding is gone, or places no workload
    CLUSTER_GONE = "cluster_gone"
    UNDONE = "undone"  # the API server refused the decision
    EXPIRED = "expired"


class PromiseRelease(NamedTuple):
    binding: BindingKey
    cluster: str
    replicas: int
    reason: PromiseEnd
    age_seconds: float


@dataclass(slots=True, eq=False)
class _Book:
    """The state of one binding. It shares nothing, so a copy can be restored."""

    workload: WorkloadRequirements
    desired: dict[str, Amounts] = field(default_factory=dict)
    promises: dict[str, Promise] = field(default_factory=dict)
    shrank_until: dict[str, float] = field(default_factory=dict)  # clusters whose target shrank
    uid: str = ""
    generation: int = 0  # older versions are ignored


@dataclass(frozen=True, slots=True, eq=False)
class PendingPromise:
    """A decision that is being written to the API server."""

    binding: BindingKey
    before: _Book | None


Freed = set[str]
GROWTHS_KEPT = 64  # per cluster: the latest promises


class PromiseGrowth(NamedTuple):
    """An additional promise in a cluster. `workload` None: an existing promise has changed."""

    workload: WorkloadRequirements | None = None
    amounts: Amounts = ()


class PromiseLedger:
    """`on_release` is called for all replicas that are no longer promised."""

    def __init__(
        self,
        lifetime: PromiseLifetime | None = None,
        on_release: Callable[[PromiseRelease], None] = lambda _: None,
    ) -> None:
        self.lifetime = lifetime or PromiseLifetime()
        self._on_release = on_release
        self._books: dict[BindingKey, _Book] = {}
        self._index = PromiseIndex(self.lifetime)
        self._open: dict[BindingKey, PendingPromise] = {}
        self._grown: Counter[str] = Counter()  # number of promises made, by cluster
        self._growths: dict[str, deque[PromiseGrowth]] = {}

    # Decisions

    def promise(self, binding: Binding, targets: Sequence[TargetCluster], now: float) -> PendingPromise:
        """Promise the targets of a decision before it is written."""
        before = self._books.get(binding.key)
        token = PendingPromise(binding.key, None if before is None else _copy(before))
        if before is None:
            before = self._book(binding, binding.targets)
        self._books[binding.key] = before
        self._aim(binding, targets, now)
        self._open[binding.key] = token
        return token

    def confirm(self, token: PendingPromise, generation: int) -> None:
        """Confirm: the API server stored it as this generation; 0 if unknown, then `observe` decides."""
        if self._open.get(token.binding) is token:
            del self._open[token.binding]
            book = self._books.get(token.binding)
            if book is not None:
                book.generation = max(book.generation, generation)

    def undo(self, token: PendingPromise, now: float) -> Freed:
        """Undo: the API server did not store it, as if it had never been decided."""
        if self._open.get(token.binding) is not token:
            return set()
        del self._open[token.binding]
        book = self._books.get(token.binding)
        made = dict(book.promises) if book is not None else {}
        old = token.before.promises if token.before is not None else {}
        for cluster, promise in made.items():
            more = promise.replicas - (old[cluster].replicas if cluster in old else 0)
            self._ended(promise, more, PromiseEnd.UNDONE, now)
            self._index.drop(promise)
        self._books.pop(token.binding, None)
        if token.before is not None:
            self._books[token.binding] = token.before
            for promise in token.before.promises.values():
                self._index.enter(promise, now)
                self._grew(promise.cluster, PromiseGrowth())  # it may have been smaller meanwhile
        return set(made)

    def record(self, key: BindingKey, now: float, wall: float) -> str | None:
        """The record of a binding's promises for the annotation `promise_annotation.PROMISES`."""
        book = self._books.get(key)
        if book is None:
            return None
        recorded = {
            cluster: RecordedPromise(
                tuple((increment.amounts, now - increment.made_at) for increment in promise.increments),
                promise.shrank,
            )
            for cluster, promise in book.promises.items()
        }
        for cluster, until in book.shrank_until.items():
            if until > now and cluster not in recorded:
                recorded[cluster] = RecordedPromise((), True)
        return promise_annotation.write(recorded, book.desired, wall)

    # Observations

    def rebuild(self, bindings: Iterable[Binding], now: float, wall: float) -> None:
        """Rebuild from the API server's state; call before the first decision."""
        self._books.clear()
        self._index.clear()
        self._open.clear()
        for binding in bindings:
            self.observe(binding, now, wall)

    def observe(self, binding: Binding, now: float, wall: float) -> Freed:
        """Update from the current version of a binding, of any scheduler."""
        key = binding.key
        if not binding.is_workload or binding.is_deleting:
            return self.forget(key, now)
        book = self._books.get(key)
        if book is not None and book.uid != binding.uid:  # another binding with the same name
            freed = self.forget(key, now)
            return freed | self.observe(binding, now, wall)
        if key in self._open or (book is not None and binding.generation < book.generation):
            return set()
        if book is None:
            self._books[key] = self._book(binding, ())
            self._adopt(binding, now, wall)
            freed = set()
        else:
            book.generation = binding.generation
            freed = self._aim(binding, binding.targets, now)
        return freed | self._landed(binding, now)

    def observe_cluster(self, name: str, summary: object, now: float) -> Freed:
        """Update from the current version of a cluster: its summary may have counted promised pods."""
        settling = self._index.summarised(name, summary, now)
        for promise in settling or ():
            if self._index.is_over(promise, now):
                self._remove(promise)
        return {name} if settling else set()

    def report(self, cluster: str, binding: BindingKey, arrived: ArrivedReplicas, now: float) -> Freed:
        """Update from what an estimator sees of a promise."""
        promise = self._index.get(cluster, binding)
        if promise is None:
            return set()
        summaries = self._index.summaries(cluster)
        return self._noting(promise, partial(promise.arrived, arrived, now, summaries), PromiseEnd.BOUND, now)

    def forget(self, key: BindingKey, now: float, reason: PromiseEnd = PromiseEnd.DELETED) -> Freed:
        """Remove a binding that is gone, or places nothing any longer."""
        self._open.pop(key, None)
        book = self._books.pop(key, None)
        if book is None:
            return set()
        for promise in book.promises.values():
            self._ended(promise, promise.replicas, reason, now)
            self._index.drop(promise)
        return set(book.promises)

    def cluster_gone(self, name: str, now: float) -> None:
        self._index.forget_cluster(name)
        for promise in self._index.in_cluster(name):
            self._ended(promise, promise.replicas, PromiseEnd.CLUSTER_GONE, now)
            self._remove(promise)

    def expire(self, now: float) -> Freed:
        """Release promises that are too old, and close those that are over."""
        freed: Freed = set()
        for promise in self._index.due(now):
            given_up = promise.expire(now, self.lifetime)
            self._ended(promise, given_up, PromiseEnd.EXPIRED, now)
            freed.add(promise.cluster)
            if not promise.increments or self._index.is_over(promise, now):
                self._remove(promise)
            else:
                self._index.changed(promise, now)
        return freed

    def next_expiry(self, now: float) -> float | None:
        """Seconds until `expire` may have something to do; None if nothing is promised."""
        at = self._index.next_due()
        return None if at is None else max(0.0, at - now)

    # Queries

    def promises(self, cluster: str | None = None) -> Iterator[Promise]:
        """Oldest first within a cluster, so that they are subtracted in a fixed order."""
        return self._index.all() if cluster is None else iter(self._index.in_cluster(cluster))

    def promises_of(self, key: BindingKey) -> Mapping[str, Promise]:
        book = self._books.get(key)
        return book.promises if book is not None else {}

    def clusters(self) -> list[str]:
        """The clusters with promises."""
        return self._index.names()

    def changes(self, cluster: str) -> tuple[int, int]:
        """A value that differs after every change of the cluster's promises."""
        return self._index.changes(cluster)

    def grown(self, cluster: str) -> int:
        """Increases whenever something more is promised there: earlier answers are outdated."""
        return self._grown[cluster]

    def grown_since(self, cluster: str, grown: int) -> Sequence[PromiseGrowth] | None:
        """What was promised there since `grown` had this value; None if it is no longer known."""
        more = self._grown[cluster] - grown
        if not more:
            return ()
        growths = self._growths.get(cluster, ())
        return None if more > len(growths) else tuple(islice(growths, len(growths) - more, None))

    def _grew(self, cluster: str, growth: PromiseGrowth) -> None:
        self._grown[cluster] += 1
        growths = self._growths.get(cluster)
        if growths is None:
            growths = self._growths[cluster] = deque(maxlen=GROWTHS_KEPT)
        growths.append(growth)

    def charged(self, cluster: str) -> PromisedTotals | None:
        """The amounts to subtract from the cluster's summary, for use at once; None if there are none."""
        return self._index.charged(cluster)

    # Internals: books

    def _book(self, binding: Binding, targets: Sequence[TargetCluster]) -> _Book:
        return _Book(
            workload_of(binding),
            desired=desired_of(binding, targets),
            uid=binding.uid,
            generation=binding.generation,
        )

    def _aim(self, binding: Binding, targets: Sequence[TargetCluster], now: float) -> Freed:
        book = self._books[binding.key]
        workload = workload_of(binding)
        if workload.names != book.workload.names:
            # Other components: the promises were for another workload.
            freed = self.forget(binding.key, now, PromiseEnd.REMOVED)
            self._books[binding.key] = self._book(binding, ())
            return freed | self._aim(binding, targets, now)
        if workload != book.workload:
            self._want(book, binding, workload, now)
        desired = desired_of(binding, targets)
        if desired == book.desired:
            return set()
        freed = set()
        for cluster in sorted({*desired, *book.desired}):
            if self._aim_at(binding, cluster, desired.get(cluster) or _zero(workload), now):
                freed.add(cluster)
        book.desired = desired
        return freed

    def _want(self, book: _Book, binding: Binding, workload: WorkloadRequirements, now: float) -> None:
        book.workload = workload
        for cluster, promise in book.promises.items():
            promise.want(binding.template, workload)
            self._grew(cluster, PromiseGrowth())
            self._index.changed(promise, now)

    def _aim_at(self, binding: Binding, cluster: str, after: Amounts, now: float) -> bool:
        """Set the desired amounts; return whether capacity was freed."""
        book = self._books[binding.key]
        before = book.desired.get(cluster) or _zero(book.workload)
        if before == after:
            return False
        promise = book.promises.get(cluster)
        if promise is None:
            promise = Promise(binding.key, cluster, binding.template, book.workload, before)
            promise.shrank = book.shrank_until.get(cluster, now) > now
            more = tuple(map(sub, after, before)) if any(before) else after
            if min(more) >= 0:  # a first promise, as most are, frees nothing
                promise.desired = after
                promise.increments.append(PromiseIncrement(more, now))
                book.promises[cluster] = promise
                self._grew(cluster, PromiseGrowth(promise.workload, more))
                self._index.enter(promise, now)
                return False
        was = promise.replicas
        promise.aim(after, now)
        if any(new < old for new, old in zip(after, before, strict=True)):
            book.shrank_until[cluster] = now + self.lifetime.seconds
        if any(new > old for new, old in zip(after, before, strict=True)):
            grown = tuple(max(0, new - old) for new, old in zip(after, before, strict=True))
            self._grew(cluster, PromiseGrowth(promise.workload, grown))
        less = was - promise.replicas
        self._ended(promise, less, PromiseEnd.SCALED_DOWN if any(after) else PromiseEnd.REMOVED, now)
        if promise.increments:
            book.promises[cluster] = promise
            self._index.enter(promise, now)
        else:
            self._remove(promise)
        return less > 0

    def _adopt(self, binding: Binding, now: float, wall: float) -> None:
        """Adopt a binding at first sight: what was decided before our start, and has not landed."""
        book = self._books[binding.key]
        desired = desired_of(binding, binding.targets)
        book.desired = desired
        recorded_by_cluster = promise_annotation.read(binding, desired, wall, self.lifetime.seconds)
        shrank = _reported_larger(binding, desired)
        shrank |= {cluster for cluster, recorded in recorded_by_cluster.items() if recorded.shrank}
        book.shrank_until = dict.fromkeys(shrank, now + self.lifetime.seconds)
        for cluster, recorded in recorded_by_cluster.items():
            if not recorded.increments:
                continue
            promise = Promise(
                binding.key,
                cluster,
                binding.template,
                book.workload,
                desired[cluster],
                shrank=cluster in shrank,
            )
            promise.increments = [
                PromiseIncrement(amounts, now - age) for amounts, age in recorded.increments
            ]
            book.promises[cluster] = promise
            self._grew(cluster, PromiseGrowth(promise.workload, promise.promised))
            self._index.enter(promise, now)

    # Internals: evidence

    def _landed(self, binding: Binding, now: float) -> Freed:
        book = self._books.get(binding.key)
        if book is None or not book.promises:
            return set()
        status_by_cluster: dict[str, AggregatedStatus] = {}
        for status in binding.aggregated:
            status_by_cluster.setdefault(status.cluster, status)
        freed: Freed = set()
        for promise in list(book.promises.values()):
            landing = landing_of(binding.template, status_by_cluster.get(promise.cluster))
            count = self._index.summaries(promise.cluster)
            reason = PromiseEnd.HEALTHY if landing.ready is None else PromiseEnd.READY
            freed |= self._noting(promise, partial(promise.landed, landing, now, count), reason, now)
        return freed

    def _noting(self, promise: Promise, note: Callable[[], bool], reason: PromiseEnd, now: float) -> Freed:
        before = promise.replicas
        if not note():
            return set()
        less = before - promise.replicas
        self._ended(promise, less, reason, now)
        over = self._index.is_over(promise, now)
        if over:
            self._remove(promise)
        else:
            self._index.changed(promise, now)
        return {promise.cluster} if less > 0 or over else set()

    def _remove(self, promise: Promise) -> None:
        self._index.drop(promise)
        book = self._books.get(promise.binding)
        if book is not None and book.promises.get(promise.cluster) is promise:
            del book.promises[promise.cluster]

    def _ended(self, promise: Promise, replicas: int, reason: PromiseEnd, now: float) -> None:
        if replicas > 0:
            age = max(0.0, now - promise.made_at) if promise.increments else 0.0
            self._on_release(PromiseRelease(promise.binding, promise.cluster, replicas, reason, age))


def _reported_larger(binding: Binding, desired: Mapping[str, Amounts]) -> set[str]:
    """Clusters whose last report shows more replicas than desired: some were removed since, so the report
    proves nothing about new ones.
    """
    larger = set()
    for status in binding.aggregated:
        landing = landing_of(binding.template, status)
        if max(landing.ready or 0, landing.created or 0) > sum(desired.get(status.cluster, ())):
            larger.add(status.cluster)
    return larger


def _zero(workload: WorkloadRequirements) -> Amounts:
    return (0,) * len(workload.names)


def _copy(book: _Book) -> _Book:
    promises = {cluster: promise.copy() for cluster, promise in book.promises.items()}
    return replace(book, desired=dict(book.desired), promises=promises, shrank_until=dict(book.shrank_until))
