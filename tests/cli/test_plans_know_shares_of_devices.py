"""`karpool plan` on a cluster in which shares of GPUs are given out."""

import json

import pytest
import yaml

from karpool.cli.main import run
from tests.consolidation.cluster_objects import SIZES, flat, node, pod, pool

SHARE = {
    "tensor-fusion.ai/gpupool": "gpu",
    "tensor-fusion.ai/tflops-request": "30",
    "tensor-fusion.ai/vram-request": "6Gi",
}
TYPES = ("g5.xlarge", "g5.2xlarge", "m5.large")


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    monkeypatch.setitem(SIZES, "g5.xlarge", ("4", "16Gi"))
    monkeypatch.setitem(SIZES, "g5.2xlarge", ("8", "32Gi"))


def gpu_node(name, type_="g5.xlarge", gpus=1):
    found, claim = node(name, type_, pool="gpu")
    found["metadata"]["labels"] |= {
        "karpenter.k8s.aws/instance-gpu-name": "a10g",
        "karpenter.k8s.aws/instance-gpu-memory": "24576",
    }
    for amounts in (found["status"]["allocatable"], found["status"]["capacity"]):
        amounts["nvidia.com/gpu"] = str(gpus)
    return found, claim


def trainer(on, device, **more):
    return pod("trainer", on, annotations={**SHARE, "tensor-fusion.ai/gpu-ids": device}, **more)


@pytest.fixture
def plan(tmp_path, capsys):
    def command(*objects):
        path = tmp_path / "prod.yaml"
        path.write_text(yaml.safe_dump_all(flat(*objects)))
        assert run(["plan", "--snapshot", str(path), "-o", "json"], "karpool") == 0
        return json.loads(capsys.readouterr().out)

    return command


def test_a_pod_with_a_share_stays_with_its_device(plan):
    """The share is 0.5 CPU of a g5.xlarge: without the device, an m5.large would do and save money."""
    found = plan(pool("gpu", types=TYPES), gpu_node("gpu-1"), trainer("gpu-1", "gpu-1-gpu-0"))
    assert found["moves"] == []


def test_without_the_annotations_it_would_go(plan):
    found = plan(pool("gpu", types=TYPES), gpu_node("gpu-1"), pod("trainer", "gpu-1"))
    assert [move["nodes"][0]["name"] for move in found["moves"]] == ["gpu-1"]


def test_it_is_not_sent_to_a_node_without_devices(plan):
    objects = pool("gpu", types=TYPES), gpu_node("gpu-1"), node("cpu", "m5.2xlarge", pool="gpu")
    found = plan(*objects, trainer("gpu-1", "gpu-1-gpu-0"), pod("web", "cpu", cpu="6"))
    assert "gpu-1" not in [gone["name"] for move in found["moves"] for gone in move["nodes"]]


def test_it_goes_where_another_device_has_room(plan):
    objects = pool("gpu", types=TYPES), gpu_node("gpu-1"), gpu_node("gpu-2")
    other = pod("other", "gpu-2", annotations={**SHARE, "tensor-fusion.ai/gpu-ids": "gpu-2-gpu-0"})
    found = plan(*objects, trainer("gpu-1", "gpu-1-gpu-0"), other)
    (move,) = found["moves"]
    assert len(move["nodes"]) == 1


def test_two_that_together_need_more_than_a_device_stay_apart(plan):
    large = {**SHARE, "tensor-fusion.ai/vram-request": "16Gi"}
    pods = [
        pod(name, on, annotations={**large, "tensor-fusion.ai/gpu-ids": f"{on}-gpu-0"})
        for name, on in (("a", "gpu-1"), ("b", "gpu-2"))
    ]
    found = plan(pool("gpu", types=("g5.xlarge",)), gpu_node("gpu-1"), gpu_node("gpu-2"), *pods)
    assert found["moves"] == []


def test_a_node_too_large_for_its_share_is_replaced_by_one_with_the_device(plan):
    found = plan(pool("gpu", types=TYPES), gpu_node("gpu-1", "g5.2xlarge"), trainer("gpu-1", "gpu-1-gpu-0"))
    (move,) = found["moves"]
    assert [new["options"][0]["instance_type"] for new in move["new_nodes"]] == ["g5.xlarge"]


def test_a_bare_pod_with_a_share_never_moves(plan):
    bare = trainer("gpu-1", "gpu-1-gpu-0")
    del bare["metadata"]["ownerReferences"]
    assert plan(pool("gpu", types=TYPES), gpu_node("gpu-1", "g5.2xlarge"), bare)["moves"] == []


def test_a_node_whose_pod_holds_a_share_is_not_empty(plan):
    """A pod that may go at no cost leaves its node empty, but not one that a device is given to."""
    objects = pool("gpu", types=TYPES), gpu_node("gpu-1")
    free = {"controller.kubernetes.io/pod-deletion-cost": str(-(2**31) + 1)}
    cheap = pod("cheap", "gpu-1", annotations=free)
    (move,) = plan(*objects, cheap)["moves"]
    assert move["kind"] == "empty"
    cheap["metadata"]["annotations"] |= {**SHARE, "tensor-fusion.ai/gpu-ids": "gpu-1-gpu-0"}
    assert plan(*objects, cheap)["moves"] == []
