"""Metrics of the dashboard: requests, their duration, and the age of its data."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.dashboard.api.views import ClusterRow
from karpool.dashboard.cluster_watch import DashboardCluster
from karpool.dashboard.pages.time_series import series_of
from karpool.dashboard.prometheus_history import EVICTIONS, METRICS, PREFIX

# By first digit, with common codes apart; a client cannot add label values.
CODES = ("2xx", "304", "401", "403", "404", "4xx", "503", "5xx")
_PREFIX = "karpool_dashboard"


class DashboardMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        requests = Counter(f"{_PREFIX}_requests", "Responses, by status.", ("code",), registry=registry)
        self._requests = {code: requests.labels(code) for code in CODES}
        self._seconds = Histogram(
            f"{_PREFIX}_request_duration_seconds",
            "Duration of a response, without streams.",
            buckets=[0.001 * 4**power for power in range(7)],
            registry=registry,
        )
        self.pages = Gauge(f"{_PREFIX}_open_pages", "Open pages.", registry=registry)
        self._stale = Gauge(
            f"{_PREFIX}_staleness_seconds",
            "Time since the last message of a cluster; infinite before the first.",
            ("cluster",),
            registry=registry,
        )
        self._synced = Gauge(
            f"{_PREFIX}_cluster_synced",
            "Whether all objects of a cluster have been read.",
            ("cluster",),
            registry=registry,
        )

        self._fleet = {
            name: Gauge(f"{PREFIX}{metric}", about, ("cluster",), registry=registry)
            for name, (metric, about, _) in METRICS.items()
        }
        self._evictions = Counter(EVICTIONS, "Evicted pods.", ("cluster",), registry=registry)
        self._evicted: dict[str, int] = {}

    def sampled(self, rows: Sequence[ClusterRow], evictions: Mapping[str, int]) -> None:
        """Export the values of the charts, for clusters that are synced."""
        for row in rows:
            if row.not_ready:
                continue
            values = series_of(row)
            for name, gauge in self._fleet.items():
                gauge.labels(row.name).set(values[name] / METRICS[name][2])
            before = self._evicted.get(row.name, 0)
            self._evicted[row.name] = evictions.get(row.name, before)
            self._evictions.labels(row.name).inc(max(0, self._evicted[row.name] - before))

    def follow(self, watches: Mapping[str, DashboardCluster]) -> None:
        for name, watch in watches.items():
            self._stale.labels(name).set_function(partial(_staleness, watch))
            self._synced.labels(name).set_function(partial(_is_synced, watch))

    def forget(self, cluster: str) -> None:
        self._evicted.pop(cluster, None)
        for metric in (self._stale, self._synced, *self._fleet.values(), self._evictions):
            with suppress(KeyError):  # a cluster that was never listed has no values
                metric.remove(cluster)

    def answered(self, status: int, seconds: float) -> None:
        kind = f"{status // 100}xx"
        self._requests[str(status) if str(status) in self._requests else kind].inc()
        self._seconds.observe(seconds)


def _staleness(watch: DashboardCluster) -> float:
    return watch.staleness


def _is_synced(watch: DashboardCluster) -> float:
    return float(watch.not_ready() is None)
