"""The options of `karpool scheduler`, `descheduler` and `cluster-summary`: Karmada's, and ours.

Manifests written for the Go binaries start these unchanged, except that the default
names (scheduler and lease) are our own, so that both schedulers can run side by side.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from karpool.kube.lease_timing import TIMING, LeaseTiming
from karpool.manager.feature_gates import (
    MODELING,
    MULTIPLE_TEMPLATES,
    WORKLOAD_AFFINITY,
    Gates,
    scheduler_gates,
)
from karpool.manager.go_options import GoLogOptions
from karpool.manager.options import (
    Amount,
    Count,
    Duration,
    LongerThanNothing,
    Options,
    ProbeOptions,
    WatchOptions,
    option,
)
from karpool.manager.plugins import chosen_plugins, known_plugins
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.scheduler.cycle import plugins
from karpool.scheduler.cycle.installed_plugins import ENTRY_POINTS, load_plugins
from karpool.scheduler.cycle.settings import (
    UNLIMITED_WEIGHT,
    CostPreference,
    EstimateMergeRule,
    RoomOrder,
    SchedulingSettings,
)
from karpool.scheduler.promises.promise import PromiseLifetime
from karpool.wire.addresses import PORT, SERVICE_PREFIX

SCHEDULER_NAME = "karpool-scheduler"
DESCHEDULER_NAME = "karpool-descheduler"
CLUSTER_SUMMARY_NAME = "karpool-cluster-summary"
SYSTEM_NAMESPACE = "karmada-system"
PLUGINS = (*plugins.FILTERS, *plugins.SCORES)
_LIFETIME = PromiseLifetime()
_FeatureGates = Annotated[
    str, option("Feature gates: Name=true|false, separated by commas. Default: the default of each gate.")
]


def enabled_plugins(plugins: Sequence[str]) -> frozenset[str]:
    """The enabled plugins, `*` being all of ours; raises Invalid for an unknown name."""
    named = [name for name in plugins if name.strip() != "*"]
    wanted, unwanted = chosen_plugins(plugins, known_plugins(named, ENTRY_POINTS, PLUGINS))
    ours = PLUGINS if "*" in wanted else ()
    return frozenset((*ours, *(name for name in wanted if name != "*"))) - unwanted


class EstimatorAccessOptions(Options, frozen=True):
    """Whether estimators are asked, and how they are reached."""

    enabled: Annotated[
        bool, option("Ask one estimator per member cluster.", flag="enable-scheduler-estimator")
    ] = False
    skips_pull_clusters: Annotated[
        bool,
        option(
            "Do not ask estimators of Pull-mode clusters.", flag="disable-scheduler-estimator-in-pull-mode"
        ),
    ] = False
    timeout_seconds: Annotated[
        LongerThanNothing,
        option("Timeout of a request to one estimator.", flag="scheduler-estimator-timeout"),
    ] = 3.0
    namespace: Annotated[
        str,
        option("Namespace of the estimators' Services.", flag="scheduler-estimator-service-namespace"),
    ] = SYSTEM_NAMESPACE
    prefix: Annotated[
        str, option("Prefix of the Service names: PREFIX-CLUSTER.", flag="scheduler-estimator-service-prefix")
    ] = SERVICE_PREFIX
    port: Annotated[
        int,
        option("Port of the estimators' Services.", flag="scheduler-estimator-port", least=1, most=65535),
    ] = PORT
    ca_file: Annotated[
        str,
        option(
            "Certificate authority of the estimators. Default: the system's authorities.",
            flag="scheduler-estimator-ca-file",
        ),
    ] = ""
    cert_file: Annotated[
        str, option("Client certificate for estimators. Default: none.", flag="scheduler-estimator-cert-file")
    ] = ""
    key_file: Annotated[
        str, option("Key of the client certificate. Default: none.", flag="scheduler-estimator-key-file")
    ] = ""
    skips_verify: Annotated[
        bool, option("Do not verify the certificates of estimators.", flag="insecure-skip-estimator-verify")
    ] = False


class KarmadaConnectionOptions(Options, frozen=True):
    kubeconfig: Annotated[
        str, option("Kubeconfig of the Karmada API server. Default: the service account of the pod.")
    ] = ""
    master: Annotated[
        str, option("Address of the Karmada API server. Default: the address in the kubeconfig.")
    ] = ""
    kube_api_qps: Annotated[
        Amount, option("Maximum requests per second to the API server; 0 means no limit.")
    ] = 40.0
    kube_api_burst: Annotated[Count, option("Maximum burst of requests to the API server.")] = 60


class LeaseOptions(Options, frozen=True):
    leader_elect: Annotated[bool, option("Act only while holding the lease.")] = True
    name: Annotated[str, option("Name of the lease.", flag="leader-elect-resource-name")] = ""
    namespace: Annotated[str, option("Namespace of the lease.", flag="leader-elect-resource-namespace")] = (
        SYSTEM_NAMESPACE
    )
    duration_seconds: Annotated[
        Duration,
        option(
            "How long other replicas wait before they take the lease.", flag="leader-elect-lease-duration"
        ),
    ] = TIMING.duration
    renew_deadline_seconds: Annotated[
        Duration,
        option(
            "A leader stops if it cannot renew the lease for this long.", flag="leader-elect-renew-deadline"
        ),
    ] = TIMING.renew_deadline
    retry_seconds: Annotated[
        Duration,
        option("Time between attempts to take or renew the lease.", flag="leader-elect-retry-period"),
    ] = TIMING.retry

    def problems(self) -> Iterator[Invalid | str]:
        try:
            self.timing  # noqa: B018 - made to see whether it can be
        except ValueError as error:
            times = (self.duration_seconds, self.renew_deadline_seconds, self.retry_seconds)
            yield Invalid("--leader-elect-*", ", ".join(map(durations.show, times)), str(error))

    @property
    def timing(self) -> LeaseTiming:
        return LeaseTiming(self.duration_seconds, self.renew_deadline_seconds, self.retry_seconds)


class DecisionOptions(Options, frozen=True):
    """What decides where something goes: also of commands that explain the scheduler's decisions."""

    go_flags: ClassVar[bool] = True

    plugins: Annotated[
        tuple[str, ...],
        option(
            "Filters and scores to run; * means all built-in ones, -Name excludes one, other plugins by name."
        ),
    ] = ("*",)
    estimators: EstimatorAccessOptions = EstimatorAccessOptions()
    feature_gates: _FeatureGates = ""
    availability: Annotated[
        EstimateMergeRule,
        option("How to combine the estimator's answer and the cluster's summary."),
    ] = EstimateMergeRule.ACCURATE_IF_HIGHER
    assumption_ttl_seconds: Annotated[
        Duration,
        option("Drop a promise whose pods have not appeared after this time.", flag="assumption-ttl"),
    ] = _LIFETIME.seconds
    assumption_ttl_limit_seconds: Annotated[
        Duration,
        option("Drop a promise after this time, even if it was renewed.", flag="assumption-ttl-limit"),
    ] = _LIFETIME.limit_seconds
    estimator_hold_down_seconds: Annotated[
        Duration,
        option(
            "How long to use the last answer of an estimator that cannot be reached.",
            flag="estimator-hold-down",
        ),
    ] = 60.0
    partial_placement: Annotated[bool, option("Place the replicas that fit if not all fit.")] = False
    spare_tainted: Annotated[
        bool,
        option("Add no replicas to a cluster whose taints the placement does not tolerate."),
    ] = False
    cost: Annotated[CostPreference, option("Whether to prefer cheaper clusters.")] = CostPreference.OFF
    room_order: Annotated[
        RoomOrder,
        option("Whether to fill existing nodes before new nodes are launched, and where to launch."),
    ] = RoomOrder.EXISTING_FIRST
    unlimited_weight: Annotated[
        int,
        option(
            "Number of replicas that a pool without limits counts as when replicas are divided "
            "over new nodes."
        ),
    ] = UNLIMITED_WEIGHT

    def problems(self) -> Iterator[Invalid | str]:
        for check in (lambda: scheduler_gates(self.feature_gates), lambda: enabled_plugins(self.plugins)):
            try:
                check()
            except Invalid as error:
                yield error
        if self.unlimited_weight < 1:
            yield Invalid("unlimited-weight", self.unlimited_weight, "must be at least 1")

    @property
    def gates(self) -> Gates:
        return scheduler_gates(self.feature_gates)

    @property
    def lifetime(self) -> PromiseLifetime:
        return PromiseLifetime(self.assumption_ttl_seconds, self.assumption_ttl_limit_seconds)

    def settings(self, *, propagate_empty: bool = False) -> SchedulingSettings:
        gates = self.gates
        return SchedulingSettings(
            plugins=(names := enabled_plugins(self.plugins)),
            others=load_plugins(sorted(names.difference(PLUGINS)), PLUGINS),
            multiple_pod_templates=gates[MULTIPLE_TEMPLATES],
            workload_affinity=gates[WORKLOAD_AFFINITY],
            resource_models=gates[MODELING],
            propagate_empty=propagate_empty,
            merge=self.availability,
            partial=self.partial_placement,
            cost=self.cost,
            room_order=self.room_order,
            unlimited_weight=self.unlimited_weight,
            spare_tainted=self.spare_tainted,
        )


