"""The cluster as a linear program: removable nodes, offerings that could be launched, and pods between them.

Nodes that are alike (price, free capacity, admitted pods) form one class; so do pods. The program chooses how
many nodes of each class are kept, how many of each offering are launched, and how the pods are spread over
both. Nodes that cannot be removed offer their free capacity. Every consolidation of the cluster is a solution
of this program, so none is cheaper than its minimum. Whatever the program leaves out only lowers the minimum:
topology and host ports, whole nodes and whole pods, limits of pools, and that pods stay on kept nodes.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import inf

import numpy as np

from karpool.consolidation.bound.linear_program import LinearProgram
from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.state.planning_state import (
    PlanningState,
)
from karpool.model.karpenter.objects import SPOT
from karpool.packing.tables.columns import Bools, Int64s

# Number of distinct disruption costs per class of nodes; a cost between two is rounded down.
COSTS_MAX = 6


@dataclass(slots=True, eq=False)
class _Pods:
    """Pods with the same requests that the same nodes admit."""

    needs: Int64s
    shape: int
    admitted: Bools  # by position of the relocation
    number: int = 0


@dataclass(slots=True, eq=False)
class _Nodes:
    """Nodes that are alike: same price and same capacity for pods, kept or launched."""

    room: Floats
    admits: Bools  # by class of pods
    holds: Floats  # by class of pods: how many of them fit on one node
    price: float
    number: float  # how many exist; infinite for offerings
    pool: str = ""
    disruption: float = 0.0


@dataclass(frozen=True, slots=True)
class Relaxation:
    """`program` minimises the cost of removable and new nodes; `current` is their cost now."""

    program: LinearProgram
    current: float


def relaxation_of(state: PlanningState, *, disruption: float | None = None) -> Relaxation:
    """Build the program of a state without accepted moves. `disruption`: upper limit on the disruption."""
    return _Compiler(state).relaxation(disruption)


class _Compiler:
    def __init__(self, state: PlanningState) -> None:
        self._state = state
        self._is_limited = False
        self._empty = [row for row in state.judged.empty.tolist() if row not in state.buffered]
        self._rows = [*state.open_candidates().tolist(), *self._empty]
        self._resources = state.one_node.resources
        self._free = self._free_room()
        self._pods = self._classes_of_pods()

    def _free_room(self) -> Int64s:
        """Free capacity, resources by position; zero on nodes that receive no pods."""
        relocation = self._state.relocation
        count = len(relocation.order)
        free = np.array(
            [
                relocation.free(name) if name in relocation.resources else np.zeros(count, dtype=np.int64)
                for name in self._resources
            ]
        ).reshape(len(self._resources), count)
        closed = relocation.slots < 0
        room: Int64s = np.where(closed[None, :], 0, np.maximum(free, 0))
        return room

    def _classes_of_pods(self) -> list[_Pods]:
        """Group the pods of candidates. Pods of empty nodes need no place, so they are left out."""
        state, relocation = self._state, self._state.relocation
        counts: Counter[int] = Counter()
        for row in state.open_candidates().tolist():
            counts.update(dict(state.demand((row,))))
        classes: dict[tuple[object, ...], _Pods] = {}
        self._class_of: dict[int, int] = {}
        numbers: dict[tuple[object, ...], int] = {}
        for shape in sorted(counts):
            admitted = relocation.admits(shape)
            key = *state.one_node.sort(shape), admitted.tobytes()
            if key not in classes:
                numbers[key] = len(classes)
                classes[key] = _Pods(state.one_node.requests(shape), shape, admitted)
            classes[key].number += counts[shape]
            self._class_of[shape] = numbers[key]
        return list(classes.values())

    # Nodes

    def _holds(self, room: Int64s) -> Floats:
        """By class of pods: how many fit on one node if it holds nothing else."""
        numbers = np.empty(len(self._pods))
        for number, pods in enumerate(self._pods):
            asked = pods.needs > 0
            numbers[number] = np.min(np.maximum(room[asked], 0) // pods.needs[asked], initial=2**40)
        return numbers

    def _kept(self) -> list[_Nodes]:
        """Classes of removable nodes. A node has room for at least its own pods."""
        state, relocation = self._state, self._state.relocation
        empty = frozenset(self._empty)
        members: dict[tuple[object, ...], list[int]] = defaultdict(list)
        rooms: dict[int, Int64s] = {}
        for row in self._rows:
            position = int(relocation.position_of[row])
            room = self._free[:, position].copy()
            admits = np.array([pods.admitted[position] for pods in self._pods], dtype=np.bool_)
            for shape, number in state.demand((row,)) if row not in empty else ():
                room += state.one_node.requests(shape) * number
                admits[self._class_of[shape]] = True
            rooms[row] = room
            key = float(state.prices[row]), room.tobytes(), admits.tobytes(), state.pool_of[row]
            members[key].append(row)
        classes = []
        for (price, _, admits_bytes, pool), rows in members.items():
            assert isinstance(price, float) and isinstance(admits_bytes, bytes) and isinstance(pool, str)
            room = rooms[rows[0]]
            admits = np.frombuffer(admits_bytes, dtype=np.bool_)
            holds = self._holds(room)
            costs = [float(state.costs[row]) for row in rows] if self._is_limited else [0.0] * len(rows)
            for cost, number in _cost_steps(costs):
                classes.append(_Nodes(room.astype(np.float64), admits, holds, price, number, pool, cost))
        return classes

    def _fixed(self) -> list[_Nodes]:
        """Free capacity of nodes that always stay, summed over nodes that admit the same pods."""
        relocation = self._state.relocation
        fixed = np.ones(len(relocation.order), dtype=np.bool_)
        fixed[relocation.position_of[self._rows]] = False
        fixed &= relocation.slots > 0
        if not self._pods or not fixed.any():
            return []
        admitted = np.array([pods.admitted for pods in self._pods])
        groups: dict[bytes, list[int]] = defaultdict(list)
        for position in np.flatnonzero(fixed).tolist():
            groups[admitted[:, position].tobytes()].append(position)
        classes = []
        for key, positions in groups.items():
            rooms = self._free[:, positions]
            holds = np.array(
                [
                    np.min(
                        rooms[pods.needs > 0] // pods.needs[pods.needs > 0][:, None], axis=0, initial=2**40
                    ).sum()
                    for pods in self._pods
                ],
                dtype=np.float64,
            )
            admits = np.frombuffer(key, dtype=np.bool_)
            classes.append(_Nodes(rooms.sum(axis=1).astype(np.float64), admits, holds, 0.0, 1.0))
        return classes

    def _bought(self) -> list[_Nodes]:
        """Offerings that no cheaper or equal offering dominates in size and admitted pods."""
        state = self._state
        if not state.settings.replace:
            return []
        admits: dict[str, Bools] = {}
        prices: dict[str, Floats] = {}
        launch = {pool.offer.pool.name: pool for pool in state.one_node.launch}
        for number, pods in enumerate(self._pods):
            for fitting in state.one_node.fitting({pods.shape: 1}):
                types = fitting.types & np.isfinite(fitting.worst) & np.isfinite(fitting.cheapest)
                if fitting.pool not in admits:
                    admits[fitting.pool] = np.zeros((len(self._pods), len(types)), dtype=np.bool_)
                    prices[fitting.pool] = np.full(len(types), inf)
                admits[fitting.pool][number] = types
                cheapest = np.where(types, fitting.cheapest, inf)
                prices[fitting.pool] = np.minimum(prices[fitting.pool], cheapest)
        closed = self._closed_to_spot({pool: np.asarray(mask.any(axis=1)) for pool, mask in admits.items()})
        offerings = []
        for pool in admits.keys() - closed:
            room = np.minimum(launch[pool].room, 2**60)
            for index in _not_outdone(room, admits[pool], prices[pool]):
                column = room[:, index]
                admitted, price = admits[pool][:, index], float(prices[pool][index])
                offerings.append(
                    _Nodes(column.astype(np.float64), admitted, self._holds(column), price, inf, pool)
                )
        return sorted(offerings, key=lambda nodes: (nodes.pool, nodes.price))

    def _closed_to_spot(self, takes: dict[str, Bools]) -> frozenset[str]:
        """Pools that offer only spot and only take pods of spot nodes: spot nodes are not replaced by spot.

        Pods that share a pool share its new nodes, so this spreads through all connected pools.
        """
        state = self._state
        if state.settings.spot_to_spot:
            return frozenset()
        from_others = np.zeros(len(self._pods), dtype=np.bool_)
        links: list[Bools] = list(takes.values())
        for row in state.open_candidates().tolist():
            own = np.zeros(len(self._pods), dtype=np.bool_)
            own[[self._class_of[shape] for shape, _ in state.demand((row,))]] = True
            if state.kind(row).capacity_type == SPOT:
                links.append(own)
            else:
                from_others |= own
        links = list({link.tobytes(): link for link in links}.values())
        growing = True
        while growing:
            growing = False
            for link in links:
                if (link & from_others).any() and not (from_others | ~link).all():
                    from_others |= link
                    growing = True
        spot_only = {
            launch.offer.pool.name
            for launch in state.one_node.launch
            if not any(
                launch.offer.sold[:, :, number].any()
                for number, kind in enumerate(launch.offer.capacity_types)
                if kind != SPOT
            )
        }
        return frozenset(
            pool for pool in spot_only if pool in takes and not (takes[pool] & from_others).any()
        )

    # The program

    def relaxation(self, disruption: float | None) -> Relaxation:
        self._is_limited = disruption is not None
        program = LinearProgram()
        kept, fixed, bought = self._kept(), self._fixed(), self._bought()
        numbers = [program.column(nodes.price, nodes.number, whole=True) for nodes in kept]
        numbers += [program.column(0.0, 1.0) for _ in fixed]
        numbers += [program.column(nodes.price, whole=True) for nodes in bought]
        placed: list[list[int]] = [[] for _ in self._pods]
        scale: Floats = np.ones(len(self._resources))
        for nodes in (*kept, *fixed, *bought):
            scale = np.maximum(scale, nodes.room)
        for column, nodes in zip(numbers, (*kept, *fixed, *bought), strict=True):
            self._place(program, column, nodes, placed, scale)
        for pods, columns in zip(self._pods, placed, strict=True):
            program.row(columns, [1.0] * len(columns), lower=float(pods.number))
        self._allow(program, kept, numbers)
        if disruption is not None:
            whole = sum(nodes.number * nodes.disruption for nodes in kept)
            columns = numbers[: len(kept)]
            program.row(columns, [nodes.disruption for nodes in kept], lower=whole - disruption - 1e-6)
        return Relaxation(program, sum(nodes.price * nodes.number for nodes in kept))

    def _place(
        self, program: LinearProgram, column: int, nodes: _Nodes, placed: list[list[int]], scale: Floats
    ) -> None:
        """Limit the pods on these nodes to the capacity, per class and in total."""
        used: list[tuple[int, Int64s]] = []
        for number in np.flatnonzero(nodes.admits & (nodes.holds > 0)).tolist():
            pods = program.column()
            placed[number].append(pods)
            used.append((pods, self._pods[number].needs))
            if nodes.number < inf or nodes.holds[number] < 8:
                program.row((pods, column), (1.0, -float(nodes.holds[number])), upper=0.0)
        for index, room in enumerate(nodes.room.tolist()):
            columns = [pods for pods, needs in used if needs[index]]
            if columns:
                values = [float(needs[index]) / scale[index] for _, needs in used if needs[index]]
                program.row((*columns, column), (*values, -room / scale[index]), upper=0.0)

    def _allow(self, program: LinearProgram, kept: list[_Nodes], numbers: list[int]) -> None:
        """Limit the removed nodes of a pool to the largest of its budgets, and to its rate."""
        for pool, allowance in self._state.permission.pools.items():
            columns = [column for column, nodes in zip(numbers, kept, strict=False) if nodes.pool == pool]
            if not columns:
                continue
            there = sum(nodes.number for nodes in kept if nodes.pool == pool)
            most = 0 if allowance.closed else max(allowance.left.values(), default=0)
            if allowance.rate is not None:
                most = min(most, allowance.rate.left)
            if most < there:
                program.row(columns, [1.0] * len(columns), lower=float(there - most))


def _cost_steps(costs: list[float]) -> list[tuple[float, int]]:
    """Group costs into a few steps: the lowest cost of each step and how many costs it covers."""
    ordered = sorted(costs)
    parts = np.array_split(np.array(ordered), min(COSTS_MAX, len(set(ordered))))
    return [(float(part[0]), len(part)) for part in parts if len(part)]


def _not_outdone(room: Int64s, admits: Bools, prices: Floats) -> list[int]:
    """Indices of the types that no cheaper or equal type dominates, cheapest first."""
    order = np.lexsort((-room.sum(axis=0), prices))
    left: Bools = admits.any(axis=0) & np.isfinite(prices)
    kept: list[int] = []
    for index in order.tolist():
        if left[index]:
            kept.append(index)
            smaller = (room <= room[:, index, None]).all(axis=0) & (admits[:, index, None] | ~admits).all(
                axis=0
            )
            left &= ~(smaller & (prices >= prices[index]))
    return kept
