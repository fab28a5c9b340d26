"""What a single new node for given pods could be; compiled once and reused.

It uses the same narrowing, limits, daemons and `minValues` as `new_nodes`, for the case where all pods go on
one node and other pods do not restrict them. Whether an offering is cheap enough is decided by the price of
the worst launch: the most expensive offering in stock of the first capacity type that Karpenter would try. A
type that may be launched at an unknown price is never cheap enough.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from karpool.model.karpenter.objects import CAPACITY_TYPE, ON_DEMAND, RESERVED, SPOT, CompiledPool
from karpool.model.kubernetes.pod_shape import HostPort, PodShape
from karpool.model.requirements import Requirements, ValueSet
from karpool.packing.feasibility import ports_conflict
from karpool.packing.new_nodes.claim_templates import DriversToCome
from karpool.packing.new_nodes.launchable import LaunchablePool, both
from karpool.packing.new_nodes.narrowing import UNREACHABLE, NarrowedNode, Narrowing
from karpool.packing.new_nodes.offerings import OFFERING_KEYS, Offerings, Prices, StockOut
from karpool.packing.new_nodes.pack import in_order
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.new_nodes.pod_ask import PodAsk, PodAskCompiler, resource_names
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import snapshot_of
from karpool.packing.topology.topology import Topology

LAUNCH_ORDER = (RESERVED, SPOT, ON_DEMAND)
_SPOT: Requirements = {CAPACITY_TYPE: ValueSet(frozenset((SPOT,)))}


@dataclass(frozen=True, slots=True, eq=False)
class FittingTypes:
    """The types of one pool that hold the pods, with the lowest and the highest price of each."""

    pool: str
    state: NarrowedNode
    types: Bools
    cheapest: Prices
    worst: Prices
    launch: LaunchablePool
    amounts: tuple[tuple[int, int], ...]
    within: Bools | None

    def cheaper_than(self, ceiling: float) -> "FittingTypes | None":
        """Return only types that cost less in any launch; None if there are none or `minValues` fails."""
        return self.only(self.worst < ceiling)

    def only(self, types: Bools) -> "FittingTypes | None":
        """Return only these types; None if none of them fits or `minValues` fails."""
        fitting = self.launch.fitting(self.state, self.amounts, both(self.within, types))
        return None if fitting is None else replace(self, types=fitting)

    @property
    def price_per_hour(self) -> float:
        """The price of the cheapest type; infinite if no price is known."""
        return float(self.cheapest[self.types].min(initial=inf))

    @property
    def count(self) -> int:
        return int(self.types.sum())

    def may_be(self, capacity_type: str) -> bool:
        kinds = self.state.offer.capacity_types
        if capacity_type not in kinds:
            return False
        return bool(self.state.stock[self.types][:, :, kinds.index(capacity_type)].any())

    def options(self, limit: int) -> tuple[LaunchOption, ...]:
        return self.state.options(self.types, limit)


class SingleNodePacker:
    def __init__(
        self,
        shapes: Mapping[int, PodShape],
        pools: Iterable[CompiledPool],
        offerings: Offerings,
        *,
        daemons: Sequence[PodShape] = (),
        usage: Mapping[str, Mapping[str, int]] | None = None,
        unavailable: Collection[StockOut] = (),
        drivers: DriversToCome | None = None,
    ) -> None:
        self.resources = resource_names([*shapes.values(), *daemons])
        nothing = Topology(snapshot_of(()))
        usable = [offerings.for_pool(pool) for pool in in_order(pools) if pool.is_usable]
        self._narrowing = Narrowing(usable, nothing.axis, unavailable)
        self.launch = [
            LaunchablePool(
                number,
                self._narrowing,
                self.resources,
                daemons,
                (usage or {}).get(offer.pool.name, {}),
                drivers=drivers,
            )
            for number, offer in enumerate(self._narrowing.pools)
        ]
        self._asking = PodAskCompiler(
            self._narrowing,
            nothing,
            self.resources,
            respect=False,
            offered=() if drivers is None else drivers.offered,
        )
        self._shapes = shapes
        self._asks: dict[int, PodAsk] = {}
        self._classes: dict[tuple[object, ...], int] = {}
        self._class_of: dict[int, int] = {}
        self._sorts: dict[int, tuple[int, bytes]] = {}
        self._ask_of_class: list[PodAsk] = []
        self._states: dict[tuple[int, frozenset[int]], NarrowedNode | None] = {}
        self._prices: dict[int, tuple[Prices, Prices]] = {}

    def learn(self, shapes: Mapping[int, PodShape]) -> bool:
        """Add shapes; returns False if they ask for resources that are not columns here."""
        unknown = {number: shape for number, shape in shapes.items() if number not in self._shapes}
        if not set(resource_names(unknown.values())) <= set(self.resources):
            return False
        self._shapes = {**self._shapes, **unknown}
        return True

    def requests(self, shape: int) -> Int64s:
        """Return the requests of one pod as columns of `resources`."""
        return self._ask(shape).requests

    def _ask(self, shape: int) -> PodAsk:
        ask = self._asks.get(shape)
        if ask is None:
            ask = self._asks[shape] = self._asking.asks(_alone(self._shapes[shape]))[-1]
        return ask

    def _class(self, shape: int) -> int:
        """Return the class of shapes with the same requirements, amounts aside."""
        number = self._class_of.get(shape)
        if number is None:
            ask = self._ask(shape)
            key = (ask.choices, ask.tolerated.tobytes(), ask.ports, ask.demands)
            number = self._classes.setdefault(key, len(self._classes))
            if number == len(self._ask_of_class):
                self._ask_of_class.append(ask)
            self._class_of[shape] = number
        return number

    @property
    def has_alternatives(self) -> bool:
        """Whether some shape has alternative requirements, so that their order matters."""
        asks = map(self._ask, self._shapes)
        return any(len(ask.choices) > 1 or any(len(wants) > 1 for wants in ask.choices) for ask in asks)

    def sort(self, shape: int) -> tuple[int, bytes]:
        """Return a key that is equal for shapes with the same requirements and amounts."""
        sort = self._sorts.get(shape)
        if sort is None:
            sort = self._sorts[shape] = self._class(shape), self._ask(shape).requests.tobytes()
        return sort

    def fitting(self, pods: Mapping[int, int], *, within: Requirements | None = None) -> list[FittingTypes]:
        """Return the fitting types of every pool that could launch a node for all these pods, in pool order.

        `within`: only nodes in the zones, and of the capacity types, that these requirements allow.
        """
        places = {key: value_set for key, value_set in (within or {}).items() if key in OFFERING_KEYS}
        ports: set[HostPort] = set()
        need: Int64s = np.zeros(len(self.resources), dtype=np.int64)
        for shape, count in pods.items():
            ask = self._ask(shape)
            need += ask.requests * count
            if ask.ports:
                if count > 1 or ports_conflict(ports, ask.ports):
                    return []
                ports |= ask.ports
        amounts = tuple((index, units) for index, units in enumerate(need.tolist()) if units)
        demands = tuple(
            demand for shape, count in pods.items() for demand in self._ask(shape).demands * count
        )
        classes = frozenset(map(self._class, pods))
        choices: list[FittingTypes] = []
        for number, launch in enumerate(self.launch):
            if not launch.has_node_left:
                continue
            state = self._state(number, classes)
            if state is not None and places:
                state = self._narrowed_to(state, places)
            if state is None:
                continue
            allowed = launch.within_limits()
            if ports:
                allowed = both(allowed, launch.without_ports(frozenset(ports)))
            allowed = both(allowed, launch.with_devices(demands, amounts))
            types = launch.fitting(state, amounts, allowed)
            if types is not None:
                cheapest, worst = self._state_prices(state)
                pool = state.offer.pool.name
                choices.append(FittingTypes(pool, state, types, cheapest, worst, launch, amounts, allowed))
        return choices

    def reach(self, shapes: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Return by pool the states of a new node that takes pods of all these shapes.

        If the states of two sets of pods are equal, they are the same for both sets together.
        """
        classes = frozenset(map(self._class, shapes))
        states = ((number, self._state(number, classes)) for number in range(len(self.launch)))
        return tuple((number, state.number) for number, state in states if state is not None)

    def pinned_to_spot(self, fitting: FittingTypes) -> FittingTypes | None:
        """Return the fitting types restricted to spot; None if none fits."""
        state = self._pinned(fitting.state)
        if state is None:
            return None
        types = fitting.launch.fitting(state, fitting.amounts, fitting.within)
        if types is None:
            return None
        cheapest, worst = self._state_prices(state)
        return FittingTypes(
            fitting.pool, state, types, cheapest, worst, fitting.launch, fitting.amounts, fitting.within
        )

    def _pinned(self, state: NarrowedNode) -> NarrowedNode | None:
        return self._narrowed_to(state, _SPOT)

    def _narrowed_to(self, state: NarrowedNode, requirements: Requirements) -> NarrowedNode | None:
        number = self._narrowing.step(state.number, self._narrowing.want(requirements))
        return None if number == UNREACHABLE else self._narrowing.states[number]

    def _state(self, pool: int, classes: frozenset[int]) -> NarrowedNode | None:
        key = pool, classes
        if key not in self._states:
            self._states[key] = self._narrowed(pool, classes)
        return self._states[key]

    def _narrowed(self, pool: int, classes: frozenset[int]) -> NarrowedNode | None:
        state = self._narrowing.states[self._narrowing.start[pool]]
        for number in sorted(classes):
            ask = self._ask_of_class[number]
            if not ask.tolerated[pool]:
                return None
            reached = next(
                (
                    reachable
                    for wants in ask.choices
                    for reachable in self._narrowing.reach(state.number, wants)
                ),
                None,
            )
            if reached is None:
                return None
            state = reached
        return state

    def _state_prices(self, state: NarrowedNode) -> tuple[Prices, Prices]:
        """Return by type the cheapest price in stock, and the highest price of a launch."""
        bounds = self._prices.get(state.number)
        if bounds is None:
            prices = state.prices()
            cheapest = prices.min(axis=(1, 2), initial=inf)
            worst = np.full(len(cheapest), inf)
            for kind in reversed(LAUNCH_ORDER):
                if kind in state.offer.capacity_types:
                    index = state.offer.capacity_types.index(kind)
                    stock = state.stock[:, :, index]
                    dearest = np.where(stock, state.offer.prices[:, :, index], -inf).max(axis=1, initial=-inf)
                    worst = np.where(stock.any(axis=1), dearest, worst)
            bounds = self._prices[state.number] = cheapest, worst
        return bounds

    def reserve(self, fitting: FittingTypes) -> None:
        """Charge a node to the limits of its pool, as the largest type that it may become."""
        fitting.launch.reserve(fitting.types)
        fitting.launch.take_node()

    def limits(self) -> list[dict[str, int]]:
        return [dict(pool.limits) for pool in self.launch]

    def limits_left(self) -> tuple[tuple[int, ...], ...]:
        """Return by pool what is left of its limits: the only state that changes answers."""
        return tuple(tuple(pool.limits.values()) for pool in self.launch)

    def restore(self, limits: Sequence[Mapping[str, int]]) -> None:
        for launch, kept in zip(self.launch, limits, strict=True):
            launch.limits = dict(kept)


def _alone(shape: PodShape) -> PodShape:
    """Return the shape without what depends on other pods; callers make sure that it does not matter."""
    if not (shape.has_topology or shape.preferred_affinity or shape.preferred_anti_affinity):
        return shape
    return PodShape(
        requests=shape.requests,
        node_selector=shape.node_selector,
        node_terms=shape.node_terms,
        tolerations=shape.tolerations,
        namespace=shape.namespace,
        labels=shape.labels,
        host_ports=shape.host_ports,
        volume_terms=shape.volume_terms,
        priority=shape.priority,
        devices=shape.devices,
        resource_claims=shape.resource_claims,
        extended_asks=shape.extended_asks,
    )
