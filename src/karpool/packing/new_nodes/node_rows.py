"""Nodes during a packing: planned ones as rows of columns, existing ones with their remaining resources."""

from collections.abc import Sequence

import numpy as np

from karpool.model.devices.node_devices import RESOURCES
from karpool.model.devices.request import DeviceDemand
from karpool.model.karpenter.objects import INITIALIZED, NODEPOOL
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.resources import PODS
from karpool.packing.claim_filling import ClaimFilling
from karpool.packing.claim_room import asks_drivers, free_beside_drivers, takes_one
from karpool.packing.feasibility import feasible, matches_terms, ports_conflict
from karpool.packing.new_nodes.claim_templates import ClaimDemand
from karpool.packing.new_nodes.offerings import MOST, Prices
from karpool.packing.new_nodes.pod_ask import PodAsk
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.device_table import DeviceFilling
from karpool.packing.tables.room import Room

_SMALLEST = 64


class HeldPorts:
    """Host ports by row of the pods placed during this packing."""

    def __init__(self) -> None:
        self._held: dict[int, set[HostPort]] = {}
        self._closed: dict[frozenset[HostPort], set[int]] = {}

    def hold(self, row: int, ports: frozenset[HostPort]) -> None:
        self._held.setdefault(row, set()).update(ports)
        for asked, rows in self._closed.items():
            if ports_conflict(ports, asked):
                rows.add(row)

    def closed(self, ports: frozenset[HostPort]) -> list[int]:
        """Return the rows on which one of these ports is taken."""
        rows = self._closed.get(ports)
        if rows is None:
            rows = {row for row, held in self._held.items() if ports_conflict(held, ports)}
            self._closed[ports] = rows
        return sorted(rows)


class PlannedRows:
    """Planned nodes. `room` is an upper bound: the most that any remaining type would leave, per resource.

    Pods go first to the node with the fewest pods; or, if `scale` gives the relative weight of CPU and
    memory, to the node with the least room left of either.
    """

    TURN = 1 << 32  # added per pod, so that the number of pods comes before the age of the node

    def __init__(self, resources: int, scale: tuple[float, float] | None = None) -> None:
        self.n = 0
        self._scale = None if scale is None else np.array(scale)[:, None]
        self.states: Int64s = np.zeros(_SMALLEST, dtype=np.int64)
        self.hosts: Int64s = np.zeros(_SMALLEST, dtype=np.int64)
        self.turn: Int64s = np.zeros(_SMALLEST, dtype=np.int64)  # fewest pods first, then oldest
        self.used: Int64s = np.zeros((resources, _SMALLEST), dtype=np.int64)
        self.room: Int64s = np.zeros((resources, _SMALLEST), dtype=np.int64)
        self.pools: Int64s = np.zeros(_SMALLEST, dtype=np.int64)
        self.pods: list[list[int]] = []
        self.within: list[Bools | None] = []  # types that limits and the ports of daemons allowed
        self.types: list[Bools] = []
        self.reserved: list[Int64s] = []
        self.ports = HeldPorts()
        self.demands: list[tuple[DeviceDemand | ClaimDemand, ...]] = []

    def add(self, pool: int, host: int, within: Bools | None, reserved: Int64s) -> int:
        row = self.n
        if row == len(self.states):
            self._grow()
        self.n += 1
        self.hosts[row] = host
        self.turn[row] = row
        self.pools[row] = pool
        self.pods.append([])
        self.demands.append(())
        self.within.append(within)
        self.types.append(np.zeros(0, dtype=np.bool_))
        self.reserved.append(reserved)
        return row

    def _grow(self) -> None:
        for name in ("states", "hosts", "pools", "turn"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old))))
        for name in ("used", "room"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old)), axis=1))

    @property
    def tightest(self) -> bool:
        return self._scale is not None

    def put(self, row: int, ask: PodAsk, state: int, types: Bools, room: Int64s, *, pods: int = 1) -> None:
        """Add equal pods to a row. `room` is what each type leaves to pods: resources by types."""
        self.states[row] = state
        self.turn[row] += pods * self.TURN
        used = self.used[:, row]
        used += pods * ask.requests
        self.room[:, row] = room[:, types].max(axis=1) - used
        self.types[row] = types
        if ask.ports:
            self.ports.hold(row, ask.ports)
        self.demands[row] = (*self.demands[row], *ask.demands)

    def fitting(self, ask: PodAsk) -> Bools:
        """Return the rows that may have room; the types decide."""
        n = self.n
        mask: Bools = np.ones(n, dtype=np.bool_)
        for index, units in ask.amounts:
            mask &= self.room[index, :n] >= units
        if ask.ports:
            mask[self.ports.closed(ask.ports)] = False
        return mask

    def first(self, mask: Bools) -> int | None:
        """Return the row that is next in turn."""
        rows = mask.nonzero()[0]
        return int(rows[self._turns(rows).argmin()]) if len(rows) else None

    def turns(self, mask: Bools) -> list[tuple[float, int]]:
        """Return the turn of each row, to be used in ascending order."""
        rows = mask.nonzero()[0]
        return list(zip(self._turns(rows).tolist(), rows.tolist(), strict=True))

    def _turns(self, rows: Int64s) -> Int64s | Prices:
        if self._scale is None:
            return self.turn[rows]
        slack: Prices = (self.room[:2, rows] * self._scale).min(axis=0)
        return slack


