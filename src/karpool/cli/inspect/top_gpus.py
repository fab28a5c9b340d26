"""`karpool top gpus`: every device with model and memory, who holds which share of it, what is free."""

from typing import Any

from karpool.cli.cluster_source import unreadable_lines
from karpool.cli.output.listing import ListedItem, Listing
from karpool.cli.output.text import NONE, UNKNOWN, pluralize
from karpool.cluster.devices.accelerators import Accelerator, DeviceHolder, accelerators
from karpool.cluster.snapshot import Snapshot
from karpool.model import quantity

_HOLDERS_SHOWN = 3


def gpu_listing(snapshot: Snapshot, cluster: str) -> Listing:
    devices, problems = accelerators(snapshot)
    lines = [*(f"cannot be read: {problem}" for problem in problems), *unreadable_lines(snapshot)]
    idle = sum(not device.holders for device in devices)
    nodes = len({device.node for device in devices})
    about = (
        f"{cluster}: {pluralize(len(devices), 'device')} on {pluralize(nodes, 'node')}, {idle} with no holder"
    )
    labels = {state_node.name: state_node.labels for state_node in snapshot.nodes}
    return Listing(
        "GpuUsageList",
        "gpu",
        ["NODE", "DEVICE", "MODEL", "MEMORY", "PROFILE", "FREE", "HOLDERS"],
        [
            ListedItem(
                f"{device.node}/{device.device}",
                _item(device),
                [
                    device.node,
                    device.device,
                    device.model or UNKNOWN,
                    _memory(device.memory_bytes),
                    device.profile or NONE,
                    _free(device),
                    _holders(device.holders, most=_HOLDERS_SHOWN),
                ],
                [
                    device.resource or NONE,
                    device.handed_out_by,
                    _holders(device.holders, most=len(device.holders)),
                ],
                labels.get(device.node, {}),
            )
            for device in devices
        ],
        ["RESOURCE", "HANDED OUT BY", "ALL HOLDERS"],
        {"cluster": cluster, "problems": problems},
        [about, *lines],
        "\n".join([f"no GPUs in {cluster}", *lines]),
    )


def _free(device: Accelerator) -> str:
    """A share where shares are handed out, else whether it is free."""
    if device.unstable:
        return "changing"
    memory = device.free_memory_bytes
    if device.free_units is None or any(holder.memory_bytes for holder in device.holders):
        return UNKNOWN if memory is None else f"{_memory(memory)}"
    if device.shareable:
        return pluralize(device.free_units, "share")
    return "yes" if device.free_units else "no"


def _holders(holders: tuple[DeviceHolder, ...], most: int) -> str:
    shown = [
        f"{holder.pod} ({_memory(holder.memory_bytes)})" if holder.memory_bytes else holder.pod
        for holder in holders[:most]
    ]
    rest = [f"and {len(holders) - most} more"] if len(holders) > most else []
    return ", ".join([*shown, *rest]) or NONE


def _memory(memory: int | None) -> str:
    return UNKNOWN if memory is None else f"{memory // 2**20}Mi"


def _item(device: Accelerator) -> dict[str, Any]:
    return {
        "node": device.node,
        "device": device.device,
        "model": device.model or None,
        "memoryBytes": device.memory_bytes,
        "kind": device.form,
        "profile": device.profile or None,
        "resource": device.resource or None,
        "shareable": device.shareable,
        "handedOutBy": device.handed_out_by,
        "unstable": device.unstable,
        "holders": [
            {
                "pod": holder.pod,
                **({"units": holder.units} if holder.units else {}),
                **({"memoryBytes": holder.memory_bytes} if holder.memory_bytes else {}),
                **({"tflops": quantity.format_milli(holder.tflops_milli)} if holder.tflops_milli else {}),
            }
            for holder in device.holders
        ],
        "free": {"units": device.free_units, "memoryBytes": device.free_memory_bytes},
    }
