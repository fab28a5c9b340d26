"""Keeps `Cluster.status.resourceSummary` at the existing and possible capacity of a cluster.

karmada-scheduler takes the minimum of an estimator's answer and what it computes from the summary: a cluster
without nodes gets nothing, whatever an autoscaler could launch there. So the writer adds the capacity of new
nodes to the summary, as the cluster's own estimator sees it; the estimate stays the smaller number, and
decides.

Karmada's status controller writes the same field unless it runs with
`--enable-cluster-resource-modeling=false`. The writer repeats its write as soon as it sees that it was
overwritten. If a cluster's estimator stops answering, the launchable capacity is removed: the summary then
decides alone.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from karpool.cluster.changes import PutDropSink
from karpool.kube.api.decoding import Object
from karpool.kube.errors import KubeError
from karpool.kube.expiring import ExpiringSet
from karpool.kube.first_done import first_done
from karpool.kube.watch.informer_set import InformerSet
from karpool.kube.watched import WatchedKind
from karpool.manager.controller import Environment
from karpool.manager.metrics import describe_process
from karpool.manager.stop import STOPPED, Stop
from karpool.model.karmada.member_cluster import MemberCluster, ResourceSummary, read_cluster
from karpool.model.kubernetes.api_resources import CLUSTERS, ObjectKey
from karpool.model.resources import Resources, quantities, total
from karpool.scheduler.estimates.estimator_client import (
    EstimatorClient,
    EstimatorRefused,
    EstimatorUnreachable,
    UnknownMethod,
)
from karpool.wire.client_protocol import CapacitySummary

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.5  # between two writes of one cluster, to avoid a loop with Karmada's controller
SAY_AGAIN_SECONDS = 3600.0
_MODELING_FLAG = "--enable-cluster-resource-modeling=false"


class SummarySource(Protocol):
    """The part of `EstimatorClient` that is used here."""

    async def summary(self, cluster: MemberCluster) -> CapacitySummary: ...


@dataclass(frozen=True)
class SummarySettings:
    interval_seconds: float = 5.0
    withdraw_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class DesiredSummary:
    allocatable: Resources
    allocated: Resources

    @classmethod
    def of(cls, capacity: CapacitySummary, *, with_potential: bool = True) -> "DesiredSummary":
        potential = capacity.potential if with_potential else {}
        return cls(_present(total((capacity.allocatable, potential))), _present(capacity.allocated))

    def is_shown(self, summary: ResourceSummary | None) -> bool:
        return (
            summary is not None
            and not summary.has_modelings  # grades of nodes take precedence over the sums
            and not _present(summary.allocating)
            and _present(summary.allocatable) == self.allocatable
            and _present(summary.allocated) == self.allocated
        )

    def patch(self, shown: ResourceSummary | None) -> Object:
        """A merge patch: removed fields are named."""
        allocatable, allocated = quantities(self.allocatable), quantities(self.allocated)
        gone = {} if shown is None else dict.fromkeys(shown.allocatable)
        freed = {} if shown is None else dict.fromkeys(shown.allocated)
        summary = {
            "allocatable": {**gone, **allocatable},
            "allocated": {**freed, **allocated},
            "allocating": None,
            "allocatableModelings": None,
        }
        return {"status": {"resourceSummary": summary}}


def _present(amounts: Mapping[str, int]) -> Resources:
    return {name: units for name, units in amounts.items() if units}


class SummaryMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        describe_process(registry)
        self.writes = Counter(
            "karpool_cluster_summary_writes",
            'Summaries written; cause "overwritten": another component had written the field.',
            ("cluster", "cause"),
            registry=registry,
        )
        self.withdrawn = Gauge(
            "karpool_cluster_summary_withdrawn",
            "1 while future nodes are not shown, because the estimator does not answer.",
            ("cluster",),
            registry=registry,
        )

    def forget(self, cluster: str) -> None:
        with suppress(KeyError):
            self.withdrawn.remove(cluster)
        for cause in ("changed", "overwritten"):
            with suppress(KeyError):
                self.writes.remove(cluster, cause)


class ClusterSummaryWriter:
    """One task for each cluster, so that a silent or refusing one does not delay the others."""

    def __init__(
        self,
        environment: Environment,
        source: SummarySource,
        settings: SummarySettings | None = None,
        *,
        estimators: EstimatorClient | None = None,
    ) -> None:
        """`estimators` are closed at the end."""
        self._client, self._check, self._status = environment.client, environment.check, environment.status
        self._clock = environment.clock
        self._source, self._estimators = source, estimators
        self._settings = settings or SummarySettings()
        self._metrics = SummaryMetrics(environment.registry)
        self._clusters: dict[str, MemberCluster] = {}
        self._seen: dict[str, asyncio.Event] = {}  # set whenever a cluster changes
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._said: ExpiringSet[tuple[str, str]] = ExpiringSet(self._clock)
        sink = PutDropSink(self._put, self._drop)
        self.informers = (InformerSet(self._client, [WatchedKind(CLUSTERS, dict, sink)]),)
        self._changed = asyncio.Event()

    def _put(self, key: ObjectKey, raw: Object) -> None:
        self._clusters[key.name] = read_cluster(raw)
        self._seen.setdefault(key.name, asyncio.Event()).set()
        self._changed.set()

    def _drop(self, key: ObjectKey) -> None:
        self._clusters.pop(key.name, None)
        self._changed.set()

    async def prepare(self, stack: AsyncExitStack) -> None:
        if self._estimators is not None:
            stack.push_async_callback(self._estimators.close)

    async def run(self, stop: Stop) -> None:
        try:
            while await self._status.fresh(stop):
                self._changed.clear()
                self._look()
                if await stop.until(self._changed.wait()) is STOPPED:
                    return
        finally:
            tasks, self._tasks = list(self._tasks.values()), {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        """Start with new clusters, and stop with removed ones."""
        for task in self._tasks.values():
            if task.done():
                task.result()  # only ends by a bug, which must be visible
        for name in [name for name in self._tasks if name not in self._clusters]:
            self._tasks.pop(name).cancel()
            self._seen.pop(name, None)
            self._metrics.forget(name)
        for name in self._clusters:
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._keep(name), name=f"summary of {name}")
        if self._estimators is not None:
            self._estimators.keep(self._clusters)

    async def _keep(self, name: str) -> None:
        latest: CapacitySummary | None = None
        heard_at = asked_at = self._clock.monotonic()
        written: DesiredSummary | None = None
        while True:
            self._seen[name].clear()
            now = self._clock.monotonic()
            if latest is None or now - asked_at >= self._settings.interval_seconds:
                asked_at = now
                capacity = await self._ask(name)
                if capacity is not None:
                    latest, heard_at = capacity, self._clock.monotonic()
            if latest is not None:
                is_silent = self._clock.monotonic() - heard_at > self._settings.withdraw_seconds
                self._metrics.withdrawn.labels(name).set(is_silent)
                desired = DesiredSummary.of(latest, with_potential=not is_silent)
                if await self._write(name, desired, written):
                    written = desired
            await self._clock.sleep(PAUSE_SECONDS)
            await self._until_seen(name, asked_at + self._settings.interval_seconds)

    async def _until_seen(self, name: str, until: float) -> None:
        """Wait until the cluster changes, or it is time to ask again."""
        seen = self._seen[name]
        seconds = until - self._clock.monotonic()
        if seconds > 0:
            async with first_done(self._clock.sleep(seconds), seen.wait()):
                pass

    async def _ask(self, name: str) -> CapacitySummary | None:
        try:
            return await self._source.summary(self._clusters[name])
        except UnknownMethod:
            self._say(name, "its estimator is not Karpool's and does not count future nodes")
        except (EstimatorUnreachable, EstimatorRefused) as error:
            self._say(name, str(error))
        return None

    async def _write(self, name: str, desired: DesiredSummary, written: DesiredSummary | None) -> bool:
        """Write the summary; return whether it is as desired, as far as is known."""
        cluster = self._clusters.get(name)
        if cluster is None or cluster.is_deleting or self._status.is_stale():
            return False
        if desired.is_shown(cluster.summary):
            return True
        cause = "overwritten" if desired == written else "changed"
        if cause == "overwritten":
            self._say(name, f"Karmada writes this field too: start its controllers with {_MODELING_FLAG}")
        try:
            self._check()
            patch = desired.patch(cluster.summary)
            await self._client.patch(CLUSTERS, name, patch, subresource="status")
        except KubeError as error:
            self._say(name, str(error))
            return False
        self._metrics.writes.labels(name, cause).inc()
        return True

    def _say(self, cluster: str, reason: str) -> None:
        """Log the reason at most once an hour."""
        if not self._said.left((cluster, reason)):
            self._said.put((cluster, reason), SAY_AGAIN_SECONDS)
            log.warning("cluster summary is overwritten by another component", cluster=cluster, reason=reason)
