"""Resource lists as integers: milli-CPU, and whole units of everything else.

Only names that a scheduler counts are kept: cpu, memory, ephemeral-storage,
pods, and scalar resources (extended resources, huge pages, attachable volumes,
the kubernetes.io domain). Anything else, such as `storage`, never constrains a
node and is dropped here, as kube-scheduler and Karmada do.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

from karpool.model import labels, quantity
from karpool.model.errors import Invalid

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
NODES = "nodes"  # Karpenter's pseudo-resource in limits
GPU = "nvidia.com/gpu"
ATTACHED_VOLUMES = "attachable-volumes-csi-"  # with the driver: volumes that may be attached to a node

NATIVE = (CPU, MEMORY, EPHEMERAL_STORAGE, PODS)

Resources = dict[str, int]
Quantities = Mapping[str, str | int | float]


@lru_cache(maxsize=4096)
def is_scalar(name: str) -> bool:
    """Whether a name outside `NATIVE` is counted on nodes."""
    return (
        is_extended(name)
        or name.startswith(("hugepages-", "attachable-volumes-"))
        or "kubernetes.io/" in name
    )


def is_extended(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    try:
        labels.check_key(f"requests.{name}")
    except Invalid:
        return False
    return True


# Extended resources for addresses, network interfaces and device files, which are not devices to people.
_PLUMBING = (
    "vpc.amazonaws.com/pod-eni",
    "vpc.amazonaws.com/PrivateIPv4Address",
    "vpc.amazonaws.com/CIDRBlock",
    "networking.gke.io",
    "devices.kubevirt.io/",
    "smarter-devices/",
    "github.com/fuse",
)


def is_device(name: str) -> bool:
    """Whether people call it a device: GPUs, other accelerators, EFA and the like."""
    return is_extended(name) and not name.startswith(_PLUMBING)


def amount(name: str, text: str | int | float) -> int:
    """Return one quantity in the unit of the resource."""
    try:
        read = _written if isinstance(text, str) else _read
        return read(text, name == CPU)
    except Invalid as error:
        raise error.at(name) from None


def _read(text: str | int | float, in_thousandths: bool) -> int:
    return quantity.milli_value(text) if in_thousandths else quantity.value(text)


_written = lru_cache(maxsize=4096)(_read)  # cached, because thousands of nodes and pods have the same lists


def parse(raw: Quantities | None) -> Resources:
    """Parse a ResourceList into integers; raises Invalid, which names the resource."""
    if not raw:
        return {}
    return {name: amount(name, text) for name, text in raw.items() if name in NATIVE or is_scalar(name)}


def parse_all(raw: Quantities | None) -> Resources:
    """Like `parse`, for limits and quotas, where every name counts."""
    return {name: amount(name, text) for name, text in (raw or {}).items()}


def add(total: Resources, more: Mapping[str, int]) -> None:
    """Add in place."""
    for name, units in more.items():
        total[name] = total.get(name, 0) + units


def maximum(total: Resources, other: Mapping[str, int]) -> None:
    """Raise each entry in place to at least the other's."""
    for name, units in other.items():
        if units > total.get(name, 0):
            total[name] = units


def total(lists: Iterable[Mapping[str, int]]) -> Resources:
    result: Resources = {}
    for amounts in lists:
        add(result, amounts)
    return result


def show(resources: Mapping[str, int]) -> str:
    """Format for messages: `cpu 1500m, memory 2Gi`."""
    return ", ".join(f"{name} {show_amount(name, units)}" for name, units in resources.items())


def show_amount(name: str, units: int) -> str:
    return quantity.format_milli(units) if name == CPU else quantity.format_value(units)


def show_rounded(name: str, units: int) -> str:
    """Format for tables with three digits; `show_amount` is exact."""
    if name == CPU:
        return quantity.rounded_milli(units)
    return quantity.rounded_bytes(units) if name in (MEMORY, EPHEMERAL_STORAGE) else str(units)


def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return a ResourceList, as in objects."""
    return {name: show_amount(name, units) for name, units in amounts.items()}
