"""Filters the devices that fit a request, in a fixed order.

A filter is a function from candidate rows to candidate rows and changes nothing. The packing kernel defines
what a kind of device takes; here its rules are applied one at a time, so that the chain, which stops when no
row is left, can report what each step dropped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from karpool.gpu.scoring_columns import NO_NODE, Rows, ScoringColumns
from karpool.model.devices.amounts import DeviceShare
from karpool.model.devices.device_reasons import DeviceReason, FilterStep, NoDevice, no_device
from karpool.model.devices.isolation import PARTITIONED, SHARED, is_allowed
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.request import GpuRequest
from karpool.packing.tables.columns import Bools, Int64s

Filter = Callable[[ScoringColumns, Rows], Rows]


@dataclass(frozen=True, slots=True)
class FittingDevices:
    rows: Rows
    dropped: tuple[FilterStep, ...]
    refusal: NoDevice | None = None


def run_filters(
    table: ScoringColumns, rows: Rows, filters: Iterable[tuple[str, Filter]], trace: bool = True
) -> FittingDevices:
    steps: list[FilterStep] = []
    for name, keep in filters:
        if not len(rows):
            break
        kept = keep(table, rows)
        if trace:
            steps.append(FilterStep(name, len(rows), len(kept)))
        if name == "same node" and not len(kept):
            refusal = no_device(DeviceReason.SAME_NODE_UNSATISFIED, "no node has that many fitting GPUs")
            return FittingDevices(kept, tuple(steps), refusal)
        rows = kept
    return FittingDevices(rows, tuple(steps))


def device_filters(
    request: GpuRequest, policy: str, catalogue: PartitionCatalogue | None = None
) -> list[tuple[str, Filter]]:
    """The filters that a request needs, in order."""
    filters: list[tuple[str, Filter]] = [
        ("isolation policy", partial(by_policy, policy=policy, mode=request.isolation)),
        ("phase", by_phase),
    ]
    if request.indices:
        filters.append(("index", partial(by_index, indices=request.indices)))
    if request.isolation:
        filters.append(("isolation mode", partial(by_isolation_mode, mode=request.isolation)))
    if request.isolation == SHARED:
        filters.append(("whole GPU", by_whole))
    if request.isolation == PARTITIONED:
        partition_catalogue = catalogue or PartitionCatalogue()
        filters.append(
            ("partition", partial(by_partition, template=request.template, catalogue=partition_catalogue))
        )
    filters.append(("resources", partial(by_amounts, share=request.request)))
    if request.model:
        filters.append(("model", partial(by_model, model=request.model)))
    if request.vendor:
        filters.extend(vendor_filter(request.vendor))
    if request.count > 1:
        filters.append(("same node", partial(by_same_node, count=request.count)))
    return filters


def vendor_filter(vendor: str) -> list[tuple[str, Filter]]:
    return [("vendor", partial(by_vendor, vendor=vendor))]


def _kept(rows: Rows, keep: Bools) -> Rows:
    kept: Rows = rows[keep]
    return kept


def by_policy(table: ScoringColumns, rows: Rows, *, policy: str, mode: str) -> Rows:
    """Devices on which the policy allows the mode, given their current state."""
    rows = table.of_kinds(rows, "policy", (policy, mode), lambda kind: is_allowed(policy, mode, kind.policy))
    return _accepting(table, rows, mode)


def by_phase(table: ScoringColumns, rows: Rows) -> Rows:
    return _kept(rows, table.ours[rows] & table.running[rows])


def by_index(table: ScoringColumns, rows: Rows, *, indices: Sequence[int]) -> Rows:
    asked = frozenset(indices)
    return table.of_kinds(rows, "index", asked, lambda kind: kind.index in asked) if asked else rows


def by_isolation_mode(table: ScoringColumns, rows: Rows, *, mode: str) -> Rows:
    if not mode:
        return rows
    return _accepting(table, table.of_kinds(rows, "capable", mode, lambda kind: kind.is_capable(mode)), mode)


def _accepting(table: ScoringColumns, rows: Rows, mode: str) -> Rows:
    if not len(rows):
        return rows
    accepts = table.kinds.accepting(mode)
    return _kept(rows, accepts[table.kind[rows], table.lock[rows], table.conflict[rows].astype(np.int64)])


def by_whole(table: ScoringColumns, rows: Rows) -> Rows:
    """Idle devices. A device without figures does not count as idle."""
    idle = table.has_capacity[rows] & table.has_available[rows]
    idle &= (table.holders[rows] == 0) & (table.partitions[rows] == 0)
    idle &= table.free_tflops[rows] == table.capacity_tflops[rows]
    return _kept(rows, idle & (table.free_vram[rows] == table.capacity_vram[rows]))


def by_partition(table: ScoringColumns, rows: Rows, *, template: str, catalogue: PartitionCatalogue) -> Rows:
    """Devices whose model has the template and that have room for one more partition."""
    caps: dict[int, int] = {}
    for code in set(table.kind[rows].tolist()):
        kind = table.kinds[code]
        is_known = not template or catalogue.named(kind.model, kind.capacity, template) is not None
        caps[code] = catalogue.cap(kind.model) if is_known else 0
    cap = np.array([caps[code] for code in table.kind[rows].tolist()], dtype=np.int64)
    return _kept(rows, table.partitions[rows] < cap)


def by_amounts(table: ScoringColumns, rows: Rows, *, share: DeviceShare) -> Rows:
    """Devices with enough free amounts. A whole device must have the requested amounts, too."""
    if not len(rows):
        return rows
    rows = table.of_kinds(rows, "tells", share, lambda kind: kind.tells(share))
    tflops, vram = needed(table, rows, share)
    keep: Bools = table.has_available[rows] & ~table.taken_whole[rows]
    keep &= (table.free_tflops[rows] >= tflops) & (table.free_vram[rows] >= vram)
    return _kept(rows, keep)


def needed(table: ScoringColumns, rows: Rows, share: DeviceShare) -> tuple[Int64s, Int64s]:
    """The amounts of a share on each of these devices, in the shape of `rows`."""
    tflops, vram = table.kinds.amounts(share)
    return tflops[table.kind[rows]], vram[table.kind[rows]]


def by_model(table: ScoringColumns, rows: Rows, *, model: str) -> Rows:
    return table.of_kinds(rows, "model", model, lambda kind: kind.model == model) if model else rows


def by_vendor(table: ScoringColumns, rows: Rows, *, vendor: str) -> Rows:
    return table.of_kinds(rows, "vendor", vendor, lambda kind: kind.vendor == vendor) if vendor else rows


def by_worker_cap(table: ScoringColumns, rows: Rows, *, cap: int) -> Rows:
    if cap <= 0:
        return rows
    node = table.node[rows]
    return _kept(rows, (node == NO_NODE) | (table.workers[node] < cap))


def by_same_node(table: ScoringColumns, rows: Rows, *, count: int) -> Rows:
    """Devices on nodes with enough of them; a device without a node never counts."""
    if count <= 1:
        return rows
    node = table.node[rows]
    in_node = node != NO_NODE
    fitting = np.bincount(node[in_node], minlength=max(1, len(table.node_names)))
    return _kept(rows, in_node & (fitting[node] >= count))
