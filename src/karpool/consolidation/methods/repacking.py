"""Repacking: replaces several nodes at once by a few new ones that waste less capacity.

Pods that fit on the same new nodes form a lane. The prices of the lane's offerings give a lower bound on the
value of a unit of each resource (`unit_prices`); a node that costs more than the value of its pods' requests
is worth repacking. A group grows from the node with the most to gain, each time by the node that leaves the
least waste in the cheapest mix of new nodes. The best group size is taken.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from karpool.consolidation.methods.method import CENT, PlanDeadline, SearchResult, accept_or_refuse
from karpool.consolidation.methods.purchase import purchase_several
from karpool.consolidation.policy.reasons import DisruptionReason
from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.state.candidate_move import (
    CandidateMove,
    Pods,
    PurchasedNode,
)
from karpool.consolidation.state.move_objections import objections_to
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.karpenter.objects import SPOT
from karpool.model.kubernetes.node import ZONE
from karpool.model.requirements import ValueSet
from karpool.packing.tables.columns import Bools, Int64s

MIXED_SIZES_MAX = 14  # sizes that are combined: mixes of up to three give 679
PARTNERS_MAX = 32  # nodes that are tried as the next of a group, those with the most to gain
PACKINGS_MAX = 4  # mixes per number of new nodes that are packed for one group, cheapest first
OTHERS_MAX = 0.25  # share of a group's pods that may go to existing nodes


@dataclass(slots=True, eq=False)
class _Lane:
    """Nodes whose pods may share new nodes, and the mixes of new nodes by price."""

    rows: list[int]
    used: Bools  # resources that are asked for
    asked: Floats  # nodes by resources
    room: Floats  # mixes by resources
    price: Floats
    members: list[tuple[int, ...]]  # sizes of each mix
    sizes: Floats  # sizes by resources
    potential: Floats  # by node: the gain of repacking it without waste
    prices: Floats  # by node, less the saving that its disruption requires
    zones: frozenset[str]  # in which new nodes are available
    potential_of: dict[int, float]  # the same as `potential`, by row


@dataclass(frozen=True, slots=True, eq=False)
class _Packing:
    """Pods of each new node, its zone (None: any), and pods that go to existing nodes."""

    parts: list[Pods]
    zones: list[str | None]
    placed: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    members: list[int]
    asked: Floats
    efficiency: float  # the gain as a share of the gain without waste


class Repacking:
    reason = DisruptionReason.UNDERUTILIZED

    def __init__(self, state: PlanningState) -> None:
        self._state = state
        self._zones: Counter[str] = Counter()

    def compute_moves(
        self, rows: Sequence[int], deadline: PlanDeadline, result: SearchResult, *, least: float = 0.0
    ) -> None:
        """Repack groups whose gain is at least the share `least` of their gain without waste."""
        if not self._state.settings.replace:
            return
        self._zones.clear()
        for lane in self._lanes(rows):
            self._repack(lane, deadline, result, least)

    # Lanes

    def _lanes(self, rows: Sequence[int]) -> list[_Lane]:
        state = self._state
        table = state.view.snapshot.shapes
        by_reach: dict[tuple[tuple[tuple[int, int], ...], bool], list[int]] = {}
        closed = {pool for pool in state.policies if state.permission.refusal(self.reason, {pool: 1})}
        for row in rows:
            if state.gone[row] or state.receives[row] or state.pool_of[row] in closed:
                continue
            demand = state.demand((row,))
            if not demand:
                continue
            if any(table[shape].host_ports or table[shape].devices is not None for shape, _ in demand):
                continue
            spot = state.kind(row).capacity_type == SPOT and not state.settings.spot_to_spot
            reach = state.one_node.reach(shape for shape, _ in demand)
            by_reach.setdefault((reach, spot), []).append(row)
        lanes = [self._lane(members, spot=spot) for (_, spot), members in by_reach.items()]
        return [lane for lane in lanes if lane is not None]

    def _lane(self, rows: list[int], *, spot: bool) -> _Lane | None:
        state = self._state
        one_node = state.one_node
        shapes = {shape for shape, _ in state.demand(rows[:1])}
        rooms: list[Int64s] = []
        prices: list[Floats] = []
        zones: set[str] = set()
        for fitting in one_node.fitting(dict.fromkeys(shapes, 1)):
            if spot and fitting.may_be(SPOT):
                continue
            chosen = fitting.types & np.isfinite(fitting.worst)
            rooms.append(fitting.launch.room[:, chosen])
            prices.append(fitting.cheapest[chosen])
            sold = fitting.state.stock[chosen].any(axis=(0, 2))
            zones.update(fitting.state.offer.zones[index] for index in np.flatnonzero(sold).tolist())
        if not rooms:
            return None
        asked = np.array([self._sum(row) for row in rows])
        used: Bools = np.asarray(asked.any(axis=0))
        asked = asked[:, used].astype(np.float64)
        room = np.concatenate(rooms, axis=1)[used].T.astype(np.float64)
        price = np.concatenate(prices)
        kept = _not_outdone(room, price)
        if not len(kept):
            return None
        room, price = room[kept], price[kept]
        units = unit_prices(room, price, asked.sum(axis=0))
        worth = asked @ units
        own = np.array([self._price_less_disruption(row) for row in rows])
        mixes = _mixes(room, price, units, state.settings.most_new_nodes)
        return _Lane(
            rows,
            used,
            asked,
            *mixes,
            room,
            own - worth,
            own,
            frozenset(zones),
            dict(zip(rows, (own - worth).tolist(), strict=True)),
        )

    def _sum(self, row: int) -> Int64s:
        total: Int64s = np.zeros(len(self._state.one_node.resources), dtype=np.int64)
        for shape, number in self._state.demand((row,)):
            total += self._state.one_node.requests(shape) * number
        return total

    def _price_less_disruption(self, row: int) -> float:
        """The most that a replacement may cost so that the score reaches the threshold of the pool."""
        state = self._state
        pool = state.pool_of[row]
        policy, totals = state.policies[pool], state.totals.get(pool)
        price = float(state.prices[row])
        if not policy.is_scored or totals is None or totals.disruption <= 0:
            return price
        return price - policy.threshold * float(state.costs[row]) * totals.cost_per_hour / totals.disruption

    # Groups

    def _repack(self, lane: _Lane, deadline: PlanDeadline, result: SearchResult, least: float) -> None:
        state = self._state
        turn = np.array([state.by_name(row) for row in lane.rows])
        order = np.lexsort((turn, -lane.potential))
        order = order[lane.potential[order] > CENT]
        waiting = order.tolist()
        while waiting:
            if deadline.is_over:
                if not result.not_looked_at:
                    result.not_combined += (lane.rows[index] for index in waiting)
                return
            pool = state.pool_of[lane.rows[waiting[0]]]
            if state.permission.refusal(self.reason, {pool: 1}):
                waiting = [index for index in waiting if state.pool_of[lane.rows[index]] != pool]
                continue
            taken = {waiting[0]}
            for group in self._grown(lane, waiting):
                if group.efficiency < least:
                    break
                with state.trial():
                    draft = self._draft(lane, group)
                    if draft is not None and not objections_to(state, draft, self.reason):
                        accept_or_refuse(state, draft, self.reason, result)
                        taken = set(group.members)
                        break
            waiting = [
                index for index in waiting if index not in taken and not state.receives[lane.rows[index]]
            ]

    def _grown(self, lane: _Lane, waiting: list[int]) -> list[_Group]:
        """Grow groups from the first waiting node; return the most efficient one, and the best larger one.

        The pods of the larger group have more new nodes to choose from.
        """
        groups = self._grow(lane, waiting)
        best = max(groups, key=lambda group: group.efficiency, default=None)
        if best is None:
            return []
        larger = groups[groups.index(best) + 1 :]
        return [best, *([max(larger, key=lambda group: group.efficiency)] if larger else [])]

    def _grow(self, lane: _Lane, waiting: list[int]) -> list[_Group]:
        """One group of each size that saves anything; each is contained in the next."""
        members = [waiting[0]]
        asked, own, potential = lane.asked[waiting[0]], lane.prices[waiting[0]], lane.potential[waiting[0]]
        groups: list[_Group] = []
        price = _cheapest(lane, asked[None, :])[0]
        near = np.array(waiting[1 : 1 + PARTNERS_MAX], dtype=np.int64)
        allowed = self._allowed(lane.rows[waiting[0]])
        while True:
            efficiency = (own - price) / potential
            if own - price > CENT:
                groups.append(_Group(members.copy(), asked.copy(), float(efficiency)))
            if not len(near) or len(members) >= allowed:
                return groups
            prices = _cheapest(lane, asked[None, :] + lane.asked[near])
            gains = (own + lane.prices[near] - prices) / (potential + lane.potential[near])
            chosen = int(gains.argmax())
            if not np.isfinite(prices[chosen]):
                return groups
            index = int(near[chosen])
            members.append(index)
            asked = asked + lane.asked[index]
            own, potential, price = (
                own + lane.prices[index],
                potential + lane.potential[index],
                prices[chosen],
            )
            near = np.delete(near, chosen)

    def _allowed(self, row: int) -> int:
        """The maximum number of nodes in one move."""
        state = self._state
        pool = state.pool_of[row]
        most = state.settings.most_sources
        while most > 1 and state.permission.refusal(self.reason, {pool: most}):
            most -= 1
        return most

    def _draft(self, lane: _Lane, group: _Group) -> CandidateMove | None:
        """The draft with the mix that gains the most, less the potential of nodes that must stay for it.

        It stays applied until the trial ends.
        """
        state, relocation = self._state, self._state.relocation
        rows = [lane.rows[index] for index in group.members]
        pods = dict(state.demand(rows))
        for row in rows:  # their zones count until they are gone: kube-scheduler spreads over cordoned nodes
            relocation.remove(row, pods)
        ceiling, own = state.worth(rows), float(lane.prices[group.members].sum())
        best: tuple[float, list[PurchasedNode], _Packing] | None = None
        for mix in self._mixes_to_try(lane, group):
            if best is not None and own - lane.price[mix] <= best[0] + CENT:
                break  # the remaining mixes are costlier
            mark = relocation.mark()
            packing = self._packed(lane, pods, lane.members[mix])
            relocation.undo(mark)
            if packing is None:
                continue
            lost = self._lost(lane, packing)
            if best is not None and own - lane.price[mix] - lost <= best[0] + CENT:
                continue
            places = [{ZONE: ValueSet(frozenset((zone,)))} if zone else None for zone in packing.zones]
            bought = purchase_several(state, rows, packing.parts, ceiling, within=places)
            if bought is not None:
                gain = own - sum(node.price for node in bought) - lost
                if best is None or gain > best[0]:
                    best = gain, bought, packing
        if best is None or best[0] <= CENT:
            return None
        _, bought, packing = best
        price = sum(node.price for node in bought)
        new = tuple((node.fitting, node.pods) for node in bought)
        state.expect_new(new)
        for shape, row, count in packing.placed:
            relocation.put(shape, row, count)
        return CandidateMove(tuple(rows), tuple(packing.placed), new, state.verdict(rows, price))

    def _lost(self, lane: _Lane, packing: _Packing) -> float:
        """The potential gain of nodes that now receive pods and therefore have to stay."""
        received = {row for _, row, _ in packing.placed if not self._state.receives[row]}
        return sum(max(lane.potential_of.get(row, 0.0), 0.0) for row in received)

    def _mixes_to_try(self, lane: _Lane, group: _Group) -> list[int]:
        """The cheapest fitting mixes of each number of new nodes: topology may need several hosts."""
        fits = np.flatnonzero((lane.room >= group.asked).all(axis=1))
        chosen: list[int] = []
        tried: Counter[int] = Counter()
        for mix in fits.tolist():  # in order of price
            count = len(lane.members[mix])
            if tried[count] < PACKINGS_MAX:
                tried[count] += 1
                chosen.append(mix)
        return chosen[: 2 * PACKINGS_MAX]

    def _packed(self, lane: _Lane, pods: Pods, sizes: Sequence[int]) -> _Packing | None:
        """Pack the pods: each on the new node whose free capacity is most like its request.

        Pods that topology keeps off all new nodes go to existing nodes.
        """
        state, relocation = self._state, self._state.relocation
        zones = self._zones_of(lane, pods, len(sizes))
        left: list[list[float]] = [lane.sizes[size].tolist() for size in sizes]
        parts: list[Pods] = [{} for _ in sizes]
        tied: list[Pods] = [{} for _ in sizes]
        whole = np.maximum(np.sum([lane.sizes[size] for size in sizes], axis=0), 1.0)
        others: Pods = {}
        for shape, number in pods.items():
            amounts = state.one_node.requests(shape)[lane.used].astype(np.float64)
            need, weights = amounts.tolist(), (amounts / whole / whole).tolist()
            counted = relocation.counts(shape)
            for _ in range(number):
                open_zones = relocation.open_zones({shape: 1}) if counted else None
                for index in _places(left, need, weights):
                    zone = zones[index]
                    if open_zones is not None and zone not in open_zones:
                        continue
                    if counted:
                        together = {**tied[index], shape: tied[index].get(shape, 0) + 1}
                        if not relocation.new_node_takes(together):
                            continue
                        tied[index] = together
                        if zone is not None:
                            relocation.add_new({shape: 1}, zone)
                    parts[index][shape] = parts[index].get(shape, 0) + 1
                    left[index] = [have - asked for have, asked in zip(left[index], need, strict=True)]
                    break
                else:
                    others[shape] = others.get(shape, 0) + 1
        if sum(others.values()) > OTHERS_MAX * sum(pods.values()):
            return None
        placed: list[tuple[int, int, int]] = []
        for shape, number in others.items():
            homes = relocation.place(shape, number)
            if sum(count for _, count in homes) < number:
                return None
            placed += ((shape, row, count) for row, count in homes)
        used = [index for index, part in enumerate(parts) if part]
        return _Packing([parts[index] for index in used], [zones[index] for index in used], placed)

    def _zones_of(self, lane: _Lane, pods: Pods, number: int) -> list[str | None]:
        """Choose a zone for each new node: the zones that are open to the most pods. None: any zone."""
        relocation = self._state.relocation
        votes: Counter[str] = Counter()
        asks = False
        for shape, count in pods.items():
            zones = relocation.open_zones({shape: 1}) if relocation.counts(shape) else None
            if zones is not None:
                asks = True
                for zone in zones & lane.zones:
                    votes[zone] += count
        if not asks:
            return [None] * number
        order = sorted(votes, key=lambda zone: (-votes[zone], self._zones[zone], zone))
        if not order:
            return [None] * number
        chosen: list[str | None] = [order[index % len(order)] for index in range(number)]
        self._zones.update(zone for zone in chosen if zone is not None)
        return chosen


def _places(left: list[list[float]], need: list[float], weights: list[float]) -> list[int]:
    """New nodes with enough capacity, the most similar to the request first."""
    if len(left) == 1:
        return [0] if all(have >= asked for have, asked in zip(left[0], need, strict=True)) else []
    places = [
        (-sum(have * weight for have, weight in zip(room, weights, strict=True)), index)
        for index, room in enumerate(left)
        if all(have >= asked for have, asked in zip(room, need, strict=True))
    ]
    return [index for _, index in sorted(places)]


def unit_prices(room: Floats, price: Floats, asked: Floats) -> Floats:
    """The value of a unit of each resource: at most what any offering charges, and maximal for the total
    request.

    Only the first two resources are priced: CPU and memory.
    """
    prices = np.zeros(room.shape[1])
    count = min(2, room.shape[1])
    sizes, total = np.maximum(room[:, :count], 1e-9), asked[:count]
    corners = [np.zeros(count)]
    for index in range(count):
        corner = np.zeros(count)
        corner[index] = float((price / sizes[:, index]).min())
        corners.append(corner)
    if count == 2:
        one, other = np.triu_indices(len(price), 1)
        determinant = sizes[one, 0] * sizes[other, 1] - sizes[other, 0] * sizes[one, 1]
        usable = np.abs(determinant) > 1e-9 * sizes[one, 0] * sizes[other, 1]
        one, other, determinant = one[usable], other[usable], determinant[usable]
        first = (price[one] * sizes[other, 1] - price[other] * sizes[one, 1]) / determinant
        second = (sizes[one, 0] * price[other] - sizes[other, 0] * price[one]) / determinant
        inside = (first >= 0) & (second >= 0)
        corners += np.stack((first[inside], second[inside]), axis=1).tolist()
    points = np.array(corners)
    feasible = (points @ sizes.T <= price * (1 + 1e-9)).all(axis=1)
    best = points[feasible][int((points[feasible] @ total).argmax())]
    prices[:count] = best
    return prices


def _mixes(
    room: Floats, price: Floats, units: Floats, most: int
) -> tuple[Floats, Floats, list[tuple[int, ...]]]:
    """Every size alone, and mixes of the best ones, by price."""
    waste = (price - room @ units) / price
    best = np.argsort(waste, kind="stable")[:MIXED_SIZES_MAX].tolist()
    members: list[tuple[int, ...]] = [(index,) for index in range(len(price))]
    for count in range(2, most + 1):
        members += combinations_with_replacement(best, count)
    rooms = np.array([room[list(mix)].sum(axis=0) for mix in members])
    prices = np.array([price[list(mix)].sum() for mix in members])
    order = np.array(_not_outdone(rooms, prices))
    order = order[np.argsort(prices[order], kind="stable")]
    return rooms[order], prices[order], [members[index] for index in order.tolist()]


def _cheapest(lane: _Lane, asked: Floats) -> Floats:
    """By row of `asked`: the price of the cheapest mix that can hold it."""
    holds = lane.room[None, :, 0] >= asked[:, None, 0]
    for index in range(1, asked.shape[1]):
        holds &= lane.room[None, :, index] >= asked[:, None, index]
    first = holds.argmax(axis=1)
    cheapest: Floats = np.where(holds.any(axis=1), lane.price[first], np.inf)
    return cheapest


def _not_outdone(room: Floats, price: Floats) -> Int64s:
    """Sizes that no cheaper or equal size dominates."""
    order = np.lexsort((-room.sum(axis=1), price))
    left: Bools = np.ones(len(order), dtype=np.bool_)
    kept: list[int] = []
    for index in order.tolist():
        if left[index]:
            kept.append(index)
            left &= (room > room[index]).any(axis=1) | (price < price[index])
    return np.array(kept, dtype=np.int64)
