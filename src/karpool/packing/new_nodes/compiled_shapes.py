"""How each pool could launch nodes for pods of one shape; compiled once per shape and reused."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.fit_reasons import FitReason
from karpool.packing.new_nodes.claim_templates import DriversToCome
from karpool.packing.new_nodes.domain_choice import DomainChooser
from karpool.packing.new_nodes.launchable import LaunchablePool, both
from karpool.packing.new_nodes.narrowing import NarrowedNode, Narrowing, Wants
from karpool.packing.new_nodes.offerings import MOST, PoolOfferings, StockOut
from karpool.packing.new_nodes.pod_ask import PodAsk, PodAskCompiler, resource_names
from karpool.packing.pool_reasons import explain_pools
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import snapshot_of
from karpool.packing.topology.topology import Topology

# Cached shapes; the cache is cleared when it is full. A burst of 500 promises has up to
# as many shapes, and each takes a millisecond to compile.
_SHAPES_MAX = 2048
_STATES_MAX = 4096
_RESOURCES_MAX = 64
_OPENINGS_MAX = 64  # per way; a search repeats the same limits

_NO_NODES = snapshot_of(())


@dataclass(slots=True, eq=False)
class NodeOpening:
    """A new node that takes `pods` and may be any type in `within`; limits are charged for the `largest`."""

    within: Bools
    pods: int
    largest: Int64s


@dataclass(slots=True, eq=False)
class LaunchWay:
    """One state of a pool's new nodes that holds the pod. `counts` is the number of pods by type."""

    pool: int
    launch: LaunchablePool
    state: NarrowedNode
    types: Bools
    counts: Int64s
    _openings: dict[bytes, "NodeOpening"] = field(default_factory=dict)

    def opening(self, left: Int64s) -> "NodeOpening":
        """Return the next new node, given what is left of the limits in the order of `launch.limited`."""
        key = left.tobytes()
        opening = self._openings.get(key)
        if opening is None:
            if len(self._openings) >= _OPENINGS_MAX:
                self._openings.clear()
            within = self.types & np.asarray((self.launch.capacity <= left[:, None]).all(axis=0))
            largest: Int64s = self.launch.capacity[:, within].max(axis=1, initial=0)
            opening = self._openings[key] = NodeOpening(within, self.pods(within), largest)
        return opening

    def pods(self, within: Bools) -> int:
        """Return how many pods a node takes that may be any of these types; 0 if it cannot be launched."""
        counts = self.counts[within]
        if not self.launch.needs_variety:
            return int(counts.max(initial=0))
        # More pods leave fewer types, so bisection finds the most pods that satisfy `minValues`.
        sizes = sorted({*counts.tolist()} - {0}, reverse=True)
        best = bisect_left(sizes, True, key=lambda pods: self._has_variety(pods, within))
        return int(sizes[best]) if best < len(sizes) else 0

    def floor(self, nodes: int, left: Int64s) -> int:
        """Return how many pods these nodes hold at least, with this much left of the limits or more.

        The bound comes from frugal types: types that need none of a limited resource that some types do
        without, such as machines without GPUs in a pool that limits GPUs. While all frugal types fit, each
        node takes at least as many pods as they do, and as the type that it is charged for; so the charge
        bounds the pods from below. The bound is 0 if all types need the same resources.
        """
        capacity = self.launch.capacity[:, self.types]
        spared = (capacity == 0).any(axis=1) & (capacity > 0).any(axis=1)
        frugal = self.types & np.asarray((self.launch.capacity[spared] == 0).all(axis=0))
        pods = self.pods(frugal) if spared.any() else 0
        if not pods:
            return 0
        held = pods if self.launch.needs_variety else np.maximum(self.counts[self.types], pods)
        largest = self.launch.capacity[:, frugal].max(axis=1)
        floor = nodes * pods
        for index in np.flatnonzero(largest).tolist():
            per_unit = float((held / np.maximum(capacity[index], largest[index])).min())
            charged = max(0, int(left[index]) - int(largest[index]) + 1)
            floor = min(floor, int(charged * per_unit * (1 - 1e-9)))  # a rounding error must not add a pod
        return min(floor, MOST)

    def _has_variety(self, pods: int, within: Bools) -> bool:
        types = within & (self.counts >= pods)
        return bool(types.any()) and self.launch.has_min_values(types, self.state)


