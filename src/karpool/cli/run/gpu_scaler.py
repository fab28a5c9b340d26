"""`karpool gpu-scaler`: fractions of GPUs, and nodes for those that find no room."""

from karpool.cli.options.parameters import controller_command
from karpool.gpu.controller.options import GpuScalerOptions


def _gpu_scaler(options: GpuScalerOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.gpu.process import GPU_SCALER

    serve(GPU_SCALER, options, ready=lambda scaler: "scaling; waiting pods are told why they wait")


gpu_scaler = controller_command(
    GpuScalerOptions,
    _gpu_scaler,
    help_text="""Give fractions of GPUs to pods, and bring the nodes that are missing.

    A request that finds no room becomes a smart pod; the autoscaler answers with a node; when its devices are
    there the smart pod goes and the request gets them. Nothing is bought for what could never fit.
    """,
    epilog="""Pods ask with TensorFusion's annotations and `schedulerName: karpool-gpu-scheduler`. See what
waits with `karpool get scale-ups` and `karpool explain scale-up NAME`.

Example: karpool gpu-scaler --region eu-west-1 --max-in-flight 5
""",
)
