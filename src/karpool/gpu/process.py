"""The gpu-scaler as the manager runs it. The lease is kept where smart pods are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from karpool.cluster.market.market import Market
from karpool.gpu.controller.controller import GpuScaler, GpuScalerOptions
from karpool.gpu.controller.metrics import PREFIX, ScaleUpMetrics
from karpool.kube.api.client import Client
from karpool.kube.config import kubeconfig
from karpool.manager.controller import Controller, Environment, LeaseName, ManagerOptions, Place
from karpool.manager.manager import run_process
from karpool.manager.metrics import QueueMetrics
from karpool.manager.stop import Stop
from karpool.provisioning.claims.claim_monitor import ClaimMonitor
from karpool.provisioning.market_file import market_of
from karpool.provisioning.placeholders.choosing import backend
from karpool.provisioning.placeholders.prerequisites import ensure_prerequisites
from karpool.wire.addresses import ListenAddress

COMPONENT = "karpool-gpu-scaler"


@dataclass(frozen=True)
class ProcessOptions:
    """`listen` are the addresses of probes and metrics."""

    kubeconfig: Path | None = None
    context: str = ""
    scaler: GpuScalerOptions = field(default_factory=GpuScalerOptions)
    backend: str = "smart-pod"
    region: str = ""
    catalogue: Path | None = None  # instead of the shipped one
    leader_elect: bool = True
    listen: tuple[ListenAddress, ...] = ()
    original_metric_names: bool = False
    qps: float | None = 50.0
    burst: int = 100
    timeout: float | None = None  # of a request, in seconds


async def run(options: ProcessOptions, stop: Stop, *, ready: Callable[[], None] = lambda: None) -> None:
    """Scale until `stop` is set. Raises as `run_process` does."""
    market = market_of(options.catalogue, options.region)
    await run_process(GPU_SCALER.given(market=market), options, stop, ready=lambda scaler: ready())


def _manages(options: ProcessOptions) -> ManagerOptions:
    lease = LeaseName(COMPONENT, options.scaler.smart_pods.namespace)
    return ManagerOptions(
        clusters=[kubeconfig.load(options.kubeconfig, context=options.context)],
        listen=options.listen,
        lease=lease if options.leader_elect else None,
        qps=options.qps,
        burst=options.burst,
        timeout=options.timeout,
    )


async def _build(
    environment: Environment, options: ProcessOptions, *, market: Market | None = None
) -> GpuScaler:
    monitor, registry = ClaimMonitor(environment.clock), environment.registry
    return GpuScaler(
        environment,
        options.scaler,
        market=market,
        metrics=ScaleUpMetrics(
            registry,
            original_names=options.original_metric_names,
            maximum_age_seconds=options.scaler.settings.maximum_age,
        ),
        monitor=monitor,
        backend=await backend(options.backend, environment.client, options.scaler.smart_pods, monitor),
        tell=QueueMetrics(registry, COMPONENT, environment.clock.monotonic),
    )


async def _namespace_of_lease(client: Client, options: ProcessOptions) -> None:
    await ensure_prerequisites(client, options.scaler.smart_pods)


GPU_SCALER = Controller[ProcessOptions](
    name="gpu-scaler",
    place=Place.EACH_CLUSTER,
    component=lambda options: COMPONENT,
    manages=_manages,
    build=_build,
    before_lease=_namespace_of_lease,
    metrics_prefix=PREFIX,
)
