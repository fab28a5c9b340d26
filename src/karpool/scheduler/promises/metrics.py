"""Metrics of the ledger and of the estimators. Beta, like all `karpool_...`."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from karpool.scheduler.promises.ledger import PromiseEnd, PromiseLedger, PromiseRelease

_AGES = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)


class PromiseMetrics:
    """Pass `released` to the ledger; then call `follow` with the ledger."""

    def __init__(self, registry: CollectorRegistry) -> None:
        released = Counter(
            "karpool_scheduler_promises_released",
            "Replicas whose promise ended, by reason; the pods of expired ones never appeared.",
            ("reason",),
            registry=registry,
        )
        ages = Histogram(
            "karpool_scheduler_promise_age_seconds",
            "Age of promises when they ended, by reason.",
            ("reason",),
            buckets=_AGES,
            registry=registry,
        )
        # Children are bound once: a lookup costs more than counting.
        self._released = {reason: released.labels(reason.value) for reason in PromiseEnd}
        self._ages = {reason: ages.labels(reason.value) for reason in PromiseEnd}
        self._oldest = Gauge(
            "karpool_scheduler_oldest_promise_seconds", "Age of the oldest promise.", registry=registry
        )
        self._registry = registry

    def released(self, release: PromiseRelease) -> None:
        self._released[release.reason].inc(release.replicas)
        self._ages[release.reason].observe(release.age_seconds)

    def follow(self, ledger: PromiseLedger, now: Callable[[], float]) -> None:
        self._oldest.set_function(lambda: _oldest(ledger, now()))
        self._registry.register(_LivePromises(ledger))


def follow_estimators(registry: CollectorRegistry, lost: Callable[[], Mapping[str, float]]) -> None:
    text = "Clusters whose estimators cannot be reached."
    gauge = Gauge("karpool_scheduler_unreachable_estimators", text, registry=registry)
    gauge.set_function(lambda: float(len(lost())))


class _LivePromises(Collector):
    """Promises by cluster; a cluster without promises has no series."""

    def __init__(self, ledger: PromiseLedger) -> None:
        self._ledger = ledger

    def collect(self) -> list[GaugeMetricFamily]:
        live = GaugeMetricFamily("karpool_scheduler_promises", "Bindings with a promise.", labels=["cluster"])
        replicas = GaugeMetricFamily(
            "karpool_scheduler_promised_replicas",
            "Replicas that are placed but not known to run on a node.",
            labels=["cluster"],
        )
        for cluster in self._ledger.clusters():
            amounts = [promise.replicas for promise in self._ledger.promises(cluster)]
            live.add_metric([cluster], sum(1 for amount in amounts if amount))
            replicas.add_metric([cluster], sum(amounts))
        return [live, replicas]


def _oldest(ledger: PromiseLedger, now: float) -> float:
    return max((now - promise.made_at for promise in ledger.promises() if promise.replicas), default=0.0)
