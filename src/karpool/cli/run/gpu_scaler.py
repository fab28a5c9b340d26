"""`karpool gpu-scaler`: fractions of GPUs, and nodes for those that find no room."""

from karpool.cli.options.parameters import controller_command
from karpool.gpu.controller.options import GpuScalerOptions


def _gpu_scaler(options: GpuScalerOptions) -> None:
    from karpool.cli.run.serving import serve
    from karpool.gpu.process import GPU_SCALER

    serve(
        GPU_SCALER,
        options,
        ready=lambda scaler: "scaling GPUs; the condition PodScheduled of a pending pod has the reason",
    )


gpu_scaler = controller_command(
    GpuScalerOptions,
    _gpu_scaler,
    help_text="""Allocate fractions of GPUs to pods, and request missing nodes.

    If no GPU has capacity for a request, the scaler creates a smart pod, and the autoscaler launches a node
    for it. When the GPUs of the node are ready, the scaler deletes the smart pod and allocates the GPUs. It
    requests no node for a request that could never fit.
    """,
    epilog="""Pods request GPUs with TensorFusion's annotations and `schedulerName: karpool-gpu-scheduler`.
Show scale-ups with `karpool get scale-ups` and `karpool explain scale-up NAME`.

Example: karpool gpu-scaler --region eu-west-1 --max-in-flight 5
""",
)
