"""Readiness: whether a controller may act, because everything was listed once and is fresh."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import structlog
from prometheus_client import CollectorRegistry, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from karpool.kube.watch.informer_set import InformerSet
from karpool.manager.options import WatchOptions
from karpool.manager.stop import Stop

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.05
STALE_POLL_SECONDS = 1.0  # staleness is counted in minutes


class ManagerStatus:
    """The status of a controller, for its probes, its metrics and itself."""

    def __init__(self, max_staleness_seconds: float = WatchOptions().max_staleness_seconds) -> None:
        self.waiting_for = "not started"  # before the first informer
        self.lease = ""  # lease that this replica waits for; empty for the leader and without a lease
        self.informers: Sequence[InformerSet] = ()
        self.more_remarks: list[Callable[[], Iterable[str]]] = []  # remarks of the controller itself
        self._max_staleness_seconds = max_staleness_seconds
        self._was_stale = False

    def not_ready(self) -> str | None:
        """Return the reason for not being ready.

        Of several clusters, one that cannot be reached does not delay the others.
        """
        if not self.informers:
            return self.waiting_for or None
        reasons = [(informers, reason) for informers in self.informers if (reason := informers.not_ready())]
        if len(reasons) < len(self.informers) and all(informers.failing for informers, _ in reasons):
            return None
        return reasons[0][1]

    def remarks(self) -> Iterator[str]:
        """Yield remarks for people; they do not affect readiness."""
        if self.lease:
            yield f"waiting for the lease {self.lease}: another replica leads"
        for informers in self.informers:
            yield from informers.troubled()
        for more in self.more_remarks:
            yield from more()
        if self._is_too_old():
            yield f"paused: the watch is {self.staleness():.0f}s old"

    def staleness(self) -> float:
        """Seconds since the last message of the API server, for the stalest kind."""
        return max((informers.staleness() for informers in self.informers), default=0.0)

    def is_stale(self) -> bool:
        """Whether the caches are too old to act on; logged when this begins."""
        stale = self._is_too_old()
        if stale and not self._was_stale:
            log.warning("paused: the watch is stale", seconds=self.staleness())
        self._was_stale = stale
        return stale

    def _is_too_old(self) -> bool:
        return bool(self._max_staleness_seconds) and self.staleness() > self._max_staleness_seconds

    async def fresh(self, stop: Stop) -> bool:
        """Wait until the caches are fresh; return False if `stop` is set first."""
        while self.is_stale():
            if await stop.sleep(STALE_POLL_SECONDS):
                return False
        return True

    async def synced(self) -> None:
        # Polled, because it depends on many informers: a kind may turn out to be missing.
        while self.not_ready() is not None:
            await self.informers[0].clock.sleep(POLL_SECONDS)

    def follow(self, registry: CollectorRegistry) -> None:
        seconds = Gauge(
            "karpool_watch_staleness_seconds",
            "Time since the last message of the API server, for the kind with the longest silence.",
            registry=registry,
        )
        seconds.set_function(self.staleness)
        stale = Gauge(
            "karpool_watch_stale",
            "Whether the controller has paused because its data is too old.",
            registry=registry,
        )
        stale.set_function(lambda: float(self._is_too_old()))
        registry.register(_UnreadableObjects(self))


class _UnreadableObjects(Collector):
    """Computed on each scrape: there is one value for each watched kind."""

    def __init__(self, status: ManagerStatus) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        text = "Objects that cannot be parsed. Such a pod blocks its whole node."
        family = GaugeMetricFamily("karpool_unreadable_objects", text, labels=["kind"])
        counts: Counter[str] = Counter()
        for informers in self._status.informers:
            counts.update(informers.unreadable())
        for kind, count in sorted(counts.items()):
            family.add_metric([kind], float(count))
        yield family
