"""Plans new nodes for groups of equal pods, one group after the other, like `pack_new_nodes`.

A group goes onto planned nodes first, those with the fewest pods before others, and then onto new ones. Equal
pods make equal nodes, so nodes are kept in runs, and a whole group is placed at once: the cost grows with the
runs and with the types that limits cut off, not with replicas. Later groups share the nodes of earlier ones.

Only for shapes whose placement does not depend on other pods. Copying a plan is cheap, because planned runs
are replaced and never changed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from karpool.model.infeasible import Infeasible
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.resources import NODES, Resources, add, show_amount
from karpool.packing.feasibility import ports_conflict
from karpool.packing.fit_reasons import FitReason
from karpool.packing.new_nodes.compiled_shapes import (
    CompiledShape,
    CompiledShapes,
    LaunchStep,
    LaunchWay,
    NodeOpening,
)
from karpool.packing.new_nodes.launchable import Demand, LaunchablePool
from karpool.packing.new_nodes.narrowing import NarrowedNode, Wants
from karpool.packing.new_nodes.offerings import MOST, remaining
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.new_nodes.pod_ask import PodAsk
from karpool.packing.pool_reasons import pool_infeasible
from karpool.packing.tables.columns import Bools, Int64s

_SMALLEST = 32
Usage = Mapping[str, Mapping[str, int]]  # by pool


@dataclass(frozen=True, slots=True)
class NodeRun:
    """`nodes` equal nodes with `pods` pods each, and the cheapest offering that holds them."""

    nodes: int
    pods: int
    choice: LaunchOption


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What one pool could launch. `runs` are new nodes; the other replicas share planned nodes."""

    pool: str
    replicas: int
    runs: tuple[NodeRun, ...] = ()
    refusals: tuple[Infeasible[FitReason], ...] = ()

    @property
    def nodes(self) -> int:
        return sum(run.nodes for run in self.runs)

    @property
    def price_per_hour(self) -> float | None:
        """None if a price is unknown or nothing is launched."""
        prices = [(run.nodes, run.choice.price_per_hour) for run in self.runs]
        priced = [nodes * price for nodes, price in prices if price is not None]
        return sum(priced) if prices and len(priced) == len(prices) else None

    @property
    def instance_types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.choice.instance_type for run in self.runs))


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    """Equal planned nodes. `first` is the number of the oldest; each has `pods` pods.

    `types` still hold all pods; `used` is keyed by resource number.
    """

    pool: int
    first: int
    nodes: int
    pods: int
    state: NarrowedNode
    types: Bools
    used: Mapping[int, int]
    ports: frozenset[HostPort] = frozenset()
    demands: tuple[Demand, ...] = ()

    def as_bought(self) -> NodeRun:
        return NodeRun(self.nodes, self.pods, self.state.options(self.types, 1)[0])


@dataclass(frozen=True, slots=True)
class _PoolLeft:
    """What a pool may still launch: nodes, and its limits in the order of `LaunchablePool.limited`."""

    nodes: int
    amounts: Int64s


@dataclass(slots=True)
class _Opening:
    """The new nodes of one pool for one group. `bound` and `floor` keep the count monotone in limits."""

    opened: int = 0
    bound: int = MOST
    floor: int = 0  # guaranteed by the first way of the pool, even with larger limits
    earlier: int = MOST  # the fewest pods of a type of an earlier way, if limits allowed it


@dataclass(frozen=True, slots=True)
class _Placed:
    """Replicas in the order of placing; `run` is set for those on `nodes` new nodes."""

    pool: int
    replicas: int
    run: _PlannedRun | None = None
    nodes: int = 0


