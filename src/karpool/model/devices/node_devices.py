"""Devices of nodes without a description per device, as the allocator and the kernel use them.

GPU objects take precedence; otherwise `inventory` says what a node has. Shares can be allocated only of
devices that are whole and not shared by another plugin, or that a register lists one by one. Devices exist
when the plugin offers them, not when the node is ready. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from msgspec import structs

from karpool.model.catalogue.catalogue import InstanceType
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.device import POOL_LABEL, RUNNING, SMART_POD_USE, Device
from karpool.model.devices.gpu_models import find_model
from karpool.model.devices.inventory import (
    HAMI,
    KARPENTER_MEMORY,
    KARPENTER_NAME,
    MIB,
    PRODUCT,
    REGISTERS,
    VOLCANO,
    DeviceForm,
    DeviceGroup,
    inventory_of,
    labelled,
)
from karpool.model.devices.request import COUNT_MAX
from karpool.model.karpenter.objects import NODEPOOL
from karpool.model.kubernetes.meta import NO_LABELS, Labels
from karpool.model.kubernetes.node import HOSTNAME, Node
from karpool.model.requirements import Requirements
from karpool.model.resources import CPU, GPU, MEMORY

AMD_GPU = "amd.com/gpu"
RESOURCES = (GPU, AMD_GPU)
PLUGIN = "nvidia-device-plugin"
_NOISE = re.compile(r"\A(nvidia|tesla|quadro|geforce|amd)[-_ ]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodeYield:
    """What one node of a candidate provides; the minimum over its instance types if they differ."""

    devices: int
    tflops_milli: int
    vram_bytes: int
    cpu_milli: int
    memory_bytes: int
    model: str = ""
    vendor: str = "NVIDIA"
    sharers: int = 0  # pods that may share one device; 0: any number


def model_name(text: str) -> str:
    """Return one name per model: `nvidia-a100-sxm4-80gb`, `NVIDIA A100-SXM4-80GB` and `a100` are A100."""
    model = find_model(text)
    if model is not None:
        return model.family
    plain = _NOISE.sub("", text.strip())
    while plain != (shorter := _NOISE.sub("", plain)):
        plain = shorter
    return plain


def pool_of_node(labels: Labels) -> str:
    return labels.get(POOL_LABEL) or labels.get(NODEPOOL, "")


def has_gpus(node: Node) -> bool:
    """Whether it has devices, will have, or belongs to a GPU pool; an unreadable amount counts as devices."""
    return promises_gpus(node.labels) or any(
        resource in (node.status.allocatable or {}) for resource in RESOURCES
    )


def promises_gpus(labels: Labels) -> bool:
    return POOL_LABEL in labels or PRODUCT in labels or bool(labelled(labels, KARPENTER_NAME))


def plugin_of(offered: Mapping[str, int]) -> str:
    """Return the resource of the node's device plugin; empty if there is none."""
    for resource in RESOURCES:
        if offered.get(resource, 0) > 0:
            return resource
    return ""


def registers_of(annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations that list devices one by one."""
    return {key: annotations[key] for key in REGISTERS if key in annotations} or NO_LABELS


def labelled_devices(
    name: str, labels: Labels, offered: Mapping[str, int], registers: Mapping[str, str] = NO_LABELS
) -> tuple[Device, ...]:
    """Return the devices of a node whose shares can be allocated, all idle.

    Empty if the number is too large to be a number of devices.
    """
    if offered.get(plugin_of(offered), 0) > COUNT_MAX:
        return ()
    groups = _groups(
        tuple(label for label in labels.items() if label[0] != HOSTNAME),
        tuple(registers.items()),
        tuple(offered.items()),
    )
    pool = pool_of_node(labels)
    return tuple(device for group in groups if _takes_shares(group) for device in _devices(group, name, pool))


@lru_cache(maxsize=1024)  # Nodes of a pool differ only in their names.
def _groups(
    labels: tuple[tuple[str, str], ...],
    registers: tuple[tuple[str, str], ...],
    offered: tuple[tuple[str, int], ...],
) -> tuple[DeviceGroup, ...]:
    return inventory_of(dict(labels), dict(registers), dict(offered)).groups


def _takes_shares(group: DeviceGroup) -> bool:
    if group.form is not DeviceForm.WHOLE or group.unstable:
        return False
    if group.handed_out_by in (HAMI, VOLCANO):
        return True
    return group.resource in RESOURCES and not group.shareable


def _devices(group: DeviceGroup, node: str, pool: str) -> Iterator[Device]:
    amount = DeviceAmount(group.tflops_milli or 0, (group.memory_mib or 0) * MIB)
    model = model_name(group.model)
    for index in range(group.devices):
        yield Device(
            name=group.names[index] if group.names else f"{node}-gpu-{index}",
            node=node,
            owner=node,
            pool=pool,
            phase=RUNNING,
            vendor=group.vendor,
            model=model,
            index=index,
            capacity=amount,
            available=amount,
            compute_known=group.tflops_milli is not None,
        )


def node_devices(
    name: str,
    labels: Labels,
    offered: Mapping[str, int],
    registers: Mapping[str, str] = NO_LABELS,
    *,
    smart_pods: Mapping[str, int],
    others: int,
    busy: Collection[str],
) -> tuple[Device, ...]:
    """Return the devices with their users.

    `smart_pods` maps UIDs to the number of devices of our placeholders, `others` is the number that plain
    pods use; workers use shares of the `busy` devices.
    """
    devices = labelled_devices(name, labels, offered, registers)
    marks = [PLUGIN] * others
    for uid, gpus in sorted(smart_pods.items()):
        marks += [f"{SMART_POD_USE}{uid}"] * gpus
    given_away = plugin_order([device.name for device in devices], busy)
    used = dict(zip(given_away, marks, strict=False))
    return tuple(structs.replace(device, used_by=used.get(device.name, "")) for device in devices)


def plugin_order(devices: Sequence[str], busy: Collection[str]) -> list[str]:
    """Return the order in which a plugin is assumed to allocate whole devices, because it does not tell.

    From the last to the first, so that the first ones stay free for shares; devices with shares come last.
    """
    free = [name for name in reversed(devices) if name not in busy]
    return free + [name for name in devices if name in busy]


def type_yield(instance_type: InstanceType, resource: str) -> NodeYield:
    """Return what one node of this type provides."""
    facts, gpu = instance_type.requirements, instance_type.gpu
    memory = _required(facts, KARPENTER_MEMORY)
    told = gpu.memory_mib if gpu and gpu.memory_mib else int(memory) if memory.isdecimal() else 0
    name = gpu.model if gpu else _required(facts, KARPENTER_NAME)
    model = find_model(name, told) if name else None
    compute, known_mib = (model.tflops_milli or 0, model.memory_mib or 0) if model is not None else (0, 0)
    return NodeYield(
        instance_type.allocatable.get(resource, 0),
        int(compute * gpu.partition) if gpu else compute,
        (told or known_mib) * MIB,
        instance_type.allocatable.get(CPU, 0),
        instance_type.allocatable.get(MEMORY, 0),
        model_name(name),
        "AMD" if resource == AMD_GPU else "NVIDIA",
    )


def smallest_yield(yields: Collection[NodeYield]) -> NodeYield:
    """Return what every one of them provides at least; the model only if all have the same."""
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
        min((node_yield.sharers for node_yield in yields if node_yield.sharers), default=0),
    )


def _required(labels: Requirements, key: re.Pattern[str]) -> str:
    values = next((value_set for name, value_set in labels.items() if key.match(name)), None)
    if values is None or values.complement or len(values.values) != 1:
        return ""
    return next(iter(values.values))
