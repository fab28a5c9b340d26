"""`karpool gpu-scaler`: fractions of GPUs, and nodes for those that find no room."""

from functools import partial
from typing import Any

import click

from karpool.cli.options.cluster import (
    ClusterOptions,
    DurationParam,
    RegionParam,
    catalogue_option,
    connection_options,
)
from karpool.cli.output.text import note
from karpool.gpu.allocation.allocator import AllocatorSettings
from karpool.gpu.controller.controller import GpuScalerOptions
from karpool.gpu.process import ProcessOptions, run
from karpool.gpu.scale_up.input import ScaleUpSettings
from karpool.gpu.seeing import SCHEDULER_NAME
from karpool.gpu.strategies import strategy as placement
from karpool.gpu.strategies.fragmentation import FragmentationStrategy
from karpool.kube.flags import InvalidOptions
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop
from karpool.model.devices.isolation import DYNAMIC, STATIC
from karpool.model.errors import Invalid
from karpool.provisioning.placeholders.choosing import BACKENDS
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.wire.addresses import listener

_BY_LOAD = (placement.NODE_COMPACT, placement.COMPACT_FIRST, placement.LOW_LOAD_FIRST)
STRATEGIES = (*_BY_LOAD, placement.FRAGMENTATION)
_shown = partial(click.option, show_default=True)
_EPILOG = """Pods ask with TensorFusion's annotations and `schedulerName: karpool-gpu-scheduler`. See what
waits with `karpool get scale-ups` and `karpool explain scale-up NAME`.

Example: karpool gpu-scaler --region eu-west-1 --max-in-flight 5
"""


@click.command("gpu-scaler", epilog=_EPILOG)
@connection_options
@_shown("--scheduler-name", default=SCHEDULER_NAME, help="Serve pods that name this scheduler.")
@click.option("--default-pool", default="", help="GPU pool of pods that name none.")
@catalogue_option
@click.option(
    "--region", type=RegionParam(), default="", help="Region of the cluster, while no node or pool tells."
)
@_shown("--strategy", type=click.Choice(STRATEGIES), default=STRATEGIES[0], help="Which device is taken.")
@_shown("--isolation-policy", type=click.Choice((STATIC, DYNAMIC)), default=STATIC, help="Who sets the mode.")
@_shown("--backend", type=click.Choice(BACKENDS), default=BACKENDS[0], help="How nodes are asked for.")
@_shown("--smart-pod-namespace", default=SmartPodSettings().namespace, help="Of smart pods and records.")
@_shown("--smart-pod-image", default=SmartPodSettings().image, help="An image that only waits.")
@_shown("--max-in-flight", type=click.IntRange(1, 1000), default=15, help="Nodes on their way at once.")
@_shown(
    "--debounce",
    type=DurationParam(),
    default="10s",
    help="How long demand waits before a node is asked for.",
)
@_shown("--pending-limit", type=DurationParam(), default="5m", help="Within this the autoscaler must react.")
@_shown(
    "--device-limit", type=DurationParam(), default="15m", help="Within this a ready node must show devices."
)
@_shown("--hold", type=DurationParam(), default="2m", help="How long devices are reserved for the hand-off.")
@_shown("--leader-elect/--no-leader-elect", default=True, help="Act only while holding the lease.")
@_shown("--metrics-bind-address", default=":8080", help="Where /metrics is served; 0 is nowhere.")
@_shown("--health-probe-bind-address", default=":8081", help="Where probes are answered; 0 is nowhere.")
@click.option("--original-metric-names", is_flag=True, help="Export every metric as tensor_fusion_... too.")
@_shown("--kube-api-qps", type=float, default=50.0, help="Requests per second; 0 is no limit.")
def gpu_scaler(cluster: ClusterOptions, **given: Any) -> None:
    """Give fractions of GPUs to pods, and bring the nodes that are missing.

    A request that finds no room becomes a smart pod; the autoscaler answers with a node; when its devices are
    there the smart pod goes and the request gets them. Nothing is bought for what could never fit.
    """
    options = _options(cluster, given)

    async def serve(stop: Stop) -> None:
        await run(options, stop, ready=lambda: note("scaling; waiting pods are told why they wait"))

    run_until_signalled(serve)


def _options(cluster: ClusterOptions, given: dict[str, Any]) -> ProcessOptions:
    usual = ScaleUpSettings()
    # A smart pod may live as long as all the stages that it is allowed to wait for.
    stages = given["pending_limit"] + usual.launch_limit + given["device_limit"] + 2 * given["hold"]
    maximum_age = max(usual.maximum_age, stages)
    try:
        listen = [
            listener(f"--{flag.replace('_', '-')}", given[flag])
            for flag in ("metrics_bind_address", "health_probe_bind_address")
        ]
        smart_pods = SmartPodSettings(
            namespace=given["smart_pod_namespace"],
            image=given["smart_pod_image"],
            maximum_age_seconds=maximum_age,
            active_deadline_seconds=int(maximum_age) + 300,
        )
    except Invalid as error:
        raise InvalidOptions(str(error)) from None
    settings = ScaleUpSettings(
        debounce=given["debounce"],
        pending_limit=given["pending_limit"],
        device_limit=given["device_limit"],
        hold=given["hold"],
        maximum_age=maximum_age,
        max_in_flight=given["max_in_flight"],
    )
    name = given["strategy"]
    strategy = placement.by_load(name) if name in _BY_LOAD else FragmentationStrategy()
    allocator = AllocatorSettings(strategy=strategy, policy=given["isolation_policy"])
    scaler = GpuScalerOptions(
        settings=settings,
        smart_pods=smart_pods,
        allocator=allocator,
        scheduler_name=given["scheduler_name"],
        default_pool=given["default_pool"],
    )
    return ProcessOptions(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context or "",
        scaler=scaler,
        backend=given["backend"],
        region=given["region"],
        catalogue=given["catalogue"],
        leader_elect=given["leader_elect"],
        listen=tuple(dict.fromkeys(address for address in listen if address is not None)),
        original_metric_names=given["original_metric_names"],
        qps=given["kube_api_qps"] or None,
        timeout=cluster.request_timeout_seconds,
    )
