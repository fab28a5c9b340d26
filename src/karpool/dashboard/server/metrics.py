"""What a dashboard counts of itself: who asks, how long answers take, and how old what it shows is."""

from collections.abc import Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.dashboard.cluster_watch import DashboardCluster

# By the first digit, and what browsers see of trouble apart; nobody can add others.
CODES = ("2xx", "304", "401", "403", "404", "4xx", "503", "5xx")
_PREFIX = "karpool_dashboard"


class DashboardMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        requests = Counter(f"{_PREFIX}_requests", "Answers given, by status.", ("code",), registry=registry)
        self._requests = {code: requests.labels(code) for code in CODES}
        self._seconds = Histogram(
            f"{_PREFIX}_request_duration_seconds",
            "Time of an answer; streams are not counted.",
            buckets=[0.001 * 4**power for power in range(7)],
            registry=registry,
        )
        self.pages = Gauge(f"{_PREFIX}_open_pages", "Pages that follow what changes.", registry=registry)
        self._stale = Gauge(
            f"{_PREFIX}_staleness_seconds",
            "Since a cluster was last heard of; infinite before that.",
            ("cluster",),
            registry=registry,
        )
        self._synced = Gauge(
            f"{_PREFIX}_cluster_synced",
            "Whether everything that a cluster has was read once.",
            ("cluster",),
            registry=registry,
        )

    def follow(self, watches: Mapping[str, DashboardCluster]) -> None:
        for name, watch in watches.items():
            self._stale.labels(name).set_function(partial(_staleness, watch))
            self._synced.labels(name).set_function(partial(_is_synced, watch))

    def forget(self, cluster: str) -> None:
        for gauge in (self._stale, self._synced):
            gauge.remove(cluster)

    def answered(self, status: int, seconds: float) -> None:
        kind = f"{status // 100}xx"
        self._requests[str(status) if str(status) in self._requests else kind].inc()
        self._seconds.observe(seconds)


def _staleness(watch: DashboardCluster) -> float:
    return watch.staleness


def _is_synced(watch: DashboardCluster) -> float:
    return float(watch.not_ready() is None)
