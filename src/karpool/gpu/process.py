"""The gpu-scaler as the manager runs it. Its lease is in the namespace of smart pods."""

from karpool.cluster.market.market import Market
from karpool.gpu.controller.controller import GpuScaler
from karpool.gpu.controller.metrics import PREFIX, ScaleUpMetrics
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.manager.metrics import QueueMetrics
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.device_shapes import device_shapes_of
from karpool.provisioning.market_file import market_of
from karpool.provisioning.node_request import RequestPurpose
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.provisioning.placeholders.registry import backend

COMPONENT = "karpool-gpu-scaler"


def _manages(options: GpuScalerOptions) -> ManagerOptions:
    lease = LeaseName(COMPONENT, options.smart_pod_namespace)
    # Errors in these files are reported before anything starts.
    market_of(options.catalogue, options.region, options.contract)
    device_shapes_of(options.device_shapes)
    return ManagerOptions(
        clusters=[kubeconfig.load(options.connection.kubeconfig, context=options.connection.context)],
        listen=options.probes.addresses,
        lease=lease if options.leader_elect else None,
        qps=options.kube_api_qps or None,
        timeout=options.connection.timeout_seconds,
        max_staleness_seconds=options.watch.max_staleness_seconds,
    )


async def _build(
    environment: Environment, options: GpuScalerOptions, *, market: Market | None = None
) -> GpuScaler:
    monitor, registry = ClaimMonitor(environment.clock), environment.registry
    return GpuScaler(
        environment,
        options,
        market=market
        if market is not None
        else market_of(
            options.catalogue, options.region, options.contract, contract_cluster=options.contract_cluster
        ),
        metrics=ScaleUpMetrics(
            registry,
            original_names=options.original_metric_names,
            maximum_age_seconds=options.maximum_age_seconds,
        ),
        monitor=monitor,
        backend=await backend(
            options.backend, environment.client, options.smart_pods, monitor, RequestPurpose.SCALE_UP
        ),
        shapes=device_shapes_of(options.device_shapes),
        tell=QueueMetrics(registry, COMPONENT, environment.clock.monotonic),
    )


async def _namespace_of_lease(client: Client, options: GpuScalerOptions) -> None:
    await ensure_prerequisites(client, options.smart_pods)


GPU_SCALER = Controller[GpuScalerOptions](
    name="gpu-scaler",
    place=Place.EACH_CLUSTER,
    component=lambda options: COMPONENT,
    manages=_manages,
    build=_build,
    before_lease=_namespace_of_lease,
    metrics_prefix=PREFIX,
)
