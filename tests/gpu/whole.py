"""Words for stories about GPU requests in whole embedded clusters."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from karpool.cluster.market.market import Market
from karpool.gpu.controller.controller import GpuScaler
from karpool.gpu.controller.metrics import ScaleUpMetrics
from karpool.gpu.controller.options import SCHEDULER_NAME, GpuScalerOptions
from karpool.gpu.records.scale_up_object import SCALEUPS
from karpool.manager.manager import Manager
from karpool.model.kubernetes.api_resources import PODS, ListOptions
from karpool.model.kubernetes.pod import Pod
from karpool.provisioning.placeholders.smart_pod import SELECTOR
from karpool_fleet.clusters.live import LiveCluster
from karpool_fleet.runtime.supervisor import Context
from tests.fleet.living import play

T = TypeVar("T")
Object = dict[str, Any]
COMPONENT = "gpu-scaler"


def gpu_pool(name: str, *types: str, weight: int | None = None, **spec: Any) -> Object:
    """A NodePool of the GPU pool `shared`, with the usual taint."""
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}]
    requirements.append({"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]})
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {
            **({"weight": weight} if weight else {}),
            **spec,
            "template": {
                "metadata": {"labels": {"tensor-fusion.ai/gpupool": "shared"}},
                "spec": {
                    "nodeClassRef": {
                        "group": "karpenter.kwok.sh",
                        "kind": "KWOKNodeClass",
                        "name": "default",
                    },
                    "taints": [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}],
                    "requirements": requirements,
                },
            },
        },
    }


def worker(name: str, *, vram: str = "8Gi", tflops: str = "30", cpu: str = "500m", **more: str) -> Object:
    """A pod that asks for a fraction of a GPU; `more` are annotations, underscores for dashes."""
    given = {"gpupool": "shared", "vram-request": vram, "tflops-request": tflops}
    given |= {key.replace("_", "-"): value for key, value in more.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {f"tensor-fusion.ai/{key}": value for key, value in given.items()},
        },
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "model:1",
                    "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}},
                }
            ],
        },
    }


class Story:
    """A cluster with a scaler in it."""

    def __init__(self, cluster: LiveCluster) -> None:
        self.cluster = cluster
        self.client = cluster.embedded.client("people")
        self.scaler: GpuScaler | None = None

    def start(self, options: GpuScalerOptions | None = None, metrics: ScaleUpMetrics | None = None) -> None:
        # Embedded kubelets run nothing: there is nothing to enforce.
        settings = options or GpuScalerOptions(accept_unenforced_shares=True)

        def build(context: Context) -> Manager[GpuScaler]:
            market = Market(self.cluster.catalogue)
            manager = Manager.of(
                context.client,
                lambda environment: GpuScaler(environment, settings, market=market, metrics=metrics),
            )
            self.scaler = manager.runnable
            return manager

        self.cluster.embedded.add(COMPONENT, build)

    async def add(self, *pods: Object) -> None:
        for pod in pods:
            await self.client.create(PODS, pod)

    async def pod(self, name: str) -> Pod:
        return await self.client.get(PODS, name, namespace="default", into=Pod)

    async def bound(self, *names: str) -> bool:
        return all([(await self.pod(name)).spec.node_name for name in names])

    async def smart_pods(self) -> list[Pod]:
        return (await self.client.list(PODS, ListOptions(label_selector=SELECTOR), into=Pod)).items

    async def records(self) -> list[Object]:
        return (await self.client.list(SCALEUPS)).items

    async def clean(self) -> bool:
        return not await self.smart_pods() and not await self.records()


def tell(
    story: Callable[[Story], Awaitable[T]],
    *objects: Object,
    options: GpuScalerOptions | None = None,
    metrics: ScaleUpMetrics | None = None,
    **spec: Any,
) -> T:
    async def begin(cluster: LiveCluster) -> T:
        told = Story(cluster)
        told.start(options, metrics)
        return await story(told)

    return play(begin, *objects, **spec)
