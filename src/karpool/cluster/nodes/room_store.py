"""What nodes offer, what their pods use, and what is free, one column per resource.

Sums are kept as Python integers, so no request is too large to be added and removed again; free is
`max(offered - used, 0)`, as Karmada computes it. A node that offers no `pods` has no slot. A blocked row
offers nothing, whatever is free.
"""

from collections.abc import Mapping

import numpy as np

from karpool.model.quantity import INT64_MAX
from karpool.model.resources import PODS
from karpool.packing.tables.columns import Column, Int64s

# Columns cost 16 bytes per node; a cluster has a few dozen resources.
RESOURCE_LIMIT = 256

Requests = tuple[tuple[str, int], ...]
_NONE: Mapping[str, int] = {}


class RoomStore:
    def __init__(self) -> None:
        self._offered: list[Mapping[str, int]] = []
        self._taken: list[dict[str, int]] = []
        self._pods: list[int] = []
        self._allocatable: dict[str, Column[np.int64]] = {PODS: Column(np.int64)}
        self._free: dict[str, Column[np.int64]] = {}
        self._slots = Column(np.int64)
        self._blocked: set[int] = set()
        self._shared: dict[int, tuple[str, int]] = {}  # by row: units of a plugin that have shares
        self.stale: set[int] = set()  # rows whose pods changed since their free amounts were computed

    def offer(self, row: int, allocatable: Mapping[str, int]) -> tuple[bool, list[str]]:
        """Set what a row offers, also for a new last row.

        Returns whether it changed, and the resources that are ignored because there are too many.
        """
        if row == len(self._offered):
            self._offered.append(_NONE)
            self._taken.append({})
            self._pods.append(0)
        old = self._offered[row]
        if old == allocatable:
            return False, []
        self._offered[row] = allocatable
        self.stale.add(row)
        ignored = []
        for resource in {**old, **allocatable}:
            if resource != PODS and resource not in self._free and not self._add_column(resource):
                ignored.append(resource)
                continue
            self._allocatable[resource][row] = _left(allocatable.get(resource, 0))
            if resource not in allocatable and resource != PODS:
                self._free[resource][row] = 0
        return True, ignored

    def take(self, row: int, requests: Requests, pods: int) -> None:
        """Charge a row for `pods` pods of a shape; a negative number releases them."""
        taken = self._taken[row]
        for resource, units in requests:
            taken[resource] = taken.get(resource, 0) + units * pods
        self._pods[row] += pods
        self.stale.add(row)

    def block(self, row: int, blocked: bool) -> bool:
        """Set whether a row is blocked; return whether that changed."""
        if blocked == (row in self._blocked):
            return False
        (self._blocked.add if blocked else self._blocked.discard)(row)
        self.stale.add(row)
        return True

    def units_taken(self, row: int, resource: str) -> int:
        return self._taken[row].get(resource, 0)

    def keep_shared(self, row: int, resource: str, units: int) -> None:
        """Set how many units of a plugin have shares of ours and must not be allocated."""
        if self._shared.get(row) != (resource, units):
            self._shared[row] = resource, units
            self.stale.add(row)

    def remove(self, row: int, last: int) -> None:
        """Remove a row; the last one takes its place."""
        self._offered[row], self._taken[row], self._pods[row] = (
            self._offered[last],
            self._taken[last],
            self._pods[last],
        )
        self._offered.pop()
        self._taken.pop()
        self._pods.pop()
        for column in (*self._allocatable.values(), *self._free.values(), self._slots):
            column[row] = column[last]
            column[last] = 0  # the next new node gets this row
        self._shared.pop(row, None)
        if row != last and last in self._shared:
            self._shared[row] = self._shared.pop(last)
        for marked in (self.stale, self._blocked):
            marked.discard(row)
            if last in marked:
                marked.discard(last)
                if row != last:
                    marked.add(row)

    def views(self) -> tuple[dict[str, Int64s], dict[str, Int64s], Int64s]:
        """Return free and allocatable amounts per resource, and free pod slots."""
        for row in self.stale:
            self._work_out(row)
        self.stale.clear()
        size = len(self._offered)
        free = {resource: column.view(size) for resource, column in self._free.items()}
        allocatable = {resource: column.view(size) for resource, column in self._allocatable.items()}
        return free, allocatable, self._slots.view(size)

    def _work_out(self, row: int) -> None:
        if row in self._blocked:
            for column in (*self._free.values(), self._slots):
                column[row] = 0
            return
        taken = self._taken[row]
        for resource, units in self._offered[row].items():
            if resource in self._free:
                self._free[resource][row] = _left(units - taken.get(resource, 0))
        resource, shared = self._shared.get(row, ("", 0))
        if resource in self._free and shared:
            left = self._offered[row].get(resource, 0) - taken.get(resource, 0) - shared
            self._free[resource][row] = _left(left)
        self._slots[row] = _left(self._offered[row].get(PODS, 0) - self._pods[row])

    def _add_column(self, resource: str) -> bool:
        if len(self._free) >= RESOURCE_LIMIT:
            self._drop_unoffered()
        if len(self._free) >= RESOURCE_LIMIT:
            return False
        self._allocatable[resource] = Column(np.int64, 0, len(self._offered))
        self._free[resource] = Column(np.int64, 0, len(self._offered))
        for row, offered in enumerate(self._offered):
            if resource in offered:  # of a node that was added while there were too many
                self._allocatable[resource][row] = _left(offered[resource])
                self.stale.add(row)
        return True

    def _drop_unoffered(self) -> None:
        offered = set().union(*self._offered)
        for resource in self._free.keys() - offered:
            del self._free[resource], self._allocatable[resource]


def _left(units: int) -> int:
    return 0 if units < 0 else min(units, INT64_MAX)
