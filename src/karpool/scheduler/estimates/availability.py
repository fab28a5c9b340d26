"""Computes how many more replicas of a binding each cluster takes, from all sources.

Estimators are asked, the clusters' summaries are counted, promises are subtracted from both, and one rule
merges them into one number, with its parts. An answer is as old as the ledger at the time of the question
(`PromiseLedger.grown`). The binding's own promises are subtracted as well: the question is about capacity
*beside* its existing replicas, which include those in flight.

The cluster's summary knows what exists. If the estimator in the cluster reports more, an autoscaler may add
the rest, so by default the summary does not limit it (`accurate-if-higher`); if it reports less, the minimum
counts. Unknown answers are skipped, so that an estimator that fails does not affect the others.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from karpool.kube.clock import Clock
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary
from karpool.scheduler.cycle.components import places_sets
from karpool.scheduler.cycle.decision import (
    ACCURATE,
    GENERAL,
    MANY,
    UNKNOWN,
    ClusterAvailability,
    EstimatePart,
)
from karpool.scheduler.cycle.settings import EstimateMergeRule, SchedulingSettings
from karpool.scheduler.estimates import cluster_summary
from karpool.scheduler.estimates.cluster_summary import PromisedTotals
from karpool.scheduler.estimates.estimate_cache import (
    EstimateCache,
    EstimatorApi,
    PromiseHandling,
    question_of,
)
from karpool.scheduler.estimates.graded_nodes import Requests
from karpool.scheduler.promises.ledger import Freed, PromiseLedger

if TYPE_CHECKING:
    from karpool.scheduler.estimates.local_rooms import LocalRooms

__all__ = ["AvailabilityReader", "EstimatorApi"]

# Number of templates whose counts are cached. A burst has a few templates; with 100 clusters one takes about
# 25 KiB.
TEMPLATES_KEPT = 32


class AvailabilityReader:
    """`asker` None: there are no estimators. `ledger` None: there are no promises and no overcommit
    protection.
    """

    def __init__(
        self,
        settings: SchedulingSettings,
        clock: Clock,
        *,
        ledger: PromiseLedger | None = None,
        asker: EstimatorApi | None = None,
        rooms: "LocalRooms | None" = None,
        hold_down_seconds: float = 60.0,
        on_freed: Callable[[Freed], None] = lambda _: None,
    ) -> None:
        """`rooms`: local copies that answer instead of their estimators."""
        self._settings, self._ledger, self._rooms = settings, ledger, rooms
        self._counts_by_requests: dict[Requests | None, dict[str, _SummaryCount]] = {}
        self._estimates = None
        if asker is not None:
            self._estimates = EstimateCache(
                asker, ledger, clock, hold_down_seconds=hold_down_seconds, on_freed=on_freed
            )

    async def gather(
        self, binding: Binding, clusters: Sequence[MemberCluster], *, fresh: bool = False
    ) -> dict[str, ClusterAvailability]:
        """Availability of each cluster by name. Never raises. `fresh`: do not use cached answers."""
        for_sets = places_sets(binding, self._settings)
        if self._estimates is None or not (binding.replicas or binding.components):
            return self._summarised(binding, clusters, for_sets)
        question = question_of(binding, for_sets)
        parts = dict(self._rooms.parts(question, clusters)) if self._rooms is not None else {}
        asked = [cluster for cluster in clusters if cluster.name not in parts]
        if asked:
            replies = await asyncio.gather(
                *(self._estimates.part(cluster, question, fresh=fresh) for cluster in asked)
            )
            parts.update((cluster.name, reply) for cluster, reply in zip(asked, replies, strict=True))
        return {
            cluster.name: self._merged(binding, cluster, for_sets, parts[cluster.name])
            for cluster in clusters
        }

    def asks(self, clusters: Sequence[MemberCluster]) -> bool:
        """Whether an estimator has to be asked about any of these."""
        if self._estimates is None:
            return False
        rooms = self._rooms
        return rooms is None or not all(rooms.is_current(cluster.name) for cluster in clusters)

    async def estimated(self, binding: Binding, cluster: MemberCluster) -> int | None:
        """The current answer of the cluster's estimator; None without one. Never raises."""
        if self._estimates is None:
            return None
        question = question_of(binding, places_sets(binding, self._settings))
        if self._rooms is not None and (parts := self._rooms.parts(question, (cluster,))):
            return parts[cluster.name].value
        return (await self._estimates.part(cluster, question, fresh=True)).value

    async def verify(self, clusters: Callable[[str], MemberCluster | None]) -> Freed:
        """Ask clusters with promises what has arrived, and subtract it from the ledger."""
        if self._estimates is None:
            return set()
        rooms = self._rooms
        freed = rooms.verify() if rooms is not None else set()
        return freed | await self._estimates.verify(
            lambda name: None if rooms is not None and rooms.is_current(name) else clusters(name)
        )

    def held(self) -> frozenset[str]:
        """Clusters whose estimator was lost within the hold-down: nothing is moved off them yet."""
        return frozenset() if self._estimates is None else self._estimates.held()

    def protection(self, cluster: str) -> PromiseHandling | None:
        """How its estimator handles promises; None if unknown."""
        local = self._rooms.handling(cluster) if self._rooms is not None else None
        return local or (None if self._estimates is None else self._estimates.kind(cluster))

    def _summarised(
        self, binding: Binding, clusters: Sequence[MemberCluster], for_sets: bool
    ) -> dict[str, ClusterAvailability]:
        """Availability by the clusters' summaries, if no estimator is asked."""
        if for_sets or binding.components or not binding.replicas:
            return {cluster.name: self._merged(binding, cluster, for_sets) for cluster in clusters}
        requirements = binding.requirements
        counts = self._counts(None if requirements is None else requirements.shape.requests)
        availability: dict[str, ClusterAvailability] = {}
        charged = self._ledger.charged if self._ledger is not None else None
        for cluster in clusters:
            name = cluster.name
            promised = charged(name) if charged is not None else None
            count = counts.get(name)
            if (
                count is None
                or count.summary is not cluster.summary
                or count.promised is not promised
                or (promised is not None and count.changes != promised.changes)
            ):
                count = counts[name] = self._count(binding, cluster, promised)
            # Unlimited capacity counts as the number of replicas that this binding requests.
            availability[name] = count.availability or self._merged(binding, cluster, for_sets)
        return availability

    def _counts(self, requests: Requests | None) -> "dict[str, _SummaryCount]":
        counts = self._counts_by_requests.pop(requests, None)
        if counts is None:
            counts = {}
            if len(self._counts_by_requests) >= TEMPLATES_KEPT:
                del self._counts_by_requests[next(iter(self._counts_by_requests))]
        self._counts_by_requests[requests] = counts  # moves it to the end of the eviction order
        return counts

    def _count(
        self, binding: Binding, cluster: MemberCluster, promised: PromisedTotals | None
    ) -> "_SummaryCount":
        merged = self._merged(binding, cluster, for_sets=False)
        is_counted = merged.source == GENERAL and merged.parts[0].value == merged.replicas < MANY
        changes = 0 if promised is None else promised.changes
        return _SummaryCount(cluster.summary, promised, changes, merged if is_counted else None)

    def _merged(
        self, binding: Binding, cluster: MemberCluster, for_sets: bool, *estimates: EstimatePart
    ) -> ClusterAvailability:
        parts = (self._by_summary(binding, cluster, for_sets), *estimates)
        asked = max(binding.replicas, 1) if binding.components else binding.replicas
        return merge(parts, self._settings.merge, asked)

    def _by_summary(self, binding: Binding, cluster: MemberCluster, for_sets: bool) -> EstimatePart:
        models = self._settings.resource_models
        promised = self._ledger.charged(cluster.name) if self._ledger is not None else None
        assumed = promised or ()
        if for_sets:
            value = cluster_summary.sets(cluster.summary, binding.components, assumed, models=models)
        else:
            value = cluster_summary.replicas(cluster.summary, binding.requirements, assumed, models=models)
        if promised is None:
            return EstimatePart(GENERAL, value)
        return EstimatePart(GENERAL, value, f"after {promised.pods} promised")


