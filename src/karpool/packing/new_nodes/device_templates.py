"""The devices of nodes that a pool could launch, by instance type."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from karpool.model.devices.node_devices import labelled_devices, plugin_of
from karpool.model.devices.request import DeviceDemand
from karpool.model.karpenter.objects import NODEPOOL
from karpool.packing.new_nodes.offerings import PoolOfferings
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.device_kinds import DeviceKind, DeviceKinds, kind_of
from karpool.packing.tables.device_table import DeviceFilling, DeviceTable, new_devices

_MEMO_LIMIT = 4096


class DeviceTemplates:
    """The devices of the instance types of one pool. Types with the same devices are evaluated once."""

    def __init__(self, offer: PoolOfferings) -> None:
        self._kinds = DeviceKinds()
        self._tables: list[DeviceTable | None] = []
        numbers: dict[tuple[DeviceKind, ...], int] = {}
        of_type = []
        for instance_type in offer.types:
            single = {
                key: next(iter(values.values))
                for key, values in instance_type.requirements.items()
                if not values.complement and len(values.values) == 1
            }
            labels = {**single, **offer.pool.labels, NODEPOOL: offer.pool.name}
            devices = labelled_devices("", labels, instance_type.allocatable)
            plugin = plugin_of(instance_type.allocatable)
            kinds = tuple(kind_of(device, plugin) for device in devices)
            number = numbers.setdefault(kinds, len(numbers))
            if number == len(self._tables):
                self._tables.append(new_devices(self._kinds, ((0, device, plugin) for device in devices)))
            of_type.append(number)
        self._of_type: Int64s = np.array(of_type, dtype=np.int64)
        self._held: dict[tuple[tuple[DeviceDemand, ...], tuple[tuple[str, int], ...]], Bools] = {}

    def holding(self, demands: Iterable[DeviceDemand], whole: Mapping[str, int]) -> Bools:
        """Return the types whose devices serve all these demands, next to whole units of plugins."""
        key = tuple(sorted(demands, key=_size)), tuple(sorted(whole.items()))
        holding = self._held.get(key)
        if holding is None:
            if len(self._held) >= _MEMO_LIMIT:
                self._held.clear()
            holding = self._held[key] = self._by_type([_serves(table, *key) for table in self._tables])
        return holding

    def counts(self, demand: DeviceDemand) -> Int64s:
        """Return by type how many pods with this demand its devices serve."""
        rooms = [0 if table is None else int(table.room(demand, 1)[0]) for table in self._tables]
        return np.array(rooms, dtype=np.int64)[self._of_type]

    def _by_type(self, answers: Sequence[bool]) -> Bools:
        mask: Bools = np.array(answers, dtype=np.bool_)[self._of_type]
        return mask


def _serves(
    table: DeviceTable | None, demands: Sequence[DeviceDemand], whole: Sequence[tuple[str, int]]
) -> bool:
    if table is None:
        return False
    filling = DeviceFilling(table)
    for resource, units in whole:
        filling.close(0, resource, units)
    return all(filling.take(0, demand) is not None for demand in demands)


def _size(demand: DeviceDemand) -> tuple[int, int, int, str]:
    """Sort key, largest demand first: small demands can then use what is left over."""
    share = demand.share
    return (
        -demand.count,
        -(share.vram_bytes or share.vram_percent_milli),
        -(share.tflops_milli or share.percent_milli),
        repr(demand),
    )
