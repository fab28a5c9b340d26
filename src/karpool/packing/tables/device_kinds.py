"""Kinds of devices: the properties of a device that never change, and the rules that follow from them.

There are few kinds. Whether a demand may use a device, and how much it takes, is computed once for each kind,
and every rule about it is defined here: counting, packing, and the GPU allocator's filters and scale-ups use
the same rules.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from karpool.model.devices.amounts import NOTHING, DeviceAmount, DeviceShare
from karpool.model.devices.device import Device, DevicePartition
from karpool.model.devices.isolation import (
    DYNAMIC,
    MODES,
    PARTITIONED,
    SHARED,
    STATIC,
    accepts_mode,
    is_allowed,
    is_capable,
)
from karpool.model.devices.partitions import (
    PartitionCatalogue,
    PartitionHost,
    PartitionTemplate,
    place_partition,
)
from karpool.model.devices.request import DeviceDemand
from karpool.model.infeasible import Infeasible
from karpool.packing.tables.columns import Bools, Int64s

_MEMO_LIMIT = 512
_PLACES_MEMO_LIMIT = 65_536  # bounds caches; one cluster has some thousands of kinds, layouts and amounts
NO_LOCK = 0
_CATALOGUE = PartitionCatalogue()
Layout = tuple[DevicePartition, ...]


LOCKS = ("", *MODES, "another")  # by code
_LOCK_CODES = {mode: code for code, mode in enumerate(LOCKS[:-1])}


def lock_code(mode: str) -> int:
    """Return the code of a mode; an unknown mode gets a code that no demand uses."""
    return _LOCK_CODES.get(mode, len(LOCKS) - 1)


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """The fixed properties of a device.

    `plugin` is the resource of the device plugin that also counts the device; empty if there is none.
    """

    pool: str = ""
    model: str = ""
    vendor: str = ""
    index: int | None = None
    capacity: DeviceAmount = NOTHING
    policy: str = ""
    mode: str = ""
    capabilities: tuple[tuple[str, bool], ...] | None = None
    compute_known: bool = True
    plugin: str = ""

    def admits(self, demand: DeviceDemand) -> bool:
        """Whether the demand may use such a device, ignoring how much of it is free."""
        return (
            demand.is_readable
            and (demand.isolation != PARTITIONED or self.partition(demand) is not None)
            and demand.pool in ("", self.pool)
            and demand.model in ("", self.model)
            and demand.vendor in ("", self.vendor)
            and (not demand.indices or self.index in demand.indices)
            and self.tells(demand.share)
            and self.capacity.covers(demand.share.on(self.capacity))
            and is_allowed(self.policy or STATIC, demand.isolation, self.policy)
            and self.is_capable(demand.isolation)
            and self.accepts(demand.isolation)
        )

    def tells(self, share: DeviceShare) -> bool:
        """Whether the share can be computed: a share in TFLOPS needs a device of known speed."""
        return self.compute_known or bool(share.percent_milli) or not share.tflops_milli

    def is_capable(self, mode: str) -> bool:
        return is_capable(None if self.capabilities is None else dict(self.capabilities), mode)

    def accepts(self, mode: str, lock: str = "", *, conflict: bool = False) -> bool:
        """Whether the device accepts a mode beside the users that set the lock or caused the conflict."""
        return accepts_mode(
            mode, device_policy=self.policy, device_mode=self.mode, lock=lock, conflict=conflict
        )

    def partition(self, demand: DeviceDemand) -> PartitionTemplate | None:
        """Return the partition template that the demand would get on such a device."""
        asked = demand.share.on(self.capacity)
        template = _CATALOGUE.match(self.model, self.capacity, asked, demand.template)
        return None if isinstance(template, Infeasible) else template

    def place(self, demand: DeviceDemand, layout: Layout, left: DeviceAmount) -> DevicePartition | None:
        """Return where the driver would place the partition beside these; None: nowhere."""
        template = self.partition(demand)
        if template is None:
            return None
        host = PartitionHost(self.vendor, self.capacity, left, layout, _CATALOGUE.cap(self.model))
        place = place_partition(template, host, _CATALOGUE.of(self.model, self.capacity))
        return None if isinstance(place, Infeasible) else place

    def has_place(self, partition: DevicePartition) -> bool:
        """Whether such a device can be partitioned for the demand."""
        template = _CATALOGUE.of(self.model, self.capacity).get(partition.template)
        return template is not None and (partition.start is None or partition.start in template.placement)

    def taken_by(self, demand: DeviceDemand) -> DeviceAmount:
        if demand.isolation == SHARED:
            return self.capacity
        if demand.isolation == PARTITIONED and (template := self.partition(demand)) is not None:
            return template.cost(self.capacity.tflops_milli)
        return demand.share.on(self.capacity)


def kind_of(device: Device, plugin: str = "") -> DeviceKind:
    return DeviceKind(
        device.pool,
        device.model,
        device.vendor,
        device.index,
        device.capacity or NOTHING,
        device.isolation_policy,
        device.isolation_mode,
        None if device.capabilities is None else tuple(sorted(device.capabilities.items())),
        device.compute_known,
        plugin,
    )


class DeviceKinds:
    """Kinds by number. The table only grows: a number keeps its meaning."""

    def __init__(self) -> None:
        self._kinds: list[DeviceKind] = []
        self._codes: dict[DeviceKind, int] = {}
        self._by_facts: dict[tuple[object, ...], int] = {}
        self._answers: dict[tuple[str, Hashable], npt.NDArray[Any]] = {}
        self._layouts: list[Layout] = [()]
        self._layout_codes: dict[Layout, int] = {(): 0}
        self._more: dict[tuple[int, int, DeviceAmount, DeviceDemand], int] = {}

    def __getitem__(self, code: int) -> DeviceKind:
        return self._kinds[code]

    def intern(self, kind: DeviceKind) -> int:
        code = self._codes.get(kind)
        if code is None:
            code = self._codes[kind] = len(self._kinds)
            self._kinds.append(kind)
        return code

    def code_of(self, device: Device, plugin: str) -> int:
        """Return the number of a kind. The lookup key is cheaper than building a kind for each device."""
        if device.capabilities is not None:
            return self.intern(kind_of(device, plugin))
        facts = (
            device.pool,
            device.model,
            device.vendor,
            device.index,
            device.capacity,
            device.isolation_policy,
            device.isolation_mode,
            device.compute_known,
            plugin,
        )
        code = self._by_facts.get(facts)
        if code is None:
            code = self._by_facts[facts] = self.intern(kind_of(device, plugin))
        return code

    def layout(self, code: int) -> Layout:
        return self._layouts[code]

    def intern_layout(self, layout: Layout) -> int:
        code = self._layout_codes.get(layout)
        if code is None:
            code = self._layout_codes[layout] = len(self._layouts)
            self._layouts.append(layout)
        return code

    def more_partitions(self, kind: int, layout: int, left: DeviceAmount, demand: DeviceDemand) -> int:
        """Return how many more partitions a device takes if its driver places them one by one."""
        key = kind, layout, left, demand
        count = self._more.get(key)
        if count is None:
            count, partitions, cost = 0, self._layouts[layout], self._kinds[kind].taken_by(demand)
            while (place := self._kinds[kind].place(demand, partitions, left)) is not None:
                count, partitions, left = count + 1, (*partitions, place), left - cost
            if len(self._more) >= _PLACES_MEMO_LIMIT:
                self._more.clear()
            self._more[key] = count
        return count

    def mask(self, rule: str, about: Hashable, holds: Callable[[DeviceKind], object]) -> Bools:
        """Return by kind whether a rule holds; computed once per key."""
        return self._remembered(rule, about, lambda kind: bool(holds(kind)), np.bool_)

    def amounts(self, share: DeviceShare) -> Int64s:
        """Return the amounts of a share by kind: a row of milli-TFLOPS and a row of bytes."""
        return self._remembered("share", share, lambda kind: _pair(share.on(kind.capacity)), np.int64).T

    def taken(self, demand: DeviceDemand) -> Int64s:
        """Return what one demand takes of a device, in the same two rows."""
        return self._remembered("demand", demand, lambda kind: _pair(kind.taken_by(demand)), np.int64).T

    def accepting(self, mode: str) -> Bools:
        """Return by kind, lock and conflict whether a device in this state accepts this mode."""

        def states(kind: DeviceKind) -> list[list[bool]]:
            return [
                [kind.accepts(mode, lock, conflict=conflict) for conflict in (False, True)] for lock in LOCKS
            ]

        return self._remembered("accepting", mode, states, np.bool_)

    def admitted(self, demand: DeviceDemand) -> Bools:
        return self.mask("admits", demand, lambda kind: kind.admits(demand))

    @property
    def dynamic(self) -> Bools:
        return self.mask("dynamic", None, lambda kind: kind.policy == DYNAMIC)

    def _remembered(
        self, rule: str, about: Hashable, answer: Callable[[DeviceKind], object], dtype: type
    ) -> npt.NDArray[Any]:
        answers = self._answers.get((rule, about))
        if answers is None or len(answers) < len(self._kinds):
            if len(self._answers) >= _MEMO_LIMIT:
                self._answers.clear()
            answers = self._answers[rule, about] = np.array([answer(kind) for kind in self._kinds], dtype)
        return answers


def _pair(amount: DeviceAmount) -> tuple[int, int]:
    return amount.tflops_milli, amount.vram_bytes