class _SummaryCount(NamedTuple):
    """The capacity of a cluster's summary, less the promises at the time of counting."""

    summary: ResourceSummary | None
    promised: PromisedTotals | None
    changes: int
    availability: ClusterAvailability | None  # None: no number of its own


def merge(parts: Sequence[EstimatePart], rule: EstimateMergeRule, replicas: int) -> ClusterAvailability:
    """Merge the answers. `replicas` is the result if nothing is known, or no source sees a limit.

    Zero replicas always fit, whatever the answers: a workload that is scaled to zero keeps all its clusters.
    """
    if replicas == 0:
        return ClusterAvailability(MANY, UNKNOWN, tuple(parts))
    if len(parts) == 1 and (value := parts[0].value) is not None and 0 <= value < MANY:
        return ClusterAvailability(value, parts[0].source, tuple(parts), parts[0].room)
    value_by_source = {
        part.source: min(part.value, MANY) for part in parts if part.value is not None and part.value >= 0
    }
    chosen = _chosen(value_by_source, rule)
    if not chosen:
        return ClusterAvailability(replicas, UNKNOWN, tuple(parts))
    value, source = min((value, source) for source, value in chosen.items())
    room = next((part.room for part in parts if part.source == source), None)
    return ClusterAvailability(replicas if value == MANY else value, source, tuple(parts), room)


def _chosen(value_by_source: dict[str, int], rule: EstimateMergeRule) -> dict[str, int]:
    """The answers whose minimum counts."""
    accurate, general = value_by_source.get(ACCURATE), value_by_source.get(GENERAL)
    if accurate is None or rule is EstimateMergeRule.MIN:
        return value_by_source
    if rule is EstimateMergeRule.PREFER_ACCURATE:
        return {ACCURATE: accurate}
    if general is not None and accurate > general:
        return {source: value for source, value in value_by_source.items() if source != GENERAL}
    return value_by_source
