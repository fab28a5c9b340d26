"""Nodes known only by their grade: runs of identical ones, filled first fit.

Karmada's cluster models say how many nodes have at least so much free. Thousands of
identical nodes are one run here, split only where something is placed, so that the
cost depends on what is placed and not on the size of the cluster. The results are
those of `packing.first_fit` on the same nodes one by one; constraints other than
room cannot be checked and are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from karpool.model.karmada.cluster import Grade
from karpool.model.shape import PodShape

PODS_PER_NODE = 110
Needs = tuple[int, ...]  # of one pod, a slot first


@dataclass(frozen=True, slots=True)
class _Run:
    free: Needs
    count: int


class VirtualNodes:
    """Room in the nodes of all grades. Resources that no grade mentions are not looked at."""

    def __init__(self, grades: Iterable[Grade]) -> None:
        present = [each for each in grades if each.count > 0]
        self._names = sorted({name for each in present for name in each.floor})
        self._runs = [
            _Run((PODS_PER_NODE, *(each.floor.get(name, 0) for name in self._names)), each.count)
            for each in present
        ]

    def knows(self, resource: str) -> bool:
        return resource in self._names

    def count(self, shape: PodShape) -> int:
        """How many replicas fit."""
        needs = self._needs(shape)
        return sum(_fitting(run.free, needs) * run.count for run in self._runs)

    def place(self, components: Sequence[tuple[PodShape, int]]) -> bool:
        """One set: each component's replicas on the first nodes that take any. What a set took that
        did not find room for all of it stays taken, as upstream."""
        return self._place([(self._needs(shape), replicas) for shape, replicas in components if replicas > 0])

    def place_sets(self, components: Sequence[tuple[PodShape, int]], bound: int) -> int:
        """How many complete sets find room, at most `bound`; no replicas at all do so `bound` times."""
        wanted = [(self._needs(shape), replicas) for shape, replicas in components if replicas > 0]
        if not wanted:
            return max(bound, 0)
        sets = 0
        while sets < bound:
            more = self._whole_nodes(wanted, bound - sets)
            if not more:
                if not self._place(wanted):
                    break
                more = 1
            sets += more
        return sets

    def _needs(self, shape: PodShape) -> Needs:
        asked: Mapping[str, int] = dict(shape.requests)
        return (1, *(asked.get(name, 0) for name in self._names))

    def _place(self, wanted: Iterable[tuple[Needs, int]]) -> bool:
        return all(self._place_one(needs, replicas) for needs, replicas in wanted)

    def _place_one(self, needs: Needs, replicas: int) -> bool:
        left, position = replicas, 0
        while left and position < len(self._runs):
            run = self._runs[position]
            fit = _fitting(run.free, needs)
            if not fit:
                position += 1
                continue
            pieces, placed = _filled(run, needs, fit, left)
            self._runs[position : position + 1] = pieces
            self._join(position)
            left -= placed
            position = max(position - 1, 0)  # a full run may have become one with the run before
        return not left

    def _join(self, position: int) -> None:
        """Neighbours that became equal are one run again."""
        start = max(position - 1, 0)
        joined: list[_Run] = []
        end = min(position + 4, len(self._runs))
        for run in self._runs[start:end]:
            if joined and joined[-1].free == run.free:
                joined[-1] = replace(run, count=joined[-1].count + run.count)
            else:
                joined.append(run)
        self._runs[start:end] = joined

    def _whole_nodes(self, wanted: Sequence[tuple[Needs, int]], bound: int) -> int:
        """Sets at once where they all go to one node after the other, and leave nothing that any
        component could use: how many, or 0 when that is not so."""
        firsts = {self._first(needs) for needs, _ in wanted}
        position = firsts.pop() if len(firsts) == 1 else None
        if position is None:
            return 0
        run = self._runs[position]
        total = tuple(sum(needs[i] * replicas for needs, replicas in wanted) for i in range(len(run.free)))
        per_node = _fitting(run.free, total)
        if not per_node:
            return 0
        left = tuple(free - per_node * units for free, units in zip(run.free, total, strict=True))
        nodes = min(run.count, bound // per_node)
        if any(_fitting(left, needs) for needs, _ in wanted):
            nodes = min(nodes, 1)
        if not nodes:
            return 0
        pieces = [_Run(left, nodes), _Run(run.free, run.count - nodes)]
        self._runs[position : position + 1] = [each for each in pieces if each.count]
        self._join(position)
        return nodes * per_node

    def _first(self, needs: Needs) -> int | None:
        return next((i for i, run in enumerate(self._runs) if _fitting(run.free, needs)), None)


def _fitting(free: Needs, needs: Needs) -> int:
    """How many pods fit into one node."""
    least = free[0]
    for have, need in zip(free, needs, strict=True):
        if need:
            fit = have // need
            if fit < least:  # noqa: PLR1730 - calling min() here costs a third of the whole
                least = fit
    return max(least, 0)


def _filled(run: _Run, needs: Needs, fit: int, left: int) -> tuple[list[_Run], int]:
    """A run after up to `left` pods went to its first nodes, and how many did."""
    if left >= fit * run.count:
        return [_Run(_less(run.free, needs, fit), run.count)], fit * run.count
    full, rest = divmod(left, fit)
    pieces = [_Run(_less(run.free, needs, fit), full), _Run(_less(run.free, needs, rest), 1 if rest else 0)]
    pieces.append(_Run(run.free, run.count - full - (1 if rest else 0)))
    return [each for each in pieces if each.count], left


def _less(free: Needs, needs: Needs, pods: int) -> Needs:
    return tuple(have - need * pods for have, need in zip(free, needs, strict=True))
