"""The accelerators of a node, as the systems that allocate them describe them on the Node object.

| allocator | source |
|---|---|
| HAMi | annotation `hami.io/node-nvidia-register`; `nvidia.com/gpu` counts shares |
| Volcano vGPU | annotation `volcano.sh/node-vgpu-register`; `volcano.sh/vgpu-number` counts shares |
| nos | resources `nvidia.com/gpu-10gb`, label `nos.nebuly.com/gpu-partitioning` |
| NVIDIA's plugin | `nvidia.com/gpu`, `.shared`, `mig-<profile>`; labels of discovery, Karpenter, GKE |
| AMD's plugin | `amd.com/gpu`, `amd.com/<compute>_<memory>`; labels of the node labeller |
| Neuron, TPU, Gaudi | their own resources |

GPU objects and resource slices take precedence where they exist; they are not read here. Allocatable counts
healthy devices, labels count installed ones. An unknown value is None: an unknown memory is not zero, and not
the memory of another card. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from karpool.model.devices.device_registers import DEVICES_MAX, RegisteredDevice, read_hami, read_volcano
from karpool.model.devices.gpu_models import GpuModel, find_model
from karpool.model.kubernetes.meta import Labels
from karpool.model.kubernetes.node import INSTANCE_TYPE

MIB = 2**20
NVIDIA_PLUGIN, AMD_PLUGIN, HAMI, VOLCANO = (
    "nvidia-device-plugin",
    "amd-device-plugin",
    "hami-device-plugin",
    "volcano-vgpu-device-plugin",
)
NOS, NEURON, TPU, GAUDI = (
    "nebuly device plugin (nos)",
    "neuron-device-plugin",
    "gke tpu device plugin",
    "habanalabs-device-plugin",
)

PRODUCT, _MEMORY, _COUNT, _REPLICAS = (
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.replicas",
)
_SHARING, _MIG_STATE = "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.config.state"
_WHOLE, _RENAMED, _MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-"
_MIG_PRODUCT = re.compile(r".+-MIG-(?P<profile>[0-9]+g\.[0-9]+gb[^-]*)(?:-SHARED)?\Z")
_NOS_SLICE = re.compile(r"nvidia\.com/gpu-(?P<gigabytes>[0-9]{1,4})gb\Z")
# EKS Auto Mode has Karpenter's labels with its own prefix.
KARPENTER_NAME = re.compile(r"(karpenter\.[^/]+|eks\.amazonaws\.com)/(instance|sku)-gpu-name\Z")
KARPENTER_MEMORY = re.compile(r"(karpenter\.[^/]+|eks\.amazonaws\.com)/(instance|sku)-gpu-memory\Z")
_ACCELERATOR_NAME = re.compile(r"(karpenter\.[^/]+|eks\.amazonaws\.com)/instance-accelerator-name\Z")
_GKE = "cloud.google.com/gke-"
_AMD_WHOLE = "amd.com/gpu"
_AMD_PARTITION = re.compile(r"amd\.com/(?P<mode>[a-z]+_nps[0-9]+)\Z")
_AMD_VRAM = re.compile(r"(?P<gib>[0-9]{1,5})G\Z")
# The released label of the node labeller, and its newer form.
_AMD_MODES = ("amd.com/compute-memory-partition", "amd.com/gpu.compute-memory-partition")
_AMD_PARTS = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}  # of a card of the MI300 family
_CHANGING = frozenset(("pending", "rebooting"))


class DeviceForm(StrEnum):
    WHOLE, MIG, MPS, PARTITION = "whole", "mig", "mps", "partition"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Equal devices of one node. Pods request `units` of `resource`."""

    resource: str
    units: int
    devices: int
    handed_out_by: str
    vendor: str = "NVIDIA"
    form: DeviceForm = DeviceForm.WHOLE
    model: str = ""  # empty: unknown
    memory_mib: int | None = None
    tflops_milli: int | None = None  # of one device
    compute_share: float | None = 1.0  # of the card
    shareable: bool = False
    sharers_max: int | None = 1  # None: any number
    memory_isolated: bool = True
    profile: str = ""
    cores_per_device: int = 0
    unstable: bool = False  # being reconfigured: no pod should be placed
    names: tuple[str, ...] = ()  # UUIDs, if known

    @property
    def units_per_device(self) -> int:
        return self.units // self.devices if self.devices else 0


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """`physical_devices` is None if the number of cards is unknown; `problem` is what cannot be read."""

    groups: tuple[DeviceGroup, ...] = ()
    physical_devices: int | None = 0
    problem: str = ""


