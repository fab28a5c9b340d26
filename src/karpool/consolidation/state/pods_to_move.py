"""The pods that must move from each node: runs of pods of one shape, the largest shapes first."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from karpool.cluster.pods.disruption_store import EVICTABLE
from karpool.consolidation.policy.scoring import Floats
from karpool.consolidation.view import ClusterView
from karpool.model.kubernetes.pod_shape import PodShape
from karpool.packing.tables.columns import Int64s

Demand = Sequence[tuple[int, int]]  # shapes and numbers of pods


class PodsToMove:
    def __init__(self, view: ClusterView) -> None:
        pods, table = view.pods, view.snapshot.shapes
        sizes = _sizes(view)
        moving = np.flatnonzero(pods.moves)
        shapes, rows = pods.shapes[moving], pods.rows[moving]
        rank = np.empty(len(sizes), dtype=np.int64)
        texts = np.array([_text(table[number]) for number in range(len(table))] or [""], dtype=np.str_)
        rank[np.lexsort((texts[: len(sizes)], -sizes))] = np.arange(len(sizes))
        by_rank: Int64s = np.argsort(rank, kind="stable")
        keys = rows.astype(np.int64) * max(len(sizes), 1) + rank[shapes]
        runs, self._counts = np.unique(keys, return_counts=True)
        self._shapes = by_rank[runs % max(len(sizes), 1)] if len(runs) else runs
        self._starts = np.searchsorted(runs // max(len(sizes), 1), np.arange(view.snapshot.n + 1))
        self._known: dict[int, Demand] = {}  # by row
        self.rank: Int64s = rank  # by shape: the largest have the lowest rank
        self._budgets, self._spread = view.budgets, _spread(view)

    def of(self, rows: Sequence[int]) -> Demand:
        """The pods of these nodes together."""
        if len(rows) == 1:
            return self._of_one(rows[0])
        whole: Counter[int] = Counter()
        for row in rows:
            whole.update(dict(self._of_one(row)))
        return self.sorted(whole)

    def sorted(self, pods: Counter[int]) -> Demand:
        return sorted(pods.items(), key=lambda item: int(self.rank[item[0]]))

    def drained_slowly(self, rows: Sequence[int]) -> frozenset[int]:
        """Shapes with spread constraints whose disruption budget does not allow all their pods of these nodes
        at once.

        The first pods then need a place before the last may leave, while the nodes still exist.
        """
        if not self._spread:
            return frozenset()
        going = Counter(budget for row in rows for budget, _ in self._spread.get(row, ()))
        return frozenset(
            shape
            for row in rows
            for budget, shape in self._spread.get(row, ())
            if going[budget] > self._budgets[budget].disruptions_allowed
        )

    def _of_one(self, row: int) -> Demand:
        pods = self._known.get(row)
        if pods is None:
            start, end = self._starts[row], self._starts[row + 1]
            shapes, counts = self._shapes[start:end].tolist(), self._counts[start:end].tolist()
            pods = self._known[row] = list(zip(shapes, counts, strict=True))
        return pods


def _spread(view: ClusterView) -> dict[int, list[tuple[int, int]]]:
    """By row: budget and shape of the pods whose disruption budget covers a pod with a spread."""
    pods, table = view.pods, view.snapshot.shapes
    is_spread = table.where("is spread", lambda shape: any(spread.required for spread in shape.spreads))
    held = ((pods.flags & EVICTABLE) != 0) & (pods.budget >= 0)
    if not held.any() or not is_spread.any():
        return {}
    concerned = np.unique(pods.budget[held & is_spread[pods.shapes]])
    by_row: dict[int, list[tuple[int, int]]] = {}
    for pod in np.flatnonzero(held & np.isin(pods.budget, concerned)).tolist():
        by_row.setdefault(int(pods.rows[pod]), []).append((int(pods.budget[pod]), int(pods.shapes[pod])))
    return by_row


def _sizes(view: ClusterView) -> Floats:
    table, snapshot = view.snapshot.shapes, view.snapshot
    whole = {
        name: max(float(snapshot.allocatable(name).mean()), 1.0) if snapshot.n else 1.0
        for name in ("cpu", "memory")
    }
    sizes = np.zeros(len(table))
    for number in range(len(table)):
        for name, units in table[number].requests:
            # Resources that few nodes offer are placed before those that all offer.
            sizes[number] += units / whole[name] if name in whole else 1000.0
        if table[number].has_topology or table[number].node_selector or table[number].node_terms:
            sizes[number] += 10.0
    return sizes


def _text(shape: PodShape) -> str:
    """A sort key that tells shapes of equal size apart, independent of their order."""
    return f"{shape.requests}{shape.namespace}{shape.labels}{shape.node_selector}{shape.priority}"[:512]
