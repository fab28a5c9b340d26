"""A fraction of a GPU brings a real node, is served from it, and leaves nothing behind."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.access import BUFFERS, give
from e2e.kubectl import Object, condition, wait_for
from e2e.market import GPU
from e2e.member import Member, node_pool, without_nodes
from e2e.scene import Scene

POOL = "shared"
SMART_PODS = "karpool-smart-pods"


@pytest.fixture
def empty(elastic: Member) -> Iterator[Member]:
    with without_nodes(elastic):
        yield elastic


def gpu_pool() -> Object:
    pool = node_pool("gpu", types=GPU)
    template = pool["spec"]["template"]
    # What GPU feature discovery would write on the node.
    template["metadata"] = {
        "labels": {
            "tensor-fusion.ai/gpupool": POOL,
            "nvidia.com/gpu.product": "NVIDIA-A10G",
            "nvidia.com/gpu.memory": "24576",
        }
    }
    template["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]
    return pool


def fraction(name: str, namespace: str, vram: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {
                "tensor-fusion.ai/gpupool": POOL,
                "tensor-fusion.ai/vram-request": vram,
                "tensor-fusion.ai/tflops-request": "20",  # three of them fit the 70 of an A10G
            },
        },
        "spec": {
            "schedulerName": "karpool-gpu-scheduler",
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}},
                }
            ],
        },
    }


@pytest.mark.parametrize("backend", ["smart-pod", "capacity-buffer"])
def test_one_request_brings_one_node_and_two_more_fractions_use_it(
    scene: Scene, empty: Member, backend: str
) -> None:
    kubectl = empty.kubectl
    kubectl.apply(gpu_pool())
    user = "gpu-scaler"
    if backend == "capacity-buffer":
        give(kubectl, BUFFERS, scene.peers["helm"].program("helm"))
        user = BUFFERS.user
    # Simulated machines run nothing, so there is nothing to enforce.
    quick = ("--region=us-east-1", "--debounce=1s", "--accept-unenforced-shares")
    scene.karpool("gpu-scaler", empty, *quick, f"--backend={backend}", user=user)
    namespace = scene.namespace()
    kubectl.apply(fraction("first", namespace, "8Gi"))
    wait_for("the first runs", lambda: len(empty.pods(namespace, phase="Running")) == 1)
    (claim,) = kubectl.items("nodeclaims")
    (pod,) = empty.pods(namespace)
    assert pod["spec"]["nodeName"] == claim["status"]["nodeName"]
    kubectl.apply(*(fraction(name, namespace, "6Gi") for name in ("second", "third")))
    wait_for("all run", lambda: len(empty.pods(namespace, phase="Running")) == 3)
    assert len(kubectl.items("nodeclaims")) == 1
    wait_for("nothing is left", lambda: not _leftovers(empty))


def test_a_request_that_no_machine_holds_buys_nothing(scene: Scene, empty: Member) -> None:
    kubectl = empty.kubectl
    kubectl.apply(gpu_pool())
    scene.karpool("gpu-scaler", empty, "--region=us-east-1", "--debounce=1s", "--accept-unenforced-shares")
    namespace = scene.namespace()
    kubectl.apply(fraction("huge", namespace, "80Gi"))
    said = wait_for(
        "it is told",
        lambda: condition(kubectl.get("pod", "huge", "-n", namespace), "PodScheduled"),
    )
    assert said["reason"] in ("NeverFits", "ScaleUpRejected")
    assert not kubectl.items("nodeclaims")
    assert not kubectl.items("pods", "-n", SMART_PODS)


def _leftovers(member: Member) -> list[str]:
    """What asked for nodes, and records of scale-ups."""
    kinds = ("pods", "podtemplates", "capacitybuffers", "scaleups.gpu.karpool.dev")
    return [
        f"{each['kind']} {each['metadata']['name']} {each.get('status', {}).get('state', '')}"
        for kind in kinds
        for each in member.kubectl.items(kind, "-n", SMART_PODS)
    ]
