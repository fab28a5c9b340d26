"""One GPU as the allocator sees it, and how it is read from the cluster.

A `Device` is its last reported state. The amounts that our pods use are in the ledger; `available` is used
only if a device has a figure of its own (tests, files), and is otherwise computed from capacity and ledger.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.model.devices.amounts import NOTHING, DeviceAmount, parse_amount
from karpool.model.devices.links import LINKS_ANNOTATION, read_links
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Int32, Wire, WireObject
from karpool.model.kubernetes.node import HOSTNAME

PREFIX = "tensor-fusion.ai/"
POOL_LABEL = PREFIX + "gpupool"
OWNER_LABEL = PREFIX + "managed-by"
PUBLISHED_BY, AGENT = "gpu.karpool.dev/published-by", "gpu-agent"
CAPABILITIES_ANNOTATION = PREFIX + "virtualization-capabilities"
MISSING_ANNOTATION = PREFIX + "gpu-missing-since"
OURS = "tensor-fusion"
SMART_POD_USE = "smart-pod/"  # with the UID: `used_by` of a device that one of our placeholders occupies

_TFLOPS_MAX = 10**12  # thousandths; percentages of it still fit into 64 bits
_VRAM_MAX = 2**50

PENDING, RUNNING, UNKNOWN = "Pending", "Running", "Unknown"


@dataclass(frozen=True, slots=True)
class DevicePartition:
    """One hardware partition in use: its template, and its position if known."""

    template: str = ""
    start: int | None = None
    group: int | None = None


class Device(msgspec.Struct, frozen=True):
    """A GPU. A msgspec struct, because a cluster has thousands and a dataclass takes 40 times as long."""

    name: str
    node: str = ""  # host name
    owner: str = ""  # name of the node object
    pool: str = ""
    phase: str = PENDING
    vendor: str = "NVIDIA"
    model: str = ""
    index: int | None = None
    numa_node: int | None = None
    capacity: DeviceAmount | None = None
    available: DeviceAmount | None = None
    strangers: DeviceAmount = NOTHING  # used by pods of other schedulers
    used_by: str = ""
    isolation_mode: str = ""
    isolation_policy: str = ""
    active_isolation_mode: str = ""
    isolation_conflict: bool = False
    capabilities: Mapping[str, bool] | None = None
    partitions: Mapping[str, DevicePartition] = msgspec.field(default_factory=dict)
    missing_since: str = ""
    compute_known: bool = True
    links: tuple[tuple[str, str], ...] = ()  # peers on its machine, with the path to each
    is_of_agent: bool = False  # described by our own agent, which allocates nothing
    running_apps: str = ""  # `apps_in_short`, if we write it

    @property
    def is_ours(self) -> bool:
        return self.used_by in ("", OURS)

    @property
    def used_by_others(self) -> DeviceAmount:
        """The amount in use that no pod of ours accounts for."""
        if self.capacity is None or self.available is None:
            return self.strangers
        return (self.capacity - self.available).at_least(NOTHING) + self.strangers


class _Resource(Wire, frozen=True):
    tflops: str | int | float | None = None
    vram: str | int | float | None = None

    def amount(self, path: str) -> DeviceAmount:
        amount = parse_amount({"tflops": self.tflops, "vram": self.vram}, path)
        if not (0 <= amount.tflops_milli <= _TFLOPS_MAX and 0 <= amount.vram_bytes <= _VRAM_MAX):
            raise Invalid(path, str(amount), "is not what one GPU can have")
        return amount


class _Status(Wire, frozen=True):
    phase: str | None = None
    vendor: str | None = None
    gpu_model: str | None = None
    index: Int32 | None = None
    numa_node: Int32 | None = None
    capacity: _Resource | None = None
    available: _Resource | None = None
    node_selector: dict[str, str] | None = None
    isolation_mode: str | None = None
    isolation_policy: str | None = None
    active_isolation_mode: str | None = None
    dynamic_isolation_conflict: bool | None = None
    used_by: str | None = None
    running_apps: list[Any] | None = None


class GpuObject(WireObject, frozen=True):
    """The cluster-scoped GPU object: one per device, status only."""

    status: _Status | None = None


def from_object(gpu: GpuObject) -> Device:
    """Read a GPU object. Raises Invalid, which names the field."""
    status, meta = gpu.status or _Status(), gpu.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    missing = annotations.get(MISSING_ANNOTATION, "")
    is_of_agent = annotations.get(PUBLISHED_BY) == AGENT
    phase = status.phase or PENDING
    return Device(
        name=meta.name,
        node=(status.node_selector or {}).get(HOSTNAME, ""),
        owner=labels.get(OWNER_LABEL, ""),
        pool=labels.get(POOL_LABEL, ""),
        phase=UNKNOWN if missing and phase == RUNNING else phase,
        vendor=status.vendor or "NVIDIA",
        model=status.gpu_model or "",
        index=status.index,
        numa_node=None if status.numa_node is None or status.numa_node < 0 else status.numa_node,
        capacity=status.capacity.amount("status.capacity") if status.capacity else NOTHING,
        used_by=status.used_by or "",
        isolation_mode=status.isolation_mode or "",
        isolation_policy=status.isolation_policy or "",
        active_isolation_mode=status.active_isolation_mode or "",
        isolation_conflict=bool(status.dynamic_isolation_conflict),
        capabilities=_capabilities(annotations.get(CAPABILITIES_ANNOTATION)),
        links=read_links(annotations.get(LINKS_ANNOTATION, "")),
        is_of_agent=is_of_agent,
        running_apps=apps_in_short(status.running_apps or ()) if is_of_agent else "",
        missing_since=missing,
    )


def apps_in_short(apps: Iterable[Any]) -> str:
    """Return the users of a device as text, independent of field order and of fields that a server adds."""
    short = [
        [app.get("namespace"), app.get("name"), [pod.get("uid") for pod in _mappings(app.get("pods"))]]
        for app in _mappings(apps)
    ]
    return json.dumps(short) if short else ""


def _mappings(entries: object) -> list[Mapping[str, Any]]:
    listed = entries if isinstance(entries, (list, tuple)) else ()
    return [entry for entry in listed if isinstance(entry, Mapping)]


def _capabilities(text: str | None) -> Mapping[str, bool] | None:
    """Return the capabilities; unreadable metadata grants none, so only `shared` is possible."""
    if text is None:
        return None
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(read, dict):
        return {}
    return {key[:1].upper() + key[1:]: is_on is True for key, is_on in read.items()}
