"""Topology domains by number, and pod counts per domain.

A `TopologyAxis` is one topology key: every value that a node has, or could have, gets a code. Code 0 means
"no such label"; no pod is counted there. Axes grow when a new value appears (each planned node is a new host
name), and counts grow when they are next read.
"""

from collections.abc import Sequence

import numpy as np

from karpool.packing.tables.columns import Int64s

NOWHERE = 0
_SMALLEST = 16


class TopologyAxis:
    """`codes[row]` is the domain of each existing node; later values come from planned nodes."""

    __slots__ = ("_index", "codes", "key", "values")

    def __init__(self, key: str, codes: Int64s, values: Sequence[str]) -> None:
        """`codes` are indexes into `values`; negative if a node has no such label."""
        self.key = key
        self.codes: Int64s = codes.astype(np.int64) + 1
        self.values: list[str] = ["", *values]
        self._index: dict[str, int] = {value: code for code, value in enumerate(values, start=1)}

    @property
    def size(self) -> int:
        return len(self.values)

    def find(self, value: str) -> int | None:
        return self._index.get(value)

    def code(self, value: str) -> int:
        """Return the domain of a value; an unknown value gets a new one."""
        number = self._index.get(value)
        if number is None:
            number = self._index[value] = len(self.values)
            self.values.append(value)
        return number

    def __repr__(self) -> str:
        return f"Axis({self.key}, {self.size - 1} domains)"


class DomainCounts:
    """Pods per domain of one axis."""

    __slots__ = ("_counts", "axis")

    def __init__(self, axis: TopologyAxis, counts: Int64s | None = None) -> None:
        self.axis = axis
        self._counts: Int64s = np.zeros(max(axis.size, _SMALLEST), dtype=np.int64)
        if counts is not None:
            self._counts[: len(counts)] = counts
            self._counts[NOWHERE] = 0

    @property
    def counts(self) -> Int64s:
        """Return the counts by code. A view: it shows later changes until the axis grows."""
        size = self.axis.size
        if size > len(self._counts):
            grown = np.zeros(max(size, 2 * len(self._counts)), dtype=np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        return self._counts[:size]

    def add(self, code: int, pods: int) -> None:
        if code != NOWHERE:
            self.counts[code] += pods

    def put(self, counts: Int64s) -> None:
        """Set the counts; domains that were added since have none."""
        self._counts[:] = 0
        self._counts[: len(counts)] = counts
