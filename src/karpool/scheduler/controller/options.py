"""The flags of `karpool scheduler` and `karpool descheduler`: those of Karmada's binaries, and ours.

Manifests written for the Go binaries start these unchanged, except that the default
names (scheduler and lease) are our own, so that both schedulers can run side by side.
What cannot work is refused before anything starts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from karpool.kube.flags import LOGGING_AND_PROFILING, Flag, check_value, ignored
from karpool.kube.leases import LeaseTiming
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.scheduler import gates
from karpool.scheduler.controller.settings import CostPreference, EstimateMergeRule
from karpool.scheduler.cycle import plugins
from karpool.wire.addresses import PORT, SERVICE_PREFIX, listener

SCHEDULER_NAME = "karpool-scheduler"
DESCHEDULER_NAME = "karpool-descheduler"
SYSTEM_NAMESPACE = "karmada-system"
MERGES = tuple(
    map(str, (EstimateMergeRule.ACCURATE_IF_HIGHER, EstimateMergeRule.PREFER_ACCURATE, EstimateMergeRule.MIN))
)
COSTS = tuple(map(str, CostPreference))
PLUGINS = (*plugins.FILTERS, *plugins.SCORES)


def _estimators(*, enabled: bool) -> tuple[Flag, ...]:
    return (
        Flag("enable-scheduler-estimator", "switch", enabled, "Ask an estimator per member cluster."),
        Flag("disable-scheduler-estimator-in-pull-mode", "switch", False, "Ask none of Pull-mode clusters."),
        Flag("scheduler-estimator-timeout", "duration", "3s", "How long one cluster's answer may take."),
        Flag(
            "scheduler-estimator-service-namespace",
            "text",
            SYSTEM_NAMESPACE,
            "Namespace of the estimators' Services.",
        ),
        Flag(
            "scheduler-estimator-service-prefix",
            "text",
            SERVICE_PREFIX,
            "Services are called PREFIX-CLUSTER.",
        ),
        Flag("scheduler-estimator-port", "number", PORT, "Port of the estimators' Services."),
        Flag("scheduler-estimator-ca-file", "text", "", "Authority of the estimators' certificates."),
        Flag("scheduler-estimator-cert-file", "text", "", "Our certificate for estimators."),
        Flag("scheduler-estimator-key-file", "text", "", "Key of our certificate."),
        Flag("insecure-skip-estimator-verify", "switch", False, "Accept any certificate of an estimator."),
    )


def _controller(lease: str, health: str) -> tuple[Flag, ...]:
    return (
        Flag("kubeconfig", "text", "", "Kubeconfig of the Karmada API server."),
        Flag("master", "text", "", "Address of the Karmada API server, instead of the kubeconfig's."),
        Flag("kube-api-qps", "real", 40.0, "Requests per second to the API server; 0 is no limit."),
        Flag("kube-api-burst", "number", 60, "Requests at once to the API server."),
        Flag("leader-elect", "switch", True, "Act only while holding the lease."),
        Flag("leader-elect-resource-name", "text", lease, "Name of the lease."),
        Flag("leader-elect-resource-namespace", "text", SYSTEM_NAMESPACE, "Namespace of the lease."),
        Flag("leader-elect-lease-duration", "duration", "15s", "How long others wait for a silent leader."),
        Flag("leader-elect-renew-deadline", "duration", "10s", "A leader without renewal stops after this."),
        Flag("leader-elect-retry-period", "duration", "2s", "Time between attempts at the lease."),
        Flag("metrics-bind-address", "text", ":8080", "Where /metrics is served; 0 is nowhere."),
        Flag("health-probe-bind-address", "text", health, "Where probes are answered; 0 is nowhere."),
        Flag("feature-gates", "text", "", "Name=true|false, separated by commas."),
        *LOGGING_AND_PROFILING,
    )


SCHEDULER_FLAGS: tuple[Flag, ...] = (
    Flag(
        "scheduler-name", "text", SCHEDULER_NAME, "Place bindings whose policy names this as schedulerName."
    ),
    Flag("plugins", "list", ("*",), "Filters and scores to run; * is all, -Name leaves one out."),
    Flag(
        "enable-empty-workload-propagation",
        "switch",
        False,
        "Send workloads also to chosen clusters that get no replicas.",
    ),
    *_estimators(enabled=False),
    *_controller(SCHEDULER_NAME, ":10351"),
    Flag("rate-limiter-base-delay", "duration", "5ms", "Without priorities: first delay after a failure."),
    Flag("rate-limiter-max-delay", "duration", "1000s", "Without priorities: longest delay."),
    ignored("rate-limiter-qps", "number", 10, "Retries per second in all."),
    ignored("rate-limiter-bucket-size", "number", 100, "Retries at once."),
    # Ours.
    Flag("dry-run", "switch", False, "Print decisions and write nothing."),
    Flag("workers", "number", 16, "Bindings written at once; decisions are taken one after the other."),
    Flag(
        "availability",
        "text",
        MERGES[0],
        "How an estimator's answer and the cluster's summary become one number.",
        choices=MERGES,
    ),
    Flag("assumption-ttl", "duration", "5m", "A promise whose pods never come is given up after this."),
    Flag(
        "assumption-ttl-limit", "duration", "30m", "No promise lives longer than this, however often renewed."
    ),
    Flag(
        "estimator-hold-down",
        "duration",
        "1m",
        "So long an estimator's last answer stands when it can no longer be reached.",
    ),
    Flag("partial-placement", "switch", False, "Place what fits when not everything does."),
    Flag(
        "spare-tainted",
        "switch",
        False,
        "Give no further replicas to a cluster whose taints the placement does not tolerate.",
    ),
    Flag("cost", "text", COSTS[0], "Whether cheaper clusters are preferred.", choices=COSTS),
    Flag("unschedulable-retry", "duration", "5m", "Look again after this, even without a sign of room."),
    Flag("grace-period", "duration", "10s", "How long writes under way may take to finish after SIGTERM."),
)

DESCHEDULER_FLAGS: tuple[Flag, ...] = (
    Flag("descheduling-interval", "duration", "2m", "Time between two looks at all bindings."),
    Flag("unschedulable-threshold", "duration", "5m", "A replica that waits longer is taken back."),
    *_estimators(enabled=True),
    *_controller(DESCHEDULER_NAME, ":10358"),
    # Ours.
    Flag(
        "scheduler-names",
        "list",
        (),
        "Only bindings of these schedulers; default: of all. One descheduler per control plane is enough.",
    ),
    Flag(
        "cool-down",
        "duration",
        "10m",
        "So long the scheduler gives a cluster none of the replicas taken from it.",
    ),
    Flag("dry-run", "switch", False, "Print what would be taken back and write nothing."),
    Flag("workers", "number", 8, "Bindings looked at at once."),
)


def defaults(flags: Sequence[Flag]) -> dict[str, Any]:
    return {flag.name: flag.default for flag in flags}


# Of these, nothing would mean without a pause, or no time for an answer.
_NEVER_ZERO = ("descheduling-interval", "unschedulable-retry", "scheduler-estimator-timeout")


def validate(flags: Sequence[Flag], given: Mapping[str, Any]) -> list[str]:
    """What is wrong with a set of flags, a line each."""
    options = defaults(flags) | dict(given)
    checks: list[Callable[[], object]] = [
        lambda: gates.parse(options["feature-gates"]),
        lambda: listener("--metrics-bind-address", options["metrics-bind-address"]),
        lambda: listener("--health-probe-bind-address", options["health-probe-bind-address"]),
        *(partial(check_value, flag, options[flag.name], signed=("v",)) for flag in flags),
        partial(_check_port, options["scheduler-estimator-port"]),
        partial(_check_positive, "workers", options["workers"]),
        *(partial(_check_time, name, options[name]) for name in _NEVER_ZERO if name in options),
        partial(lease_timing, options),
        partial(_check_names, options),
    ]
    errors: list[str] = []
    for check in checks:
        try:
            check()
        except Invalid as error:
            if str(error) not in errors:
                errors.append(str(error))
    return errors


def lease_timing(options: Mapping[str, Any]) -> LeaseTiming:
    """Raises Invalid."""
    names = ("lease-duration", "renew-deadline", "retry-period")
    given = [options[f"leader-elect-{name}"] for name in names]
    try:
        return LeaseTiming(*map(durations.seconds, given))
    except ValueError as error:
        raise Invalid("--leader-elect-*", ", ".join(map(str, given)), str(error)) from None


def enabled_plugins(chosen: Sequence[str]) -> frozenset[str]:
    """Which of PLUGINS run; raises Invalid for a name that nobody knows."""
    names = [name.strip() for name in chosen if name.strip()]
    unknown = [name for name in names if name.removeprefix("-") not in (*PLUGINS, "*")]
    if unknown:
        raise Invalid("--plugins", unknown[0], f"is not a plugin; known are {', '.join(PLUGINS)}")
    wanted = {name for name in names if not name.startswith("-")}
    unwanted = {name[1:] for name in names if name.startswith("-")}
    return frozenset(PLUGINS if "*" in wanted else wanted) - unwanted


def _check_names(options: Mapping[str, Any]) -> None:
    if "scheduler-name" in options and not options["scheduler-name"]:
        raise Invalid("--scheduler-name", "", "must not be empty")
    if "plugins" in options:
        enabled_plugins(options["plugins"])


def _check_port(port: int) -> None:
    if not 1 <= port <= 65535:
        raise Invalid("--scheduler-estimator-port", port, "must be a port between 1 and 65535")


def _check_time(name: str, text: str) -> None:
    if durations.seconds(text) <= 0:
        raise Invalid(f"--{name}", text, "must be longer than nothing")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise Invalid(f"--{name}", value, "must be at least 1")
