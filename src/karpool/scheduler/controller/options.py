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
_FeatureGates = Annotated[str, option("Name=true|false, separated by commas. Default: each gate's own.")]


def enabled_plugins(plugins: Sequence[str]) -> frozenset[str]:
    """Which run, `*` being all of ours; raises Invalid for a name that nobody knows."""
    named = [name for name in plugins if name.strip() != "*"]
    wanted, unwanted = chosen_plugins(plugins, known_plugins(named, ENTRY_POINTS, PLUGINS))
    ours = PLUGINS if "*" in wanted else ()
    return frozenset((*ours, *(name for name in wanted if name != "*"))) - unwanted


class EstimatorAccessOptions(Options, frozen=True):
    """Whether estimators are asked, and how they are reached."""

    enabled: Annotated[
        bool, option("Ask an estimator per member cluster.", flag="enable-scheduler-estimator")
    ] = False
    skips_pull_clusters: Annotated[
        bool, option("Ask none of Pull-mode clusters.", flag="disable-scheduler-estimator-in-pull-mode")
    ] = False
    timeout_seconds: Annotated[
        LongerThanNothing,
        option("How long to wait for the answer of one cluster.", flag="scheduler-estimator-timeout"),
    ] = 3.0
    namespace: Annotated[
        str,
        option("Namespace of the estimators' Services.", flag="scheduler-estimator-service-namespace"),
    ] = SYSTEM_NAMESPACE
    prefix: Annotated[
        str, option("Services are called PREFIX-CLUSTER.", flag="scheduler-estimator-service-prefix")
    ] = SERVICE_PREFIX
    port: Annotated[
        int,
        option("Port of the estimators' Services.", flag="scheduler-estimator-port", least=1, most=65535),
    ] = PORT
    ca_file: Annotated[
        str,
        option(
            "Authority of the estimators' certificates. Default: those of the system.",
            flag="scheduler-estimator-ca-file",
        ),
    ] = ""
    cert_file: Annotated[
        str, option("Our certificate for estimators. Default: none.", flag="scheduler-estimator-cert-file")
    ] = ""
    key_file: Annotated[
        str, option("Key of our certificate. Default: none.", flag="scheduler-estimator-key-file")
    ] = ""
    skips_verify: Annotated[
        bool, option("Accept any certificate of an estimator.", flag="insecure-skip-estimator-verify")
    ] = False


class KarmadaConnectionOptions(Options, frozen=True):
    kubeconfig: Annotated[
        str, option("Kubeconfig of the Karmada API server. Default: the pod's own account.")
    ] = ""
    master: Annotated[str, option("Address of the Karmada API server. Default: the kubeconfig's.")] = ""
    kube_api_qps: Annotated[Amount, option("Requests per second to the API server; 0 is no limit.")] = 40.0
    kube_api_burst: Annotated[Count, option("Requests at once to the API server.")] = 60


class LeaseOptions(Options, frozen=True):
    leader_elect: Annotated[bool, option("Act only while holding the lease.")] = True
    name: Annotated[str, option("Name of the lease.", flag="leader-elect-resource-name")] = ""
    namespace: Annotated[str, option("Namespace of the lease.", flag="leader-elect-resource-namespace")] = (
        SYSTEM_NAMESPACE
    )
    duration_seconds: Annotated[
        Duration, option("How long others wait for a silent leader.", flag="leader-elect-lease-duration")
    ] = TIMING.duration
    renew_deadline_seconds: Annotated[
        Duration, option("A leader without renewal stops after this.", flag="leader-elect-renew-deadline")
    ] = TIMING.renew_deadline
    retry_seconds: Annotated[
        Duration, option("Time between attempts at the lease.", flag="leader-elect-retry-period")
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
        option("Filters and scores to run; * is all of ours, -Name leaves one out, others by name."),
    ] = ("*",)
    estimators: EstimatorAccessOptions = EstimatorAccessOptions()
    feature_gates: _FeatureGates = ""
    availability: Annotated[
        EstimateMergeRule,
        option("How an estimator's answer and the cluster's summary become one number."),
    ] = EstimateMergeRule.ACCURATE_IF_HIGHER
    assumption_ttl_seconds: Annotated[
        Duration,
        option("Drop a promise whose pods have not appeared after this time.", flag="assumption-ttl"),
    ] = _LIFETIME.seconds
    assumption_ttl_limit_seconds: Annotated[
        Duration,
        option("Drop a promise after this time, however often renewed.", flag="assumption-ttl-limit"),
    ] = _LIFETIME.limit_seconds
    estimator_hold_down_seconds: Annotated[
        Duration,
        option(
            "How long to use the last answer of an estimator that cannot be reached.",
            flag="estimator-hold-down",
        ),
    ] = 60.0
    partial_placement: Annotated[bool, option("Place what fits when not everything does.")] = False
    spare_tainted: Annotated[
        bool,
        option("Give no further replicas to a cluster whose taints the placement does not tolerate."),
    ] = False
    cost: Annotated[CostPreference, option("Whether cheaper clusters are preferred.")] = CostPreference.OFF
    room_order: Annotated[
        RoomOrder,
        option("Whether nodes that exist are filled before nodes are bought, and where nodes are bought."),
    ] = RoomOrder.EXISTING_FIRST
    unlimited_weight: Annotated[
        int,
        option("Replicas that pools without limits count for where replicas on new nodes are shared out."),
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
            "Count in copies of clusters' rooms that are no older, instead of asking; 0 asks always.",
            flag="max-room-age",
        ),
    ] = 5.0
    propagates_empty_workloads: Annotated[
        bool,
        option(
            "Send workloads also to chosen clusters that get no replicas.",
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
        option("Without priorities: first delay after a failure.", flag="rate-limiter-base-delay"),
    ] = 0.005
    max_delay_seconds: Annotated[
        Duration, option("Without priorities: longest delay.", flag="rate-limiter-max-delay")
    ] = 1000.0
    rate_limiter_qps: Annotated[Count, option("Retries per second in all.", ignored=True)] = 10
    rate_limiter_bucket_size: Annotated[Count, option("Retries at once.", ignored=True)] = 100
    dry_run: Annotated[bool, option("Print decisions and write nothing.", process_only=True)] = False
    workers: Annotated[
        int, option("Bindings written at once; decisions are taken one after the other.", least=1)
    ] = 16
    unschedulable_retry_seconds: Annotated[
        LongerThanNothing,
        option("Look again after this, even without a sign of room.", flag="unschedulable-retry"),
    ] = 300.0
    grace_period_seconds: Annotated[
        Duration,
        option("How long writes under way may take to finish after SIGTERM.", flag="grace-period"),
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
        option("Time between two looks at all bindings.", flag="descheduling-interval", chart="interval"),
    ] = 120.0
    unschedulable_threshold_seconds: Annotated[
        Duration,
        option(
            "Take back a replica that waits longer than this.",
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
            "Only bindings of these schedulers; default: all. One descheduler per control plane is enough."
        ),
    ] = ()
    cool_down_seconds: Annotated[
        Duration,
        option(
            "How long the scheduler keeps replicas away from the cluster they were taken from.",
            flag="cool-down",
        ),
    ] = 600.0
    dry_run: Annotated[
        bool, option("Print what would be taken back and write nothing.", process_only=True)
    ] = False
    workers: Annotated[int, option("Bindings looked at at once.", least=1)] = 8

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
        option("Time between two questions to one estimator.", flag="interval", chart="interval"),
    ] = 5.0
    withdraw_after_seconds: Annotated[
        LongerThanNothing,
        option(
            "Show only nodes that are there once the estimator was silent for this long.",
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
