"""Nodes known only by their grade: runs of identical ones, filled first fit.

Karmada's cluster models say how many nodes have at least a certain free amount. Thousands of identical nodes
are one run here, split only where something is placed, so that the cost depends on what is placed and not on
the size of the cluster. The results are those of `packing.first_fit` on the same nodes one by one;
constraints other than capacity cannot be checked and are ignored.
"""

from collections.abc import Iterable, Sequence

from karpool.model.karmada.member_cluster import NodeGrade

PODS_PER_NODE = 110
# Sets that leave capacity for parts of others are placed one by one, at most this often: beyond, the result
# is a lower bound, and a decision never waits for the size of a cluster.
STEPS_MAX = 1000
Requests = tuple[tuple[str, int], ...]  # positive amounts by resource, as in `PodShape.requests`
Free = tuple[int, ...]  # slots first, then one amount per resource
Needs = tuple[tuple[int, int], ...]  # position in `Free`, and the amount of one pod
Run = tuple[Free, int]  # number of nodes with this free amount


class GradedNodes:
    """Free capacity in the nodes of all grades. Resources that no grade mentions are ignored."""

    def __init__(self, grades: Iterable[NodeGrade]) -> None:
        given_grades = list(grades)
        names = sorted({name for node_grade in given_grades for name in node_grade.floor})
        self._positions = {name: 1 + position for position, name in enumerate(names)}
        self._runs: list[Run] = [
            ((PODS_PER_NODE, *(grade.floor.get(name, 0) for name in names)), grade.count)
            for grade in given_grades
            if grade.count > 0
        ]

    def copy(self) -> "GradedNodes":
        same = GradedNodes(())
        same._positions, same._runs = self._positions, self._runs.copy()
        return same

    def knows(self, resource: str) -> bool:
        return resource in self._positions

    def count(self, requests: Requests) -> int:
        """How many replicas fit."""
        needs, total = self._needs(requests), 0
        for free, nodes in self._runs:
            total += _fitting(free, needs) * nodes
        return total

    def place(self, components: Iterable[tuple[Requests, int]]) -> bool:
        """Place one set: each component's replicas on the first nodes that take any. As in Karmada, a set
        that does not fit completely keeps the capacity it took.
        """
        return all(
            self._place(self._needs(requests), replicas) for requests, replicas in components if replicas > 0
        )

    def place_sets(self, components: Iterable[tuple[Requests, int]], bound: int) -> int:
        """How many complete sets fit, at most `bound`; a set without replicas fits `bound` times.

        A lower bound after `STEPS_MAX` steps, each of which places one set, or fills nodes of one run without
        a remainder.
        """
        components_needs = [
            (self._needs(requests), replicas) for requests, replicas in components if replicas > 0
        ]
        if not components_needs:
            return max(bound, 0)
        sets = 0
        for _ in range(STEPS_MAX):
            if sets >= bound:
                break
            more = self._whole_nodes(components_needs, bound - sets)
            if not more:
                if not all(self._place(needs, replicas) for needs, replicas in components_needs):
                    break
                more = 1
            sets += more
        return sets

    def _needs(self, requests: Requests) -> Needs:
        where = self._positions
        return ((0, 1), *((where[name], units) for name, units in requests if name in where))

    def _place(self, needs: Needs, replicas: int) -> bool:
        unplaced, position, runs = replicas, 0, self._runs
        while unplaced and position < len(runs):
            free, nodes = runs[position]
            fit = _fitting(free, needs)
            if not fit:
                position += 1
                continue
            pieces = _filled(free, nodes, needs, min(unplaced, fit * nodes))
            unplaced -= min(unplaced, fit * nodes)
            self._replace(position, pieces)
            position = max(position - 1, 0)  # a full run may have been merged with the run before
        return not unplaced

    def _replace(self, position: int, pieces: list[Run]) -> None:
        """Replace a run by pieces; equal neighbours are merged."""
        start, end = max(position - 1, 0), position + 2
        joined: list[Run] = []
        for free, nodes in (*self._runs[start:position], *pieces, *self._runs[position + 1 : end]):
            before = joined.pop()[1] if joined and joined[-1][0] == free else 0
            joined.append((free, before + nodes))
        self._runs[start:end] = joined

    def _whole_nodes(self, components_needs: Sequence[tuple[Needs, int]], bound: int) -> int:
        """The number of sets placed at once if they all go to one node after the other; 0 if they do not.

        More than one node at once only if a full node has nothing left that any component could use.
        """
        firsts = {self._first(needs) for needs, _ in components_needs}
        position = firsts.pop() if len(firsts) == 1 else None
        if position is None:
            return 0
        free, nodes = self._runs[position]
        together: dict[int, int] = {}
        for needs, replicas in components_needs:
            for place, units in needs:
                together[place] = together.get(place, 0) + units * replicas
        total = tuple(together.items())
        per_node = _fitting(free, total)
        if not per_node:
            return 0
        rest = _less(free, total, per_node)
        full = min(nodes, bound // per_node)
        if any(_fitting(rest, needs) for needs, _ in components_needs):
            full = min(full, 1)
        if full:
            self._replace(position, _present((rest, full), (free, nodes - full)))
        return full * per_node

    def _first(self, needs: Needs) -> int | None:
        return next((place for place, run in enumerate(self._runs) if _fitting(run[0], needs)), None)


def _fitting(free: Free, needs: Needs) -> int:
    """How many pods fit on one node."""
    least = free[0]
    for place, units in needs:
        fit = free[place] // units
        if fit < least:  # noqa: PLR1730 - calling min() here costs a third of the whole
            least = fit
    return least if least > 0 else 0  # noqa: FURB136 - and max() as much


def _filled(free: Free, nodes: int, needs: Needs, pods: int) -> list[Run]:
    """A run after so many pods were placed on its first nodes."""
    full, rest = divmod(pods, _fitting(free, needs))
    partly = 1 if rest else 0
    return _present(
        (_less(free, needs, _fitting(free, needs)), full),
        (_less(free, needs, rest), partly),
        (free, nodes - full - partly),
    )


def _present(*runs: Run) -> list[Run]:
    return [run for run in runs if run[1]]


def _less(free: Free, needs: Needs, pods: int) -> Free:
    rest = list(free)
    for place, units in needs:
        rest[place] -= units * pods
    return tuple(rest)
