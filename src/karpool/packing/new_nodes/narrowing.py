"""How far a planned node is decided: pool, labels, and the remaining instance types.

Every pod that joins a planned node narrows its requirements. The distinct results are few, so each is a
numbered `NarrowedNode`, and a planned node is little more than a state number and its usage. Facts that
follow from the requirements alone (types with an offering in stock, open topology domains) are computed once
per state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from karpool.model.karpenter.objects import CAPACITY_TYPE
from karpool.model.kubernetes.node import HOSTNAME, ZONE
from karpool.model.requirements import NodeTerm, Requirements, ValueSet, canonical_key
from karpool.model.taints import untolerated
from karpool.packing.new_nodes.offerings import UNKNOWN_PRICE, PoolOfferings, Prices, StockOut
from karpool.packing.new_nodes.pack_result import LaunchOption
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.topology.constraints import EligibleNodes, TopologyGroup
from karpool.packing.topology.domains import NOWHERE, TopologyAxis

UNREACHABLE = -1
Wants = tuple[int, ...]  # numbers of requirements; the first that leads to a fit is taken


def merged(parts: Iterable[Requirements]) -> dict[str, ValueSet] | None:
    """Merge all requirements; None if two contradict each other."""
    result: dict[str, ValueSet] = {}
    for part in parts:
        for key, value_set in part.items():
            have = result.get(key)
            if have is None:
                result[key] = value_set
            elif have.intersects(value_set):
                result[key] = have & value_set
            else:
                return None
    return result


def term_requirements(term: NodeTerm) -> dict[str, ValueSet] | None:
    """Return a node affinity term as requirements of an unnamed node; None if no new node can match."""
    for key, value_set in term.fields:
        if not (value_set.complement if key == "metadata.name" else "" in value_set):
            return None
    return merged({canonical_key(key): value_set} for key, value_set in term.labels)


@dataclass(slots=True, eq=False)
class NarrowedNode:
    """One state that narrowing can reach."""

    number: int
    pool: int
    offer: PoolOfferings
    requirements: dict[str, ValueSet]
    stock: Bools  # remaining offerings by type, zone and capacity type
    types: Bools  # types that match and have an offering in stock
    _cheapest: tuple[Int64s, Int64s, Prices] | None = None
    _choices: dict[int, LaunchOption] = field(default_factory=dict)

    def prices(self) -> Prices:
        """Prices by type, zone and capacity type; infinite if unknown or not available."""
        return np.where(self.stock, self.offer.prices, UNKNOWN_PRICE)

    def cheapest(self) -> tuple[Int64s, Int64s, Prices]:
        """Return by type its price rank, its cheapest offering as an index into the flat cube, and the price.

        Types of unknown price rank last, smaller ones first. Among equal prices the offering that is first in
        stock wins, so an unknown price still names a real offering.
        """
        if self._cheapest is None:
            flat = (len(self.types), -1)
            prices, stock = self.prices().reshape(flat), self.stock.reshape(flat)
            if prices.shape[1] == 0:  # no offering exists
                prices = np.full((len(self.types), 1), UNKNOWN_PRICE)
                stock = np.zeros(prices.shape, dtype=np.bool_)
            least: Prices = prices.min(axis=1)
            best = np.where(least < UNKNOWN_PRICE, prices.argmin(axis=1), stock.argmax(axis=1))
            ranks = np.empty(len(self.types), dtype=np.int64)
            ranks[np.argsort(least, kind="stable")] = np.arange(len(self.types))
            self._cheapest = ranks, best + np.arange(len(self.types)) * prices.shape[1], least
        return self._cheapest

    def cheapest_of(self, types: Bools) -> Bools:
        """Return a mask of only the cheapest of these types."""
        ranks, _, _ = self.cheapest()
        only = np.zeros_like(types)
        only[np.where(types, ranks, len(ranks)).argmin()] = True
        return only

    def options(self, types: Bools, limit: int) -> tuple[LaunchOption, ...]:
        """Return the cheapest offering of each of these types, cheapest first."""
        ranks, best, _ = self.cheapest()
        left = np.flatnonzero(types)
        by_price = left[np.argsort(ranks[left])][:limit]
        for index in by_price.tolist():
            if index not in self._choices:
                self._choices[index] = self._choice(index, int(best[index]))
        return tuple(map(self._choices.__getitem__, by_price.tolist()))

    def _choice(self, index: int, flat: int) -> LaunchOption:
        offer = self.offer
        _, zone, kind = np.unravel_index(flat, self.stock.shape)
        price = float(offer.prices[index, zone, kind])
        return LaunchOption(
            offer.names[index],
            offer.zones[int(zone)],
            offer.capacity_types[int(kind)],
            price if price < UNKNOWN_PRICE else None,
        )


class Narrowing:
    """The states reached so far, and the transitions between them."""

    def __init__(
        self,
        pools: Sequence[PoolOfferings],
        axis: Callable[[str], TopologyAxis],
        unavailable: Collection[StockOut] = (),
        *,
        needs_price: bool = False,
    ) -> None:
        self.pools = pools
        self._axis = axis
        self.states: list[NarrowedNode] = []
        self._stock = [offered.stock(unavailable) for offered in pools]
        if needs_price:
            self._stock = [
                stock & np.isfinite(offered.prices) for stock, offered in zip(self._stock, pools, strict=True)
            ]
        self._numbers: dict[tuple[int, frozenset[tuple[str, ValueSet]]], int] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self._wants: dict[frozenset[tuple[str, ValueSet]], int] = {}
        self._wanted: list[Requirements] = []
        self._nothing: Wants = (self.want({}),)
        self._reachable: dict[Wants, Bools] = {}
        self._domains: dict[TopologyAxis, Bools] = {}
        self._settled: dict[TopologyAxis, Int64s] = {}
        self._eligible: dict[int, Bools] = {}
        self.start = [self._number(pool, offered.requirements) for pool, offered in enumerate(pools)]

    def want(self, requirements: Requirements) -> int:
        """Return a number for requirements that are used often."""
        key = frozenset(requirements.items())
        number = self._wants.get(key)
        if number is None:
            number = self._wants[key] = len(self._wanted)
            self._wanted.append(dict(requirements))
        return number

    def wanted(self, want: int) -> Requirements:
        return self._wanted[want]

    def state_of(self, pool: int, requirements: Mapping[str, ValueSet]) -> NarrowedNode:
        return self.states[self._number(pool, requirements)]

    def step(self, state: int, want: int) -> int:
        """Return the state after narrowing, or UNREACHABLE."""
        after = self._steps.get((state, want))
        if after is None:
            after = self._steps[state, want] = self._narrowed(self.states[state], self._wanted[want])
        return after

    def reach(self, state: int, wants: Wants) -> Iterator[NarrowedNode]:
        """Return the states after narrowing to each of the wants that can be met."""
        for want in wants:
            number = self.step(state, want)
            if number != UNREACHABLE:
                yield self.states[number]

    def reachable(self, wants: Wants) -> Bools | None:
        """Return by state whether `reach` leads anywhere; None: always."""
        if wants == self._nothing:
            return None
        mask = self._reachable.get(wants)
        if mask is None or len(mask) < len(self.states):
            start = 0 if mask is None else len(mask)
            # Reaching creates states, which the next call then checks.
            more = [any(self.reach(number, wants)) for number in range(start, len(self.states))]
            mask = np.array([*([] if mask is None else mask), *more], dtype=np.bool_)
            self._reachable[wants] = mask
        return mask

    def _narrowed(self, state: NarrowedNode, requirements: Requirements) -> int:
        result = self.narrowed(state.pool, state.requirements, requirements)
        if isinstance(result, str):
            return UNREACHABLE
        number = self._number(state.pool, result)
        return number if self.states[number].types.any() else UNREACHABLE

    def narrowed(
        self, pool: int, have: Requirements, requirements: Requirements
    ) -> dict[str, ValueSet] | str:
        """Merge the requirements, or return the key on which they contradict each other."""
        result = dict(have)
        for key, values in requirements.items():
            if key == HOSTNAME:
                if not values.complement:  # a new node has a name, but no pod can ask for it
                    return key
            elif key in result:
                if not result[key].intersects(values):
                    return key
                result[key] = result[key] & values
            elif key in self.pools[pool].open_keys:
                result[key] = values
            elif not values.admits_absence:
                return key
        return result

    def _number(self, pool: int, requirements: Mapping[str, ValueSet]) -> int:
        key = pool, frozenset(requirements.items())
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.states)
            self.states.append(self._state(number, pool, dict(requirements)))
        return number

    def _state(self, number: int, pool: int, requirements: dict[str, ValueSet]) -> NarrowedNode:
        offer = self.pools[pool]
        types: Bools = np.ones(len(offer.types), dtype=np.bool_)
        for key, values in requirements.items():
            if key in offer.label_keys:
                types &= offer.admitting(key, values)
        stock = self._stock[pool] & offered(offer, requirements)
        types &= np.asarray(stock.any(axis=(1, 2)))
        return NarrowedNode(number, pool, offer, requirements, stock, types)

    # What topology needs to know about a state

    def name_domains(self, axes: Iterable[TopologyAxis]) -> None:
        """Assign a code to every value that new nodes could have, before any pod is counted."""
        for axis in axes:
            if axis.key != HOSTNAME:
                self.domains(axis)
                asked = [requirements[axis.key] for requirements in self._wanted if axis.key in requirements]
                for value in sorted(
                    {value for values in asked if not values.complement for value in values.values}
                ):
                    axis.code(value)

    def may_be_in(self, axis: TopologyAxis, open_codes: Bools) -> Bools:
        """Return by state whether a node can still be in one of these domains."""
        domains = self.domains(axis)
        mask: Bools = np.asarray((domains[:, : len(open_codes)] & open_codes).any(axis=1))
        return mask

    def domains(self, axis: TopologyAxis) -> Bools:
        """Return by state and code the domains that a node can still be in. NOWHERE: without the label."""
        table = self._domains.get(axis)
        if table is None or len(table) < len(self.states) or table.shape[1] < axis.size:
            kept = 0 if table is None or table.shape[1] < axis.size else len(table)
            rows = [self._domains_of(state, axis) for state in self.states[kept:]]  # may add new domains
            grown: Bools = np.zeros((len(self.states), axis.size), dtype=np.bool_)
            if table is not None and kept:
                grown[:kept, : table.shape[1]] = table
            for number, row in enumerate(rows, start=kept):
                grown[number, : len(row)] = row
            table = self._domains[axis] = grown
            self._settled[axis] = np.where(table.sum(axis=1) == 1, table.argmax(axis=1), -1)
        return table

    def settled(self, axis: TopologyAxis) -> Int64s:
        """Return by state the code of the only remaining domain, or -1."""
        codes = self._settled.get(axis)
        if codes is None or len(codes) < len(self.states) or self._domains[axis].shape[1] < axis.size:
            self.domains(axis)
            codes = self._settled[axis]
        return codes

    def _domains_of(self, state: NarrowedNode, axis: TopologyAxis) -> Bools:
        values, may_lack = self._values(state, axis)
        codes = [axis.code(value) for value in sorted(values)]
        mask: Bools = np.zeros(axis.size, dtype=np.bool_)
        mask[codes] = True
        mask[NOWHERE] = may_lack or not codes
        return mask

    def _values(self, state: NarrowedNode, axis: TopologyAxis) -> tuple[set[str], bool]:
        offer, key = self.pools[state.pool], axis.key
        if key == ZONE:
            return _picked(offer.zones, np.asarray(state.stock[state.types].any(axis=(0, 2)))), False
        if key == CAPACITY_TYPE:
            return _picked(offer.capacity_types, np.asarray(state.stock[state.types].any(axis=(0, 1)))), False
        asked = state.requirements.get(key)
        if key in offer.label_keys:
            return _type_values(offer, state.types, key, asked)
        if asked is None:
            return set(), True
        if asked.complement:
            return {value for value in axis.values[1:] if value in asked}, False
        return set(asked.values), False

    def eligible(self, group: TopologyGroup) -> Bools:
        """Return by state whether a spread constraint includes such a node."""
        mask = self._eligible.get(id(group))
        if mask is None or len(mask) < len(self.states):
            assert group.eligible is not None
            start = 0 if mask is None else len(mask)
            more = [self._is_eligible(state, group) for state in self.states[start:]]
            mask = np.array([*([] if mask is None else mask), *more], dtype=np.bool_)
            self._eligible[id(group)] = mask
        return mask

    def _is_eligible(self, state: NarrowedNode, group: TopologyGroup) -> bool:
        eligible = group.eligible
        assert eligible is not None
        taints = self.pools[state.pool].pool.taints
        if eligible.tolerations is not None and untolerated(taints, eligible.tolerations) is not None:
            return False
        for key in eligible.topology_keys:
            if key != HOSTNAME and self.settled(self._axis(key))[state.number] == NOWHERE:
                return False
        return any(
            not isinstance(self.narrowed(state.pool, state.requirements, requirements), str)
            for requirements in self.asked_by(eligible)
        )

    def possible(self, group: TopologyGroup) -> Int64s:
        """Return the domains that new nodes could form for a spread constraint."""
        assert group.eligible is not None
        axis = group.tally.axis
        codes: set[int] = set()
        for pool, offer in enumerate(self.pools):
            tolerations = group.eligible.tolerations
            if tolerations is not None and untolerated(offer.pool.taints, tolerations) is not None:
                continue
            for requirements in self.asked_by(group.eligible):
                number = self.step(self.start[pool], self.want(requirements))
                if number != UNREACHABLE:
                    codes.update(np.flatnonzero(self.domains(axis)[number]).tolist())
        codes.discard(NOWHERE)
        return np.array(sorted(codes), dtype=np.int64)

    @staticmethod
    def asked_by(eligible: EligibleNodes) -> list[dict[str, ValueSet]]:
        return alternatives(dict(eligible.node_selector), eligible.node_terms)


def alternatives(
    selector: Mapping[str, str], terms: tuple[NodeTerm, ...] | None
) -> list[dict[str, ValueSet]]:
    """Return what node selector and affinity require of a new node, one entry per usable term."""
    fixed = merged({canonical_key(key): ValueSet(frozenset((value,)))} for key, value in selector.items())
    if fixed is None or terms is None:
        return [] if fixed is None else [fixed]
    asked = (term_requirements(term) for term in terms)
    combined = (merged((fixed, requirements)) for requirements in asked if requirements is not None)
    return [requirements for requirements in combined if requirements is not None]


def offered(offer: PoolOfferings, requirements: Requirements) -> Bools:
    """Return the offerings in zones and capacity types that the requirements admit."""
    mask: Bools = np.ones((1, len(offer.zones), len(offer.capacity_types)), dtype=np.bool_)
    zones, kinds = requirements.get(ZONE), requirements.get(CAPACITY_TYPE)
    if zones is not None:
        mask = mask & np.array([zone in zones for zone in offer.zones], dtype=np.bool_)[None, :, None]
    if kinds is not None:
        mask = (
            mask & np.array([kind in kinds for kind in offer.capacity_types], dtype=np.bool_)[None, None, :]
        )
    return mask


def _picked(names: Sequence[str], mask: Bools) -> set[str]:
    return {names[index] for index in np.flatnonzero(mask).tolist()}


def _type_values(
    offer: PoolOfferings, types: Bools, key: str, value_set: ValueSet | None
) -> tuple[set[str], bool]:
    values: set[str] = set()
    may_lack = False
    for index in np.flatnonzero(types).tolist():
        label = offer.label_of(offer.types[index], key)
        if label is None or not label.values:
            may_lack = True
        else:
            values |= label.values
    return {value for value in values if value_set is None or value in value_set}, may_lack
