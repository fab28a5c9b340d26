"""Every file of examples/gpu on an embedded cluster: its two pods bring one node, and are bound there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from karpool.gpu.controller.options import GpuScalerOptions
from karpool.model.devices.device import POOL_LABEL
from karpool.model.kubernetes.api_resources import CRDS, GPUS, PODS, RESOURCESLICES
from karpool.model.kubernetes.node import HOSTNAME, INSTANCE_TYPE
from tests.fleet.living import claims, nodes, until
from tests.gpu.test_nodes_for_other_schedulers import DIALECTS, System, resource_slice
from tests.gpu.whole import Object, Story, tell

EXAMPLES = Path(__file__).parents[2] / "examples" / "gpu"
TYPES = {"mig": "p4d.24xlarge", "dra": "g6.12xlarge"}
SHOWN = {name: DIALECTS[name][2:] for name in ("hami", "kai", "volcano", "mig", "time-slices")}


def documents(name: str) -> list[Object]:
    objects: list[Object] = list(yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text()))
    for obj in objects:
        if obj["kind"] == "NodePool":
            embedded = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
            obj["spec"]["template"]["spec"]["nodeClassRef"] = embedded
    return objects


def gpu(node: str) -> Object:
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {
            "name": f"gpu-{node}",
            "labels": {"tensor-fusion.ai/managed-by": node, POOL_LABEL: "shared"},
        },
        "status": {
            "phase": "Running",
            "gpuModel": "L4",
            "capacity": {"tflops": "121", "vram": "23034Mi"},
            "available": {"tflops": "121", "vram": "23034Mi"},
            "nodeSelector": {HOSTNAME: node},
        },
    }


GPU_KIND = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gpus.tensor-fusion.ai"},
    "spec": {
        "group": "tensor-fusion.ai",
        "scope": "Cluster",
        "names": {"plural": "gpus", "singular": "gpu", "kind": "GPU", "listKind": "GPUList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem != "gpu-agent")
)
def test_the_pods_of_an_example_bring_one_node_and_are_bound(name: str) -> None:
    objects = documents(name)
    pods = [obj for obj in objects if obj["kind"] == "Pod"]
    names = [pod["metadata"]["name"] for pod in pods]

    async def story(told: Story) -> None:
        other = System(told)
        if name == "tensor-fusion":
            await told.client.create(CRDS, GPU_KIND)
        for pod in pods:
            await told.client.create(PODS, pod)
        theirs = pods[0]["spec"]["schedulerName"] != "default-scheduler"
        if theirs:
            await other.refuse(*names)
        assert await until(lambda: _is_ready(told), within=400)
        (node,) = await nodes(told.cluster)
        assert node.labels[INSTANCE_TYPE] == TYPES.get(name, "g6.xlarge")
        if name == "dra":
            await told.client.create(RESOURCESLICES, resource_slice(node.name, 4))
        elif name == "tensor-fusion":
            await told.client.create(GPUS, gpu(node.name))
        else:
            await other.show(node.name, *SHOWN[name])
        assert await until(lambda: _none(told.smart_pods()), within=120)
        if theirs:
            await other.bind(node.name, *names)
        assert await until(lambda: told.bound(*names), within=120)
        assert await until(told.clean, within=120)
        assert len(await claims(told.cluster)) == 1

    tell(story, *(obj for obj in objects if obj["kind"] != "Pod"), options=GpuScalerOptions())


async def _is_ready(told: Story) -> bool:
    return any(node.is_ready for node in await nodes(told.cluster))


async def _none(found: Any) -> bool:
    return not await found
