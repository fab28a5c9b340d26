"""Devices of nodes that nobody describes device by device: from labels and allocatable resources.

Where GPU objects exist they are the truth; elsewhere a node with GPUs becomes that many
devices. The model comes from the labels of GPU feature discovery or of Karpenter, its
memory from the same, its compute from a table; a model that the table does not know has
no compute that could be asked for in TFLOPS. Devices are there when the plugin offers
them, not when the node is ready. Pure.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import POOL_LABEL, RUNNING, SMART_POD_USE, Device
from karpool.model.devices.request import COUNT_MAX
from karpool.model.karpenter.objects import NODEPOOL
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import Node
from karpool.model.requirements import Requirements
from karpool.model.resources import CPU, GPU, MEMORY

AMD_GPU = "amd.com/gpu"
RESOURCES = (GPU, AMD_GPU)
PLUGIN = "nvidia-device-plugin"
_MIB = 2**20
_PRODUCT, _PRODUCT_MEMORY, _REPLICAS = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.replicas",
)
_NAME = re.compile(r"karpenter\.[^/]+/(instance|sku)-gpu-name\Z")
_MEMORY = re.compile(r"karpenter\.[^/]+/(instance|sku)-gpu-memory\Z")
_NOISE = re.compile(r"\A(nvidia|tesla|quadro|geforce|amd)[-_ ]+", re.IGNORECASE)

# Half-precision TFLOPS with tensor cores, dense, as the vendors publish them.
TFLOPS = {
    "T4": 65,
    "T4G": 65,
    "V100": 125,
    "A10": 125,
    "A10G": 125,
    "A16": 36,
    "A30": 165,
    "A40": 150,
    "A100": 312,
    "L4": 121,
    "L40": 181,
    "L40S": 362,
    "H100": 989,
    "H200": 989,
    "B200": 2250,
}


@dataclass(frozen=True, slots=True)
class NodeYield:
    """What one node of a candidate brings; the least of its instance types where they differ."""

    devices: int
    tflops_milli: int
    vram_bytes: int
    cpu_milli: int
    memory_bytes: int
    model: str = ""
    vendor: str = "NVIDIA"


def model_name(text: str) -> str:
    """One name for one model: `nvidia-a100-sxm4-80gb`, `NVIDIA A100-SXM4-80GB` and `a100` are A100."""
    plain = _NOISE.sub("", text.strip())
    while plain != (shorter := _NOISE.sub("", plain)):
        plain = shorter
    first = re.split(r"[-_ ]", plain, maxsplit=1)[0].upper()
    return first if first in TFLOPS else plain


def pool_of_node(labels: Labels) -> str:
    return labels.get(POOL_LABEL) or labels.get(NODEPOOL, "")


def has_gpus(node: Node) -> bool:
    """Whether it has devices, will have, or belongs to a GPU pool. What cannot be told is yes."""
    labels = node.labels
    if POOL_LABEL in labels or _PRODUCT in labels or _labelled(labels, _NAME):
        return True
    return any(resource in (node.status.allocatable or {}) for resource in RESOURCES)


def plugin_of(offered: Mapping[str, int]) -> str:
    """The resource under which a node's device plugin counts its devices; empty without one."""
    return next((resource for resource in RESOURCES if offered.get(resource, 0) > 0), "")


def labelled_devices(name: str, labels: Labels, offered: Mapping[str, int]) -> tuple[Device, ...]:
    """The devices of a node as its labels and its plugin describe them, all idle; none that are cut into
    time slices, and none where the number is not one of devices."""
    if offered.get(plugin_of(offered), 0) > COUNT_MAX:
        return ()
    devices = node_devices(name, labels, offered, smart_pods={}, others=0, busy=())
    return tuple(device for device in devices if not device.resource)


