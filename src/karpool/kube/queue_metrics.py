"""Work queues under the metric names that client-go gives them, so that dashboards and alerts fit.

`workqueue_depth`, `..._adds_total`, `..._queue_duration_seconds`, `..._work_duration_seconds`,
`..._unfinished_work_seconds`, `..._longest_running_processor_seconds` and `..._retries_total`, by `name`.
"""

from collections.abc import Callable, Hashable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS = [10.0 ** (k - 8) for k in range(12)]  # client-go's
_LABELS = ("name",)


class QueueMetrics:
    """What the queue of a process tells as it happens; see `Told`."""

    def __init__(self, registry: CollectorRegistry, name: str, now: Callable[[], float]) -> None:
        self._now = now
        self._added: dict[Hashable, float] = {}  # waits, since then
        self._taken: dict[Hashable, float] = {}  # is worked on, since then
        adds = Counter("workqueue_adds", "Items added to a work queue.", _LABELS, registry=registry)
        retries = Counter(
            "workqueue_retries", "Items that were to come back later.", _LABELS, registry=registry
        )
        waits = Histogram(
            "workqueue_queue_duration_seconds",
            "How long an item waits in a work queue before it is taken.",
            _LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        works = Histogram(
            "workqueue_work_duration_seconds",
            "How long it takes to work on an item.",
            _LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        self._adds, self._retries = adds.labels(name), retries.labels(name)
        self._waits, self._works = waits.labels(name), works.labels(name)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "workqueue_depth": ("Items that wait in a work queue.", lambda: len(self._added)),
            "workqueue_unfinished_work_seconds": (
                "Seconds of work under way that workqueue_work_duration_seconds has not seen yet.",
                lambda: sum(self._running()),
            ),
            "workqueue_longest_running_processor_seconds": (
                "How long the longest work that is under way has taken.",
                lambda: max(self._running(), default=0.0),
            ),
        }
        for metric, (text, value) in gauges.items():
            Gauge(metric, text, _LABELS, registry=registry).labels(name).set_function(value)

    def added(self, key: Hashable) -> None:
        self._adds.inc()
        self._added.setdefault(key, self._now())

    def taken(self, key: Hashable) -> None:
        now = self._taken[key] = self._now()
        self._waits.observe(now - self._added.pop(key, now))

    def done(self, key: Hashable) -> None:
        now = self._now()
        self._works.observe(now - self._taken.pop(key, now))

    def retried(self) -> None:
        self._retries.inc()

    def _running(self) -> list[float]:
        now = self._now()
        return [now - since for since in self._taken.values()]
