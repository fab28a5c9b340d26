"""The flags of `karpool estimator`: all of karmada-scheduler-estimator's, and ours.

Manifests written for the Go binary start this one unchanged, so every flag of it is
accepted with its default; those that have no effect here say so in their help. What
cannot work is refused before anything starts.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from karpool.estimator import gates
from karpool.estimator.plugins import node_autoscaler, node_resource, registry
from karpool.estimator.providers import karpenter
from karpool.kube.flags import LOGGING_AND_PROFILING, Flag, check_value, ignored
from karpool.model.errors import Invalid
from karpool.wire.addresses import PORT, listener

FLAGS: tuple[Flag, ...] = (
    Flag(
        "kubeconfig",
        "text",
        "",
        "Kubeconfig of the member cluster. Without it and --master: the pod's own account.",
    ),
    Flag("master", "text", "", "Address of the member's API server, instead of the kubeconfig's."),
    Flag("cluster-name", "text", "", "Name of the member cluster; a request for another one is refused."),
    Flag("server-port", "number", PORT, "Port of the gRPC service, on all interfaces."),
    Flag("grpc-auth-cert-file", "text", "", "Certificate of the server; without it and the key: plaintext."),
    Flag("grpc-auth-key-file", "text", "", "Key of the server's certificate."),
    Flag("grpc-client-ca-file", "text", "", "Authority that client certificates must come from."),
    Flag(
        "insecure-skip-grpc-client-verify",
        "switch",
        False,
        "Ask clients for no certificate, although an authority is given.",
    ),
    Flag("kube-api-qps", "real", 20.0, "Requests per second to the member's API server."),
    Flag("kube-api-burst", "number", 30, "Requests at once to the member's API server."),
    ignored("parallelism", "number", 0, "Workers per request."),
    Flag("metrics-bind-address", "text", ":8080", "Where /metrics is served; 0 is nowhere."),
    Flag(
        "health-probe-bind-address",
        "text",
        ":10351",
        "Where /healthz, /livez and /readyz are served; 0 is nowhere.",
    ),
    Flag("feature-gates", "text", "", "Name=true|false, separated by commas."),
    *LOGGING_AND_PROFILING,
    # Of karmada#7376.
    Flag("plugins", "list", (), "Plugins to run; * is all, -Name leaves one out. Default: those of Karmada."),
    Flag(
        "node-capacity-providers",
        "list",
        (),
        "Autoscalers whose future nodes count: karpenter, cluster-autoscaler.",
    ),
    # Ours.
    Flag(
        "autoscaler-model",
        "text",
        registry.PACKING,
        "How future nodes are counted: packing into instance types, or limits alone, divided.",
        choices=(registry.LIMITS, registry.PACKING),
    ),
    Flag(
        "catalogue",
        "text",
        "",
        "File of instance types and prices, instead of the shipped; docs/catalogue.md.",
    ),
    Flag("region", "text", "", "Region whose instance types count. Default: what the cluster's objects say."),
    Flag(
        "max-potential-nodes",
        "number",
        karpenter.NODES_MAX,
        "New nodes that one pool or node group counts for at most, also without limits.",
    ),
    Flag("failure-threshold", "duration", "3m", "A pool that launches nothing for so long stops counting."),
    Flag("recovery-interval", "duration", "10m", "A pool that failed counts again after this."),
    Flag("plugin-timeout", "duration", "1s", "How long a plugin of another package may take."),
    Flag(
        "max-staleness",
        "duration",
        "10m",
        "Without word from the API server for so long, answer -1; 0 is never.",
    ),
    Flag(
        "until-synced",
        "text",
        "",
        "What is answered until every pod is counted: UNAVAILABLE, or -1 (the default with --fleet).",
        choices=("", "unavailable", "unknown"),
    ),
    Flag(
        "quota-scopes",
        "text",
        "any",
        "Whether any or all selectors of a quota must match.",
        choices=("any", "all"),
    ),
    Flag("unschedulable-kinds", "list", (), "Kinds that GetUnschedulableReplicas answers for. Default: all."),
    Flag(
        "fleet",
        "switch",
        False,
        "Serve many clusters: each context of --kubeconfig, or each file if it is a folder.",
    ),
    Flag("grace-period", "duration", "10s", "How long calls under way may take to finish after SIGTERM."),
    Flag("max-concurrent-requests", "number", 1000, "Calls at once; more are refused."),
)
SIGNED = ("server-port", "parallelism", "v")  # checked elsewhere, or not at all, as the Go binary does
BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}


def defaults() -> dict[str, Any]:
    return {flag.name: flag.default for flag in FLAGS}


def validate(given: Mapping[str, Any], plugins: Collection[str] | None = None) -> list[str]:
    """What is wrong with a set of flags, in the words of the Go binary where it has some.

    `plugins` are the known names; those of this installation by default.
    """
    options = defaults() | dict(given)
    errors: list[str] = []
    if not options["cluster-name"] and not options["fleet"]:
        errors.append('Options.ClusterName: Invalid value: "": clusterName cannot be empty')
    port = options["server-port"]
    if not 0 <= port <= 65535:
        errors.append(
            f"Options.ServerPort: Invalid value: {port}: must be a valid port between 0 and 65535 inclusive"
        )
    errors += _provider_errors(options["node-capacity-providers"])
    known = registry.known(options["plugins"]) if plugins is None else {*registry.IN_TREE, *plugins}
    checks: list[Callable[[], object]] = [
        lambda: gates.parse(options["feature-gates"]),
        lambda: listener("--metrics-bind-address", options["metrics-bind-address"]),
        lambda: listener("--health-probe-bind-address", options["health-probe-bind-address"]),
        lambda: _check_plugins(options["plugins"], options["node-capacity-providers"], known),
        *(partial(check_value, flag, options[flag.name], signed=SIGNED) for flag in FLAGS),
    ]
    for check in checks:
        try:
            check()
        except Invalid as error:
            errors.append(str(error))
    return errors


def _provider_errors(providers: Sequence[str]) -> list[str]:
    errors = [f'duplicate node capacity provider "{each}"' for each in _repeated(providers)]
    available = sorted(registry.known_providers())
    for fromkey in dict.fromkeys(providers):
        if fromkey not in available:
            shown = " ".join(available)
            errors.append(f'unknown node capacity provider "{fromkey}" (available: [{shown}])')
    return errors


def _check_plugins(plugins: Sequence[str], providers: Sequence[str], known: Collection[str]) -> None:
    enabled = registry.chosen(plugins, (), known)
    if providers and plugins and not {node_resource.NAME, node_autoscaler.NAME} & set(enabled):
        reason = "--node-capacity-providers requires NodeResourceEstimator to be enabled in --plugins"
        raise Invalid("--plugins", ",".join(plugins), reason)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if names.count(name) > 1]
