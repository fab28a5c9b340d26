"""Places pending pods on existing, planned and new nodes, as Karpenter does.

The largest pod comes first. Each pod goes to the first existing node that takes it, else to the planned node
with the fewest pods that takes it, else to a new node of the first pool in order of weight. A planned node
keeps every instance type that still holds all its pods; the cheapest is chosen at the end.

Which order is the cheapest depends on the pods. `PackOptions.orders` lists more orders, and the cheapest
packing is kept. Karpenter's order comes first, so the result is never more expensive than Karpenter's.

Intended differences from Karpenter: a planned node's domain is settled as soon as a pod that some constraint
counts is placed on it, so that topology holds for every launch; among equally good zones the cheapest is
taken; all terms of a node affinity are tried at each step of relaxing preferences.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CompiledPool
from karpool.model.kubernetes.node import HOSTNAME
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.fit_reasons import FitReason
from karpool.packing.new_nodes.claim_templates import DriversToCome
from karpool.packing.new_nodes.domain_choice import (
    DomainChooser,
    Fit,
    NodeTrial,
    Opens,
    may_be_alone,
    open_domains,
)
from karpool.packing.new_nodes.equal_pods import EqualPods, kind_of
from karpool.packing.new_nodes.launchable import LaunchablePool, both
from karpool.packing.new_nodes.narrowing import NarrowedNode, Narrowing, Wants
from karpool.packing.new_nodes.node_rows import ExistingNodes, PlannedRows
from karpool.packing.new_nodes.offerings import Offerings, StockOut
from karpool.packing.new_nodes.pack_order import KARPENTER, PackOrder, PodSizes, placing_order
from karpool.packing.new_nodes.pack_result import (
    PackResult,
    PendingPod,
    PlannedNode,
    UnplacedPod,
)
from karpool.packing.new_nodes.pod_ask import PodAsk, PodAskCompiler, resource_names
from karpool.packing.pool_reasons import explain_pools
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import TopologyGroup
from karpool.packing.topology.domains import NOWHERE, TopologyAxis
from karpool.packing.topology.topology import Topology, TopologyMark


@dataclass(frozen=True, slots=True)
class PackOptions:
    """`limits`: charge a pool for the largest type a node may become (as Karpenter), or for the cheapest.

    `needs_price`: exclude offerings without a known price instead of sorting them last.
    """

    existing: bool = True
    preferences: Literal["respect", "ignore"] = "respect"
    limits: Literal["pessimistic", "exact"] = "pessimistic"
    needs_price: bool = False
    max_options: int = 600
    orders: tuple[PackOrder, ...] = (KARPENTER,)


DEFAULTS = PackOptions()


def pack_new_nodes(
    snapshot: Room,
    pods: Iterable[PendingPod],
    pools: Iterable[CompiledPool],
    catalogue: Catalogue | Offerings,
    *,
    daemons: Sequence[PodShape] = (),
    usage: Mapping[str, Mapping[str, int]] | None = None,
    unavailable: Collection[StockOut] = (),
    options: PackOptions = DEFAULTS,
) -> PackResult:
    """Return where every pod goes, which nodes to launch, and why the other pods do not fit.

    `usage` is the capacity in use of each pool, with nodes and NodeClaims in flight, including `nodes`. Pass
    `Offerings` instead of a catalogue to compile pools only once.
    """
    offerings = catalogue if isinstance(catalogue, Offerings) else Offerings(catalogue)
    packer = _Packer(
        snapshot,
        sorted(pods, key=placing_order),
        in_order(pools),
        offerings,
        daemons=daemons,
        usage=usage or {},
        unavailable=unavailable,
        options=options,
    )
    return packer.cheapest(options.orders)


def in_order(pools: Iterable[CompiledPool]) -> list[CompiledPool]:
    """Sort pools as Karpenter does: by weight, highest first, then by name in reverse."""
    return sorted(sorted(pools, key=lambda pool: pool.name, reverse=True), key=lambda pool: -pool.weight)


@dataclass(slots=True, eq=False)
class _Packing:
    """The plan so far, in one order."""

    rows: PlannedRows
    existing: ExistingNodes | None
    placed: dict[str, str] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    hopeless: set[int] = field(default_factory=set)


class _Packer:
    """Compiles pods and pools once, and packs them in one order after another."""

    def __init__(
        self,
        snapshot: Room,
        pods: Sequence[PendingPod],
        pools: Sequence[CompiledPool],
        offerings: Offerings,
        *,
        daemons: Sequence[PodShape],
        usage: Mapping[str, Mapping[str, int]],
        unavailable: Collection[StockOut],
        options: PackOptions,
    ) -> None:
        self._pods = pods
        self._pools = pools
        self._options = options
        self._resources = resource_names([*(pod.shape for pod in pods), *daemons])
        self._topology = Topology(snapshot, planned=self)
        self._narrowing = Narrowing(
            [offerings.for_pool(pool) for pool in pools if pool.is_usable],
            self._topology.axis,
            unavailable,
            needs_price=options.needs_price,
        )
        drivers = DriversToCome(snapshot)
        self._launch = [
            LaunchablePool(
                number,
                self._narrowing,
                self._resources,
                daemons,
                usage.get(offer.pool.name, {}),
                drivers=drivers,
            )
            for number, offer in enumerate(self._narrowing.pools)
        ]
        self._exact = options.limits == "exact" and any(launch.limited for launch in self._launch)
        self._settling = DomainChooser(self._narrowing, self._launch)
        asking = PodAskCompiler(
            self._narrowing,
            self._topology,
            self._resources,
            respect=options.preferences == "respect",
            offered=drivers.offered,
        )
        self._asks = [asking.asks(pod.shape) for pod in pods]
        self._prepare_topology()
        self._sizes = PodSizes(pods)
        self._packing = self._begun(KARPENTER)
        # `minValues` and limits also decide which types remain.
        is_by_room = not self._exact and not any(launch.needs_variety for launch in self._launch)
        kinds = {id(asks): kind_of(asks) if is_by_room else None for asks in self._asks}
        self._kinds = [kinds[id(asks)] for asks in self._asks]

    def _prepare_topology(self) -> None:
        """Name every domain that a new node could be in, after all constraints are compiled."""
        self._narrowing.name_domains(self._topology.axes.values())
        for group in self._topology.spread_groups():
            if group.tally.axis.key != HOSTNAME:
                group.possible = self._narrowing.possible(group)

    def cheapest(self, orders: Sequence[PackOrder]) -> PackResult:
        """Return the packing with the fewest pods left over, then the cheapest, then the first."""
        start, best = self._mark(), None
        for number, order in enumerate(orders):
            if number:
                self._go_back(start)
            self._packing = self._begun(order)
            self._place_all(self._sizes.in_order(order))
            cost = self._cost()
            if best is None or cost < best[0]:
                best = cost, self._packing, self._mark()
            if not cost[0] and self._packing.rows.n <= (1 if self._packing.existing is None else 0):
                break  # without existing nodes, every order puts all pods onto the one new node
        if best is not None and best[1] is not self._packing:
            _, self._packing, mark = best
            self._go_back(mark)
        return self._result()

    def _mark(self) -> tuple[TopologyMark, list[dict[str, int]]]:
        """Save the topology counts and the remaining limits."""
        return self._topology.save(), [dict(launch.limits) for launch in self._launch]

    def _go_back(self, mark: tuple[TopologyMark, list[dict[str, int]]]) -> None:
        counted, limits = mark
        self._topology.restore(counted)
        for launch, left in zip(self._launch, limits, strict=True):
            launch.limits = dict(left)

    def _begun(self, order: PackOrder) -> _Packing:
        snapshot = self._topology.snapshot
        is_filled = self._options.existing and snapshot.n > 0
        return _Packing(
            PlannedRows(len(self._resources), self._sizes.scale if order.tightest else None),
            ExistingNodes(snapshot, self._resources) if is_filled else None,
        )

    def _cost(self) -> tuple[int, float]:
        """Return the number of pods left over and the price of the nodes; infinite if a price is unknown."""
        prices = (self._price(row) for row in range(self._packing.rows.n))
        # Rounded, so that floating-point error does not decide between packings of equal cost.
        return len(self._packing.left), round(sum(prices), 9)

    def _price(self, row: int) -> float:
        state = self._narrowing.states[int(self._packing.rows.states[row])]
        return float(state.cheapest()[2][self._types_of(row)].min())

    # Placing

    def _place_all(self, waiting: list[int]) -> None:
        """Place all pods. Retry failed pods while others succeed: a pod may have affinity to another."""
        left = self._packing.left
        while waiting:
            failed = [pod for run in self._runs(waiting) for pod in self._place_run(run)]
            left += [pod for pod in failed if self._is_hopeless(pod)]
            hopeful = [pod for pod in failed if not self._is_hopeless(pod)]
            if len(failed) == len(waiting):
                left += hopeful
                break
            waiting = hopeful
        left.sort()

    def _runs(self, pods: Sequence[int]) -> Iterable[list[int]]:
        """Group successive pods that go to the same nodes; any other pod is a group of its own."""
        for kind, run in groupby(pods, key=self._kinds.__getitem__):
            if kind is None:
                yield from ([pod] for pod in run)
            else:
                yield list(run)

    def _place_run(self, pods: list[int]) -> list[int]:
        """Place the pods of a run; return those that do not fit."""
        if self._kinds[pods[0]] is None:
            return [] if self._place(pods[0]) else pods
        ask, placed = self._asks[pods[0]][-1], 0
        while placed < len(pods) and self._place_on_existing(pods[placed], ask):
            placed += 1
        return self._place_equal(pods[placed:], ask) if placed < len(pods) else []

    def _place_equal(self, pods: list[int], ask: PodAsk) -> list[int]:
        rows, wants = self._packing.rows, ask.choices[0]
        equal = EqualPods(rows, self._narrowing, self._launch)
        open_to = self._open_rows(ask, wants, {})
        return pods[equal.place(ask, pods, open_to, lambda pod: self._open(pod, ask, wants, {})) :]

    def _is_hopeless(self, pod: int) -> bool:
        """Whether a failed pod cannot succeed later: room and limits only shrink, topology can reopen nodes.

        If limits are charged for the cheapest type, this does not hold: the next cheapest type may be
        smaller.
        """
        return not self._exact and not self._asks[pod][-1].rules.own

    def _place(self, pod: int) -> bool:
        asks = self._asks[pod]
        if id(asks) in self._packing.hopeless:
            return False
        for ask in asks:
            if self._place_on_existing(pod, ask):
                return True
            opens = open_domains(ask)
            for wants in ask.choices:
                if self._join(pod, ask, wants, opens) or self._open(pod, ask, wants, opens):
                    return True
        if self._is_hopeless(pod):
            self._packing.hopeless.add(id(asks))
        return False

    def _place_on_existing(self, pod: int, ask: PodAsk) -> bool:
        if self._packing.existing is None:
            return False
        position = self._packing.existing.first(ask, self._topology.allowed(ask.shape))
        if position is None:
            return False
        row = self._packing.existing.take(position, ask)
        self._topology.place(ask.whole, row)
        self._packing.placed[self._pods[pod].name] = self._topology.snapshot.names[row]
        return True

    def _join(self, pod: int, ask: PodAsk, wants: Wants, opens: Opens) -> bool:
        """Put the pod on a planned node."""
        rows = self._packing.rows
        if not rows.n:
            return False
        mask = self._open_rows(ask, wants, opens)
        while (row := rows.first(mask)) is not None:
            fit = self._fit_on(row, ask, wants, opens)
            if fit is not None:
                self._commit(pod, row, ask, *fit)
                return True
            mask[row] = False
        return False

    def _open_rows(self, ask: PodAsk, wants: Wants, opens: Opens) -> Bools:
        """Return the planned nodes that may take the pod; their types decide."""
        rows = self._packing.rows
        mask = rows.fitting(ask)
        states = rows.states[: rows.n]
        reachable = self._narrowing.reachable(wants)
        if reachable is not None:
            mask &= reachable[states]
        for axis, ok in opens.items():
            if axis.key == HOSTNAME:
                mask &= ok[rows.hosts[: rows.n]]
            else:
                mask &= self._narrowing.may_be_in(axis, ok)[states]
        if not ask.tolerates_all:
            mask &= ask.tolerated[rows.pools[: rows.n]]
        return mask

    def _fit_on(self, row: int, ask: PodAsk, wants: Wants, opens: Opens) -> Fit | None:
        rows = self._packing.rows
        launch = self._launch[int(rows.pools[row])]
        within = rows.within[row]
        if self._exact:
            within = both(within, launch.within_limits(rows.reserved[row]))
        if ask.ports:
            within = both(within, launch.without_ports(ask.ports))
        need = [
            (index, units) for index, units in enumerate((rows.used[:, row] + ask.requests).tolist()) if units
        ]
        within = both(within, launch.with_devices((*rows.demands[row], *ask.demands), need))
        return self._first_fit(int(rows.states[row]), wants, NodeTrial(ask, opens, need, within))

    def _first_fit(self, state: int, wants: Wants, trial: NodeTrial) -> Fit | None:
        for reached in self._narrowing.reach(state, wants):
            fit = self._settling.settle(reached, trial)
            if fit is not None:
                return fit
        return None

    def _open(self, pod: int, ask: PodAsk, wants: Wants, opens: Opens) -> bool:
        """Put the pod on a new node of the first pool that can launch one."""
        if not may_be_alone(ask):
            return False
        for number, launch in enumerate(self._launch):
            if not ask.tolerated[number] or not launch.has_node_left:
                continue
            within = launch.within_limits()
            if ask.ports:
                within = both(within, launch.without_ports(ask.ports))
            within = both(within, launch.with_devices(ask.demands, ask.amounts))
            fit = self._first_fit(launch.start, wants, NodeTrial(ask, opens, ask.amounts, within))
            if fit is not None:
                self._commit(pod, self._new_row(number, fit, within), ask, *fit)
                return True
        return False

    def _new_row(self, number: int, fit: Fit, within: Bools | None) -> int:
        launch, rows = self._launch[number], self._packing.rows
        host = NOWHERE
        if HOSTNAME in self._topology.axes:
            host = self._topology.axis(HOSTNAME).code(f"\0{rows.n}")
        state, types = fit
        reserved = launch.reserve(state.cheapest_of(types) if self._exact else types)
        launch.take_node()
        return rows.add(number, host, None if self._exact else within, reserved)

    def _commit(self, pod: int, row: int, ask: PodAsk, state: NarrowedNode, types: Bools) -> None:
        launch, rows, narrowing = self._launch[state.pool], self._packing.rows, self._narrowing
        if self._exact:
            rows.reserved[row] = launch.exchange(rows.reserved[row], state.cheapest_of(types))
        if ask.ports:
            rows.within[row] = both(rows.within[row], launch.without_ports(ask.ports))
        rows.put(row, ask, state.number, types, launch.room)
        rows.pods[row].append(pod)
        host = int(rows.hosts[row])

        def code(axis: TopologyAxis) -> int:
            return host if axis.key == HOSTNAME else max(int(narrowing.settled(axis)[state.number]), NOWHERE)

        def counts(group: TopologyGroup) -> bool:
            return bool(narrowing.eligible(group)[state.number])

        self._topology.place_planned(ask.rules, code, counts)

    def joined(self, group: TopologyGroup) -> Int64s:
        """See `PlannedDomains`."""
        rows, axis = self._packing.rows, group.tally.axis
        states = rows.states[: rows.n]
        looked_at = self._narrowing.eligible(group)[states]
        if axis.key == HOSTNAME:
            return rows.hosts[: rows.n][looked_at]
        codes = self._narrowing.settled(axis)[states[looked_at]]
        return codes[codes > NOWHERE]

    # The result

    def _result(self) -> PackResult:
        return PackResult(
            tuple(self._planned(row) for row in range(self._packing.rows.n)),
            self._packing.placed,
            tuple(self._left_over()),
        )

    def _planned(self, row: int) -> PlannedNode:
        rows = self._packing.rows
        state = self._narrowing.states[int(rows.states[row])]
        launch, types = self._launch[state.pool], self._types_of(row)
        total = rows.used[:, row] + launch.overhead[:, types].min(axis=1)
        return PlannedNode(
            state.offer.pool.name,
            tuple(self._pods[pod].name for pod in rows.pods[row]),
            state.options(types, self._options.max_options),
            state.requirements,
            {name: units for name, units in zip(self._resources, total.tolist(), strict=True) if units},
        )

    def _types_of(self, row: int) -> Bools:
        rows = self._packing.rows
        types = rows.types[row]
        if not self._exact:
            return types
        within = self._launch[int(rows.pools[row])].within_limits(rows.reserved[row])
        return types if within is None else types & within

    def _left_over(self) -> Iterable[UnplacedPod]:
        reasons: dict[int, tuple[Infeasible[FitReason], ...]] = {}
        for pod in self._packing.left:
            asks = self._asks[pod]
            if id(asks) not in reasons:
                reasons[id(asks)] = explain_pools(
                    asks[-1], self._pools, self._launch, self._settling, self._resources
                )
            yield UnplacedPod(self._pods[pod].name, reasons[id(asks)])