EMPTY = NodeInventory()


def inventory_of(
    labels: Labels, annotations: Mapping[str, str], allocatable: Mapping[str, int]
) -> NodeInventory:
    """Return the inventory of a node; `allocatable` is in units."""
    if any(units > DEVICES_MAX * 128 for name, units in allocatable.items() if _is_accelerator(name)):
        return NodeInventory(problem="status.allocatable counts more devices than a machine can have")
    registers = [(vendor, key) for vendor, key in _HAMI_REGISTERS.items() if key in annotations]
    if registers:
        return _joined(_hami(vendor, annotations[key], key, allocatable) for vendor, key in registers)
    if _VOLCANO_REGISTER in annotations:
        return _volcano(annotations[_VOLCANO_REGISTER], allocatable)
    return _joined(read(labels, allocatable) for read in (_nvidia, _amd, _neuron, _tpu, _gaudi))


def _joined(parts: Iterable[NodeInventory]) -> NodeInventory:
    groups: list[DeviceGroup] = []
    physical: int | None = 0
    problems: list[str] = []
    for part in parts:
        groups.extend(part.groups)
        problems += filter(None, (part.problem,))
        physical = (
            None if physical is None or part.physical_devices is None else physical + part.physical_devices
        )
    whole = NodeInventory(tuple(groups), physical, "; ".join(problems))
    return whole if groups or physical != 0 or problems else EMPTY


def _is_accelerator(name: str) -> bool:
    return name.startswith(
        ("nvidia.com/", "amd.com/", "google.com/tpu", "habana.ai/", "aws.amazon.com/neuron")
    )


# NVIDIA's plugin


def _nvidia(labels: Labels, allocatable: Mapping[str, int]) -> NodeInventory:
    product = labels.get(PRODUCT, "")
    if product.upper().endswith("-MIG-INVALID"):
        return NodeInventory(physical_devices=None)
    card = _card(labels)
    slices = tuple(_mig_slices(labels, allocatable, card)) + tuple(_nos_slices(allocatable, card))
    whole = _whole(labels, allocatable, card)
    groups = (*slices, *((whole,) if whole else ()))
    counted = _number(labels.get(_COUNT, ""))
    if not groups:
        return NodeInventory(physical_devices=counted or 0)  # none of them is healthy, or offered yet
    if whole is not None and whole.form is DeviceForm.MIG:
        return NodeInventory(groups, _cards_of_slices(whole, card.model))
    told = labels.get(_GKE + "accelerator-count", "")
    physical = counted or _number(told) or (whole.devices if whole is not None else None)
    return NodeInventory(groups, physical)


@dataclass(frozen=True, slots=True)
class _Card:
    name: str
    model: GpuModel | None
    memory_mib: int | None

    @property
    def tflops_milli(self) -> int | None:
        return self.model.tflops_milli if self.model is not None else None


def _card(labels: Labels) -> _Card:
    """Return the card that the labels name: measured on the node first, then as the cloud says."""
    product = labels.get(PRODUCT, "")
    name = product or labelled(labels, KARPENTER_NAME) or labels.get(_GKE + "accelerator", "")
    is_slice = _MIG_PRODUCT.match(product) is not None
    told = (
        None if is_slice else _number(labels.get(_MEMORY, "")) or _number(labelled(labels, KARPENTER_MEMORY))
    )
    model = find_model(name, told or 0) if name else None
    memory = told or (model.memory_mib if model is not None else None)
    return _Card(model.name if model is not None else name, model, memory)


