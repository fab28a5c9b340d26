"""What a pool can launch for given requests, with daemon overhead, limits and `minValues` applied."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from karpool.model.devices.node_devices import RESOURCES
from karpool.model.devices.request import DeviceDemand
from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import ZONE
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.resources import NODES, PODS
from karpool.model.taints import untolerated
from karpool.packing.feasibility import ports_conflict
from karpool.packing.new_nodes.claim_templates import ClaimDemand, ClaimTemplates, DriversToCome
from karpool.packing.new_nodes.device_templates import DeviceTemplates
from karpool.packing.new_nodes.narrowing import NarrowedNode, Narrowing, alternatives, offered
from karpool.packing.new_nodes.offerings import MOST, TOO_MUCH, PoolOfferings, remaining
from karpool.packing.tables.columns import Bools, Int64s

Demand = DeviceDemand | ClaimDemand
Amounts = Sequence[tuple[int, int]]  # resource number and units, without zeros


class LaunchablePool:
    """One pool during one packing. `room` is what each type leaves to pods: resources by types."""

    def __init__(
        self,
        number: int,
        narrowing: Narrowing,
        resources: Sequence[str],
        daemons: Iterable[PodShape],
        used: Mapping[str, int],
        *,
        drivers: DriversToCome | None = None,
    ) -> None:
        self.offer: PoolOfferings = narrowing.pools[number]
        self.start = narrowing.start[number]
        self.overhead: Int64s = np.zeros((len(resources), len(self.offer.types)), dtype=np.int64)
        self._ports: list[tuple[frozenset[HostPort], Bools]] = []
        for shape in daemons:
            self._add_daemon(shape, self._running(narrowing, number, shape), resources)
        self.room: Int64s = np.array([self.offer.allocatable(name) for name in resources]) - self.overhead
        for index, name in enumerate(resources):
            if drivers is not None and name in drivers.offered:  # see `device_counts`
                self.room[index, self.offer.allocatable(name) == 0] = MOST
        self._resources = resources
        self._drivers = drivers
        self.usable: Bools = np.asarray((self.room >= 0).all(axis=0))  # types that hold their own daemons
        self.limits = remaining(self.offer.pool.limits, used)
        self.limited = [name for name in self.limits if name != NODES]
        # What a node of each type uses of those limits: limits by types.
        self.capacity: Int64s = np.array(
            [self.offer.capacity(name) for name in self.limited], dtype=np.int64
        ).reshape(len(self.limited), len(self.offer.types))
        self._min_values = [
            (value_set.min_values, *self._values(key))
            for key, value_set in self.offer.requirements.items()
            if value_set.min_values
        ]

    def _running(self, narrowing: Narrowing, number: int, shape: PodShape) -> Bools:
        """Return the types on which a daemon runs, whether or not they are in stock."""
        offer = self.offer
        runs: Bools = np.zeros(len(offer.types), dtype=np.bool_)
        if untolerated(offer.pool.taints, shape.tolerations) is not None:
            return runs
        for asked in alternatives(dict(shape.node_selector), shape.node_terms):
            whole = narrowing.narrowed(number, offer.requirements, asked)
            if isinstance(whole, str):
                continue
            types: Bools = np.asarray((offer.sold & offered(offer, whole)).any(axis=(1, 2)))
            for key in asked.keys() & offer.label_keys:
                types &= offer.admitting(key, whole[key])
            runs |= types
        return runs

    def _add_daemon(self, shape: PodShape, runs: Bools, resources: Sequence[str]) -> None:
        asked = {**dict(shape.requests), PODS: 1}
        for index, name in enumerate(resources):
            more = self.overhead[index, runs] + min(asked.get(name, 0), TOO_MUCH)
            self.overhead[index, runs] = np.minimum(more, TOO_MUCH)
        if shape.host_ports and runs.any():
            self._ports.append((shape.host_ports, runs))

    def fitting(self, state: NarrowedNode, need: Amounts, within: Bools | None) -> Bools | None:
        """Return the types of a state that hold the requests and their daemons; None if too few are left."""
        types = state.types & self.usable
        if within is not None:
            types &= within
        for index, units in need:
            types &= self.room[index] >= units
        return types if types.any() and self.has_min_values(types, state) else None

    @property
    def needs_variety(self) -> bool:
        """Whether a requirement has `minValues`."""
        return bool(self._min_values)

    @cached_property
    def devices(self) -> DeviceTemplates:
        return DeviceTemplates(self.offer)

    @cached_property
    def claims(self) -> ClaimTemplates | None:
        """The DRA devices by type; None if they are unknown."""
        is_live = self._drivers is not None and self._drivers.live is not None
        return ClaimTemplates(self.offer, self._drivers) if is_live and self._drivers is not None else None

    def with_devices(self, demands: Sequence[Demand], need: Amounts) -> Bools | None:
        """Return the types whose devices serve these demands and the whole devices requested; None: all."""
        if not demands:
            return None
        whole = {
            self._resources[index]: units for index, units in need if self._resources[index] in RESOURCES
        }
        shares = [demand for demand in demands if isinstance(demand, DeviceDemand)]
        claims = [demand for demand in demands if isinstance(demand, ClaimDemand)]
        return both(
            self.devices.holding(shares, whole) if shares else None,
            self._holding(claims) if claims else None,
        )

    def _holding(self, claims: Sequence[ClaimDemand]) -> Bools:
        if self.claims is None:
            return np.zeros(len(self.offer.types), dtype=np.bool_)
        return self.claims.holding(claims)

    def device_counts(self, demand: Demand) -> Int64s:
        """Return by type how many pods with this demand its devices serve."""
        if isinstance(demand, DeviceDemand):
            return self.devices.counts(demand)
        return (
            np.zeros(len(self.offer.types), dtype=np.int64)
            if self.claims is None
            else self.claims.counts(demand)
        )

    def without_ports(self, ports: frozenset[HostPort]) -> Bools | None:
        """Return the types on which no daemon uses one of these host ports; None: all types."""
        held = [runs for taken, runs in self._ports if ports_conflict(taken, ports)]
        return ~np.logical_or.reduce(held) if held else None

    def within_limits(self, spare: Int64s | None = None) -> Bools | None:
        """Return the types that the limits still allow after adding `spare`; None: all types."""
        if not self.limited:
            return None
        left = np.array([max(min(self.limits[name], MOST), -MOST) for name in self.limited], dtype=np.int64)
        if spare is not None:
            left = left + spare
        within: Bools = np.asarray((self.capacity <= left[:, None]).all(axis=0))
        return within

    @property
    def has_node_left(self) -> bool:
        return self.limits.get(NODES, 1) >= 1

    def reserve(self, types: Bools) -> Int64s:
        """Charge the limits for the largest of these types (per resource), as Karpenter does."""
        taken: Int64s = self.capacity[:, types].max(axis=1, initial=0)
        self._charge(taken)
        return taken

    def exchange(self, old: Int64s, types: Bools) -> Int64s:
        """Charge for these types instead of the previous charge."""
        self._charge(-old)
        return self.reserve(types)

    def take_node(self) -> None:
        if NODES in self.limits:
            self.limits[NODES] -= 1

    def _charge(self, amounts: Int64s) -> None:
        for name, units in zip(self.limited, amounts.tolist(), strict=True):
            self.limits[name] -= units

    def _values(self, key: str) -> tuple[str, list[str], Bools]:
        """Return every value of a label, and which types have it."""
        offer = self.offer
        if key == ZONE:
            return key, offer.zones, np.asarray(offer.sold.any(axis=2))
        if key == CAPACITY_TYPE:
            return key, offer.capacity_types, np.asarray(offer.sold.any(axis=1))
        labels = [offer.label_of(instance_type, key) for instance_type in offer.types]
        values = sorted({value for label in labels if label is not None for value in label.values})
        has = [[label is not None and value in label.values for value in values] for label in labels]
        return key, values, np.array(has, dtype=np.bool_).reshape(len(labels), len(values))

    def has_min_values(self, types: Bools, state: NarrowedNode) -> bool:
        for least, key, values, has in self._min_values:
            admitted = state.requirements[key]
            offered_values = [values[index] for index in np.flatnonzero(has[types].any(axis=0)).tolist()]
            if sum(value in admitted for value in offered_values) < least:
                return False
        return True


def both(first: Bools | None, second: Bools | None) -> Bools | None:
    """Combine two masks with AND; None is a mask that is true everywhere."""
    if first is None or second is None:
        return second if first is None else first
    return first & second
