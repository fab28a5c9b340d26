"""Computes the GPU objects of a machine's devices, and the writes they need. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.gpu.agent.machine import Machine, MachineGpu
from karpool.model import quantity
from karpool.model.devices.device import (
    AGENT,
    OWNER_LABEL,
    POOL_LABEL,
    PUBLISHED_BY,
    RUNNING,
    UNKNOWN,
)
from karpool.model.devices.gpu_models import find_model
from karpool.model.devices.isolation import PARTITIONED
from karpool.model.devices.links import LINKS_ANNOTATION
from karpool.model.kubernetes.node import HOSTNAME

_MIB = 2**20


@dataclass(frozen=True)
class PublishedNode:
    """The node of this machine, as far as its objects need it."""

    name: str
    hostname: str
    pool: str = ""


@dataclass(frozen=True)
class Writes:
    """`created` are whole objects; `changed` the metadata and status of objects that exist."""

    created: Sequence[dict[str, Any]] = ()
    changed: Sequence[dict[str, Any]] = ()


def others_describe(existing: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another component publishes this node's devices."""
    return any(_annotations(gpu).get(PUBLISHED_BY) != AGENT for gpu in existing)


def writes_for(machine: Machine, node: PublishedNode, existing: Sequence[Mapping[str, Any]]) -> Writes:
    """The writes that make the objects right; none if they are. A device that is gone gets the
    phase Unknown.
    """
    by_name = {str(gpu["metadata"]["name"]): gpu for gpu in existing}
    described = {
        gpu["metadata"]["name"]: gpu for gpu in (gpu_object(gpu, node) for gpu in machine.devices) if gpu
    }
    created = [_idle(gpu) for name, gpu in described.items() if name not in by_name]
    changed = [gpu for name, gpu in described.items() if name in by_name and not _says(by_name[name], gpu)]
    for name, gpu in by_name.items():
        phase = (gpu.get("status") or {}).get("phase")
        if name not in described and phase != UNKNOWN:
            changed.append({"metadata": {"name": name}, "status": {"phase": UNKNOWN}})
    return Writes(created, changed)


def gpu_object(gpu: MachineGpu, node: PublishedNode) -> dict[str, Any] | None:
    """None for a device without an identity: it could not be recognised later."""
    if not gpu.uuid:
        return None
    model = find_model(gpu.name, (gpu.memory_bytes or 0) // _MIB)
    tflops = model.tflops_milli if model is not None else None
    labels = {OWNER_LABEL: node.name, **({POOL_LABEL: node.pool} if node.pool else {})}
    links = {link.peer: link.path for link in gpu.links}
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPU",
        "metadata": {
            "name": gpu.uuid.lower(),
            "labels": labels,
            "annotations": {
                PUBLISHED_BY: AGENT,
                **(
                    {LINKS_ANNOTATION: json.dumps(links, sort_keys=True, separators=(",", ":"))}
                    if links
                    else {}
                ),
            },
        },
        "status": {
            "phase": RUNNING if gpu.healthy else UNKNOWN,
            "vendor": "NVIDIA",
            "uuid": gpu.uuid,
            "gpuModel": gpu.model or gpu.name,
            "index": gpu.index,
            "numaNode": -1 if gpu.numa_node is None else gpu.numa_node,
            "capacity": {
                "tflops": quantity.format_milli(tflops or 0),
                "vram": f"{(gpu.memory_bytes or 0) // _MIB}Mi",
            },
            "nodeSelector": {HOSTNAME: node.hostname},
            "message": "; ".join(gpu.problems),
            **({"isolationMode": PARTITIONED} if gpu.mig_enabled else {}),
        },
    }


def _idle(gpu: dict[str, Any]) -> dict[str, Any]:
    """The available amounts of a device that was never used; afterwards its allocator writes them."""
    return {**gpu, "status": {**gpu["status"], "available": gpu["status"]["capacity"]}}


def _annotations(gpu: Mapping[str, Any]) -> Mapping[str, str]:
    return gpu["metadata"].get("annotations") or {}


def _says(existing: Mapping[str, Any], described: Any) -> bool:
    """Whether the object already contains the description; it may contain more."""
    if not isinstance(described, Mapping):
        return bool(existing == described)
    return isinstance(existing, Mapping) and all(
        _says(existing.get(key, {} if isinstance(part, Mapping) else None), part)
        for key, part in described.items()
        if key not in ("apiVersion", "kind")
    )
