"""Finds workers whose removal would make a request fit on a node.

Devices are copied, the amounts of the workers are returned to the copies, and the usual filters decide.
Nothing is evicted: the condition of the pending pod names the workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from karpool.gpu import device_filters
from karpool.gpu.allocation.allocation import DeviceAllocation
from karpool.gpu.allocation.allocator import Allocator
from karpool.gpu.scoring_columns import ScoringColumns
from karpool.model.devices.amounts import NOTHING, DeviceAmount
from karpool.model.devices.device import Device
from karpool.model.devices.device_reasons import DeviceReason, NoDevice, no_device
from karpool.model.devices.isolation import STATIC
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.request import GpuRequest

# Nodes checked per request: only one is named, and a better one is not worth a slow step.
_NODES_TRIED = 50


@dataclass(frozen=True, slots=True)
class FreedDevices:
    """The devices that would fit, and the free amounts of each device."""

    devices: tuple[str, ...]
    available: dict[str, DeviceAmount]


@dataclass(frozen=True, slots=True)
class PreemptionVictims:
    """Workers of lower priority without which the request would fit on this node."""

    node: str
    workers: tuple[str, ...]

    def __str__(self) -> str:
        return f"deleting {', '.join(self.workers)} (lower priority) on node {self.node} would make room"


def find_victims(allocator: Allocator, request: GpuRequest) -> PreemptionVictims | None:
    """The fewest workers of lower priority on one node whose removal is enough; None: no such node.

    On each node the lowest priority goes first; the node with the fewest victims is chosen.
    """
    by_node: dict[str, list[DeviceAllocation]] = {}
    for entry in allocator.ledger.committed.values():
        if entry.node and entry.request.priority < request.priority:
            by_node.setdefault(entry.node, []).append(entry)
    best: PreemptionVictims | None = None
    for node in sorted(by_node)[:_NODES_TRIED]:
        devices = [
            structs.replace(device, available=allocator.free(device.name))
            for device in allocator.devices_of(request.pool)
            if device.node == node
        ]
        victims: list[DeviceAllocation] = []
        for entry in sorted(by_node[node], key=lambda entry: (entry.request.priority, entry.request.key)):
            victims.append(entry)
            if best is not None and len(victims) >= len(best.workers):
                break
            freed = free_without(
                devices, victims, request, allocator.settings.policy, allocator.settings.catalogue
            )
            if isinstance(freed, FreedDevices) and len(freed.devices) >= request.count:
                best = PreemptionVictims(node, tuple(victim.request.key for victim in victims))
                break
    return best


def free_without(
    devices: Sequence[Device],
    victims: Sequence[DeviceAllocation],
    request: GpuRequest,
    policy: str = STATIC,
    catalogue: PartitionCatalogue | None = None,
) -> FreedDevices | NoDevice:
    """Whether the request fits without the victims. `devices` are those of the nodes in question, with their
    free amounts.
    """
    if not devices:
        return no_device(
            DeviceReason.NO_AFFECTED_NODES, "name the node, or the workers that would have to go"
        )
    templates = catalogue or PartitionCatalogue()
    freed = [_freed(device, victims) for device in devices]
    table = ScoringColumns(freed)
    plain = replace(request, node_terms=None, preferred=(), vendor="")
    chain = device_filters.device_filters(plain, policy, templates)
    if request.vendor:
        chain.extend(device_filters.vendor_filter(request.vendor))
    survivors = device_filters.run_filters(table, table.all_rows(), chain)
    if survivors.refusal is not None:
        return survivors.refusal
    names = tuple(table.device(int(row)).name for row in survivors.rows)
    return FreedDevices(names, {device.name: device.available or NOTHING for device in freed})


def _freed(device: Device, victims: Sequence[DeviceAllocation]) -> Device:
    capacity, available = device.capacity or NOTHING, device.available or NOTHING
    partitions = dict(device.partitions)
    for victim in victims:
        for share in victim.taken:
            if share.device == device.name:
                partitions.pop(victim.request.uid, None)
                available += share.amount
    return structs.replace(device, available=available.at_most(capacity), partitions=partitions)
