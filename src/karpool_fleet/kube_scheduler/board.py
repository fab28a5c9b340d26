"""A placement board: a snapshot that changes with each placement.

The packing kernel decides whether a pod fits, and its answers are cached per shape; after a placement only
the changed row is checked again. Columns may go below zero here (an overcommitted node), so that what is
taken can be returned exactly.
"""

from collections.abc import Sequence

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import fits
from karpool.packing.tables.columns import Bools, Int32s, Int64s
from karpool.packing.tables.room import BoundPodCounts, OverlaidRoom, Room, RoomSubset
from karpool.packing.topology.topology import Topology


def has_rules(shape: PodShape) -> bool:
    """Whether the nodes of other pods restrict where this one may run."""
    return bool(shape.affinity or shape.anti_affinity) or any(spread.required for spread in shape.spreads)


def _repels(shape: PodShape) -> bool:
    return bool(shape.anti_affinity)


class PlacementBoard(OverlaidRoom):
    def __init__(self, base: Room) -> None:
        super().__init__(base, base.nodes)
        self._free = {resource: base.free(resource).copy() for resource in base.resources}
        self.slots = base.slots.copy()
        self.placed: list[tuple[PodShape, int]] = []
        self._taken_back = False
        self._bound_then: tuple[int, BoundPodCounts] | None = None
        self._topology: Topology | None = None
        self._topology_knows = 0

    def _read_devices(self) -> None:
        """Read no device shares: kube-scheduler does not know them."""

    def _read_free(self, resource: str) -> Int64s:
        return self._base.free(resource)

    def _read_slots(self) -> Int64s:
        return self.slots

    def _read_bound(self) -> BoundPodCounts:
        assert not self._taken_back, "pods that were taken back are not followed one by one"
        if self._bound_then is None or self._bound_then[0] != len(self.placed):
            before = self._base.bound
            shapes = np.array([self.shapes.intern(shape) for shape, _ in self.placed], dtype=np.int32)
            rows: Int32s = np.array([row for _, row in self.placed], dtype=np.int32)
            ones = np.ones(len(rows), dtype=np.int64)
            self._bound_then = (
                len(self.placed),
                BoundPodCounts(
                    np.concatenate((before.shape, shapes)),
                    np.concatenate((before.node, rows)),
                    np.concatenate((before.count, ones)),
                ),
            )
        return self._bound_then[1]

    @property
    def bound(self) -> BoundPodCounts:
        """Return the counts, which change with each placement; do not keep them."""
        return self._read_bound()

    # Placing

    def place(self, shape: PodShape, row: int) -> None:
        self._charge(shape, row, 1)
        self.placed.append((shape, row))

    def take_back(self, shape: PodShape, row: int) -> None:
        """Return the room of a pod; host ports and topology are not updated."""
        self._charge(shape, row, -1)
        self._taken_back = True

    def give(self, resource: str, amounts: Int64s) -> None:
        """Add an amount of a resource to every row, as if pods had left."""
        if resource in self._free:
            self._free[resource] += amounts

    def _charge(self, shape: PodShape, row: int, pods: int) -> None:
        for resource, units in shape.requests:
            column = self._free.get(resource)
            # Resources without a plugin are served by drivers.
            if column is not None and column.flags.writeable:
                column[row] -= units * pods
        self.slots[row] -= pods

    # Topology

    def topology(self, shape: PodShape) -> Topology | None:
        """Return the current constraints; None if none of them can affect this shape."""
        repelled = self.shapes.where("kube-scheduler repels", _repels).any()
        return self.all_topology() if repelled or has_rules(shape) else None

    def all_topology(self) -> Topology:
        if self._topology is None:
            self._topology = Topology(self._base)
            self._topology_knows = 0
        for shape, row in self.placed[self._topology_knows :]:
            self._topology.place(shape, row)
        self._topology_knows = len(self.placed)
        return self._topology

    def allowed(self, shape: PodShape) -> Bools | None:
        """Return the nodes that topology allows; None for all."""
        topology = self.topology(shape)
        return None if topology is None else topology.allowed(shape)

    def blocked_by(self, reserved: Sequence[tuple[PodShape, int]], shape: PodShape) -> list[int]:
        """Return the rows that cannot take one more pod of `shape` once the `reserved` pods are there."""
        rows = list(dict.fromkeys(row for _, row in reserved))
        trial = PlacementBoard(RoomSubset(self, rows))
        for other, row in reserved:
            trial.place(other, rows.index(row))
        room = fits(trial, shape).tolist()
        return [row for row, left in zip(rows, room, strict=True) if left < 1]
