"""Orders items for new nodes, so that few nodes are needed.

The result of first fit depends on the order. Largest first is good. If sizes do not divide a device evenly,
it is better to fill one device after the other as much as possible (minimum bin slack), and to repeat a
filling while there are items for it. Both orders are tried on empty devices, and the one that needs fewer
wins. Pure; the number of different sizes bounds the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from karpool.gpu.scale_up.demand import WaitingWorker
from karpool.gpu.scale_up.node_bins import BinPacking, fresh_bin, signature
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.isolation import PARTITIONED, SHARED
from karpool.model.devices.node_devices import NodeYield
from karpool.model.devices.systems import GpuSystem

_LOOKS_MAX = 5000  # combinations tried for one filling


@dataclass
class _Kind:
    """Equal items: the amount of each on a device, and the remaining items."""

    cost: DeviceAmount
    items: list[WaitingWorker]


def best_order(items: Sequence[WaitingWorker], brings: NodeYield) -> list[WaitingWorker]:
    """The items in the better order; `items` come largest first."""
    biggest_first = list(items)
    if (
        len(biggest_first) < 2
        or not brings.devices
        or any(item.system is GpuSystem.DRA for item in biggest_first)
    ):
        return biggest_first
    filled = _filled(biggest_first, DeviceAmount(brings.tflops_milli, brings.vram_bytes))
    return filled if _nodes(filled, brings) < _nodes(biggest_first, brings) else biggest_first


def _nodes(items: Sequence[WaitingWorker], brings: NodeYield) -> int:
    packing = BinPacking()
    for item in items:
        packing.put_all([item], lambda _: fresh_bin(str(len(packing.bins)), brings, lambda item, room: True))
    return len(packing.bins)


def _filled(items: Sequence[WaitingWorker], device: DeviceAmount) -> list[WaitingWorker]:
    """Items that need several or whole devices first; then device by device."""
    order = [item for item in items if not _is_share(item)]
    kinds = _kinds([item for item in items if _is_share(item)], device)
    scarce = _scarce(kinds, device)
    kinds.sort(key=lambda kind: -scarce(kind.cost))
    while kinds:
        chosen = [pair for pair in zip(kinds, _fullest(kinds, device, scarce), strict=True) if pair[1]]
        for _ in range(min(len(kind.items) // count for kind, count in chosen)):
            for kind, count in chosen:
                order += kind.items[:count]
                del kind.items[:count]
        kinds = [kind for kind in kinds if kind.items]
    return order


def _is_share(item: WaitingWorker) -> bool:
    return item.request.count == 1 and item.request.isolation not in (SHARED, PARTITIONED)


def _kinds(items: Sequence[WaitingWorker], device: DeviceAmount) -> list[_Kind]:
    kinds: dict[object, _Kind] = {}
    for item in items:
        kind = kinds.setdefault(signature(item), _Kind(item.request.request.on(device), []))
        kind.items.append(item)
    return list(kinds.values())


class _Scarce:
    """Measures an amount by compute or memory, whichever runs out first."""

    def __init__(self, by_memory: bool) -> None:
        self._by_memory = by_memory

    def __call__(self, amount: DeviceAmount) -> int:
        return amount.vram_bytes if self._by_memory else amount.tflops_milli


def _scarce(kinds: Sequence[_Kind], device: DeviceAmount) -> _Scarce:
    memory = sum(kind.cost.vram_bytes * len(kind.items) for kind in kinds) * max(device.tflops_milli, 1)
    compute = sum(kind.cost.tflops_milli * len(kind.items) for kind in kinds) * max(device.vram_bytes, 1)
    return _Scarce(memory >= compute)


def _fullest(kinds: Sequence[_Kind], device: DeviceAmount, scarce: _Scarce) -> list[int]:
    """How many of each kind fill a device best, including at least one of the largest."""
    best: list[int] = [1, *([0] * (len(kinds) - 1))]
    most = scarce(kinds[0].cost)
    looks = 0

    def look(at: int, counts: list[int], left: DeviceAmount, used: int) -> bool:
        """True if no better filling exists, or the search must end."""
        nonlocal best, most, looks
        looks += 1
        if used > most:
            best, most = [*counts, *([0] * (len(kinds) - len(counts)))], used
        if looks > _LOOKS_MAX or most >= scarce(device):
            return True
        if at == len(kinds):
            return False
        kind = kinds[at]
        already = 1 if at == 0 else 0
        for count in range(min(len(kind.items) - already, _times(left, kind.cost)), -1, -1):
            taken = kind.cost * count
            if look(at + 1, [*counts, count + already], left - taken, used + scarce(taken)):
                return True
        return False

    first = kinds[0].cost
    look(0, [], device - first, scarce(first))
    return best


def _times(left: DeviceAmount, cost: DeviceAmount) -> int:
    """How often an amount fits; an amount of zero fits a few times."""
    fits = []
    if cost.vram_bytes:
        fits.append(left.vram_bytes // cost.vram_bytes)
    if cost.tflops_milli:
        fits.append(left.tflops_milli // cost.tflops_milli)
    return max(0, min(fits, default=8))
