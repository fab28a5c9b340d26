"""Compute and video memory as integers: thousandths of a TFLOP, and bytes.

A `DeviceAmount` is absolute: the capacity of a device, or an allocated amount. A `DeviceShare` is the request
for one device; it may be a percentage, and becomes a `DeviceAmount` only with the capacity of a device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from karpool.model import quantity
from karpool.model.errors import Invalid

MILLI = 1000
_PERCENT_MILLI = 100 * MILLI


class DeviceAmount(msgspec.Struct, frozen=True):
    tflops_milli: int = 0
    vram_bytes: int = 0

    def __add__(self, other: "DeviceAmount") -> "DeviceAmount":
        return DeviceAmount(self.tflops_milli + other.tflops_milli, self.vram_bytes + other.vram_bytes)

    def __sub__(self, other: "DeviceAmount") -> "DeviceAmount":
        return DeviceAmount(self.tflops_milli - other.tflops_milli, self.vram_bytes - other.vram_bytes)

    def __mul__(self, times: int) -> "DeviceAmount":
        return DeviceAmount(self.tflops_milli * times, self.vram_bytes * times)

    def __str__(self) -> str:
        compute, memory = quantity.format_milli(self.tflops_milli), quantity.format_value(self.vram_bytes)
        return f"{compute} TFLOPS, {memory} VRAM"

    def covers(self, other: "DeviceAmount") -> bool:
        return self.tflops_milli >= other.tflops_milli and self.vram_bytes >= other.vram_bytes

    def at_most(self, cap: "DeviceAmount") -> "DeviceAmount":
        return DeviceAmount(min(self.tflops_milli, cap.tflops_milli), min(self.vram_bytes, cap.vram_bytes))

    def at_least(self, floor: "DeviceAmount") -> "DeviceAmount":
        return DeviceAmount(
            max(self.tflops_milli, floor.tflops_milli), max(self.vram_bytes, floor.vram_bytes)
        )

    @property
    def is_zero(self) -> bool:
        return self.tflops_milli == 0 and self.vram_bytes == 0


NOTHING = DeviceAmount()


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """A request for a part of one device. A percentage counts if the absolute amount is zero."""

    tflops_milli: int = 0
    vram_bytes: int = 0
    percent_milli: int = 0
    vram_percent_milli: int = 0

    def on(self, capacity: DeviceAmount) -> DeviceAmount:
        """Return the absolute amount on a device of this capacity, rounded down so that 100 % always fits."""
        return DeviceAmount(
            percent_of(self.percent_milli, capacity.tflops_milli)
            if self.percent_milli
            else self.tflops_milli,
            self.vram_percent_milli * capacity.vram_bytes // _PERCENT_MILLI
            if self.vram_percent_milli
            else self.vram_bytes,
        )

    def __str__(self) -> str:
        compute = (
            f"{quantity.format_milli(self.percent_milli)}% of the compute"
            if self.percent_milli
            else f"{quantity.format_milli(self.tflops_milli)} TFLOPS"
        )
        memory = (
            f"{quantity.format_milli(self.vram_percent_milli)}% of the VRAM"
            if self.vram_percent_milli
            else f"{quantity.format_value(self.vram_bytes)} VRAM"
        )
        return f"{compute}, {memory}"


def percent_of(percent_milli: int, tflops_milli: int) -> int:
    """Return a percentage of a device's compute, rounded down to a whole TFLOP: 33 % of 71 is 23."""
    return percent_milli * tflops_milli // (_PERCENT_MILLI * MILLI) * MILLI


def whole_tflops(tflops_milli: int) -> int:
    """Return whole TFLOPS, rounded away from zero like the value of a Kubernetes quantity."""
    return -(-tflops_milli // MILLI) if tflops_milli >= 0 else tflops_milli // MILLI


def parse_amount(raw: Mapping[str, Any] | None, path: str = "") -> DeviceAmount:
    """Parse `{tflops, vram}` of quantities; a missing one is zero. Raises Invalid."""
    fields = raw or {}
    return DeviceAmount(
        _parsed(fields, "tflops", path, quantity.milli_value), _parsed(fields, "vram", path, quantity.value)
    )


def _parsed(fields: Mapping[str, Any], name: str, path: str, read: Any) -> int:
    text = fields.get(name)
    if text is None:
        return 0
    try:
        return int(read(text))
    except Invalid as error:
        raise error.at(f"{path}.{name}" if path else name) from None
