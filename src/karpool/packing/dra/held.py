"""Allocated devices: whole devices, and amounts of shared ones. Immutable."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from karpool.model.dra.claim import AllocatedDevice, Allocation
from karpool.model.dra.device import DeviceId

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AllocatedState:
    whole: frozenset[DeviceId] = frozenset()
    shared: frozenset[DeviceId] = frozenset()
    amounts: Mapping[DeviceId, Amounts] = field(default_factory=dict)

    def __contains__(self, device: DeviceId) -> bool:
        """Whether the device uses its counters: it is allocated as a whole or in parts."""
        return device in self.whole or device in self.shared or device in self.amounts

    def plus(self, allocations: Iterable[Allocation], *, shares: bool = True) -> "AllocatedState":
        """Return the state with these allocations added.

        Admin access allocates nothing; without `shares` a partial allocation counts as the whole device.
        """
        whole, shared = set(self.whole), set(self.shared)
        amounts = dict(self.amounts)
        for result in (device for allocation in allocations for device in allocation.devices):
            if result.admin_access:
                continue
            if not shares or result.share is None:
                whole.add(result.id)
                continue
            shared.add(result.id)
            if result.consumed is not None:
                amounts[result.id] = _sum(amounts.get(result.id, {}), result)
        return AllocatedState(frozenset(whole), frozenset(shared), amounts)


def _sum(held: Amounts, more: AllocatedDevice) -> Amounts:
    summed = dict(held)
    for name, amount in more.consumed or ():
        summed[name] = summed.get(name, 0) + amount
    return summed


NOTHING_HELD = AllocatedState()
