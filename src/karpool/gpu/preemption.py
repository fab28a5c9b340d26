"""Would a request fit on a node if these workers were gone?

The devices are copied, the victims' amounts are given back to the copies, and the
usual filters decide. Nothing is evicted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from karpool.gpu.allocation import device_filters
from karpool.gpu.columns import DeviceTable
from karpool.model.devices.amounts import NOTHING, DeviceAmount, DeviceShare
from karpool.model.devices.device import Device
from karpool.model.devices.device_reasons import DeviceReason, Refusal
from karpool.model.devices.isolation import SHARED, STATIC
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.request import GpuRequest


@dataclass(frozen=True, slots=True)
class Victim:
    devices: tuple[str, ...]
    request: DeviceShare = field(default_factory=DeviceShare)
    isolation: str = ""
    template: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Freed:
    """What would be possible: the devices that fit, and what each device would have."""

    devices: tuple[str, ...]
    available: dict[str, DeviceAmount]


def without(
    devices: Sequence[Device],
    victims: Sequence[Victim],
    request: GpuRequest,
    policy: str = STATIC,
    catalogue: PartitionCatalogue | None = None,
) -> Freed | Refusal:
    """`devices` are those of the nodes in question, with what is available now, reservations subtracted."""
    if not devices:
        return Refusal(DeviceReason.NO_AFFECTED_NODES, "name the node, or the workers that would have to go")
    known = catalogue or PartitionCatalogue()
    freed = [_freed(device, victims, known) for device in devices]
    table = DeviceTable(freed)
    plain = replace(request, node_terms=None, preferred=(), vendor="")
    chain = device_filters.device_filters(plain, policy, known)
    if request.vendor:
        chain.extend(device_filters.vendor_filter(request.vendor))
    survivors = device_filters.run_filters(table, table.all_rows(), chain)
    if survivors.refusal is not None:
        return survivors.refusal
    names = tuple(table.device(int(row)).name for row in survivors.rows)
    return Freed(names, {device.name: device.available or NOTHING for device in freed})


def _freed(device: Device, victims: Sequence[Victim], catalogue: PartitionCatalogue) -> Device:
    capacity = device.capacity or NOTHING
    available = device.available or NOTHING
    partitions = dict(device.partitions)
    for victim in victims:
        if device.name not in victim.devices:
            continue
        partitions.pop(victim.uid, None)
        template = catalogue.named(device.model, victim.template) if victim.template else None
        if victim.isolation == SHARED:
            available = capacity
        elif template is not None:
            available += template.cost(capacity.tflops_milli)
        else:
            available += victim.request.on(capacity)
    return replace(device, available=available.at_most(capacity), partitions=partitions)
