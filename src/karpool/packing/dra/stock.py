"""All published slices and device classes, and the cached results of selectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from karpool.model.dra.claim import DraClass
from karpool.model.dra.device import DeviceSlice, DraDevice
from karpool.model.dra.selector import SelectorError, compile_selector
from karpool.packing.dra.columns import DriverColumns
from karpool.packing.dra.features import DEFAULT_FEATURES, DraFeatures
from karpool.packing.dra.pools import SliceIndex


class SelectorMemo:
    """Caches the results of selectors; they depend only on the selector and the device."""

    def __init__(self, *, lists: bool = False) -> None:
        self._lists = lists
        # By identity, because devices of two generations of a pool may share a name. The stock keeps them
        # alive.
        self._answers: dict[tuple[str, int], bool | SelectorError] = {}

    def matches(self, text: str, device: DraDevice) -> bool:
        """Whether a device matches a selector. Raises SelectorError."""
        key = (text, id(device))
        answer = self._answers.get(key)
        if answer is None:
            try:
                answer = compile_selector(text, lists=self._lists).matches(device)
            except SelectorError as error:
                answer = error
            self._answers[key] = answer
        if isinstance(answer, SelectorError):
            raise answer
        return answer


@dataclass(frozen=True)
class DeviceStock:
    """All published slices and device classes. One object for as long as neither changes."""

    slices: SliceIndex
    classes: Mapping[str, DraClass]
    memo: SelectorMemo = field(default_factory=SelectorMemo)

    @property
    def features(self) -> DraFeatures:
        return self.slices.features

    @property
    def has_devices(self) -> bool:
        return not self.slices.is_empty

    @cached_property
    def columns(self) -> DriverColumns:
        """The devices as columns; only if every device belongs to one node."""
        return DriverColumns(self.slices)


def stock_of(
    slices: Sequence[DeviceSlice], classes: Sequence[DraClass], features: DraFeatures = DEFAULT_FEATURES
) -> DeviceStock:
    by_name = {device_class.name: device_class for device_class in classes}
    return DeviceStock(SliceIndex(slices, features), by_name, SelectorMemo(lists=features.list_attributes))
