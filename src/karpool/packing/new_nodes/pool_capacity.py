"""How many replicas of one shape new nodes could take, without placing them one by one.

Karpenter plans nodes of the first pool in order of weight that can launch one, fills
each until no type holds one more pod, and charges the pool's limits for the largest
type that the node could have become. For equal pods that has a closed form: equal
nodes come in runs, and a run ends when its largest type no longer fits into what is
left. So the work grows with the types that limits cut off, not with replicas.

Promises, both against `pack_new_nodes` with the same input:
never more than it places; and more limit never means fewer replicas. Karpenter's own
rule is not monotone (a machine that is large but holds few pods, once the limits
allow it, is charged for every node). Where that could happen the smaller of the two
numbers is given; the difference is at most what the last machine's worth of limit holds.

Only for shapes whose placement does not depend on other pods. Not for concurrent use.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.model.resources import NODES, show_amount
from karpool.packing.fit_reasons import FitReason
from karpool.packing.new_nodes.domain_choice import DomainChooser
from karpool.packing.new_nodes.launchable import Amounts, LaunchablePool, both
from karpool.packing.new_nodes.narrowing import NarrowedNode, Narrowing
from karpool.packing.new_nodes.offerings import MOST, Offerings, PoolOfferings, StockOut, remaining
from karpool.packing.new_nodes.pack import in_order
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.new_nodes.pod_ask import PodAsk, PodAskCompiler, resource_names
from karpool.packing.pool_reasons import about_pool, explain_pools, pool_infeasible
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import snapshot_of
from karpool.packing.topology.topology import Topology

Usage = Mapping[str, Mapping[str, int]]  # by pool
# What is remembered; beyond that it is forgotten and worked out again.
_SHAPES_MAX = 512
_STATES_MAX = 4096

_NO_NODES = snapshot_of(())


@dataclass(frozen=True, slots=True)
class NodeRun:
    """`nodes` equal nodes with `pods` pods each, and the cheapest way to buy one that holds them."""

    nodes: int
    pods: int
    choice: LaunchOption


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What one pool could launch. `charged` is what that takes from its limits, `nodes` included."""

    pool: str
    replicas: int
    runs: tuple[NodeRun, ...] = ()
    charged: Mapping[str, int] | None = None
    refusals: tuple[Infeasible[FitReason], ...] = ()

    @property
    def nodes(self) -> int:
        return sum(run.nodes for run in self.runs)

    @property
    def price_per_hour(self) -> float | None:
        """None when one price is not known, or nothing is launched."""
        prices = [(run.nodes, run.choice.price_per_hour) for run in self.runs]
        known = [nodes * price for nodes, price in prices if price is not None]
        return sum(known) if prices and len(known) == len(prices) else None

    @property
    def instance_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.choice.instance_type for run in self.runs))


