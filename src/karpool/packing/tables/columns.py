"""Growable arrays with copy-on-write views.

A column is written in place until a view of it is taken; the first write after that copies it once. A
snapshot therefore costs nothing until a value changes, and then one memcpy per changed column.
"""

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_SMALLEST = 64
S = TypeVar("S", bound=np.generic)


class Column(Generic[S]):
    """A growable array. Unwritten rows hold `fill`. Writing an equal value copies nothing."""

    __slots__ = ("_data", "_fill", "_shared")

    def __init__(self, dtype: type[S], fill: int = 0, size: int = 0) -> None:
        self._fill = fill
        self._data: npt.NDArray[S] = np.full(max(size, _SMALLEST), fill, dtype=dtype)
        self._shared = False

    def __getitem__(self, row: int) -> int:
        try:
            return int(self._data.item(row))
        except IndexError:
            return self._fill

    def __setitem__(self, row: int, value: int) -> None:
        if row >= len(self._data):
            self._own(row + 1)
        elif self._shared:
            if self._data[row] == value:
                return
            self._own(row + 1)
        self._data[row] = value

    def writable(self, size: int = 0) -> npt.NDArray[S]:
        """Return the array itself, at least `size` long, for writing many rows at once."""
        if self._shared or size > len(self._data):
            self._own(size)
        return self._data

    def view(self, size: int) -> npt.NDArray[S]:
        """Return the first `size` rows as an array that later writes do not change."""
        if size > len(self._data):
            self._own(size)
        self._shared = True
        return read_only(self._data[:size])

    def _own(self, size: int) -> None:
        old = self._data
        if size <= len(old):
            self._data = old.copy()
        else:
            self._data = np.full(max(size, 2 * len(old)), self._fill, dtype=old.dtype)
            self._data[: len(old)] = old
        self._shared = False


A = TypeVar("A", bound=npt.NDArray[Any])


def read_only(array: A) -> A:
    array.flags.writeable = False
    return array