class SchedulerOptions(Options, frozen=True):
    command: ClassVar[str] = "scheduler"
    chart: ClassVar[str] = "scheduler"
    go_flags: ClassVar[bool] = True

    scheduler_name: Annotated[
        str, option("Place bindings whose policy names this as schedulerName.", chart="schedulerName")
    ] = SCHEDULER_NAME
    decisions: DecisionOptions = DecisionOptions()
    max_room_age_seconds: Annotated[
        Duration,
        option(
            "Use a copy of a cluster's free capacity up to this age instead of asking its "
            "estimator; 0 always asks.",
            flag="max-room-age",
        ),
    ] = 5.0
    propagates_empty_workloads: Annotated[
        bool,
        option(
            "Also propagate workloads to selected clusters without replicas.",
            flag="enable-empty-workload-propagation",
        ),
    ] = False
    connection: Annotated[KarmadaConnectionOptions, option(process_only=True)] = KarmadaConnectionOptions()
    lease: Annotated[LeaseOptions, option(process_only=True)] = LeaseOptions(name=SCHEDULER_NAME)
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions(
        health_probe_bind_address=":10351"
    )
    watch: Annotated[WatchOptions, option(process_only=True)] = WatchOptions()
    logs: Annotated[GoLogOptions, option(process_only=True)] = GoLogOptions()
    base_delay_seconds: Annotated[
        Duration,
        option("First delay after a failure, without priority queue.", flag="rate-limiter-base-delay"),
    ] = 0.005
    max_delay_seconds: Annotated[
        Duration,
        option("Longest delay after failures, without priority queue.", flag="rate-limiter-max-delay"),
    ] = 1000.0
    rate_limiter_qps: Annotated[Count, option("Retries per second in all.", ignored=True)] = 10
    rate_limiter_bucket_size: Annotated[Count, option("Retries at once.", ignored=True)] = 100
    dry_run: Annotated[bool, option("Print decisions and write nothing.", process_only=True)] = False
    workers: Annotated[
        int, option("Maximum number of bindings written at the same time; decisions are sequential.", least=1)
    ] = 16
    unschedulable_retry_seconds: Annotated[
        LongerThanNothing,
        option(
            "Retry an unschedulable binding after this time, even if no capacity was freed.",
            flag="unschedulable-retry",
        ),
    ] = 300.0
    grace_period_seconds: Annotated[
        Duration,
        option("How long writes in progress may take after SIGTERM.", flag="grace-period"),
    ] = 10.0

    def problems(self) -> Iterator[Invalid | str]:
        if not self.scheduler_name:
            yield Invalid("--scheduler-name", "", "must not be empty")