class NewNodeCapacity:
    """What some pools could launch, compiled once and asked often."""

    def __init__(
        self,
        pools: Iterable[CompiledPool],
        offerings: Offerings,
        *,
        daemons: Sequence[PodShape] = (),
        unavailable: Collection[StockOut] = (),
    ) -> None:
        self.pools = in_order(pools)
        self._usable = [pool for pool in self.pools if pool.is_usable]
        self._offers = [offerings.for_pool(pool) for pool in self._usable]
        self._daemons = tuple(daemons)
        self._unavailable = tuple(unavailable)
        self._start()

    def _start(self) -> None:
        self._narrowing = Narrowing(self._offers, Topology(_NO_NODES).axis, self._unavailable)
        self._launch: dict[tuple[str, ...], list[LaunchablePool]] = {}
        self._shapes: dict[PodShape, _Compiled] = {}

    def potential(
        self,
        shape: PodShape,
        usage: Usage,
        *,
        nodes_max: int,
        wanted: int | None = None,
        skip: Collection[str] = (),
    ) -> list[PoolCapacity]:
        """By pool, in the order in which Karpenter asks them; each launches at most `nodes_max` nodes.

        `usage` is capacity in use as for `pack_new_nodes`. With `wanted`, no more than that in all.
        Pools to `skip` are left out.
        """
        compiled = self._compiled(shape)
        found: list[PoolCapacity] = []
        for pool in self.pools:
            if pool.name in skip:
                continue
            ways = compiled.ways.get(pool.name)
            if not ways:
                found.append(PoolCapacity(pool.name, 0, refusals=compiled.refusals_of(pool.name)))
                continue
            filling = _Filling(pool, usage.get(pool.name, {}), nodes_max)
            potential = filling.fill(ways, wanted)
            if wanted is not None:
                wanted -= potential.replicas
            found.append(potential)
        return found

    def launches(self, shape: PodShape, pool: CompiledPool, used: Mapping[str, int]) -> bool:
        """Whether the pool could launch a node for one such pod now."""
        ways = self._compiled(shape).ways.get(pool.name)
        return bool(ways and _Filling(pool, used, 1).fill(ways, 1).replicas)

    def _compiled(self, shape: PodShape) -> "_Compiled":
        known = self._shapes.get(shape)
        if known is None:
            if len(self._narrowing.states) > _STATES_MAX:
                self._start()
            elif len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            known = self._shapes[shape] = self._compile(shape)
        return known

    def _compile(self, shape: PodShape) -> "_Compiled":
        resources = tuple(resource_names((shape, *self._daemons)))
        launch = self._launch.get(resources)
        if launch is None:
            launch = self._launch[resources] = [
                LaunchablePool(number, self._narrowing, resources, self._daemons, {})
                for number in range(len(self._offers))
            ]
        asks = PodAskCompiler(self._narrowing, Topology(_NO_NODES), resources, respect=True).asks(shape)
        ways: dict[str, list[_Way]] = {}
        for ask in asks:
            for wants in ask.choices:
                for number, launchable in enumerate(launch):
                    if ask.tolerated[number]:
                        ports = launchable.without_ports(ask.ports) if ask.ports else None
                        known = ways.setdefault(self._usable[number].name, [])
                        for state in self._narrowing.reach(launchable.start, wants):
                            _add_way(known, launchable, state, ask, ports)
        settling = DomainChooser(self._narrowing, launch)
        return _Compiled(ways, partial(explain_pools, asks[-1], self.pools, launch, settling, resources))


class _Compiled:
    """One shape: how each pool could launch for it, in the order in which that is tried."""

    def __init__(
        self, ways: Mapping[str, Sequence["_Way"]], refusals: Callable[[], tuple[Infeasible[FitReason], ...]]
    ) -> None:
        self.ways = ways
        self._explain = refusals

    @cached_property
    def _refusals(self) -> Mapping[str, tuple[Infeasible[FitReason], ...]]:
        found: dict[str, list[Infeasible[FitReason]]] = {}
        for refusal in self._explain():
            found.setdefault(refusal.about, []).append(refusal)
        return {pool: tuple(refusals) for pool, refusals in found.items()}

    def refusals_of(self, pool: str) -> tuple[Infeasible[FitReason], ...]:
        return self._refusals.get(about_pool(pool), ())


@dataclass(slots=True, eq=False)
class _Way:
    """One state of a pool's new nodes that holds the pod. `counts` is pods by type, zero where none."""

    launch: LaunchablePool
    state: NarrowedNode
    amounts: Amounts
    types: Bools
    counts: Int64s
    needs_variety: bool  # some requirement has minValues

    def pods(self, within: Bools) -> int:
        """What a node takes that may be any of these types; zero when it cannot be opened."""
        counts = self.counts[within]
        if not self.needs_variety:
            return int(counts.max(initial=0))
        # More pods leave fewer types, so what has variety enough is found by halving.
        sizes = sorted({*counts.tolist()} - {0}, reverse=True)
        best = bisect_left(sizes, True, key=lambda pods: self._has_variety(pods, within))
        return int(sizes[best]) if best < len(sizes) else 0

    def _has_variety(self, pods: int, within: Bools) -> bool:
        need = [(index, units * pods) for index, units in self.amounts]
        return self.launch.fitting(self.state, need, within & (self.counts >= pods)) is not None

    def choice(self, pods: int, within: Bools) -> LaunchOption:
        """The cheapest of the types that hold so many."""
        return self.state.options(within & (self.counts >= pods), 1)[0]