class NodePlan:
    def __init__(
        self, shapes: CompiledShapes, usage: Usage, *, nodes_max: int, skip: Collection[str] = ()
    ) -> None:
        """Each pool launches at most `nodes_max` nodes in total; pools in `skip` launch none.

        `usage` is the capacity in use, as for `pack_new_nodes`.
        """
        self._shapes = shapes
        self._usage = usage
        self._nodes_max = nodes_max
        self._skip = frozenset(skip)
        self._left = [self._at_start(launch) for launch in shapes.launch]
        self._runs: list[_PlannedRun] = []
        self._opened = 0
        # By resource and run, with spare columns: the most that any remaining type would leave.
        self._ceilings: Int64s = np.zeros((len(shapes.resources), _SMALLEST), dtype=np.int64)

    def copy(self) -> "NodePlan":
        twin = object.__new__(NodePlan)
        twin._shapes, twin._usage, twin._skip = self._shapes, self._usage, self._skip
        twin._nodes_max, twin._opened = self._nodes_max, self._opened
        twin._left, twin._runs = list(self._left), list(self._runs)
        twin._ceilings = self._ceilings.copy()
        return twin

    def _at_start(self, launch: LaunchablePool) -> _PoolLeft:
        pool = launch.offer.pool
        left = remaining(pool.limits, self._usage.get(pool.name, {}))
        nodes = max(0, min(left.get(NODES, self._nodes_max), self._nodes_max))
        amounts = [max(min(left[name], MOST), -MOST) for name in launch.limited]
        skipped = pool.name in self._skip
        return _PoolLeft(0 if skipped else nodes, np.array(amounts, dtype=np.int64))

    def place(self, shape: PodShape, pods: int) -> int:
        """Plan nodes for this many pods; return how many fit."""
        return sum(placed.replicas for placed in self._fill(self._shapes.of(shape), pods, careful=False))

    def capacity(self, shape: PodShape, *, wanted: int | None = None, ahead: int = 0) -> list[PoolCapacity]:
        """Return how many more pods fit, by pool, in the order in which Karpenter tries pools.

        `ahead` pods of the same shape come first and are not counted. `wanted` limits the total. Nothing is
        planned.
        """
        compiled = self._shapes.of(shape)
        trial = self.copy()
        pods = MOST if wanted is None else max(wanted, 0) + ahead
        placed = trial._fill(compiled, pods, careful=True)
        counted = _without_first(placed, ahead)
        is_short = wanted is None or sum(part.replicas for part in counted) < wanted
        by_pool: dict[int, list[_Placed]] = {}
        for part in counted:
            by_pool.setdefault(part.pool, []).append(part)
        numbers = {launch.offer.pool.name: number for number, launch in enumerate(self._shapes.launch)}
        capacities = []
        for pool in self._shapes.pools:
            if pool.name in self._skip:
                continue
            parts = by_pool.get(numbers.get(pool.name, -1), [])
            ways = compiled.ways(numbers[pool.name]) if pool.name in numbers else []
            refusals = trial._refusals(ways) if is_short and ways else ()
            if not ways:
                refusals = compiled.refusals_of(pool)
            runs = tuple(
                replace(part.run.as_bought(), nodes=part.nodes) for part in parts if part.run is not None
            )
            capacities.append(PoolCapacity(pool.name, sum(part.replicas for part in parts), runs, refusals))
        return capacities

    def usage(self) -> dict[str, Resources]:
        """Return the usage with the planned nodes, each as the cheapest type that holds its pods."""
        usage: dict[str, Resources] = {pool: dict(used) for pool, used in self._usage.items()}
        for planned in self._runs:
            offer, run = planned.state.offer, planned.as_bought()
            capacity = {**offer.types[offer.names.index(run.choice.instance_type)].capacity, NODES: 1}
            more = {resource: units * run.nodes for resource, units in capacity.items()}
            add(usage.setdefault(offer.pool.name, {}), more)
        return usage

    def runs(self) -> list[tuple[str, NodeRun]]:
        """Return the planned nodes, each with its pool."""
        return [(planned.state.offer.pool.name, planned.as_bought()) for planned in self._runs]

    # Placing

    def _fill(self, compiled: CompiledShape, pods: int, *, careful: bool) -> list[_Placed]:
        """Place the pods. `careful` counts only what fits with any larger limits, too."""
        placed: list[_Placed] = []
        openings: dict[int, _Opening] = {}
        for step in compiled.steps:
            placed += self._join(step, pods - sum(part.replicas for part in placed))
            left = pods - sum(part.replicas for part in placed)
            placed += self._open(step, left, openings, careful=careful)
        return placed

    def _open(
        self, step: LaunchStep, pods: int, openings: dict[int, _Opening], *, careful: bool
    ) -> Iterable[_Placed]:
        for way in step.ways:
            opening = openings.get(way.pool)
            if opening is None:
                left = self._left[way.pool]
                floor = way.floor(left.nodes, left.amounts) if careful else 0
                opening = openings[way.pool] = _Opening(floor=floor)
            while pods > 0 and self._left[way.pool].nodes > 0 and opening.opened < opening.bound:
                node = way.opening(self._left[way.pool].amounts)
                if not node.pods:
                    break
                if careful:
                    certain = min(_certain(way, node), opening.earlier)
                    opening.bound = max(opening.floor, min(opening.bound, opening.opened + certain))
                for part in self._launch(way, node, min(pods, opening.bound - opening.opened), step.ask):
                    opening.opened += part.replicas
                    pods -= part.replicas
                    yield part
            fewest = 0 if way.launch.needs_variety else int(way.counts[way.types].min())
            opening.earlier = min(opening.earlier, fewest)

    def _launch(self, way: LaunchWay, node: NodeOpening, wanted: int, ask: PodAsk) -> list[_Placed]:
        """Open as many equal nodes as the limits allow and the pods need."""
        left = self._left[way.pool]
        amounts = zip(left.amounts.tolist(), node.largest.tolist(), strict=True)
        times = [units // most for units, most in amounts if most > 0]
        nodes = min(left.nodes, -(-wanted // node.pods), *times)
        self._left[way.pool] = _PoolLeft(left.nodes - nodes, left.amounts - node.largest * nodes)
        full, rest = divmod(min(nodes * node.pods, wanted), node.pods)
        placed = []
        for count, pods in ((full, node.pods), (1, rest)):
            if count and pods:
                types = node.within & (way.counts >= pods)
                used = {index: units * pods for index, units in ask.amounts}
                demands = ask.demands * pods
                run = _PlannedRun(
                    way.pool, self._opened, count, pods, way.state, types, used, ask.ports, demands
                )
                self._opened += count
                self._put(len(self._runs), run)
                placed.append(_Placed(way.pool, count * pods, run, count))
        return placed

    def _put(self, index: int, run: _PlannedRun) -> None:
        self._make_space(index + 1)
        ceiling = self._shapes.launch[run.pool].room[:, run.types].max(axis=1)
        for resource, units in run.used.items():
            ceiling[resource] -= units
        self._ceilings[:, index] = ceiling
        self._runs[index : index + 1] = [run]

    def _make_space(self, runs: int) -> None:
        """Grow the arrays for more runs and for resources that were not requested before."""
        resources, space = self._ceilings.shape
        if runs > space:
            self._ceilings = np.concatenate((self._ceilings, np.zeros_like(self._ceilings)), axis=1)
        if resources < len(self._shapes.resources):
            self._ceilings = np.zeros((len(self._shapes.resources), max(space, runs)), dtype=np.int64)
            for index, run in enumerate(self._runs):
                self._put(index, run)

    # Sharing planned nodes

    def _join(self, step: LaunchStep, pods: int) -> list[_Placed]:
        """Fill planned nodes level by level: the nodes with the fewest pods first, then the oldest."""
        if not self._runs or pods <= 0:
            return []
        waiting = self._may_have_room(step.ask)
        active: list[_Joining] = []
        joined: list[_Joining] = []
        level = 0
        while pods and (active or waiting):
            if not active:
                level = self._runs[waiting[0]].pods
            while waiting and self._runs[waiting[0]].pods == level:
                joining = self._joining(waiting.pop(0), step.ask, step.wants)
                if joining is not None:
                    active.append(joining)
                    joined.append(joining)
            if not active:
                continue
            active.sort(key=lambda joining: joining.run.first)
            nodes = sum(joining.run.nodes for joining in active)
            rise = min(*(joining.most - joining.added for joining in active), pods // nodes)
            if waiting:
                rise = min(rise, self._runs[waiting[0]].pods - level)
            for joining in active:
                joining.added += rise
            level += rise
            pods -= rise * nodes
            if not rise:  # fewer pods than nodes
                for joining in active:
                    joining.one_more = min(pods, joining.run.nodes)
                    pods -= joining.one_more
            active = [joining for joining in active if joining.added < joining.most]
        return [part for joining in joined for part in self._settle(joining, step.ask)]

    def _may_have_room(self, ask: PodAsk) -> list[int]:
        runs = len(self._runs)
        self._make_space(runs)
        mask: Bools = np.ones(runs, dtype=np.bool_)
        for index, units in ask.amounts:
            mask &= self._ceilings[index, :runs] >= units
        rows = [index for index in np.flatnonzero(mask).tolist() if ask.tolerated[self._runs[index].pool]]
        return sorted(rows, key=lambda index: (self._runs[index].pods, self._runs[index].first))

    def _joining(self, index: int, ask: PodAsk, wants: Wants) -> "_Joining | None":
        run = self._runs[index]
        if ask.ports and ports_conflict(run.ports, ask.ports):
            return None
        launch = self._shapes.launch[run.pool]
        for state in self._shapes.narrowing.reach(run.state.number, wants):
            types = run.types & state.types
            ports = launch.without_ports(ask.ports) if ask.ports else None
            if ports is not None:
                types &= ports
            counts = np.full(len(types), 1 if ask.ports else MOST, dtype=np.int64)
            for resource, units in ask.amounts:
                np.minimum(counts, (launch.room[resource] - run.used.get(resource, 0)) // units, out=counts)
            joining = _Joining(index, run, launch, state, ask, np.where(types, counts, 0))
            if joining.most:
                return joining
        return None

    def _settle(self, joining: "_Joining", ask: PodAsk) -> list[_Placed]:
        """Record the joined pods; nodes that got one more than the others become a run of their own."""
        run, more = joining.run, joining.one_more
        parts = [(more, joining.added + 1, run.first), (run.nodes - more, joining.added, run.first + more)]
        index = joining.index
        placed = []
        for nodes, pods, first in parts:
            if not nodes:
                continue
            after = replace(run, nodes=nodes, first=first)
            if pods:
                used = dict(run.used)
                for resource, units in ask.amounts:
                    used[resource] = used.get(resource, 0) + units * pods
                after = replace(
                    after,
                    pods=run.pods + pods,
                    state=joining.state,
                    types=joining.types(pods),
                    used=used,
                    ports=run.ports | ask.ports,
                    demands=(*run.demands, *ask.demands * pods),
                )
                placed.append(_Placed(run.pool, nodes * pods))
            self._put(index, after)
            index = len(self._runs)
        return placed

    # Why no more pods fit

    def _refusals(self, ways: Sequence[LaunchWay]) -> tuple[Infeasible[FitReason], ...]:
        """Return the limits that are reached although types fit."""
        launch = ways[0].launch
        pool, left = launch.offer.pool, self._left[ways[0].pool]
        if left.nodes <= 0:
            limit = pool.limits.get(NODES)
            free = remaining(pool.limits, self._usage.get(pool.name, {})).get(NODES, self._nodes_max)
            is_cut = limit is not None and free < self._nodes_max
            reached = f"limit {NODES} reached: 0 of {limit} left"
            message = reached if is_cut else f"the estimate counts at most {self._nodes_max} new nodes"
            return (pool_infeasible(pool.name, FitReason.LIMIT, message),)
        refusals: list[Infeasible[FitReason]] = []
        for index, name in enumerate(launch.limited):
            needed = min(int(way.launch.capacity[index][way.types].min()) for way in ways)
            units = int(left.amounts[index])
            if needed > units:
                amounts = f"{show_amount(name, max(units, 0))} of {show_amount(name, pool.limits[name])} left"
                message = f"limit {name} reached: {amounts}, smallest type needs {show_amount(name, needed)}"
                refusals.append(pool_infeasible(pool.name, FitReason.LIMIT, message))
        if not refusals and launch.limited:
            together = f"what is left of {', '.join(launch.limited)} together is certain to hold no more"
            refusals.append(pool_infeasible(pool.name, FitReason.LIMIT, together))
        return tuple(refusals)


@dataclass(slots=True)
class _Joining:
    """A group that joins the nodes of one run. `counts` is the number of pods by type, by amounts alone."""

    index: int
    run: _PlannedRun
    launch: LaunchablePool
    state: NarrowedNode
    ask: PodAsk
    counts: Int64s
    most: int = field(init=False)
    added: int = 0
    one_more: int = 0  # nodes that get one more than `added`

    def __post_init__(self) -> None:
        self.most = int(self.counts.max(initial=0))
        if self.launch.needs_variety or self.ask.demands or self.run.demands:
            low = 0
            while low < self.most:  # more pods leave fewer types
                middle = (low + self.most + 1) // 2
                low, self.most = (middle, self.most) if self.types(middle).any() else (low, middle - 1)

    def types(self, pods: int) -> Bools:
        """Return the types that hold this many more pods; none if `minValues` is no longer satisfied."""
        types: Bools = self.counts >= pods
        demands = (*self.run.demands, *self.ask.demands * pods)
        if demands:
            used = dict(self.run.used)
            for resource, units in self.ask.amounts:
                used[resource] = used.get(resource, 0) + units * pods
            held = self.launch.with_devices(demands, tuple(used.items()))
            types = types if held is None else types & held
        if self.launch.needs_variety and not self.launch.has_min_values(types, self.state):
            return np.zeros_like(types)
        return types


def _certain(way: LaunchWay, node: NodeOpening) -> int:
    """Return how many pods one node holds for certain under any larger limits."""
    beyond = way.types & ~node.within
    if not beyond.any():
        return MOST
    return node.pods if way.launch.needs_variety else max(node.pods, int(way.counts[beyond].min()))


def _without_first(placed: Iterable[_Placed], pods: int) -> list[_Placed]:
    """Remove the pods that were placed first; a node that one of them opened is not new."""
    rest = []
    for part in placed:
        gone = min(pods, part.replicas)
        pods -= gone
        if not gone:
            rest.append(part)
        elif gone < part.replicas:
            run = part.run
            nodes = 0 if run is None else part.nodes - -(-gone // run.pods)
            on_new = 0 if run is None else nodes * run.pods
            rest.append(_Placed(part.pool, part.replicas - gone - on_new))
            rest += [_Placed(part.pool, on_new, run, nodes)] if nodes else []
    return rest