class ExistingNodes:
    """Existing nodes with their free resources, in Karpenter's order: initialized nodes first, then names."""

    def __init__(self, snapshot: Room, resources: Sequence[str]) -> None:
        self.snapshot = snapshot
        names = np.array(snapshot.names, dtype=np.str_)
        starting = (snapshot.label(NODEPOOL).codes >= 0) & (snapshot.label(INITIALIZED).codes < 0)
        self.order: Int64s = np.lexsort((names, starting)) if snapshot.n else np.zeros(0, dtype=np.int64)
        columns = [
            snapshot.slots if name == PODS else free_beside_drivers(snapshot, name) for name in resources
        ]
        self.free: Int64s = np.array([np.minimum(column[self.order], MOST) for column in columns])
        self._ports = HeldPorts()
        self._devices = DeviceFilling(snapshot.devices) if snapshot.devices is not None else None
        self._claims = ClaimFilling(snapshot)
        self._plugins = [index for index, name in enumerate(resources) if name in RESOURCES]
        self._resources = resources
        self._admitted: dict[int, tuple[PodAsk, Bools]] = {}

    def first(self, ask: PodAsk, allowed: Bools | None) -> int | None:
        """Return the position of the first node that takes the pod."""
        mask = self._admits(ask)
        if allowed is not None:
            mask = mask & allowed[self.order]
        for index, units in ask.amounts:
            mask = mask & (self.free[index] >= units)
        if ask.ports:
            mask = mask.copy()
            mask[self._ports.closed(ask.ports)] = False
        if ask.shape.devices is not None:
            if self._devices is None:
                return None
            mask = mask & (self._devices.room(ask.shape.devices, self.snapshot.n)[self.order] > 0)
        if self._takes_claims(ask):
            positions: list[int] = np.flatnonzero(mask).tolist()
            rooms = (at for at in positions if self._claims.room_on(int(self.order[at]), ask.shape, 1))
            return next(rooms, None)
        position = int(mask.argmax()) if len(mask) else 0
        return position if len(mask) and mask[position] else None

    def _takes_claims(self, ask: PodAsk) -> bool:
        return asks_drivers(self.snapshot, ask.shape)

    def take(self, position: int, ask: PodAsk) -> int:
        """Place the pod; return the row of the node in the snapshot."""
        self.free[:, position] -= ask.requests
        if ask.ports:
            self._ports.hold(position, ask.ports)
        row = int(self.order[position])
        if self._takes_claims(ask):
            self._claims.take(row, ask.shape)
        if self._devices is not None:
            self._take_devices(self._devices, position, row, ask.shape)
        return row

    def _take_devices(self, devices: DeviceFilling, position: int, row: int, shape: PodShape) -> None:
        if shape.devices is None:
            devices.close_for(row, shape.requests, 1)
            return
        taken = devices.take(row, shape.devices)
        assert taken is not None  # `first` has checked it
        for index in self._plugins:
            self.free[index, position] -= taken.of_plugin.get(self._resources[index], 0)

    def _admits(self, ask: PodAsk) -> Bools:
        entry = self._admitted.get(id(ask))
        if entry is None:
            mask = feasible(self.snapshot, ask.shape)
            if self._takes_claims(ask):
                mask = mask & takes_one(self.snapshot, ask.shape)
            if ask.attempt.node_term is not None:
                mask = mask & matches_terms(self.snapshot.nodes, (ask.attempt.node_term,))
            entry = self._admitted[id(ask)] = ask, mask[self.order]
        return entry[1]
