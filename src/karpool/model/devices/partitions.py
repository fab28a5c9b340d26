"""Hardware partitions of a device: which template covers a request, and where it fits.

Vendors differ: slots in a row (NVIDIA MIG and compatible), or isolation groups with extended resources
(Ascend). Others have no partitions.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from karpool.model.devices.amounts import MILLI, DeviceAmount
from karpool.model.devices.device import DevicePartition
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.gpu_models import GpuModel, find_model

GIB = 2**30
MIB = 2**20
DEVICE_CAP = 7
# Costs are rounded to hundredths of a TFLOP: each partition of a full device may exceed it by this much.
ROUNDING_MILLI = 10
# On a pod: its partitions, in the order of its devices, like `1g.18gb@4` (slot) or `vir02#1` (group).
PARTITIONS = "gpu.karpool.dev/partitions"
GROUPS_MAX = 4
PER_GROUP = 2
_GROUP_VENDORS = frozenset(("Ascend",))
_SLOT_VENDORS = frozenset(("NVIDIA", "AMD", ""))
_SEPARATORS = re.compile(r"[._ /-]+")
_WRITTEN = re.compile(r"(?P<template>[^@#,]{1,63})(?:(?P<how>[@#])(?P<place>[0-9]{1,3}))?\Z")
_WRITTEN_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class PartitionTemplate:
    id: str
    name: str = ""
    memory_gib: int = 0
    compute_percent: float = 0.0
    max_partition: int = 0  # per device; 0: no limit of its own
    placement: tuple[int, ...] = ()
    slots: int = 0
    shared: bool = False
    max_per_group: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)

    def cost(self, capacity_tflops_milli: int) -> DeviceAmount:
        """Return the percentage of the capacity with two decimals, and whole GiB."""
        hundredths = math.floor(self.compute_percent * capacity_tflops_milli / (100 * MILLI) * 100 + 0.5)
        return DeviceAmount(hundredths * (MILLI // 100), self.memory_gib * GIB)

    def answers_to(self, requested: str) -> bool:
        """Whether a name means this template: ID or name, ignoring case, separators and a `mig-` prefix."""
        plain_name = _plain(requested)
        return any(
            requested.lower() == own_name.lower() or plain_name == _plain(own_name)
            for own_name in (self.id, self.name)
            if own_name
        )


Templates = Mapping[str, Mapping[str, PartitionTemplate]]  # model, id


def _plain(text: str) -> str:
    return _SEPARATORS.sub("-", text.lower()).removeprefix("mig-")


def written_form(partitions: Iterable[DevicePartition]) -> str:
    def place(partition: DevicePartition) -> str:
        if partition.group is not None:
            return f"#{partition.group}"
        return "" if partition.start is None else f"@{partition.start}"

    return ",".join(f"{partition.template}{place(partition)}" for partition in partitions)


def written_partitions(text: str) -> tuple[DevicePartition, ...]:
    """Parse the text of `written_form`; empty if it cannot be parsed."""
    if not text or len(text) > _WRITTEN_MAX:
        return ()
    read = [_WRITTEN.match(part) for part in text.split(",")]
    if not all(read):
        return ()
    return tuple(
        DevicePartition(
            part["template"],
            start=int(part["place"]) if part["how"] == "@" else None,
            group=int(part["place"]) if part["how"] == "#" else None,
        )
        for part in read
        if part is not None
    )


@lru_cache(maxsize=256)
def templates_of(model: GpuModel) -> Mapping[str, PartitionTemplate]:
    """Return the MIG profiles of a card with known positions, as templates."""
    return {
        profile.name: PartitionTemplate(
            profile.name,
            profile.name,
            # Whole GiB, rounded down; 0 if unpublished, and the template is then found by name only.
            memory_gib=(profile.memory_mib or 0) // 1024,
            compute_percent=100 * model.compute_share(profile),
            max_partition=profile.max_instances,
            placement=profile.starts,
            slots=profile.size,
        )
        for profile in model.profiles
        if profile.starts
    }


@dataclass(frozen=True)
class PartitionCatalogue:
    """Templates and limits per model; by default those of the shipped table of models."""

    templates: Templates = field(default_factory=dict)
    max_partitions: Mapping[str, int] = field(default_factory=dict)

    def cap(self, model: str) -> int:
        return self.max_partitions.get(model) or DEVICE_CAP

    def of(self, model: str, capacity: DeviceAmount) -> Mapping[str, PartitionTemplate]:
        if self.templates:
            return self.templates.get(model) or {}
        shipped = find_model(model, capacity.vram_bytes // MIB)
        return templates_of(shipped) if shipped is not None else {}

    def named(self, model: str, capacity: DeviceAmount, requested: str) -> PartitionTemplate | None:
        of_model = self.of(model, capacity)
        exact = of_model.get(requested)
        if exact is not None:
            return exact
        return next((template for template in of_model.values() if template.answers_to(requested)), None)

    def match(
        self, model: str, capacity: DeviceAmount, amount: DeviceAmount, requested: str = ""
    ) -> PartitionTemplate | NoDevice:
        """Return the named template, or the one that covers the request with the least waste."""
        if requested:
            named = self.named(model, capacity, requested)
            choices = [] if named is None else [named]
        else:
            choices = list(self.of(model, capacity).values())
        fitting = [choice for choice in choices if choice.cost(capacity.tflops_milli).covers(amount)]
        if not fitting:
            asked = f"the template {requested}" if requested else "a template"
            return no_device(
                DeviceReason.NO_TEMPLATE, f"model {model or '(unknown)'} has not {asked} for {amount}"
            )
        return min(
            fitting, key=lambda template: (waste(template.cost(capacity.tflops_milli), amount), template.id)
        )


def waste(cost: DeviceAmount, amount: DeviceAmount) -> float:
    tflops, asked = cost.tflops_milli / MILLI, amount.tflops_milli / MILLI
    compute = (tflops - asked) / max(asked, 1.0)
    memory = (cost.vram_bytes - amount.vram_bytes) / max(amount.vram_bytes, 1)
    return 0.6 * compute + 0.4 * memory


@dataclass(frozen=True, slots=True)
class PartitionHost:
    """The device on which a partition is created."""

    vendor: str
    capacity: DeviceAmount
    available: DeviceAmount
    partitions: Sequence[DevicePartition] = ()
    cap: int = DEVICE_CAP
    groups_max: int = GROUPS_MAX
    extended: Mapping[str, int] = field(default_factory=dict)


def place_partition(
    template: PartitionTemplate, host: PartitionHost, templates: Mapping[str, PartitionTemplate]
) -> DevicePartition | NoDevice:
    """Return where the partition goes, or the first rule that forbids it."""
    if host.vendor in _GROUP_VENDORS:
        return _over_caps(template, host) or _place_in_group(template, host, templates)
    if host.vendor not in _SLOT_VENDORS:
        return no_device(DeviceReason.NO_PLACEMENT_SLOT, f"devices of {host.vendor} have no partitions")
    return _over_caps(template, host) or _place_in_slots(template, host, templates)


def _over_caps(template: PartitionTemplate, host: PartitionHost) -> NoDevice | None:
    if len(host.partitions) >= host.cap:
        return no_device(
            DeviceReason.PARTITION_CAP, f"the device has {host.cap} partitions, as many as it may have"
        )
    same = sum(1 for partition in host.partitions if partition.template == template.id)
    if 0 < template.max_partition <= same:
        return no_device(
            DeviceReason.PARTITION_CAP,
            f"the device has {same} partitions {template.id}, as many as it may have",
        )
    return None


def _place_in_slots(
    template: PartitionTemplate, host: PartitionHost, templates: Mapping[str, PartitionTemplate]
) -> DevicePartition | NoDevice:
    taken = _occupied(host.partitions, templates)
    start = _driver_start(template, taken, templates.values())
    if start is None and template.placement:
        return no_device(DeviceReason.NO_PLACEMENT_SLOT, f"no free slots for {template.id}")
    cost = template.cost(host.capacity.tflops_milli)
    slack = ROUNDING_MILLI * (len(host.partitions) + 1)
    if host.available.tflops_milli + slack < cost.tflops_milli:
        return no_device(
            DeviceReason.INSUFFICIENT_TFLOPS, f"{template.id} needs {cost}, the device has {host.available}"
        )
    if host.available.vram_bytes < cost.vram_bytes:
        return no_device(
            DeviceReason.INSUFFICIENT_VRAM, f"{template.id} needs {cost}, the device has {host.available}"
        )
    return DevicePartition(template.id, start=start)


def _occupied(partitions: Sequence[DevicePartition], templates: Mapping[str, PartitionTemplate]) -> set[int]:
    """Return the slots in use; partitions without a recorded position are placed in order."""
    taken: set[int] = set()
    for has_place in (True, False):
        for partition in partitions:
            template = templates.get(partition.template)
            if template is None or (partition.start is not None) != has_place:
                continue
            start = partition.start if partition.start is not None else _free_start(template, taken)
            if start is not None:
                taken.update(_slots(template, start))
    return taken


def _driver_start(
    template: PartitionTemplate, taken: set[int], templates: Iterable[PartitionTemplate]
) -> int | None:
    """Return the slot that NVIDIA's driver chooses.

    Of the legal and free slots it takes the one that leaves most slots open to later partitions, and the
    first of equal ones: a 3g goes to slot 4 while a 4g is still possible at 0, a first 1g to slot 6. Observed
    on a real H200, instance by instance.
    """
    others = list(templates)

    def openness(start: int) -> int:
        then = taken | set(_slots(template, start))
        return sum(len(_free_starts(other, then)) for other in others)

    return max(_free_starts(template, taken), key=openness, default=None)


def _free_start(template: PartitionTemplate, taken: set[int]) -> int | None:
    return next(iter(_free_starts(template, taken)), None)


def _free_starts(template: PartitionTemplate, taken: set[int]) -> list[int]:
    return [start for start in template.placement if taken.isdisjoint(_slots(template, start))]


def _slots(template: PartitionTemplate, start: int) -> range:
    return range(start, start + max(1, template.slots))


def _place_in_group(
    template: PartitionTemplate, host: PartitionHost, templates: Mapping[str, PartitionTemplate]
) -> DevicePartition | NoDevice:
    used: Counter[str] = Counter()
    for partition in host.partitions:
        used.update(templates[partition.template].extended if partition.template in templates else {})
    for name, need in template.extended.items():
        if name in host.extended and used[name] + need > host.extended[name]:
            return no_device(
                DeviceReason.INSUFFICIENT_EXTENDED,
                f"{template.id} needs {need} {name}; {used[name]} of {host.extended[name]} are in use",
                name,
            )
    groups: dict[int, list[str]] = {number: [] for number in range(host.groups_max)}
    for device_partition in host.partitions:
        if device_partition.group is not None:
            groups.setdefault(device_partition.group, []).append(device_partition.template)
    if template.shared:
        full = template.max_per_group or PER_GROUP
        for number, members in groups.items():
            if members and set(members) == {template.id} and len(members) < full:
                return DevicePartition(template.id, group=number)
    empty = next((number for number, members in groups.items() if not members), None)
    if empty is None:
        return no_device(DeviceReason.NO_PLACEMENT_SLOT, f"no isolation group is free for {template.id}")
    return DevicePartition(template.id, group=empty)
