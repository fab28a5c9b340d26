"""Places a request where it leaves the least unusable GPU behind.

For each node: how much idle GPU could the usual requests not use? (The measure of Weng and others, "Beware of
Fragmentation", 2023.) The strategy chooses the node and device where a placement raises it least, with three
additions of ours:

- idle GPU without enough CPU on the node counts as lost in part,
- devices that requests with a constraint will need are left to them, the more so the scarcer they are,
- for whole devices, a difference of less than 0.06 of a device is a tie, and goes to the node with the least
  idle GPU, so that empty nodes stay empty. A share goes exactly where the measure says: the combination of
  shares on a device determines what remains usable.

The result for a node is cached until the node changes, so a request of a known shape only costs the
evaluation of nodes that changed since the last one.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from karpool.gpu.scoring_columns import NO_NODE, Rows, ScoringColumns
from karpool.gpu.strategies.fragmentation_score import Floats, FragmentationScore
from karpool.gpu.strategies.request_mix import LearnedMix, RequestMix, RequestShape, shape_of
from karpool.gpu.strategies.strategy import CandidateScope, tightest
from karpool.gpu.strategies.strategy_name import StrategyName
from karpool.model.devices.isolation import PARTITIONED
from karpool.model.devices.request import GpuRequest
from karpool.packing.tables.columns import Bools, Int64s

# Thousandths of a device. Of 10 to 160, tried on the openb trace (seeds 1 to 9), 60 leaves the least.
TIE = 60.0
_DECIMALS = 3  # of a thousandth: nodes in the same state are equal, whatever the order of summation
_KINDS_KEPT = 512
_NEVER = -1


# The parts of a request that decide which devices of a node it may have, and what remains.
_Kind = tuple[RequestShape, str, str, int]


@dataclass
class _Known:
    """Cached results of one kind of request: the version of each node, its score, and the device."""

    version: Int64s
    gain: Floats
    device: Int64s


@dataclass
class FragmentationStrategy:
    """Pass a `mix`, or let it learn one from the requests that it observes."""

    mix: RequestMix | None = None
    name: str = StrategyName.FRAGMENTATION
    learning: LearnedMix = field(default_factory=LearnedMix)
    _worth: FragmentationScore | None = None
    _known: OrderedDict[_Kind, _Known] = field(default_factory=OrderedDict)

    def observe(self, request: GpuRequest) -> None:
        if self.mix is None:
            self.learning.observe(request)

    def choose(
        self, table: ScoringColumns, rows: Rows, request: GpuRequest, scope: CandidateScope | None = None
    ) -> Sequence[int]:
        if request.isolation == PARTITIONED:  # the driver decides what a partition wastes, not the sums
            return tightest(table, rows, request.count)
        node = table.node[rows]
        inside = node != NO_NODE
        fitting = np.bincount(node[inside], minlength=len(table.node_names))
        nodes = np.flatnonzero(fitting >= request.count)
        if not len(nodes):
            return () if request.count > 1 or not len(rows) else (int(rows[0]),)
        worth = self.score(table)
        candidate = np.zeros(table.n + 1, dtype=np.bool_)
        candidate[rows] = True
        if scope is not None and scope.is_narrowed:  # more than the shape decides: no caching
            gains, device = worth.gains(table, nodes, candidate, request)
        else:
            gains, device = self._remembered_gains(worth, nodes, candidate, request)
        best = self._pick(worth, nodes, gains, request)
        if request.count == 1:
            return (int(device[best]),)
        chosen = worth.fullest_first(
            worth.node_batch(table, nodes[best : best + 1]), candidate, request.count
        )
        return [int(row) for row in chosen[0] if row >= 0]

    def score(self, table: ScoringColumns) -> FragmentationScore:
        mix = self.learning.mix if self.mix is None else self.mix
        if self._worth is None or self._worth.mix is not mix or self._worth.table is not table:
            self._worth = FragmentationScore(table, mix)
            self._known.clear()
        self._worth.refresh(table)
        return self._worth

    def _remembered(self, request: GpuRequest, nodes: int) -> _Known:
        kind = (shape_of(request), request.isolation, request.template, request.memory_bytes)
        scores = self._known.get(kind)
        if scores is None or len(scores.version) < nodes:
            size = max(64, 2 * nodes)
            scores = _Known(np.full(size, _NEVER), np.zeros(size), np.full(size, -1))
            self._known[kind] = scores
            if len(self._known) > _KINDS_KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(kind)
        return scores

    def _remembered_gains(
        self, worth: FragmentationScore, nodes: Int64s, candidate: Bools, request: GpuRequest
    ) -> tuple[Floats, Int64s]:
        table = worth.table
        scores = self._remembered(request, len(table.node_names))
        stale = nodes[scores.version[nodes] != table.version[nodes]]
        if len(stale):
            scores.gain[stale], scores.device[stale] = worth.gains(table, stale, candidate, request)
            scores.version[stale] = table.version[stale]
        return scores.gain[nodes], scores.device[nodes]

    def _pick(self, worth: FragmentationScore, nodes: Int64s, gains: Floats, request: GpuRequest) -> int:
        table = worth.table
        taken = worth.part(request) * request.count
        gains = gains + worth.unfed_change(table, nodes, request.cpu_milli, taken)
        gains = gains - worth.scarcity(table)[nodes] * taken
        is_whole = request.count > 1 or shape_of(request).whole
        steps = np.floor(gains / TIE) if is_whole else np.round(gains, _DECIMALS)
        best = np.flatnonzero(steps == steps.max())
        idle = worth.node_idle[nodes[best]]
        best = best[idle == idle.min()]
        if len(best) == 1:
            return int(best[0])
        return int(min(best.tolist(), key=lambda place: table.node_names[nodes[place]]))
