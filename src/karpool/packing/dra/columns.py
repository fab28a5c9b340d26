"""Devices that each belong to one node, as columns; equal devices are evaluated once.

Every device has attributes of its own, such as its identity. A question depends only on the few attributes
that its selectors and constraints read: by these, devices fall into a handful of profiles, and nodes into
classes.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from karpool.model.dra.device import DeviceId, DraDevice
from karpool.packing.dra.held import AllocatedState
from karpool.packing.dra.pools import NodeView, SliceIndex
from karpool.packing.tables.columns import Bools, Int64s, read_only

Read = frozenset[str] | None  # names of attributes; None: all of them
_MEMO_LIMIT = 64


class DriverColumns:
    """One row per device that is usable from its node, in the order in which devices are tried."""

    def __init__(self, index: SliceIndex) -> None:
        self.node_of: dict[str, int] = {}
        self.devices: list[DraDevice] = []
        broken: list[bool] = []
        node: list[int] = []
        starts = [0]
        for name in index.nodes:
            self.node_of[name] = number = len(broken)
            pools = index.pools_of(NodeView(name, {}))
            broken.append(any(not pool.is_usable for pool in pools))
            for device in (device for pool in pools if pool.is_usable for device, _ in pool.candidates):
                self.devices.append(device)
                node.append(number)
            starts.append(len(node))
        self.broken: Bools = np.array(broken, dtype=np.bool_)
        self.node: Int64s = np.array(node, dtype=np.int64)
        self.starts = starts
        self._row_of: Mapping[DeviceId, int] = {device.id: row for row, device in enumerate(self.devices)}
        self._profiles: dict[Read, tuple[Int64s, list[DraDevice]]] = {}
        self._held: tuple[AllocatedState, Bools] | None = None
        self._classes: tuple[Read, AllocatedState, NodeClasses] | None = None
        self.class_counts: dict[Hashable, int] = {}  # pods per node, by node class and demand

    @property
    def nodes(self) -> int:
        return len(self.broken)

    def profiles(self, read: Read) -> tuple[Int64s, list[DraDevice]]:
        """Return a profile number for each device, and one sample device for each profile.

        Devices of one profile are equal in the attributes that are read, and in capacity, taints, counters
        and sharing.
        """
        profiles = self._profiles.get(read)
        if profiles is None:
            codes: dict[Hashable, int] = {}
            samples: list[DraDevice] = []
            column = np.empty(len(self.devices), dtype=np.int64)
            for row, device in enumerate(self.devices):
                code = codes.setdefault(_profile(device, read), len(samples))
                if code == len(samples):
                    samples.append(device)
                column[row] = code
            if len(self._profiles) >= _MEMO_LIMIT:
                self._profiles.clear()
            profiles = self._profiles[read] = read_only(column), samples
        return profiles

    def held(self, held: AllocatedState) -> Bools:
        """Return which devices are allocated as a whole."""
        if self._held is None or self._held[0] is not held:
            column = np.zeros(len(self.devices), dtype=np.bool_)
            rows = [row for row in map(self._row_of.get, held.whole) if row is not None]
            column[rows] = True
            self._held = held, read_only(column)
        return self._held[1]

    def per_node(self, rows: Bools) -> Int64s:
        """Return how many of these devices each node has."""
        counts: Int64s = np.bincount(self.node[rows], minlength=self.nodes)
        return counts

    def classes(self, read: Read, held: AllocatedState) -> "NodeClasses":
        """Group nodes that have the same devices with the same allocations."""
        if self._classes is None or self._classes[0] != read or self._classes[1] is not held:
            self._classes = read, held, self._classified(read, held)
        return self._classes[2]

    def _classified(self, read: Read, held: AllocatedState) -> "NodeClasses":
        codes, _ = self.profiles(read)
        taken = self.held(held)
        amounts: dict[int, list[Hashable]] = {}
        for device, parts in held.amounts.items():
            row = self._row_of.get(device)
            if row is not None:
                node = int(self.node[row])
                amounts.setdefault(node, []).append((row - self.starts[node], *sorted(parts.items())))
        for device in held.shared - held.amounts.keys():
            row = self._row_of.get(device)
            if row is not None:
                amounts.setdefault(int(self.node[row]), []).append((row - self.starts[int(self.node[row])],))
        joined = codes * 2 + taken
        numbers: dict[Hashable, int] = {}
        samples: list[int] = []
        column = np.empty(self.nodes, dtype=np.int64)
        for node in range(self.nodes):
            shared: Hashable = tuple(sorted(amounts[node], key=repr)) if node in amounts else ()
            key = (
                joined[self.starts[node] : self.starts[node + 1]].tobytes(),
                shared,
                bool(self.broken[node]),
            )
            number = numbers.setdefault(key, len(samples))
            if number == len(samples):
                samples.append(node)
            column[node] = number
        return NodeClasses(column, samples, list(numbers))


class NodeClasses(NamedTuple):
    """A class number for each node; for each class one sample node and what its nodes have in common."""

    numbers: Int64s
    samples: list[int]
    keys: list[Hashable]


def _profile(device: DraDevice, read: Read) -> Hashable:
    attributes = device.attributes
    if read is not None:
        attributes = tuple(entry for entry in attributes if entry[0].rpartition("/")[2] in read)
    return (
        device.id.driver,
        attributes,
        device.capacity,
        device.shareable,
        device.counters,
        device.taints,
        device.binding_conditions,
    )


def joined_reads(reads: Iterable[Read]) -> Read:
    names: set[str] = set()
    for read in reads:
        if read is None:
            return None
        names |= read
    return frozenset(names)