def _whole(labels: Labels, allocatable: Mapping[str, int], card: _Card) -> DeviceGroup | None:
    """Return `nvidia.com/gpu`, or its shared name: cards, time slices, or MIG slices of strategy `single`."""
    resource = _WHOLE if allocatable.get(_WHOLE, 0) > 0 else _RENAMED
    units = allocatable.get(resource, 0)
    if units <= 0:
        return None
    strategy = labels.get(_SHARING, "") or labels.get(_GKE + "gpu-sharing-strategy", "")
    clients = _clients(labels, resource, units)
    shared = clients > 1 or resource == _RENAMED
    profile = _profile_name(_single_profile(labels), card.model)
    mig = card.model.profile(profile) if card.model is not None else None
    told = _number(labels.get(_MEMORY, "")) if profile else card.memory_mib
    share = 1.0 if not profile else _share(card.model, profile)
    return DeviceGroup(
        resource=resource,
        units=units,
        devices=max(units // clients, 1),
        handed_out_by=NVIDIA_PLUGIN,
        form=DeviceForm.MIG if profile else DeviceForm.WHOLE,
        model=card.name,
        memory_mib=told or (mig.memory_mib if mig is not None else None),
        tflops_milli=_part(card.tflops_milli, share),
        compute_share=share,
        shareable=shared,
        sharers_max=clients if clients > 1 or not shared else None,
        memory_isolated=not shared or strategy == "mps",
        profile=profile,
        unstable=labels.get(_MIG_STATE, "") in _CHANGING,
    )


def _clients(labels: Labels, resource: str, units: int) -> int:
    """How many units a device is; where only its new name says that it is shared, by the number of cards."""
    told = _number(labels.get(_REPLICAS, "")) or _number(labels.get(_GKE + "max-shared-clients-per-gpu", ""))
    cards = _number(labels.get(_COUNT, ""))
    if told or resource != _RENAMED or not cards or units % cards:
        return told or 1
    return units // cards


def _single_profile(labels: Labels) -> str:
    product = _MIG_PRODUCT.match(labels.get(PRODUCT, ""))
    return product["profile"] if product is not None else labels.get(_GKE + "gpu-partition-size", "")


def _mig_slices(labels: Labels, allocatable: Mapping[str, int], card: _Card) -> Iterator[DeviceGroup]:
    """Yield the MIG slices of strategy `mixed`: one resource per profile; the labels describe the card."""
    for resource in sorted(name for name in allocatable if name.startswith(_MIG)):
        units = allocatable[resource]
        if units <= 0:
            continue
        label = resource.removeprefix("nvidia.com/").removesuffix(".shared")
        profile = _profile_name(label.removeprefix("mig-"), card.model)
        mig = card.model.profile(profile) if card.model is not None else None
        replicas = _number(labels.get(f"nvidia.com/{label}.replicas", "")) or 1
        strategy = labels.get(f"nvidia.com/{label}.sharing-strategy", "")
        share = _share(card.model, profile)
        yield DeviceGroup(
            resource=resource,
            units=units,
            devices=max(units // replicas, 1),
            handed_out_by=NVIDIA_PLUGIN,
            form=DeviceForm.MIG,
            model=card.name,
            memory_mib=_number(labels.get(f"nvidia.com/{label}.memory", ""))
            or (mig.memory_mib if mig is not None else None),
            tflops_milli=_part(card.tflops_milli, share),
            compute_share=share,
            shareable=replicas > 1,
            sharers_max=replicas,
            memory_isolated=replicas == 1 or strategy == "mps",
            profile=profile,
            unstable=labels.get(_MIG_STATE, "") in _CHANGING,
        )


def _profile_name(text: str, model: GpuModel | None) -> str:
    """Return the profile of a resource name, with `.` for `+`: `1g.5gb.me` is `1g.5gb+me`."""
    if model is None or model.profile(text) is not None:
        return text
    return next((profile.name for profile in model.profiles if profile.name.replace("+", ".") == text), text)


def _nos_slices(allocatable: Mapping[str, int], card: _Card) -> Iterator[DeviceGroup]:
    for resource in sorted(allocatable):
        slice_name = _NOS_SLICE.match(resource)
        if slice_name is not None and allocatable[resource] > 0:
            yield DeviceGroup(
                resource=resource,
                units=allocatable[resource],
                devices=allocatable[resource],
                handed_out_by=NOS,
                form=DeviceForm.MPS,
                model=card.name,
                memory_mib=int(slice_name["gigabytes"]) * 1024,
                compute_share=None,
            )


def _cards_of_slices(group: DeviceGroup, model: GpuModel | None) -> int | None:
    """Return the number of cards behind slices of one profile."""
    profile = model.profile(group.profile) if model is not None else None
    return (
        -(-group.devices // profile.max_instances) if profile is not None and profile.max_instances else None
    )


def _share(model: GpuModel | None, profile: str) -> float | None:
    mig = model.profile(profile) if model is not None else None
    return model.compute_share(mig) if model is not None and mig is not None else None


def _part(tflops_milli: int | None, share: float | None) -> int | None:
    return None if tflops_milli is None or share is None else round(tflops_milli * share)


# HAMi and Volcano: a register of devices in an annotation

_HAMI_REGISTERS = {"NVIDIA": "hami.io/node-nvidia-register", "AMD": "hami.io/node-amd-register"}
_HAMI_RESOURCES = {"NVIDIA": _WHOLE, "AMD": _AMD_WHOLE}
_VOLCANO_REGISTER = "volcano.sh/node-vgpu-register"
_VOLCANO_NUMBER = "volcano.sh/vgpu-number"
REGISTERS = (*_HAMI_REGISTERS.values(), _VOLCANO_REGISTER)


def _hami(vendor: str, text: str, key: str, allocatable: Mapping[str, int]) -> NodeInventory:
    try:
        devices = read_hami(text)
    except ValueError as error:
        return NodeInventory(physical_devices=None, problem=f"annotation {key} cannot be read: {error}")
    return _registered(devices, HAMI, _HAMI_RESOURCES[vendor], vendor, allocatable)


def _volcano(text: str, allocatable: Mapping[str, int]) -> NodeInventory:
    try:
        devices = read_volcano(text)
    except ValueError as error:
        return NodeInventory(
            physical_devices=None, problem=f"annotation {_VOLCANO_REGISTER} cannot be read: {error}"
        )
    return _registered(devices, VOLCANO, _VOLCANO_NUMBER, "NVIDIA", allocatable)


def _registered(
    devices: list[RegisteredDevice], system: str, resource: str, vendor: str, allocatable: Mapping[str, int]
) -> NodeInventory:
    """Return healthy, equal devices as groups; none if the plugin offers nothing."""
    groups: dict[tuple[str, int, int, str], list[RegisteredDevice]] = {}
    for device in devices:
        if device.health and device.count > 0 and allocatable.get(resource, 0) > 0:
            groups.setdefault((device.type, device.devmem, device.count, device.mode), []).append(device)
    return NodeInventory(
        tuple(_registered_group(alike, system, resource, vendor) for alike in groups.values()),
        len(devices),
    )


def _registered_group(alike: list[RegisteredDevice], system: str, resource: str, vendor: str) -> DeviceGroup:
    first = alike[0]
    model = find_model(first.type, first.devmem)
    return DeviceGroup(
        resource=resource,
        units=sum(device.count for device in alike),
        devices=len(alike),
        handed_out_by=system,
        vendor=vendor,
        model=model.name if model is not None else first.type,
        memory_mib=first.devmem or None,
        tflops_milli=model.tflops_milli if model is not None else None,
        shareable=first.count > 1,
        sharers_max=first.count,
        names=tuple(device.id for device in alike),
    )


# Other vendors


def _amd(labels: Labels, allocatable: Mapping[str, int]) -> NodeInventory:
    name = labels.get("amd.com/gpu.product-name", "") or labels.get("amd.com/gpu.device-id", "")
    name = (
        name
        or labels.get("beta.amd.com/gpu.device-id", "")
        or _in_key(labels, "gpu.product-name", "gpu.device-id")
    )
    vram = (
        labels.get("amd.com/gpu.vram", "")
        or labels.get("beta.amd.com/gpu.vram", "")
        or _in_key(labels, "gpu.vram")
    )
    size = _AMD_VRAM.match(vram)
    memory = int(size["gib"]) * 1024 if size is not None else None
    model = find_model(name, memory or 0) if name else None
    mode = next((labels[key] for key in _AMD_MODES if key in labels), "")
    groups = []
    for resource in sorted(allocatable):
        named = _AMD_PARTITION.match(resource)
        if allocatable[resource] > 0 and (resource == _AMD_WHOLE or named is not None):
            groups.append(
                _amd_group(resource, allocatable[resource], named["mode"] if named else mode, model, memory)
            )
    if model is None and (product := labels.get("amd.com/gpu.product-name", "")):
        groups = [replace(group, model=product) for group in groups]
    physical = sum(group.devices // _AMD_PARTS.get(group.profile.partition("_")[0], 1) for group in groups)
    return NodeInventory(tuple(groups), physical)


def _amd_group(
    resource: str, units: int, mode: str, model: GpuModel | None, memory: int | None
) -> DeviceGroup:
    parts = _AMD_PARTS.get(mode.partition("_")[0], 1)
    share = 1 / parts
    of_card = model.memory_mib if model is not None else None
    whole = memory or of_card
    tflops = model.tflops_milli if model is not None else None
    return DeviceGroup(
        resource=resource,
        units=units,
        devices=units,
        handed_out_by=AMD_PLUGIN,
        vendor="AMD",
        form=DeviceForm.PARTITION if parts > 1 else DeviceForm.WHOLE,
        model=model.name if model is not None else "",
        # A partition has less than its card, so a label about the card says nothing about it.
        memory_mib=(memory if memory != of_card else None) if parts > 1 else whole,
        tflops_milli=_part(tflops, share),
        compute_share=share,
        profile=mode if parts > 1 else "",
    )


# By machine family, if no label names the device.
_NEURON_FAMILIES = {
    "inf1": "inferentia",
    "inf2": "inferentia2",
    "trn1": "trainium",
    "trn1n": "trainium",
    "trn2": "trainium2",
    "trn2u": "trainium2",
}


def _neuron(labels: Labels, allocatable: Mapping[str, int]) -> NodeInventory:
    """Return Neuron devices; `neuroncore` counts them by core, `neurondevice` is the old name of `neuron`."""
    prefix = "aws.amazon.com/neuron"
    family = labels.get(INSTANCE_TYPE, "").partition(".")[0]
    name = labelled(labels, _ACCELERATOR_NAME) or _NEURON_FAMILIES.get(family, "")
    model = find_model(name) if name else None
    resource = next((key for key in (prefix, f"{prefix}device") if allocatable.get(key, 0) > 0), "")
    devices = allocatable.get(resource, 0)
    cores = allocatable.get(f"{prefix}core", 0)
    if not resource and cores > 0 and model is not None and model.cores:
        resource, devices = f"{prefix}core", -(-cores // model.cores)
    if not resource and cores > 0:  # the number of devices behind them is unknown
        group = DeviceGroup(f"{prefix}core", cores, cores, NEURON, "AWS", compute_share=None, model=name)
        return NodeInventory((replace(group, cores_per_device=1),), None)
    if devices <= 0:
        return EMPTY
    per_device = model.cores if model is not None else cores // devices
    group = DeviceGroup(resource, allocatable[resource], devices, NEURON, "AWS", cores_per_device=per_device)
    return _plain_group(group, model, name)


def _tpu(labels: Labels, allocatable: Mapping[str, int]) -> NodeInventory:
    chips = allocatable.get("google.com/tpu", 0)
    name = labels.get(_GKE + "tpu-accelerator", "")
    model = find_model(name) if name else None
    return _plain_group(DeviceGroup("google.com/tpu", chips, chips, TPU, "Google"), model, name)


def _gaudi(labels: Labels, allocatable: Mapping[str, int]) -> NodeInventory:
    """Return Gaudi devices; the node does not tell the generation, so memory and compute are unknown."""
    cards = allocatable.get("habana.ai/gaudi", 0)
    return _plain_group(DeviceGroup("habana.ai/gaudi", cards, cards, GAUDI, "Intel"), None, "")


def _plain_group(group: DeviceGroup, model: GpuModel | None, name: str) -> NodeInventory:
    if group.devices <= 0:
        return EMPTY
    if model is None:
        return NodeInventory((replace(group, model=name),), group.devices)
    described = replace(group, model=model.name, memory_mib=model.memory_mib, tflops_milli=model.tflops_milli)
    return NodeInventory((described,), group.devices)


def labelled(labels: Labels, key: re.Pattern[str]) -> str:
    return next((value for name, value in labels.items() if key.match(name)), "")


def _in_key(labels: Labels, *facts: str) -> str:
    """Return a value that is part of the key, because a node has several: `beta.amd.com/gpu.vram.16G: 1`."""
    for fact in facts:
        for prefix in ("amd.com/", "beta.amd.com/"):
            values = [
                key.removeprefix(f"{prefix}{fact}.") for key in labels if key.startswith(f"{prefix}{fact}.")
            ]
            if len(values) == 1:
                return values[0]
    return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) > 0 else None
