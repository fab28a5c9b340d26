"""Where pods are put one after another: a snapshot that moves with each placement.

Whether a pod fits is asked of the packing kernel, and remembered per shape; after a
placement only the row that changed is asked about again. Columns may go below zero
here (a node that was overcommitted), so that what is taken can be given back exactly.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.counting.count import fits
from karpool.packing.dra.pod_claims import DraState
from karpool.packing.tables.columns import Bools, Int32s, Int64s
from karpool.packing.tables.node_table import SubsetNodeTable
from karpool.packing.tables.room import BoundPodCounts, Room
from karpool.packing.topology.topology import Topology


def has_rules(shape: PodShape) -> bool:
    """Whether where other pods run decides where this one may."""
    return bool(shape.affinity or shape.anti_affinity) or any(spread.required for spread in shape.spreads)


def _repels(shape: PodShape) -> bool:
    return bool(shape.anti_affinity)


class RoomSubset(Room):
    """Some rows of another snapshot, as they are now."""

    def __init__(self, base: Room, rows: Sequence[int]) -> None:
        self._rows: Int64s = np.array(rows, dtype=np.int64)
        super().__init__(base.version, SubsetNodeTable(base.nodes, self._rows), base.shapes, base.namespaces)
        self._base = base

    @property
    def resources(self) -> Collection[str]:
        return self._base.resources

    def _read_devices(self) -> None:
        """Shares of devices are nothing to kube-scheduler."""

    def _read_dra(self) -> DraState | None:
        return self._base.dra

    def _read_free(self, resource: str) -> Int64s:
        return self._base.free(resource)[self._rows]

    def _read_allocatable(self, resource: str) -> Int64s:
        return self._base.allocatable(resource)[self._rows]

    def _read_slots(self) -> Int64s:
        return self._base.slots[self._rows]

    def _read_bound(self) -> BoundPodCounts:
        new_row = np.full(self._base.n, -1, dtype=np.int32)
        new_row[self._rows] = np.arange(len(self._rows), dtype=np.int32)
        whole = self._base.bound
        nodes = new_row[whole.node]
        kept = np.flatnonzero(nodes >= 0)
        return BoundPodCounts(whole.shape[kept], nodes[kept], whole.count[kept])

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._base.pods_on(int(self._rows[row]))

    @property
    def pending(self) -> Mapping[str, int]:
        return self._base.pending


class PlacementBoard(Room):
    def __init__(self, base: Room) -> None:
        super().__init__(base.version, base.nodes, base.shapes, base.namespaces)
        self._base = base
        self._free = {resource: base.free(resource).copy() for resource in base.resources}
        self.slots = base.slots.copy()
        self.placed: list[tuple[PodShape, int]] = []
        self._taken_back = False
        self._bound_then: tuple[int, BoundPodCounts] | None = None
        self._topology: Topology | None = None
        self._topology_knows = 0

    @property
    def resources(self) -> Collection[str]:
        return self._base.resources

    def _read_devices(self) -> None:
        """Shares of devices are nothing to kube-scheduler."""

    def _read_dra(self) -> DraState | None:
        return self._base.dra

    def _read_free(self, resource: str) -> Int64s:
        return self._base.free(resource)

    def _read_allocatable(self, resource: str) -> Int64s:
        return self._base.allocatable(resource)

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
        """Not for keeps: it moves too."""
        return self._read_bound()

    def pods_on(self, row: int) -> Mapping[str, int]:
        return self._base.pods_on(row)

    @property
    def pending(self) -> Mapping[str, int]:
        return self._base.pending

    # Moving

    def place(self, shape: PodShape, row: int) -> None:
        self._charge(shape, row, 1)
        self.placed.append((shape, row))

    def take_back(self, shape: PodShape, row: int) -> None:
        """Give back the room of a pod; host ports and topology do not follow."""
        self._charge(shape, row, -1)
        self._taken_back = True

    def give(self, resource: str, amounts: Int64s) -> None:
        """More of a resource on every row, as if pods had left."""
        if resource in self._free:
            self._free[resource] += amounts

    def _charge(self, shape: PodShape, row: int, pods: int) -> None:
        for resource, units in shape.requests:
            column = self._free.get(resource)
            if column is not None and column.flags.writeable:  # what no plugin has, drivers serve
                column[row] -= units * pods
        self.slots[row] -= pods

    # Topology

    def topology(self, shape: PodShape) -> Topology | None:
        """The constraints as of now; None when none of them can matter to this shape."""
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
        """Nodes that topology leaves open; None: all."""
        topology = self.topology(shape)
        return None if topology is None else topology.allowed(shape)

    def blocked_by(self, reserved: Sequence[tuple[PodShape, int]], shape: PodShape) -> list[int]:
        """Rows that do not take one more pod of `shape` when these others come as well."""
        rows = list(dict.fromkeys(row for _, row in reserved))
        trial = PlacementBoard(RoomSubset(self, rows))
        for other, row in reserved:
            trial.place(other, rows.index(row))
        room = fits(trial, shape).tolist()
        return [row for row, left in zip(rows, room, strict=True) if left < 1]
