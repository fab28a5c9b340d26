"""Metrics of every process: version, resource use, leadership and work queues.

Work queues have the metric names of client-go, so that existing dashboards and alerts work:
`workqueue_depth`, `..._adds_total`, `..._queue_duration_seconds`, `..._work_duration_seconds`,
`..._unfinished_work_seconds`, `..._longest_running_processor_seconds` and `..._retries_total`, by `name`.
"""

import platform
from collections.abc import Callable, Hashable
from weakref import WeakSet

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from karpool import __version__

_described: WeakSet[CollectorRegistry] = WeakSet()


def describe_process(registry: CollectorRegistry) -> None:
    """Register version, memory, open files and garbage collection, once.

    Call it before creating other metrics.
    """
    if registry in _described:
        return
    _described.add(registry)
    disable_created_metrics()  # type: ignore[no-untyped-call] # the library leaves it untyped
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    labels = {
        "git_version": f"karpool-{__version__}",
        "git_commit": "unknown",
        "git_short_commit": "unknown",
        "git_tree_state": "unknown",
        "build_date": "unknown",
        "go_version": "none",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }
    text = "Karmada build metadata exposed as labels with a constant value of 1."
    Gauge("karmada_build_info", text, tuple(labels), registry=registry).labels(**labels).set(1)
    ours = Gauge("karpool_build_info", "Version of the running process.", ("version",), registry=registry)
    ours.labels(__version__).set(1)


def follow_leadership(registry: CollectorRegistry, prefix: str, leads: Callable[[], bool]) -> None:
    """Export whether this process leads.

    The sum over all replicas must be 1: 0 is an outage, 2 is a fault.
    """
    gauge = Gauge(f"{prefix}_leading", "Whether this process is the leader.", registry=registry)
    gauge.set_function(lambda: float(leads()))


# Work queues

_BUCKETS = [10.0 ** (k - 8) for k in range(12)]  # as in client-go
_LABELS = ("name",)


class QueueMetrics:
    """Metrics of one work queue; see `QueueObserver`."""

    def __init__(self, registry: CollectorRegistry, name: str, now: Callable[[], float]) -> None:
        self._now = now
        self._added: dict[Hashable, float] = {}  # queued since
        self._taken: dict[Hashable, float] = {}  # in progress since
        adds = Counter("workqueue_adds", "Items added to a work queue.", _LABELS, registry=registry)
        retries = Counter("workqueue_retries", "Items that were queued again.", _LABELS, registry=registry)
        waits = Histogram(
            "workqueue_queue_duration_seconds",
            "Time of an item in a work queue before processing.",
            _LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        works = Histogram(
            "workqueue_work_duration_seconds",
            "Duration of the processing of an item.",
            _LABELS,
            buckets=_BUCKETS,
            registry=registry,
        )
        self._adds, self._retries = adds.labels(name), retries.labels(name)
        self._waits, self._works = waits.labels(name), works.labels(name)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "workqueue_depth": ("Items waiting in a work queue.", lambda: len(self._added)),
            "workqueue_unfinished_work_seconds": (
                "Seconds of work in progress that workqueue_work_duration_seconds does not include yet.",
                lambda: sum(self._running()),
            ),
            "workqueue_longest_running_processor_seconds": (
                "Duration of the longest work in progress.",
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