class DeschedulerOptions(Options, frozen=True):
    command: ClassVar[str] = "descheduler"
    chart: ClassVar[str] = "descheduler"
    go_flags: ClassVar[bool] = True

    interval_seconds: Annotated[
        LongerThanNothing,
        option("Time between two passes over all bindings.", flag="descheduling-interval", chart="interval"),
    ] = 120.0
    unschedulable_threshold_seconds: Annotated[
        Duration,
        option(
            "Remove a replica that has been unschedulable for longer than this.",
            flag="unschedulable-threshold",
            chart="unschedulableThreshold",
        ),
    ] = 300.0
    estimators: EstimatorAccessOptions = EstimatorAccessOptions(enabled=True)
    connection: Annotated[KarmadaConnectionOptions, option(process_only=True)] = KarmadaConnectionOptions()
    lease: Annotated[LeaseOptions, option(process_only=True)] = LeaseOptions(name=DESCHEDULER_NAME)
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions(
        health_probe_bind_address=":10358"
    )
    watch: Annotated[WatchOptions, option(process_only=True)] = WatchOptions()
    feature_gates: _FeatureGates = ""
    logs: Annotated[GoLogOptions, option(process_only=True)] = GoLogOptions()
    scheduler_names: Annotated[
        tuple[str, ...],
        option(
            "Handle only bindings of these schedulers. Default: all. Run one descheduler per control plane."
        ),
    ] = ()
    cool_down_seconds: Annotated[
        Duration,
        option(
            "How long the scheduler keeps replicas away from the cluster they were taken from.",
            flag="cool-down",
        ),
    ] = 600.0
    dry_run: Annotated[bool, option("Print what would be removed and write nothing.", process_only=True)] = (
        False
    )
    workers: Annotated[int, option("Maximum number of bindings handled at the same time.", least=1)] = 8

    def problems(self) -> Iterator[Invalid | str]:
        try:
            scheduler_gates(self.feature_gates)
        except Invalid as error:
            yield error


class ClusterSummaryOptions(Options, frozen=True):
    command: ClassVar[str] = "cluster-summary"
    chart: ClassVar[str] = "clusterSummary"
    go_flags: ClassVar[bool] = True

    interval_seconds: Annotated[
        LongerThanNothing,
        option("Time between two requests to one estimator.", flag="interval", chart="interval"),
    ] = 5.0
    withdraw_after_seconds: Annotated[
        LongerThanNothing,
        option(
            "Show only existing nodes if the estimator has not answered for this long.",
            flag="withdraw-after",
            chart="withdrawAfter",
        ),
    ] = 60.0
    estimators: EstimatorAccessOptions = EstimatorAccessOptions(enabled=True)
    connection: Annotated[KarmadaConnectionOptions, option(process_only=True)] = KarmadaConnectionOptions()
    lease: Annotated[LeaseOptions, option(process_only=True)] = LeaseOptions(name=CLUSTER_SUMMARY_NAME)
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions(
        health_probe_bind_address=":10359"
    )
    watch: Annotated[WatchOptions, option(process_only=True)] = WatchOptions()
    logs: Annotated[GoLogOptions, option(process_only=True)] = GoLogOptions()
