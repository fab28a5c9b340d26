"""Computes the value of idle GPU, node by node, to the usual requests.

All amounts are thousandths of a device. A device that is not running, or is used by others, has nothing idle.
Values follow the table: unchanged nodes are not computed again.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from karpool.gpu import device_filters
from karpool.gpu.scoring_columns import NO_NODE, UNBOUNDED, Rows, ScoringColumns
from karpool.gpu.strategies.request_mix import (
    DEVICE_MILLI,
    RequestConstraint,
    RequestMix,
    ShapeGroup,
    shape_of,
)
from karpool.gpu.strategies.strategy import TFLOPS_WEIGHT, VRAM_WEIGHT
from karpool.model.devices.amounts import DeviceAmount
from karpool.model.devices.request import GpuRequest
from karpool.model.requirements import NodeTerm
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeRow, table_of

Floats = npt.NDArray[np.float64]

# The cost of a thousandth of a device without CPU. Of 0.1 to 0.5, tried on the openb lists (seeds 1 to 9),
# 0.5 leaves the least in all but one; 1 would let CPU decide.
UNFED = 0.5
SCARCITY_EXPONENT = 3.0
_NEVER = -1
_TERMS_KEPT = 1024


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """Some nodes, with their devices side by side. `there` marks the devices that exist and run."""

    codes: Int64s
    rows: Rows
    there: Bools
    tflops: Int64s
    vram: Int64s
    cpu: Int64s

    def only(self, some: Int64s) -> "NodeBatch":
        return NodeBatch(
            self.codes[some],
            self.rows[some],
            self.there[some],
            self.tflops[some],
            self.vram[some],
            self.cpu[some],
        )


class FragmentationScore:
    """The value of idle GPU under a mix, per node; kept current with the table."""

    def __init__(self, table: ScoringColumns, mix: RequestMix) -> None:
        self.table, self.mix = table, mix
        self.node_lost: Floats = np.zeros(0)
        self.node_idle: Floats = np.zeros(0)
        self._version: Int64s = np.zeros(0, dtype=np.int64)
        self._membership = _NEVER
        self._masks: list[Bools] = []
        self._demand: list[tuple[float, Bools]] = []
        self._typical = DeviceAmount()
        self._cpu_per_milli = 0.0
        self._scale_tflops: Floats = np.zeros(0)
        self._scale_vram: Floats = np.zeros(0)

    def refresh(self, table: ScoringColumns) -> None:
        count = len(table.node_names)
        if self._membership != table.membership:
            self._read_membership(table)
        if len(self._version) < count:
            self.node_lost, self.node_idle = np.zeros(2 * count), np.zeros(2 * count)
            self._version = np.full(2 * count, _NEVER)
        stale = np.flatnonzero(self._version[:count] != table.version[:count])
        if len(stale):
            state = self.node_batch(table, stale)
            self.node_lost[stale] = self.lost(state, state.cpu, state.tflops, state.vram)
            self.node_idle[stale] = self.idle(state, state.tflops, state.vram).sum(axis=1)
            self._version[stale] = table.version[stale]

    def _read_membership(self, table: ScoringColumns) -> None:
        """Devices were added or removed: recompute what depends on capacities and labels."""
        rows = table.all_rows()
        self._membership = table.membership
        capacity = np.array([table.capacity_tflops[rows].sum(), table.capacity_vram[rows].sum()])
        mean = capacity // max(1, len(rows))
        self._typical = DeviceAmount(int(mean[0]), int(mean[1]))
        self._cpu_per_milli = self.mix.cpu_per_device_milli(self._typical)
        tflops, vram = table.capacity_tflops[: table.n], table.capacity_vram[: table.n]
        weight = np.where(tflops > 0, TFLOPS_WEIGHT, 0.0) + np.where(vram > 0, VRAM_WEIGHT, 0.0)
        weight = np.where(weight > 0, weight, 1.0)
        self._scale_tflops = DEVICE_MILLI * TFLOPS_WEIGHT / weight / np.maximum(tflops, 1) * (tflops > 0)
        self._scale_vram = DEVICE_MILLI * VRAM_WEIGHT / weight / np.maximum(vram, 1) * (vram > 0)
        self._masks = [_allowed_nodes(table, group.constraint) for group in self.mix.groups]
        demand = self.mix.demand(self._typical)
        total = sum(demand.values()) or 1.0
        self._demand = [
            (part / total, _allowed_nodes(table, where))
            for where, part in demand.items()
            if not where.is_free
        ]
        self._version[:] = _NEVER

    def node_batch(self, table: ScoringColumns, nodes: Int64s) -> NodeBatch:
        rows = table.node_rows[nodes]
        there: Bools = (rows >= 0) & table.running[rows] & table.ours[rows]
        return NodeBatch(
            nodes,
            rows,
            there,
            np.where(there, table.free_tflops[rows], 0),
            np.where(there, table.free_vram[rows], 0),
            table.cpu_room[nodes],
        )

    def idle(self, state: NodeBatch, tflops: Int64s, vram: Int64s) -> Floats:
        """Idle amount of each device, in thousandths."""
        amount = tflops * self._scale_tflops[state.rows] + vram * self._scale_vram[state.rows]
        idle_amount: Floats = np.where(state.there, np.maximum(amount, 0.0), 0.0)
        return idle_amount

    def lost(self, state: NodeBatch, cpu: Int64s, tflops: Int64s, vram: Int64s) -> Floats:
        """Idle GPU of each node that the usual requests cannot use, weighted by their frequency."""
        idle = self.idle(state, tflops, vram)
        total: Floats = idle.sum(axis=1)
        usable: dict[tuple[object, bool], tuple[Int64s, Floats]] = {}
        for group, allowed in zip(self.mix.groups, self._masks, strict=True):
            key = (group.share, group.whole)
            if key not in usable:
                fits = self._fits(group, state, tflops, vram)
                usable[key] = fits.sum(axis=1), np.where(fits, idle, 0.0).sum(axis=1)
            number, amount = usable[key]
            likely = group.likelihood[np.searchsorted(group.cpu_milli, cpu, side="right")]
            total -= likely * (allowed[state.codes] & (number >= group.count)) * amount
        return total

    def _fits(self, group: ShapeGroup, state: NodeBatch, tflops: Int64s, vram: Int64s) -> Bools:
        table, rows = self.table, state.rows
        if group.whole:
            untouched = (tflops == table.capacity_tflops[rows]) & (vram == table.capacity_vram[rows])
            return _both(state.there, untouched)
        need_tflops, need_vram = device_filters.needed(table, rows, group.share)
        return _both(state.there, (tflops >= need_tflops) & (vram >= need_vram))

    def gains(
        self, table: ScoringColumns, nodes: Int64s, candidate: Bools, request: GpuRequest
    ) -> tuple[Floats, Int64s]:
        """The reduction of lost GPU by placing the request on each node, and the best device."""
        state = self.node_batch(table, nodes)
        shape = shape_of(request)
        allowed = candidate[state.rows] & (state.rows >= 0)
        if request.count > 1 or shape.whole:
            chosen = self.fullest_first(state, candidate, request.count)
            taken = (state.rows[:, :, None] == chosen[:, None, :]).any(axis=2) & allowed
            return self._gain(request, state, taken), chosen[:, 0]
        return self._best_device(request, state, allowed)

    def _best_device(self, request: GpuRequest, state: NodeBatch, allowed: Bools) -> tuple[Floats, Int64s]:
        """Try every device; of devices in the same state only the first."""
        node, place = np.nonzero(allowed & ~_seen_before(self.table, state, allowed))
        part = state.only(node)
        taken = np.zeros(part.rows.shape, dtype=np.bool_)
        taken[np.arange(len(node)), place] = True
        gains = np.full(state.rows.shape, -np.inf)
        gains[node, place] = self._gain(request, part, taken)
        best = gains.argmax(axis=1)
        every = np.arange(len(best))
        return gains[every, best], state.rows[every, best]

    def _gain(self, request: GpuRequest, state: NodeBatch, taken: Bools) -> Floats:
        """Lost GPU now, less lost GPU once the request has the devices marked as taken."""
        if shape_of(request).whole:
            tflops, vram = np.where(taken, 0, state.tflops), np.where(taken, 0, state.vram)
        else:
            need_tflops, need_vram = device_filters.needed(self.table, state.rows, request.request)
            tflops = state.tflops - np.where(taken, need_tflops, 0)
            vram = state.vram - np.where(taken, need_vram, 0)
        return self.node_lost[state.codes] - self.lost(state, state.cpu - request.cpu_milli, tflops, vram)

    def fullest_first(self, state: NodeBatch, candidate: Bools, count: int) -> Rows:
        """Per node, the candidates with the least idle GPU, by position if equal; -1 if there is none."""
        allowed = candidate[state.rows] & (state.rows >= 0)
        idle = np.where(allowed, self.idle(state, state.tflops, state.vram), np.inf)
        order = np.argsort(idle, axis=1, kind="stable")[:, :count]
        chosen: Rows = np.where(
            np.take_along_axis(allowed, order, axis=1), np.take_along_axis(state.rows, order, axis=1), -1
        )
        return chosen

    def part(self, request: GpuRequest) -> float:
        """The requested part of a device, in thousandths."""
        shape = shape_of(request)
        if shape.whole:
            return DEVICE_MILLI
        scale_tflops, scale_vram = self._typical_scale()
        need = shape.share.on(self._typical)
        return need.tflops_milli * scale_tflops + need.vram_bytes * scale_vram

    def _typical_scale(self) -> tuple[float, float]:
        tflops, vram = self._typical.tflops_milli, self._typical.vram_bytes
        weight = (TFLOPS_WEIGHT if tflops else 0.0) + (VRAM_WEIGHT if vram else 0.0) or 1.0
        return (
            DEVICE_MILLI * TFLOPS_WEIGHT / weight / tflops if tflops else 0.0,
            DEVICE_MILLI * VRAM_WEIGHT / weight / vram if vram else 0.0,
        )

    def unfed_change(self, table: ScoringColumns, nodes: Int64s, cpu_milli: int, taken: float) -> Floats:
        """The reduction of idle GPU without CPU (negative: increase), at its cost."""
        cpu, idle = table.cpu_room[nodes], self.node_idle[nodes]
        if not self._cpu_per_milli:
            return np.zeros(len(nodes))
        before = np.maximum(0.0, idle - cpu / self._cpu_per_milli)
        after = np.maximum(0.0, (idle - taken) - (cpu - cpu_milli) / self._cpu_per_milli)
        change: Floats = np.where(cpu == UNBOUNDED, 0.0, UNFED * (before - after))
        return change

    def scarcity(self, table: ScoringColumns) -> Floats:
        """Per node, from 0 to 1: the share of its idle GPU that constrained requests will need."""
        idle = self.node_idle[: len(table.node_names)]
        pressure = np.zeros(len(idle))
        total = float(idle.sum())
        for part, allowed in self._demand:
            there = float(idle[allowed].sum())
            if there > 0:
                pressure[allowed] += total * part / there
        scarcity: Floats = np.minimum(1.0, pressure) ** SCARCITY_EXPONENT
        return scarcity


def _both(first: Bools, second: Bools) -> Bools:
    both: Bools = first & second
    return both


def _seen_before(table: ScoringColumns, state: NodeBatch, allowed: Bools) -> Bools:
    """Devices in the same state as an allowed one to their left."""
    columns = (
        state.tflops,
        state.vram,
        table.capacity_tflops[state.rows],
        table.capacity_vram[state.rows],
    )
    earlier: Bools = np.tri(state.rows.shape[1], k=-1, dtype=np.bool_)
    alike = _both(earlier, allowed[:, None, :])
    for column in columns:
        alike = _both(alike, column[:, :, None] == column[:, None, :])
    same: Bools = np.asarray(alike.any(axis=2))
    return same


def _allowed_nodes(table: ScoringColumns, where: RequestConstraint) -> Bools:
    """Nodes with a device that the constraint admits."""
    rows = table.of_kinds(table.all_rows(), "constraint", where, where.admits)
    if where.node_terms is not None:
        rows = _labelled(table, rows, where.node_terms)
    mask = np.zeros(len(table.node_names), dtype=np.bool_)
    node = table.node[rows]
    mask[node[node != NO_NODE]] = True
    return mask


def _labelled(table: ScoringColumns, rows: Rows, terms: tuple[NodeTerm, ...]) -> Rows:
    """Devices of nodes with such labels, as far as labels are known."""
    admitted = table.labelled.get(terms)
    if admitted is None:
        nodes = table_of([NodeRow(name, labels) for name, labels in table.node_labels.items()])
        names = np.array(nodes.names, dtype=object)[matches_terms(nodes, terms)]
        if len(table.labelled) >= _TERMS_KEPT:
            table.labelled.clear()
        admitted = table.labelled[terms] = frozenset(names.tolist())
    keep = [table.device(row).owner in admitted for row in rows.tolist()]
    kept: Rows = rows[np.array(keep, dtype=np.bool_)]
    return kept
