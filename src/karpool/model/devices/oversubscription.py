"""Totals of nodes: physical, virtual, and the percentage of a hard limit.

Requests are packed to the capacity of devices; limits may exceed it. The virtual totals, which include host
memory and disk, show how far.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from karpool.model.devices.amounts import MILLI, NOTHING, DeviceAmount
from karpool.model.devices.device import Device


@dataclass(frozen=True, slots=True)
class Oversubscription:
    """The defaults are TensorFusion's."""

    tflops_oversell_percent: int = 500
    vram_expand_to_host_memory_percent: int = 50
    vram_expand_to_host_disk_percent: int = 70


def virtual_capacity(
    total: DeviceAmount, memory_bytes: int, disk_bytes: int, rules: Oversubscription
) -> DeviceAmount:
    tflops = total.tflops_milli * rules.tflops_oversell_percent // (100 * MILLI) * MILLI
    memory = memory_bytes * rules.vram_expand_to_host_memory_percent // 100
    disk = disk_bytes * rules.vram_expand_to_host_disk_percent // 100
    return DeviceAmount(tflops, total.vram_bytes + memory + disk)


def node_totals(devices: Iterable[Device]) -> tuple[DeviceAmount, DeviceAmount]:
    """Return capacity and available amount; missing devices add nothing."""
    total = available = NOTHING
    for device in devices:
        if not device.missing_since:
            total += device.capacity or NOTHING
            available += device.available or NOTHING
    return total, available


def hard_limit_percent(limit_tflops_milli: int, capacity_tflops_milli: int) -> int:
    """Return the share of a device that a hard limit is, rounded up, from 1 to 100."""
    if capacity_tflops_milli <= 0:
        return 100
    return min(100, max(1, -(-limit_tflops_milli * 100 // capacity_tflops_milli)))
