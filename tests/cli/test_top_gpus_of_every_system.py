"""Devices of KAI, TensorFusion, HAMi and drivers through `karpool top gpus`, key by key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from karpool.cli.main import run
from tests.cli.more_node_forms import NODE_FORMS
from tests.cli.test_top_shows_gpus import GFD_A100, Object, items_of, node, pod, top  # noqa: F401

MIB, GIB = 2**20, 2**30
KEYS = {
    "node",
    "device",
    "model",
    "memoryBytes",
    "kind",
    "profile",
    "resource",
    "shareable",
    "handedOutBy",
    "unstable",
    "holders",
    "free",
}
KAI_NODE = {**GFD_A100, "kai.scheduler/node-pool": "default"}
OWN_NAME = {"kubernetes.io/hostname": "n"}
A100, PLUGIN = 81920, "nvidia-device-plugin"


def reservation(group: str, namespace: str = "kai-resource-reservation") -> Object:
    return pod(
        f"gpu-reservation-{group}",
        namespace=namespace,
        labels={"runai-gpu-group": group},
        requests={"nvidia.com/gpu": "1"},
    )


def kai(name: str, group: str = "g", **annotations: str) -> Object:
    asks = {key.replace("_", "-"): value for key, value in annotations.items()}
    return pod(name, labels={"runai-gpu-group": group}, annotations=asks)


def gpu(name: str, on: str = "n", **status: Any) -> Object:
    amount = {"tflops": "121", "vram": "23034Mi"}
    told = {
        "phase": "Running",
        "gpuModel": "L4",
        "capacity": amount,
        "available": amount,
        "nodeSelector": {"kubernetes.io/hostname": on},
        "usedBy": "tensor-fusion",
    }
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {"name": name, "labels": {"tensor-fusion.ai/managed-by": on}},
        "status": {key: value for key, value in (told | status).items() if value is not None},
    }


def worker(name: str, devices: str, **asks: str) -> Object:
    annotations = {"gpupool": "", "gpu-ids": devices} | {k.replace("_", "-"): v for k, v in asks.items()}
    return pod(
        name,
        labels={"tensor-fusion.ai/component": "worker"},
        annotations={f"tensor-fusion.ai/{key}": value for key, value in annotations.items()},
    )


def published(driver: str, *devices: Object) -> Object:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"n-{driver}"},
        "spec": {"driver": driver, "nodeName": "n", "pool": pool, "devices": list(devices)},
    }


def claim(name: str, driver: str, device: str, **more: Any) -> Object:
    result = {"request": "r", "driver": driver, "pool": "n", "device": device, **more}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def consumed(memory: str, share: int) -> Object:
    return {
        "shareID": f"5c1b0d7e-0000-4000-8000-00000000000{share}",
        "consumedCapacity": {"memory": memory},
    }


SHARED_L4 = {
    "name": "gpu-0",
    "allowMultipleAllocations": True,
    "attributes": {"productName": {"string": "NVIDIA L4"}},
    "capacity": {"memory": {"value": "23034Mi"}},
}
HAMI_MIG = (
    '[{"id":"GPU-f","count":7,"devmem":40960,"devcore":100,"type":"NVIDIA-NVIDIA A100-PCIE-40GB",'
    '"mode":"mig","health":true,"index":0}]'
)
VOLCANO_L4S = "GPU-1,10,23034,NVIDIA-NVIDIA L4,true:GPU-2,10,23034,NVIDIA-NVIDIA L4,true:"
VOLCANO_NODE = node(annotations={"volcano.sh/node-vgpu-register": VOLCANO_L4S}, nvidia_com__gpu=0)
VOLCANO_NODE["status"]["allocatable"]["volcano.sh/vgpu-number"] = "20"


def volcano(name: str, memory: str, assigned: str = "", **more: str) -> Object:
    annotations = {"volcano.sh/vgpu-ids-new": assigned} if assigned else {}
    requests = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": memory}
    return pod(name, annotations=annotations, requests=requests, **more)


# Objects, and of each device: MiB, who hands it out, holders with their MiB or units, free units and MiB.
Seen = tuple[int | None, str, dict[str, int], int | None, int | None]
CASES: dict[str, tuple[list[Object], list[Seen]]] = {
    "kai, idle": (
        [node(labels=KAI_NODE, nvidia_com__gpu=1)],
        [(A100, PLUGIN, {}, 1, A100)],
    ),
    "kai, a half and a quarter": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=2),
            reservation("g"),
            kai("a", gpu_fraction="0.5"),
            kai("b", gpu_fraction="0.25"),
        ],
        [
            (A100, PLUGIN, {}, 1, A100),
            (A100, "kai-scheduler", {"a": A100 // 2, "b": A100 // 4}, None, A100 // 4),
        ],
    ),
    "kai, one pod on two devices": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=2),
            reservation("g1"),
            reservation("g2"),
            pod(
                "a",
                labels={"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2"},
                annotations={"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            ),
        ],
        [(A100, "kai-scheduler", {"a": A100 // 2}, None, A100 // 2)] * 2,
    ),
    "kai, nobody shares what is reserved": (
        [node(labels=KAI_NODE, nvidia_com__gpu=1), reservation("g")],
        [(A100, "kai-scheduler", {}, None, A100)],
    ),
    "kai, a whole device beside": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=2),
            reservation("g"),
            kai("a", gpu_fraction="0.5"),
            pod("w", requests={"nvidia.com/gpu": "1"}),
        ],
        [(A100, PLUGIN, {"w": 1}, 0, 0), (A100, "kai-scheduler", {"a": A100 // 2}, None, A100 // 2)],
    ),
    "kai, memory of the card not told": (
        [
            node(labels={"kai.scheduler/node-pool": "p"}, nvidia_com__gpu=1),
            reservation("g"),
            kai("a", gpu_memory="4096"),
        ],
        [(None, "kai-scheduler", {"a": 4096}, None, None)],
    ),
    "kai, a share that cannot be read may be everything": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=1),
            reservation("g"),
            kai("a", gpu_fraction="x"),
            kai("b"),
        ],
        [(A100, "kai-scheduler", {"a": 0, "b": 0}, 0, 0)],
    ),
    "kai, reservations in a namespace of one's own": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=1),
            reservation("g", namespace="runai-reservation"),
            kai("a", gpu_fraction="0.5"),
        ],
        [(A100, "kai-scheduler", {"a": A100 // 2}, None, A100 // 2)],
    ),
    "kai, a share that nothing is reserved for": (
        [node(labels=KAI_NODE, nvidia_com__gpu=2), kai("a", gpu_fraction="0.5")],
        [(A100, PLUGIN, {}, 0, 0)] * 2,
    ),
    "kai, more than there is": (
        [
            node(labels=KAI_NODE, nvidia_com__gpu=1),
            reservation("g"),
            kai("a", gpu_fraction="0.75"),
            kai("b", gpu_fraction="0.5"),
        ],
        [(A100, "kai-scheduler", {"a": A100 * 3 // 4, "b": A100 // 2}, None, 0)],
    ),
    "tensor-fusion, two shares": (
        [
            node(labels=OWN_NAME, nvidia_com__gpu=2),
            gpu("a"),
            gpu("b"),
            worker("x", "a", vram_request="8Gi"),
            worker("y", "a", vram_request="4Gi"),
        ],
        [
            (23034, "tensor-fusion", {"x": 8192, "y": 4096}, None, 23034 - 12288),
            (23034, "tensor-fusion", {}, None, 23034),
        ],
    ),
    "tensor-fusion, not running": (
        [node(labels=OWN_NAME), gpu("a", phase="Pending")],
        [(23034, "tensor-fusion", {}, 0, 0)],
    ),
    "tensor-fusion, left to the plugin": (
        [
            node(labels=OWN_NAME, nvidia_com__gpu=2),
            gpu("a", usedBy=PLUGIN),
            gpu("b", usedBy=PLUGIN),
            pod("p", requests={"nvidia.com/gpu": "1"}),
        ],
        [(23034, PLUGIN, {"p": 1}, 0, 0), (23034, PLUGIN, {}, 0, 0)],
    ),
    "tensor-fusion, capacity not told": (
        [node(labels=OWN_NAME), gpu("a", capacity=None, available=None)],
        [(None, "tensor-fusion", {}, None, None)],
    ),
    "tensor-fusion, more than there is": (
        [
            node(labels=OWN_NAME),
            gpu("a"),
            worker("x", "a", vram_request="20Gi"),
            worker("y", "a", vram_request="20Gi"),
        ],
        [(23034, "tensor-fusion", {"x": 20480, "y": 20480}, None, 0)],
    ),
    "tensor-fusion, a share that cannot be read": (
        [node(labels=OWN_NAME), gpu("a"), worker("x", "a", vram_request="-1Gi")],
        [(23034, "tensor-fusion", {"x": 0}, 0, 0)],
    ),
    "tensor-fusion, of a node that is not there": ([node(labels=OWN_NAME), gpu("a", "ghost")], []),
    "hami, an instance of a card": (
        [
            node(annotations={"hami.io/node-nvidia-register": HAMI_MIG}, nvidia_com__gpu=7),
            pod(
                "m",
                annotations={"hami.io/vgpu-devices-allocated": "GPU-f[0-1],NVIDIA,9728,25:;"},
                requests={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9728"},
            ),
        ],
        [(40960, "hami-device-plugin", {"m": 9728}, 6, 40960 - 9728)],
    ),
    "volcano, a share": (
        [VOLCANO_NODE, volcano("v", "10000", "GPU-2,NVIDIA,10000,0:;")],
        [
            (23034, "volcano-vgpu-device-plugin", {}, 10, 23034),
            (23034, "volcano-vgpu-device-plugin", {"v": 10000}, 9, 13034),
        ],
    ),
    "volcano, a share of nobody knows which": (
        [VOLCANO_NODE, volcano("v", "10000")],
        [(23034, "volcano-vgpu-device-plugin", {}, 0, 0)] * 2,
    ),
    "driver, claims that say how much": (
        [
            node(),
            published("gpu.nvidia.com", SHARED_L4),
            claim("c", "gpu.nvidia.com", "gpu-0", **consumed("10Gi", 1)),
            claim("d", "gpu.nvidia.com", "gpu-0", **consumed("2Gi", 2)),
        ],
        [
            (
                23034,
                "gpu.nvidia.com (DRA)",
                {"c (claim)": 10240, "d (claim)": 2048},
                None,
                23034 - 12288,
            )
        ],
    ),
    "driver, a device that is tainted": (
        [
            node(),
            published(
                "gpu.nvidia.com",
                {"name": "gpu-0", "taints": [{"key": "sick", "effect": "NoSchedule"}]},
                {"name": "gpu-1", "taints": [{"key": "hot", "effect": "None"}]},
            ),
        ],
        [(None, "gpu.nvidia.com (DRA)", {}, 0, 0), (None, "gpu.nvidia.com (DRA)", {}, 1, None)],
    ),
    "driver of Gaudi": (
        [
            node(),
            published("gaudi.intel.com", {"name": "a", "attributes": {"model": {"string": "Gaudi2"}}}),
        ],
        [(98304, "gaudi.intel.com (DRA)", {}, 1, 98304)],
    ),
    "driver of Neuron": (
        [node(), published("neuron.aws.com", {"name": "neuron0"})],
        [(None, "neuron.aws.com (DRA)", {}, 1, None)],
    ),
    "driver of something else": ([node(), published("net.example.com", {"name": "nic0"})], []),
}


@pytest.mark.parametrize("name", CASES)
def test_each_device_is_shown_as_it_is(name: str, items_of: Callable[..., list[Object]]) -> None:  # noqa: F811
    objects, expected = CASES[name]

    items = items_of(*objects)

    assert [seen(item) for item in items] == expected
    check(items)


@pytest.mark.parametrize(
    "objects",
    [
        (node(labels=KAI_NODE, nvidia_com__gpu=1), kai("p", gpu_fraction="0")),
        (VOLCANO_NODE, volcano("p", "10000", "GPU-9,NVIDIA,10000,0:;")),
        (node(labels=OWN_NAME), gpu("a"), worker("p", "", vram_request="1Gi")),
    ],
)
def test_a_share_of_nobody_knows_which_device_is_named(
    objects: tuple[Object, ...],
    top: Callable[..., str],  # noqa: F811
) -> None:
    assert "Pod team/p: which device of Node n it holds cannot be told" in top(*objects)


def test_a_share_of_volcano_fits_on_the_devices_that_its_register_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, asked = tmp_path / "cluster.json", tmp_path / "pod.json"
    held = volcano("held", "10000", "GPU-2,NVIDIA,10000,0:;")
    cluster.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [VOLCANO_NODE, held]}))
    asked.write_text(json.dumps(volcano("new", "10000", node_name="")))

    assert run(["capacity", "--snapshot", str(cluster), "-f", str(asked), "-o", "json"], "karpool") == 0

    assert json.loads(capsys.readouterr().out)["most"] == 3  # two of the idle one, one beside the share


def seen(item: Object) -> Seen:
    def mib(amount: int | None) -> int | None:
        return None if amount is None else amount // MIB

    holders = {
        holder["pod"].removeprefix("team/"): holder.get("units") or mib(holder.get("memoryBytes", 0)) or 0
        for holder in item["holders"]
    }
    free = item["free"]
    return (mib(item["memoryBytes"]), item["handedOutBy"], holders, free["units"], mib(free["memoryBytes"]))


def check(items: list[Object]) -> None:
    """What holds of every device, whoever hands it out."""
    assert len({(item["node"], item["device"]) for item in items}) == len(items)
    for item in items:
        assert set(item) == KEYS
        assert all(item[key] != "" for key in KEYS)
        memory, free = item["memoryBytes"], item["free"]
        assert set(free) == {"units", "memoryBytes"}
        assert memory is None or memory > 0
        assert free["units"] is None or free["units"] >= 0
        if memory is None:
            assert free["memoryBytes"] in (None, 0)
        elif free["memoryBytes"] is not None:
            held = sum(holder.get("memoryBytes", 0) for holder in item["holders"])
            assert 0 <= free["memoryBytes"] <= max(memory - held, 0)


def test_every_form_of_node_keeps_to_that(items_of: Callable[..., list[Object]]) -> None:  # noqa: F811
    others = [
        node(name, labels=form["labels"], annotations=form["annotations"])
        for name, form in NODE_FORMS.items()
    ]
    for made, form in zip(others, NODE_FORMS.values(), strict=True):
        made["status"]["allocatable"] |= {name: str(units) for name, units in form["offered"].items()}

    items = items_of(*others)

    check(items)
    assert len(items) > len(others)
