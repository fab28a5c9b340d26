"""Chooses a node, and devices of it, among fitting devices.

A strategy ranks nodes and devices by their use, with integers from 0 to 100. Ties go to the smaller node name
and then the smaller device name, so the same cluster always gives the same answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from karpool.gpu.scoring_columns import NO_NODE, Rows, ScoringColumns
from karpool.gpu.strategies.strategy_name import StrategyName
from karpool.model.devices.isolation import PARTITIONED
from karpool.model.devices.request import GpuRequest
from karpool.packing.tables.columns import Bools, Int64s

NODE_COMPACT = StrategyName.NODE_COMPACT
COMPACT_FIRST = StrategyName.COMPACT_FIRST
LOW_LOAD_FIRST = StrategyName.LOW_LOAD_FIRST

VRAM_WEIGHT, TFLOPS_WEIGHT = 0.7, 0.3
PENDING_DIVISOR = 4

Floats = npt.NDArray[np.float64]


class PlacementStrategy(Protocol):
    @property
    def name(self) -> str: ...

    def choose(
        self, table: ScoringColumns, rows: Rows, request: GpuRequest, scope: "CandidateScope | None" = None
    ) -> Sequence[int]:
        """Return `count` rows of one node, best first; empty if no node has that many."""
        ...

    def observe(self, request: GpuRequest) -> None:
        """Observe a request that is about to be placed; a strategy may learn from it."""
        ...


@dataclass(frozen=True, slots=True)
class CandidateScope:
    """`counted` marks the devices that count for their node (None: all).

    `is_narrowed`: the candidates were limited for reasons that are not in the request.
    """

    counted: Bools | None = None
    is_narrowed: bool = False


@dataclass(frozen=True, slots=True)
class LoadStrategy:
    """CompactFirst, LowLoadFirst and NodeCompactGPULowLoad: they differ in direction only."""

    name: str
    node_prefers_full: bool
    device_prefers_full: bool
    vram_weight: float = VRAM_WEIGHT
    tflops_weight: float = TFLOPS_WEIGHT
    rank_by_sum: bool = False  # as the library path of TensorFusion does; favours nodes with many devices

    def scores(self, table: ScoringColumns, rows: Rows, *, for_node: bool) -> Int64s:
        prefers_full = self.node_prefers_full if for_node else self.device_prefers_full
        vram = _free_percent(table.free_vram[rows], table.capacity_vram[rows])
        tflops = _free_percent(table.free_tflops[rows], table.capacity_tflops[rows])
        if prefers_full:
            vram, tflops = 100.0 - vram, 100.0 - tflops
        weighed = vram * self.vram_weight + tflops * self.tflops_weight
        score: Int64s = np.clip(np.floor(weighed + 0.5), 0, 100).astype(np.int64)
        return score

    def node_scores(self, table: ScoringColumns, nodes: Int64s, counted: Bools | None = None) -> Int64s:
        """By node: the truncated average over its counted devices; one that is not running yet counts a
        quarter.
        """
        member = table.node_rows[nodes]
        rows = np.where(member >= 0, member, 0)
        there = member >= 0 if counted is None else (member >= 0) & counted[rows]
        scores = self.scores(table, rows.ravel(), for_node=True).reshape(rows.shape)
        scores = np.where(table.pending[rows], scores // PENDING_DIVISOR, scores)
        total: Int64s = np.where(there, scores, 0).sum(axis=1)
        if not self.rank_by_sum:
            total //= np.maximum(there.sum(axis=1), 1)
        return total

    def observe(self, request: GpuRequest) -> None:
        """Does nothing: the strategy does not learn."""

    def choose(
        self, table: ScoringColumns, rows: Rows, request: GpuRequest, scope: CandidateScope | None = None
    ) -> Sequence[int]:
        if request.isolation == PARTITIONED and self.node_prefers_full and self.device_prefers_full:
            return tightest(table, rows, request.count)
        counted = None if scope is None else scope.counted
        node = best_node(table, rows, request.count, partial(self.node_scores, counted=counted))
        inside = rows if node is None else rows[table.node[rows] == node]
        if node is None and request.count > 1:
            return ()
        return best_devices(table, inside, self.scores(table, inside, for_node=False), request.count)


def tightest(table: ScoringColumns, rows: Rows, count: int) -> list[int]:
    """For hardware partitions: the devices of one node that fit and have the least free memory.

    That is best fit by the driver's rules. Averages over a node would miss a device that is nearly full.
    """
    keys = []
    for row in rows.tolist():
        node = int(table.node[row])
        if node != NO_NODE or count == 1:
            name = table.node_names[node] if node != NO_NODE else ""
            keys.append((int(table.free_vram[row]), name, table.device(row).name, row))
    by_node: dict[str, list[tuple[int, str, str, int]]] = {}
    for key in sorted(keys):
        by_node.setdefault(key[1], []).append(key)
    whole = [devices[:count] for devices in by_node.values() if len(devices) >= count]
    return [row for *_, row in min(whole)] if whole else []


def best_node(table: ScoringColumns, rows: Rows, count: int, scored: "NodeScorer") -> int | None:
    """The best node with enough candidates; None if no candidate has a node."""
    node = table.node[rows]
    fitting = np.bincount(node[node != NO_NODE], minlength=len(table.node_names))
    nodes = np.flatnonzero(fitting >= count)
    if not len(nodes):
        return None
    scores = scored(table, nodes)
    best = nodes[scores == scores.max()]
    return int(min(best.tolist(), key=table.node_names.__getitem__) if len(best) > 1 else best[0])


class NodeScorer(Protocol):
    def __call__(self, table: ScoringColumns, nodes: Int64s, /) -> Int64s | Floats: ...


def best_devices(table: ScoringColumns, rows: Rows, scores: Int64s, count: int) -> list[int]:
    if len(rows) < count:
        return []
    ranked = sorted(
        zip((-scores).tolist(), (table.device(int(row)).name for row in rows), rows.tolist(), strict=True)
    )
    return [row for _, _, row in ranked[:count]]


def _free_percent(free: Int64s, capacity: Int64s) -> Floats:
    share: Floats = np.divide(
        free * 100.0, capacity, out=np.zeros(len(free), dtype=np.float64), where=capacity > 0
    )
    return share


def by_load(
    name: str, vram_weight: float = VRAM_WEIGHT, tflops_weight: float = TFLOPS_WEIGHT, *, by_sum: bool = False
) -> LoadStrategy:
    directions = {COMPACT_FIRST: (True, True), LOW_LOAD_FIRST: (False, False), NODE_COMPACT: (True, False)}
    node, device = directions[StrategyName(name)]
    return LoadStrategy(name, node, device, vram_weight, tflops_weight, by_sum)
