"""`karpool top gpus`: every device once, whoever hands it out, with its holders and what is free."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karpool.cli.main import run

Object = dict[str, Any]
GFD_A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
T4S = "GPU-1,10,15360,100,NVIDIA-Tesla T4,0,true:GPU-2,10,15360,100,NVIDIA-Tesla T4,0,true:"


def node(
    name: str = "n", *, labels: Object | None = None, annotations: Object | None = None, **units: int
) -> Object:
    offered = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    offered |= {key.replace("__", "/").replace("_", "."): str(number) for key, number in units.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
        "status": {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, node_name: str = "n", *, namespace: str = "team", **more: Any) -> Object:
    requests = more.pop("requests", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **more},
        "spec": {
            "nodeName": node_name,
            "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
        },
        "status": {"phase": "Running"},
    }


@pytest.fixture
def top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def shown(*objects: Object, output: str = "table") -> str:
        file = tmp_path / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        assert run(["top", "gpus", "--snapshot", str(file), "-o", output], "karpool") == 0
        return capsys.readouterr().out

    return shown


@pytest.fixture
def items_of(top: Callable[..., str]) -> Callable[..., list[Object]]:
    return lambda *objects: json.loads(top(*objects, output="json"))["items"]


def test_whole_devices_are_held_or_free(items_of: Callable[..., list[Object]]) -> None:
    first, second = items_of(
        node(labels=GFD_A100, nvidia_com__gpu=2), pod("trains", requests={"nvidia.com/gpu": "1"})
    )
    assert (first["model"], first["memoryBytes"]) == ("A100-SXM4-80GB", 81920 * 2**20)
    assert (first["holders"], first["free"]["units"]) == ([], 1)
    assert second["holders"] == [{"pod": "team/trains", "units": 1}]
    assert second["free"] == {"units": 0, "memoryBytes": 0}
    assert not second["shareable"]


def test_shares_of_hami_are_on_the_devices_that_its_scheduler_chose(
    items_of: Callable[..., list[Object]],
) -> None:
    share = pod(
        "infers",
        requests={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"},
        annotations={"hami.io/vgpu-devices-allocated": "GPU-2,NVIDIA,4096,0:;"},
    )
    register = {"hami.io/node-nvidia-register": T4S}
    first, second = items_of(node(annotations=register, nvidia_com__gpu=20), share)
    assert (first["device"], first["holders"], first["shareable"]) == ("GPU-1", [], True)
    assert first["handedOutBy"] == "hami-device-plugin"
    assert second["holders"] == [{"pod": "team/infers", "memoryBytes": 4096 * 2**20}]
    assert second["free"]["memoryBytes"] == (15360 - 4096) * 2**20


def test_a_device_that_kai_shares_shows_its_sharers_not_its_reservation(
    items_of: Callable[..., list[Object]],
) -> None:
    group = {"runai-gpu-group": "g"}
    reservation = pod(
        "gpu-reservation-n-x",
        namespace="kai-resource-reservation",
        labels=group,
        requests={"nvidia.com/gpu": "1"},
    )
    half = pod("half", labels=group, annotations={"gpu-fraction": "0.5"})
    some = pod("some", labels=group, annotations={"gpu-memory": "20000"})
    items = items_of(node(labels=GFD_A100, nvidia_com__gpu=4), reservation, half, some)
    assert [item["handedOutBy"] for item in items] == ["nvidia-device-plugin"] * 3 + ["kai-scheduler"]
    assert [holder["pod"] for holder in items[3]["holders"]] == ["team/half", "team/some"]
    assert items[3]["free"]["memoryBytes"] == (81920 - 40960 - 20000) * 2**20
    assert all(item["shareable"] for item in items)


def test_gpu_objects_are_the_truth(items_of: Callable[..., list[Object]]) -> None:
    gpu = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {"name": "gpu-a", "labels": {"tensor-fusion.ai/managed-by": "n"}},
        "status": {
            "phase": "Running",
            "gpuModel": "L4",
            "capacity": {"tflops": "121", "vram": "23034Mi"},
            "nodeSelector": {"kubernetes.io/hostname": "n"},
        },
    }
    worker = pod(
        "worker",
        labels={"tensor-fusion.ai/component": "worker"},
        annotations={
            "tensor-fusion.ai/vram-request": "8Gi",
            "tensor-fusion.ai/tflops-request": "30",
            "tensor-fusion.ai/gpupool": "",
            "tensor-fusion.ai/gpu-ids": "gpu-a",
        },
    )
    (item,) = items_of(node(labels={"kubernetes.io/hostname": "n"}, nvidia_com__gpu=1), gpu, worker)
    assert (item["device"], item["model"], item["handedOutBy"]) == ("gpu-a", "L4", "tensor-fusion")
    assert item["shareable"]
    assert item["holders"] == [{"pod": "team/worker", "memoryBytes": 8 * 2**30, "tflops": "30"}]
    assert item["free"]["memoryBytes"] == 23034 * 2**20 - 8 * 2**30


def test_devices_of_a_driver_are_held_by_the_pods_of_their_claims(
    items_of: Callable[..., list[Object]],
) -> None:
    attributes = {"type": {"string": "gpu"}, "productName": {"string": "NVIDIA H100 80GB HBM3"}}
    devices = [
        {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}}
        for name in ("gpu-0", "gpu-1")
    ]
    gpus = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n-gpu"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }
    channels = json.loads(json.dumps(gpus).replace("gpu.nvidia.com", "compute-domain.nvidia.com"))
    channels["metadata"]["name"] = "n-channels"
    result = {"request": "one", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-1"}
    request = {
        "name": "one",
        "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
    }
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "train-gpu", "namespace": "team", "uid": "u"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    user = pod("train")
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "train-gpu"}]
    first, second = items_of(node(), gpus, channels, claim, user)
    assert (first["device"], first["model"], first["memoryBytes"]) == (
        "gpu-0",
        "H100-SXM5-80GB",
        81559 * 2**20,
    )
    assert first["handedOutBy"] == "gpu.nvidia.com (DRA)"
    assert (first["holders"], first["free"]["units"]) == ([], 1)
    assert second["holders"] == [{"pod": "team/train", "units": 1}]
    assert second["free"] == {"units": 0, "memoryBytes": 0}


def test_time_slices_are_shares_of_a_device(items_of: Callable[..., list[Object]]) -> None:
    labels = {
        "nvidia.com/gpu.product": "Tesla-T4-SHARED",
        "nvidia.com/gpu.memory": "15360",
        "nvidia.com/gpu.replicas": "4",
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    pods = [pod(f"p{number}", requests={"nvidia.com/gpu": "1"}) for number in range(3)]
    first, second = items_of(node(labels=labels, nvidia_com__gpu=8), *pods)
    assert (first["free"]["units"], second["free"]["units"]) == (4, 1)
    assert [holder["pod"] for holder in second["holders"]] == ["team/p0", "team/p1", "team/p2"]


def test_what_cannot_be_read_is_said(top: Callable[..., str]) -> None:
    shown = top(node(annotations={"hami.io/node-nvidia-register": "[{"}, nvidia_com__gpu=20))
    assert shown.startswith("no GPUs in cluster.json\n")
    assert "Node n: annotation hami.io/node-nvidia-register cannot be read" in shown


def test_people_see_a_line_per_device(top: Callable[..., str]) -> None:
    objects = [node(labels=GFD_A100, nvidia_com__gpu=2), pod("trains", requests={"nvidia.com/gpu": "1"})]
    lines = top(*objects).splitlines()
    assert lines[-1] == "cluster.json: 2 devices on 1 node, 1 with no holder"
    assert lines[1].split() == ["n", "n-gpu-0", "A100-SXM4-80GB", "81920Mi", "-", "yes", "-"]
    assert lines[2].split() == ["n", "n-gpu-1", "A100-SXM4-80GB", "81920Mi", "-", "no", "team/trains"]
    assert "nvidia-device-plugin" in top(*objects, output="wide")


def published(driver: str, *devices: Object, slices: int = 1, **spec: Any) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{driver}-{len(devices)}-{len(spec)}"},
        "spec": {
            "driver": driver,
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": slices},
            **({"devices": list(devices)} if devices else {}),
            **spec,
        },
    }


def device(name: str, memory: str, counters: int = 0, **attributes: str) -> Object:
    uses = [{"counterSet": "card", "counters": {"slices": {"value": str(counters)}}}] if counters else []
    return {
        "name": name,
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "capacity": {"memory": {"value": memory}},
        **({"consumesCounters": uses} if uses else {}),
    }


@pytest.mark.parametrize(
    ("driver", "attributes", "seen"),
    [
        ("gpu.nvidia.com", {"productName": "NVIDIA L4"}, ("L4", "whole", None)),
        (
            "gpu.nvidia.com",
            {"productName": "NVIDIA H100 80GB HBM3", "profile": "1g.10gb"},
            ("H100-SXM5-80GB", "mig", "1g.10gb"),
        ),
        (
            "gpu.amd.com",
            {"productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": "spx_nps1"},
            ("MI300X", "whole", None),
        ),
        (
            "gpu.amd.com",
            {"productName": "AMD_Instinct_MI300X_OAM", "partitionProfile": "cpx_nps4"},
            ("MI300X", "partition", "cpx_nps4"),
        ),
        ("gpu.intel.com", {"model": "Flex 140"}, ("Flex 140", "whole", None)),
    ],
)
def test_devices_of_each_driver_are_named(
    items_of: Callable[..., list[Object]], driver: str, attributes: dict[str, str], seen: tuple[str, ...]
) -> None:
    (item,) = items_of(node(), published(driver, device("gpu-0", "1Gi", **attributes)))

    assert (item["model"], item["kind"], item["profile"]) == seen
    assert item["memoryBytes"] == 2**30


def test_a_card_that_is_cut_up_is_not_free_as_a_whole(items_of: Callable[..., list[Object]]) -> None:
    parts = [device("mig-0", "10Gi", counters=1), device("mig-1", "10Gi", counters=1)]
    counters = [{"name": "card", "counters": {"slices": {"value": "7"}}}]
    first = published("gpu.nvidia.com", device("gpu-0", "80Gi", counters=7), *parts, slices=2)
    second = published("gpu.nvidia.com", slices=2, sharedCounters=counters)
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n", "device": "mig-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "team"},
        "spec": {"devices": {}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }

    whole = {item["device"]: item["free"]["units"] for item in items_of(node(), first, second)}
    cut = {item["device"]: item["free"]["units"] for item in items_of(node(), first, second, claim)}

    assert whole == {"gpu-0": 1, "mig-0": 1, "mig-1": 1}
    assert cut == {"gpu-0": 0, "mig-0": 0, "mig-1": 1}