def _add_way(
    known: list[_Way], launch: LaunchablePool, state: NarrowedNode, ask: PodAsk, ports: Bools | None
) -> None:
    if any(way.state is state for way in known):
        return  # what it could launch has been tried by then
    types = launch.fitting(state, ask.amounts, both(ports, launch.with_devices(ask.demands, ask.amounts)))
    if types is None:
        return
    counts = np.full(len(types), MOST, dtype=np.int64)
    for index, units in ask.amounts:
        np.minimum(counts, launch.room[index] // units, out=counts)
    if ask.ports:
        np.minimum(counts, 1, out=counts)
    for demand in ask.demands:
        np.minimum(counts, launch.devices.counts(demand), out=counts)
    variety = any(wanted.min_values for wanted in launch.offer.requirements.values())
    known.append(_Way(launch, state, ask.amounts, types, np.where(types, counts, 0), variety))


class _Filling:
    """One pool being used up."""

    def __init__(self, pool: CompiledPool, used: Mapping[str, int], nodes_max: int) -> None:
        self._pool = pool
        left = remaining(pool.limits, used)
        self._nodes = max(0, min(left.pop(NODES, nodes_max), nodes_max))
        self._nodes_cut = self._nodes < nodes_max
        self._names = list(left)
        self._left = np.array([max(min(units, MOST), -MOST) for units in left.values()], dtype=np.int64)
        self._runs: list[NodeRun] = []
        self._charged = np.zeros_like(self._left)

    def fill(self, ways: Sequence[_Way], wanted: int | None) -> PoolCapacity:
        total, bound = 0, MOST if wanted is None else max(wanted, 0)
        earlier = MOST  # the fewest pods of a type that an earlier way has, if limits allowed it
        for way in ways:
            capacity = self._capacity(way.launch.offer)
            while self._nodes > 0 and total < bound:
                within = way.types & np.asarray((capacity <= self._left[:, None]).all(axis=0))
                pods = way.pods(within)
                if not pods:
                    break
                bound = min(bound, total + self._certain(way, within, pods), total + earlier)
                total += self._take(way, within, pods, capacity, bound - total)
            earlier = min(earlier, 0 if way.needs_variety else int(way.counts[way.types].min()))
        refusals = self._refusals(ways) if wanted is None or total < wanted else ()
        return PoolCapacity(self._pool.name, total, tuple(self._runs), self._charges(), refusals)

    def _capacity(self, offer: PoolOfferings) -> Int64s:
        columns = [offer.capacity(name) for name in self._names]
        return np.array(columns, dtype=np.int64).reshape(len(self._names), len(offer.types))

    @staticmethod
    def _certain(way: _Way, within: Bools, pods: int) -> int:
        """What one node holds however much larger the limits were: no type beyond them spoils it."""
        beyond = way.types & ~within
        if not beyond.any():
            return MOST
        return pods if way.needs_variety else max(pods, int(way.counts[beyond].min()))

    def _take(self, way: _Way, within: Bools, pods: int, capacity: Int64s, wanted: int) -> int:
        """Open as many equal nodes as limits and need allow; returns the pods on them."""
        largest = capacity[:, within].max(axis=1, initial=0)
        times = [int(left // size) for left, size in zip(self._left, largest, strict=True) if size > 0]
        nodes = min(self._nodes, -(-wanted // pods), *times)
        placed = min(nodes * pods, wanted)
        full, rest = divmod(placed, pods)
        for count, node_pods in ((full, pods), (1, rest)):
            if count and node_pods:
                self._runs.append(NodeRun(count, node_pods, way.choice(node_pods, within)))
        self._nodes -= nodes
        self._left = self._left - largest * nodes
        self._charged = self._charged + largest * nodes
        return placed

    def _charges(self) -> dict[str, int]:
        charged = dict(zip(self._names, self._charged.tolist(), strict=True))
        return {**charged, NODES: sum(run.nodes for run in self._runs)}

    def _refusals(self, ways: Sequence[_Way]) -> tuple[Infeasible[FitReason], ...]:
        """Why there are no more although types suit: some limit is reached."""
        if self._nodes <= 0:
            limit = self._pool.limits.get(NODES)
            shown = f"0 of {limit} left" if limit is not None and self._nodes_cut else "no new nodes allowed"
            return (pool_infeasible(self._pool.name, FitReason.LIMIT, f"limit {NODES} reached: {shown}"),)
        found: list[Infeasible[FitReason]] = []
        for index, name in enumerate(self._names):
            needed = min(int(way.launch.offer.capacity(name)[way.types].min()) for way in ways)
            left = int(self._left[index])
            if needed > left:
                amounts = (
                    f"{show_amount(name, max(left, 0))} of {show_amount(name, self._pool.limits[name])} left"
                )
                message = f"limit {name} reached: {amounts}, smallest type needs {show_amount(name, needed)}"
                found.append(pool_infeasible(self._pool.name, FitReason.LIMIT, message))
        if not found and self._names:
            together = f"what is left of {', '.join(self._names)} together is certain to hold no more"
            found.append(pool_infeasible(self._pool.name, FitReason.LIMIT, together))
        return tuple(found)
