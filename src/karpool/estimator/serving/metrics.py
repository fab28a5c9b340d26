"""Metrics of the estimator, under the names of Karmada's dashboards, and our own.

All label values are known beforehand, so that every series starts at zero. `karmada_...` are stable,
`karpool_...` are beta.
"""

from collections.abc import Iterable
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from karpool.estimator.plugins.interface import CANNOT_TELL, UNLIMITED, ExtensionPoint
from karpool.estimator.serving.member import MemberEstimator
from karpool.manager.metrics import describe_process

Call = Literal["MaxAvailableReplicas", "MaxAvailableComponentSets", "GetUnschedulableReplicas"]
CALLS: tuple[Call, ...] = ("MaxAvailableReplicas", "MaxAvailableComponentSets", "GetUnschedulableReplicas")
Result = Literal["success", "error"]
RESULTS: tuple[Result, ...] = ("success", "error")
REJECTIONS = ("malformed", "too_large", "invalid", "wrong_cluster", "not_synced")
ANSWERS = ("number", "zero", "unlimited", "cannot_tell")
_PREFIX = "karmada_scheduler_estimator_estimating"


class EstimatorMetrics:
    def __init__(self, registry: CollectorRegistry, plugins: Iterable[str] = ()) -> None:
        describe_process(registry)
        requests = Counter(
            f"{_PREFIX}_request",
            "Number of scheduler estimator requests",
            ("result", "type"),
            registry=registry,
        )
        durations = Histogram(
            f"{_PREFIX}_algorithm_duration_seconds",
            "Estimating algorithm latency in seconds for each step",
            ("result", "type", "step"),
            buckets=[0.001 * 2**k for k in range(10)],
            registry=registry,
        )
        points = Histogram(
            f"{_PREFIX}_plugin_extension_point_duration_seconds",
            "Latency for running all plugins of a specific extension point.",
            ("estimating_plugin_extension_point",),
            buckets=[0.0001 * 2**k for k in range(12)],
            registry=registry,
        )
        self._executions = Histogram(
            f"{_PREFIX}_plugin_execution_duration_seconds",
            "Duration for running a plugin at a specific extension point.",
            ("estimating_plugin", "estimating_plugin_extension_point"),
            buckets=[0.00001 * 1.5**k for k in range(20)],
            registry=registry,
        )
        rejected = Counter(
            "karpool_estimator_rejected_requests",
            "Rejected requests, by cause.",
            ("reason",),
            registry=registry,
        )
        answers = Counter(
            "karpool_estimator_answers", "Answers by type of number.", ("type", "answer"), registry=registry
        )
        # Children are bound once: a lookup costs more than counting.
        self._requests = {(r, c): requests.labels(r, c) for r in RESULTS for c in CALLS}
        self._durations = {(r, c): durations.labels(r, c, "Total") for r in RESULTS for c in CALLS}
        self._steps = {
            (r, step): durations.labels(r, "GetUnschedulableReplicas", step)
            for r in RESULTS
            for step in ("GetObjectFromCache", "GetWorkloadUnschedulablePods")
        }
        self._points = {point: points.labels(point.value) for point in ExtensionPoint}
        self._plugins = {
            (point, plugin): self._executions.labels(plugin, point.value)
            for plugin in plugins
            for point in ExtensionPoint
        }
        self._rejected = {reason: rejected.labels(reason) for reason in REJECTIONS}
        self._answers = {(c, kind): answers.labels(c, kind) for c in CALLS for kind in ANSWERS}
        self._clusters = _ClusterGauges(registry)

    def answered(self, call: Call, answer: int, seconds: float) -> None:
        self._requests["success", call].inc()
        self._durations["success", call].observe(seconds)
        self._answers[call, _kind(answer)].inc()

    def failed(self, call: Call, seconds: float, rejection: str = "") -> None:
        self._requests["error", call].inc()
        self._durations["error", call].observe(seconds)
        if rejection:
            self._rejected[rejection].inc()

    def step(self, result: Result, name: str, seconds: float) -> None:
        self._steps[result, name].observe(seconds)

    def plugin(self, point: ExtensionPoint, plugin: str, seconds: float) -> None:
        """Record the time of one plugin or, without a name, of all of them."""
        if not plugin:
            self._points[point].observe(seconds)
        else:
            self._plugins[point, plugin].observe(seconds)

    def follow(self, member: MemberEstimator) -> None:
        self._clusters.follow(member)


class _ClusterGauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"karpool_estimator_{name}", text, ("cluster",), registry=registry)

        self._synced = gauge("cluster_synced", "Whether all nodes and pods of the cluster are counted.")
        self._staleness = gauge("cluster_staleness_seconds", "Time since the last message of the cluster.")
        self._nodes = gauge("cluster_nodes", "Nodes of the cluster.")
        self._problems = gauge("cluster_skipped_objects", "Objects that could not be parsed.")
        self._region = gauge("cluster_region_missing", "Whether the region of new nodes is unknown.")
        self._unseen = gauge(
            "cluster_unseen_kinds",
            "Kinds that answers do not consider, because the right to list them is missing.",
        )
        self._waiting = gauge("cluster_unschedulable_pods", "Pods for which the scheduler found no node.")

    def follow(self, member: MemberEstimator) -> None:
        name = member.name
        self._synced.labels(name).set_function(lambda: float(member.synced))
        self._staleness.labels(name).set_function(member.staleness)
        self._nodes.labels(name).set_function(lambda: float(member.cluster.snapshot().room.n))
        self._problems.labels(name).set_function(lambda: float(len(member.cluster.problems)))
        self._region.labels(name).set_function(lambda: float(member.region_is_missing()))
        self._unseen.labels(name).set_function(lambda: float(len(member.informers.unseen())))
        self._waiting.labels(name).set_function(lambda: float(member.unschedulable_pods()))


def _kind(answer: int) -> str:
    if answer == CANNOT_TELL:
        return "cannot_tell"
    return "zero" if not answer else "unlimited" if answer >= UNLIMITED else "number"
