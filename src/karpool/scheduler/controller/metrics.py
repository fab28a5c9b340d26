"""Metrics of the scheduler, under the names of Karmada's dashboards, and our own.

All label values are known beforehand, so that every series starts at zero. `karmada_...` and `scheduler_...`
are stable, `karpool_...` are beta.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.manager.metrics import describe_process
from karpool.scheduler.controller.queue import POOLS, Pool
from karpool.scheduler.cycle import plugin_timing
from karpool.scheduler.cycle.plugin_timing import STEPS, Point, Step
from karpool.scheduler.cycle.plugins import FILTERS, SCORES
from karpool.scheduler.cycle.triggers import ScheduleType

Event = Literal["BindingAdd", "BindingUpdate", "ScheduleAttemptFailure", "PolicyChanged", "ClusterChanged"]
EVENTS: tuple[Event, ...] = (
    "BindingAdd",
    "BindingUpdate",
    "ScheduleAttemptFailure",
    "PolicyChanged",
    "ClusterChanged",
)
Result = Literal["scheduled", "error"]
RESULTS: tuple[Result, ...] = ("scheduled", "error")
REASONS = ("NoClusterFit", "Unschedulable", "QuotaExceeded", "SchedulerError")
WRITES = ("result", "status")
WRITE_RESULTS = ("written", "unchanged", "conflict", "refused", "error")

_BUCKETS = [0.001 * 2**k for k in range(15)]
_PREFIX = "karmada_scheduler"


class SchedulerMetrics:
    def __init__(self, registry: CollectorRegistry, sizes: Callable[[], Mapping[Pool, int]]) -> None:
        describe_process(registry)
        labels = ("result", "schedule_type")
        attempts = Counter(
            f"{_PREFIX}_schedule_attempts",
            "Number of attempts to schedule a binding.",
            labels,
            registry=registry,
        )
        durations = Histogram(
            f"{_PREFIX}_e2e_scheduling_duration_seconds",
            "Time from taking a binding from the queue to the written result.",
            labels,
            buckets=_BUCKETS,
            registry=registry,
        )
        steps = Histogram(
            f"{_PREFIX}_scheduling_algorithm_duration_seconds",
            "Duration of each step of a decision.",
            ("schedule_step",),
            buckets=_BUCKETS,
            registry=registry,
        )
        points = Histogram(
            f"{_PREFIX}_framework_extension_point_duration_seconds",
            "Duration of all plugins of an extension point, measured in one of ten decisions; "
            "filters per cluster.",
            ("extension_point", "result"),
            buckets=[0.0001 * 2**k for k in range(12)],
            registry=registry,
        )
        self._plugin_times = plugins = Histogram(
            f"{_PREFIX}_plugin_execution_duration_seconds",
            "Duration of one plugin for one cluster, measured in one of ten decisions.",
            ("plugin", "extension_point", "result"),
            buckets=[0.00001 * 1.5**k for k in range(20)],
            registry=registry,
        )
        incoming = Counter(
            f"{_PREFIX}_queue_incoming_bindings",
            "Queued bindings, by cause.",
            ("event",),
            registry=registry,
        )
        pending = Gauge(
            "scheduler_pending_bindings", "Pending bindings, by queue.", ("queue",), registry=registry
        )
        failures = Counter(
            "karpool_scheduler_failures",
            "Bindings that could not be placed, by reason.",
            ("reason",),
            registry=registry,
        )
        writes = Counter(
            "karpool_scheduler_writes",
            "Patches of bindings, by content and result.",
            ("what", "result"),
            registry=registry,
        )
        self._woken = Counter(
            "karpool_scheduler_woken_bindings",
            "Bindings that were retried because capacity may have been freed.",
            registry=registry,
        )
        self._leading = Gauge(
            "karpool_scheduler_leading", "Whether this process is the leader.", registry=registry
        )
        # Children are bound once: a lookup costs more than counting.
        self._attempts = {(r, t): attempts.labels(r, t.value) for r in RESULTS for t in ScheduleType}
        self._durations = {(r, t): durations.labels(r, t.value) for r in RESULTS for t in ScheduleType}
        self._steps = {step: steps.labels(step) for step in STEPS}
        named: dict[Point, tuple[str, ...]] = {"Filter": FILTERS, "Score": SCORES}
        self._points = {
            (p, r): points.labels(p, r) for p in plugin_timing.POINTS for r in plugin_timing.RESULTS
        }
        self._plugins = {
            (name, point, result): plugins.labels(name, point, result)
            for point, names in named.items()
            for name in names
            for result in plugin_timing.RESULTS
        }
        self._incoming = {event: incoming.labels(event) for event in EVENTS}
        self._failures = {reason: failures.labels(reason) for reason in REASONS}
        self._writes = {(w, r): writes.labels(w, r) for w in WRITES for r in WRITE_RESULTS}
        for pool in POOLS:
            pending.labels(pool).set_function(partial(_size, sizes, pool))

    def attempted(self, result: Result, schedule_type: ScheduleType, seconds: float) -> None:
        self._attempts[result, schedule_type].inc()
        self._durations[result, schedule_type].observe(seconds)

    def step(self, step: Step, seconds: float) -> None:
        self._steps[step].observe(seconds)

    def point(self, point: Point, result: plugin_timing.Result, seconds: float) -> None:
        self._points[point, result].observe(seconds)

    def plugin(self, plugin: str, point: Point, result: plugin_timing.Result, seconds: float) -> None:
        timed = self._plugins.get((plugin, point, result))
        if timed is None:  # a plugin of another package
            timed = self._plugins[plugin, point, result] = self._plugin_times.labels(plugin, point, result)
        timed.observe(seconds)

    def queued(self, event: Event) -> None:
        self._incoming[event].inc()

    def failed(self, reason: str) -> None:
        self._failures[reason].inc()

    def wrote(self, write: str, result: str) -> None:
        self._writes[write, result].inc()

    def woke(self, number: int) -> None:
        self._woken.inc(number)

    def leading(self, is_so: bool) -> None:
        self._leading.set(is_so)


def _size(sizes: Callable[[], Mapping[Pool, int]], pool: Pool) -> float:
    return float(sizes()[pool])