def node_devices(
    name: str,
    labels: Labels,
    offered: Mapping[str, int],
    *,
    smart_pods: Mapping[str, int],
    others: int,
    busy: Collection[str],
) -> tuple[Device, ...]:
    """`smart_pods` are uid and devices of ours on the node, `others` how many plain pods have taken.

    Which devices a plugin gave away is not told; those that no worker has (`busy`) are assumed.
    """
    resource = plugin_of(offered)
    if not resource:
        return ()
    model = model_name(labels.get(_PRODUCT) or _labelled(labels, _NAME) or "")
    memory = labels.get(_PRODUCT_MEMORY) or _labelled(labels, _MEMORY) or "0"
    replicas = int(labels[_REPLICAS]) if labels.get(_REPLICAS, "").isdecimal() else 1
    brings = _yield(model, memory, offered[resource], resource, {})
    amount = DeviceAmount(brings.tflops_milli // max(replicas, 1), brings.vram_bytes // max(replicas, 1))
    names = [f"{name}-gpu-{index}" for index in range(offered[resource])]
    used = _uses(names, smart_pods, others, busy)
    return tuple(
        Device(
            name=device,
            node=name,
            owner=name,
            pool=pool_of_node(labels),
            phase=RUNNING,
            vendor=brings.vendor,
            model=model,
            index=index,
            capacity=amount,
            available=amount,
            used_by=used.get(device, ""),
            resource=resource if replicas > 1 else "",
            compute_known=brings.tflops_milli > 0,
        )
        for index, device in enumerate(names)
    )


def _uses(
    names: list[str], smart_pods: Mapping[str, int], others: int, busy: Collection[str]
) -> dict[str, str]:
    """From the last device down, so that the first ones stay free for shares."""
    free = [name for name in reversed(names) if name not in busy] + [name for name in names if name in busy]
    marks = [PLUGIN] * others
    for uid, gpus in sorted(smart_pods.items()):
        marks += [f"{SMART_POD_USE}{uid}"] * gpus
    return dict(zip(free, marks, strict=False))


def type_yield(instance_type: InstanceType, resource: str) -> NodeYield:
    """What one node of this type brings."""
    labels, gpu = instance_type.requirements, instance_type.gpu
    brings = _yield(
        model_name(gpu.model if gpu else _required(labels, _NAME)),
        str(gpu.memory_mib) if gpu and gpu.memory_mib else _required(labels, _MEMORY) or "0",
        instance_type.allocatable.get(resource, 0),
        resource,
        instance_type.allocatable,
    )
    return replace(brings, tflops_milli=int(brings.tflops_milli * gpu.partition)) if gpu else brings


def smallest_yield(yields: Collection[NodeYield]) -> NodeYield:
    """What every one of them brings at least; a model only if it is that of all."""
    models, vendors = (
        {node_yield.model for node_yield in yields},
        {node_yield.vendor for node_yield in yields},
    )
    return NodeYield(
        min(node_yield.devices for node_yield in yields),
        min(node_yield.tflops_milli for node_yield in yields),
        min(node_yield.vram_bytes for node_yield in yields),
        min(node_yield.cpu_milli for node_yield in yields),
        min(node_yield.memory_bytes for node_yield in yields),
        models.pop() if len(models) == 1 else "",
        vendors.pop() if len(vendors) == 1 else "",
    )


def _yield(
    model: str, memory_mib: str, devices: int, resource: str, allocatable: Mapping[str, int]
) -> NodeYield:
    return NodeYield(
        devices,
        TFLOPS.get(model, 0) * 1000,
        int(memory_mib) * _MIB if memory_mib.isdecimal() else 0,
        allocatable.get(CPU, 0),
        allocatable.get(MEMORY, 0),
        model,
        "AMD" if resource == AMD_GPU else "NVIDIA",
    )


def _labelled(labels: Labels, key: re.Pattern[str]) -> str:
    return next((value for name, value in labels.items() if key.match(name)), "")


def _required(labels: Requirements, key: re.Pattern[str]) -> str:
    values = next((wanted for name, wanted in labels.items() if key.match(name)), None)
    if values is None or values.complement or len(values.values) != 1:
        return ""
    return next(iter(values.values))
