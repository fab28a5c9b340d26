"""Devices of nodes with plain loops: slow and obvious."""

from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.request import DeviceDemand


@dataclass
class NaiveDevice:
    name: str
    model: str
    capacity: DeviceAmount
    held: list[DeviceDemand] = field(default_factory=list)
    given_away: bool = False

    def takes(self, demand: DeviceDemand) -> bool:
        if self.given_away or demand.model not in ("", self.model):
            return False
        if any(other.isolation == "shared" for other in self.held):
            return False
        if demand.isolation == "shared" and self.held:
            return False
        tflops = sum(other.share.on(self.capacity).tflops_milli for other in [*self.held, demand])
        vram = sum(other.share.on(self.capacity).vram_bytes for other in [*self.held, demand])
        return tflops <= self.capacity.tflops_milli and vram <= self.capacity.vram_bytes

    def shares(self, demand: DeviceDemand, most: int) -> int:
        """How many more it takes, tried one by one."""
        before, found = list(self.held), 0
        while found < most and self.takes(demand):
            self.held.append(demand)
            found += 1
        self.held = before
        return found


def pods_served(devices: list[NaiveDevice], demand: DeviceDemand, most: int) -> int:
    """The most pods of `demand.count` different devices each, over every way to choose them."""

    @cache
    def best(left: tuple[int, ...], pods: int) -> int:
        found = 0
        for chosen in combinations(range(len(left)), demand.count):
            if pods < most and all(left[index] for index in chosen):
                less = tuple(room - (index in chosen) for index, room in enumerate(left))
                found = max(found, 1 + best(tuple(sorted(less)), pods + 1))
        return found

    return best(tuple(sorted(device.shares(demand, most) for device in devices)), 0)