@dataclass(slots=True, eq=False)
class LaunchStep:
    """One attempt for a pod: planned nodes that meet the requirements, then new ones."""

    ask: PodAsk
    wants: Wants
    ways: list[LaunchWay] = field(default_factory=list)


class CompiledShape:
    """One shape with its launch steps, in the order in which they are tried."""

    def __init__(
        self,
        steps: Sequence[LaunchStep],
        explain: Callable[[Sequence[CompiledPool]], tuple[Infeasible[FitReason], ...]],
    ) -> None:
        self.steps = steps
        self._explain = explain
        self._refusals: dict[str, tuple[Infeasible[FitReason], ...]] = {}  # by pool; filled on demand

    def ways(self, pool: int) -> list[LaunchWay]:
        return [way for step in self.steps for way in step.ways if way.pool == pool]

    def refusals_of(self, pool: CompiledPool) -> tuple[Infeasible[FitReason], ...]:
        if pool.name not in self._refusals:
            self._refusals[pool.name] = self._explain((pool,))
        return self._refusals[pool.name]


class CompiledShapes:
    """Shapes compiled for some pools. Resources are numbered in the order of their first use."""

    def __init__(
        self,
        pools: Sequence[CompiledPool],
        offers: Sequence[PoolOfferings],
        daemons: Sequence[PodShape],
        unavailable: Sequence[StockOut],
        drivers: DriversToCome | None = None,
    ) -> None:
        self.pools = pools
        self.offers = offers
        self.narrowing = Narrowing(offers, Topology(_NO_NODES).axis, unavailable)
        self._daemons = daemons
        self._drivers = drivers
        self._shapes: dict[PodShape, CompiledShape] = {}
        self._use(resource_names(daemons))

    def __len__(self) -> int:
        return len(self._shapes)

    @property
    def is_full(self) -> bool:
        states, resources = len(self.narrowing.states), len(self.resources)
        return len(self) >= _SHAPES_MAX or states > _STATES_MAX or resources > _RESOURCES_MAX

    def of(self, shape: PodShape) -> CompiledShape:
        compiled = self._shapes.get(shape)
        if compiled is None:
            compiled = self._shapes[shape] = self._compile(shape)
        return compiled

    def _use(self, resources: Sequence[str]) -> None:
        self.resources = list(resources)
        self.launch = [
            LaunchablePool(number, self.narrowing, self.resources, self._daemons, {}, drivers=self._drivers)
            for number in range(len(self.offers))
        ]

    def _compile(self, shape: PodShape) -> CompiledShape:
        more = [name for name, _ in shape.requests if name not in self.resources]
        if more:
            self._use([*self.resources, *more])
        offered = () if self._drivers is None else self._drivers.offered
        compiler = PodAskCompiler(
            self.narrowing, Topology(_NO_NODES), self.resources, respect=True, offered=offered
        )
        asks = compiler.asks(shape)
        steps = [LaunchStep(ask, wants) for ask in asks for wants in ask.choices]
        reached: set[int] = set()  # states that an earlier way has already covered
        for step in steps:
            for number, launch in enumerate(self.launch):
                if not step.ask.tolerated[number]:
                    continue
                for state in self.narrowing.reach(launch.start, step.wants):
                    if state.number not in reached:
                        way = _way(number, launch, state, step.ask)
                        if way is not None:
                            reached.add(state.number)
                            step.ways.append(way)
        settling = DomainChooser(self.narrowing, self.launch)
        explain = partial(
            explain_pools, asks[-1], launch=self.launch, settling=settling, resources=self.resources
        )
        return CompiledShape(steps, explain)


def _way(pool: int, launch: LaunchablePool, state: NarrowedNode, ask: PodAsk) -> LaunchWay | None:
    ports = launch.without_ports(ask.ports) if ask.ports else None
    types = launch.fitting(state, ask.amounts, both(ports, launch.with_devices(ask.demands, ask.amounts)))
    if types is None:
        return None
    counts = np.full(len(types), MOST, dtype=np.int64)
    for index, units in ask.amounts:
        np.minimum(counts, launch.room[index] // units, out=counts)
    if ask.ports:
        np.minimum(counts, 1, out=counts)
    for demand in ask.demands:
        np.minimum(counts, launch.device_counts(demand), out=counts)
    return LaunchWay(pool, launch, state, types, np.where(types, counts, 0))
