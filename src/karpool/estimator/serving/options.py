"""The options of `karpool estimator`: all of karmada-scheduler-estimator's, and ours.

Manifests written for the Go binary start this one unchanged, so every flag of it is
accepted with its default; those that have no effect here say so in their help. What
cannot work is refused before anything starts, in the words of the Go binary where it has some.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from karpool.manager.feature_gates import Gates, estimator_gates
from karpool.manager.go_options import GoLogOptions
from karpool.manager.options import Amount, Count, Duration, Options, ProbeOptions, option
from karpool.model.errors import Invalid
from karpool.wire.addresses import PORT

POTENTIAL_NODES_MAX = 1000  # per pool: more than a cloud account provides at once


class GrpcServerOptions(Options, frozen=True):
    server_port: Annotated[int, option("Port of the gRPC service, on all interfaces.")] = PORT
    cert_file: Annotated[
        str,
        option("Server certificate. Default: none, serve plaintext.", flag="grpc-auth-cert-file"),
    ] = ""
    key_file: Annotated[
        str, option("Key of the server certificate. Default: none.", flag="grpc-auth-key-file")
    ] = ""
    client_ca_file: Annotated[
        str,
        option(
            "Certificate authority of client certificates. Default: none, clients need no certificate.",
            flag="grpc-client-ca-file",
        ),
    ] = ""
    skips_client_verify: Annotated[
        bool,
        option(
            "Do not require client certificates, even if an authority is given.",
            flag="insecure-skip-grpc-client-verify",
        ),
    ] = False

    def problems(self) -> Iterator[Invalid | str]:
        if not 0 <= self.server_port <= 65535:
            problem = "must be a valid port between 0 and 65535 inclusive"
            yield f"Options.ServerPort: Invalid value: {self.server_port}: {problem}"


class MemberConnectionOptions(Options, frozen=True):
    kubeconfig: Annotated[
        str, option("Kubeconfig of the member cluster. Default: --master, or the service account of the pod.")
    ] = ""
    master: Annotated[
        str, option("Address of the member's API server. Default: the address in the kubeconfig.")
    ] = ""
    kube_api_qps: Annotated[Amount, option("Maximum requests per second to the member's API server.")] = 20.0
    kube_api_burst: Annotated[Count, option("Maximum burst of requests to the member's API server.")] = 30


class EstimatorOptions(Options, frozen=True):
    command: ClassVar[str] = "estimator"
    chart: ClassVar[str] = "estimator"
    go_flags: ClassVar[bool] = True

    connection: Annotated[MemberConnectionOptions, option(process_only=True)] = MemberConnectionOptions()
    cluster_name: Annotated[
        str,
        option("Name of the member cluster; requests for other names are refused. Default: accept any name."),
    ] = ""
    grpc: Annotated[GrpcServerOptions, option(process_only=True)] = GrpcServerOptions()
    parallelism: Annotated[int, option("Workers per request.", ignored=True)] = 0
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions(
        health_probe_bind_address=":10351"
    )
    feature_gates: Annotated[
        str, option("Feature gates: Name=true|false, separated by commas. Default: the default of each gate.")
    ] = ""
    logs: Annotated[GoLogOptions, option(process_only=True)] = GoLogOptions()
    # From karmada#7376.
    plugins: Annotated[
        tuple[str, ...],
        option(
            "Plugins to run; * means all, -Name excludes one. Default: the plugins of Karmada.",
            chart="plugins",
        ),
    ] = ()
    node_capacity_providers: Annotated[
        tuple[str, ...],
        option(
            "Autoscalers whose future nodes count: karpenter, cluster-autoscaler. Default: none.",
            chart="nodeCapacityProviders",
            pattern="^(karpenter|cluster-autoscaler)$",
        ),
    ] = ()
    # Our own.
    autoscaler_model: Annotated[
        Literal["limits", "packing"],
        option("packing: pack replicas into instance types. limits: divide the rest of each pool's limits."),
    ] = "packing"
    catalogue: Annotated[
        str,
        option("File of instance types and prices; see docs/catalogue.md. Default: the shipped catalogue."),
    ] = ""
    contract: Annotated[
        str,
        option(
            "File of discounts, reservations and commitments; see docs/contracts.md. Default: list prices."
        ),
    ] = ""
    device_shapes: Annotated[
        str,
        option(
            "File of ResourceSlices that drivers publish on new nodes, labelled with their instance type."
            " Default: what nodes of the type publish, else the GPUs of the catalogue."
        ),
    ] = ""
    region: Annotated[
        str,
        option(
            "Region whose instance types are used if a cluster does not name one. Default: none, "
            "the answer is -1.",
            chart="region",
        ),
    ] = ""
    max_potential_nodes: Annotated[
        Count,
        option("Maximum number of new nodes counted per pool or node group, even if it has no limits."),
    ] = POTENTIAL_NODES_MAX
    failure_threshold_seconds: Annotated[
        Duration,
        option(
            "Stop counting a pool that has launched nothing for this long while pods wait.",
            flag="failure-threshold",
        ),
    ] = 180.0
    recovery_interval_seconds: Annotated[
        Duration,
        option(
            "Offer one node of a failed pool after this time, doubled after each failure.",
            flag="recovery-interval",
        ),
    ] = 600.0
    plugin_timeout_seconds: Annotated[
        Duration, option("Timeout of a plugin of another package.", flag="plugin-timeout")
    ] = 1.0
    max_staleness_seconds: Annotated[
        Duration,
        option(
            "Answer -1 if the API server has sent nothing for this long; 0 disables the check.",
            flag="max-staleness",
        ),
    ] = 600.0
    until_synced: Annotated[
        Literal["", "unavailable", "unknown"],
        option("Answer until every pod is counted: UNAVAILABLE, or -1 (the default with --fleet)."),
    ] = ""
    quota_scopes: Annotated[
        Literal["any", "all"], option("Whether any or all selectors of a quota must match.")
    ] = "any"
    unschedulable_kinds: Annotated[
        tuple[str, ...], option("Kinds of workload that GetUnschedulableReplicas counts. Default: all.")
    ] = ()
    fleet: Annotated[
        bool, option("Serve many clusters: each context of --kubeconfig, or each file if it is a folder.")
    ] = False
    karmada_kubeconfig: Annotated[
        str,
        option(
            "With --fleet: serve the members of this control plane. Members without a Secret need "
            "a file in the folder of --kubeconfig."
        ),
    ] = ""
    grace_period_seconds: Annotated[
        Duration,
        option("How long calls in progress may take after SIGTERM.", flag="grace-period"),
    ] = 10.0
    max_concurrent_requests: Annotated[
        Count, option("Maximum number of concurrent calls; more are refused.")
    ] = 1000

    def problems(self) -> Iterator[Invalid | str]:
        if not self.cluster_name and not self.fleet:
            yield 'Options.ClusterName: Invalid value: "": clusterName cannot be empty'
        if self.karmada_kubeconfig and not self.fleet:
            yield Invalid("--karmada-kubeconfig", self.karmada_kubeconfig, "needs --fleet")
        try:
            estimator_gates(self.feature_gates)
        except Invalid as error:
            yield error
        if self.plugins or self.node_capacity_providers:
            yield from _plugin_problems(self.plugins, self.node_capacity_providers)

    @property
    def gates(self) -> Gates:
        return estimator_gates(self.feature_gates)

    @property
    def answers_unknown_until_synced(self) -> bool:
        """With many clusters, one that is not synced yet must not cost a caller the others' answers."""
        return self.until_synced == "unknown" or (not self.until_synced and self.fleet)


def _plugin_problems(plugins: Sequence[str], providers: Sequence[str]) -> Iterator[Invalid | str]:
    # Imports numpy and the plugins of other packages: not for --help.
    from karpool.estimator.plugins import node_autoscaler, node_resource, registry

    repeated = [name for name in dict.fromkeys(providers) if providers.count(name) > 1]
    yield from (f'duplicate node capacity provider "{name}"' for name in repeated)
    available = sorted(registry.known_providers())
    for name in dict.fromkeys(providers):
        if name not in available:
            yield f'unknown node capacity provider "{name}" (available: [{" ".join(available)}])'
    try:
        enabled = registry.chosen(plugins, (), registry.known(plugins))
    except Invalid as error:
        yield error
        return
    if providers and plugins and not {node_resource.NAME, node_autoscaler.NAME} & set(enabled):
        reason = "--node-capacity-providers requires NodeResourceEstimator to be enabled in --plugins"
        yield Invalid("--plugins", ",".join(plugins), reason)
