"""Which devices can take a request, filter by filter, in a fixed order.

A filter is a function from candidate rows to candidate rows. It changes nothing.
The chain stops when nothing is left, and tells what each step dropped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from karpool.gpu.device_columns import NO_NODE, DeviceColumns, Rows
from karpool.model.devices.device_reasons import DeviceReason, FilterStep, NoDevice, no_device
from karpool.model.devices.isolation import DYNAMIC, HARD, PARTITIONED, SHARED, SOFT
from karpool.model.devices.partitions import PartitionCatalogue
from karpool.model.devices.request import GpuRequest
from karpool.model.requirements import NodeTerm
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeRow, table_of

Filter = Callable[[DeviceColumns, Rows], Rows]
_PERCENT_OF_MILLI = 100 * 1000 * 1000
_DERIVED_KEPT = 1024
_CAPABLE = {SOFT: "soft", HARD: "hard", PARTITIONED: "partitioned"}


@dataclass(frozen=True, slots=True)
class FittingDevices:
    rows: Rows
    dropped: tuple[FilterStep, ...]
    refusal: NoDevice | None = None


def run_filters(
    table: DeviceColumns, rows: Rows, filters: Iterable[tuple[str, Filter]], trace: bool = True
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
        ("device plugin", partial(by_resource_name, resource=request.resource)),
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
    filters.append(("resources", partial(by_amounts, request=request)))
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


def by_policy(table: DeviceColumns, rows: Rows, *, policy: str, mode: str) -> Rows:
    """Devices on which the policy in force allows the mode at all."""
    code = table.strings.find
    own = table.policy[rows]
    if policy == DYNAMIC:
        if mode == PARTITIONED:
            return rows[:0]
        lock = table.lock[rows]
        return _kept(
            rows, (own == code(DYNAMIC)) & ~table.conflict[rows] & ((lock == 0) | (lock == code(mode)))
        )
    keep = (own == 0) | (own == code("Static"))
    if mode not in ("", SHARED):
        own_mode = table.mode[rows]
        keep &= (own_mode == 0) | (own_mode == code(mode))
    return _kept(rows, keep)


def by_phase(table: DeviceColumns, rows: Rows) -> Rows:
    return _kept(rows, table.ours[rows] & table.running[rows])


def by_resource_name(table: DeviceColumns, rows: Rows, *, resource: str) -> Rows:
    """A request for a device plugin's resource gets it from that plugin, and others do not."""
    return _kept(rows, table.resource[rows] == table.strings.find(resource))


def by_index(table: DeviceColumns, rows: Rows, *, indices: Sequence[int]) -> Rows:
    if not indices:
        return rows
    return _kept(rows, np.isin(table.index[rows], np.asarray(indices, dtype=np.int64)))


def by_isolation_mode(table: DeviceColumns, rows: Rows, *, mode: str) -> Rows:
    if not mode:
        return rows
    code = table.strings.find
    dynamic = table.policy[rows] == code(DYNAMIC)
    lock = table.lock[rows]
    by_lock = ~table.conflict[rows] & ((lock == 0) | (lock == code(mode)))
    if mode == SHARED:
        return _kept(rows, ~dynamic | by_lock)
    own = table.mode[rows]
    by_mode = (own == 0) | (own == code(mode))
    capable: Bools = getattr(table, _CAPABLE[mode])[rows] if mode in _CAPABLE else np.ones(len(rows), bool)
    return _kept(rows, capable & np.where(dynamic, by_lock, by_mode))


def by_whole(table: DeviceColumns, rows: Rows) -> Rows:
    """Idle ones, as far as that can be told: a device without figures is not."""
    idle = table.has_capacity[rows] & table.has_available[rows]
    idle &= (table.holders[rows] == 0) & (table.partitions[rows] == 0)
    idle &= table.free_tflops[rows] == table.capacity_tflops[rows]
    return _kept(rows, idle & (table.free_vram[rows] == table.capacity_vram[rows]))


def by_partition(table: DeviceColumns, rows: Rows, *, template: str, catalogue: PartitionCatalogue) -> Rows:
    """The model has the template, and the device may have one partition more. Decided once per model and
    memory: cards of one name are cut differently."""
    caps: dict[tuple[int, int], int] = {}

    def cap(row: int) -> int:
        card = int(table.model[row]), int(table.capacity_vram[row])
        if card not in caps:
            model = table.device(row).model
            is_known = not template or catalogue.named(model, table.capacity(row), template) is not None
            caps[card] = catalogue.cap(model) if is_known else 0
        return caps[card]

    return _kept(rows, table.partitions[rows] < np.array([cap(row) for row in rows.tolist()], dtype=np.int64))


def by_amounts(table: DeviceColumns, rows: Rows, *, request: GpuRequest) -> Rows:
    """A whole device is taken whatever is asked for; it must have as much all the same."""
    asked = request.request
    keep: Bools = table.has_available[rows] & ~table.taken_whole[rows]
    keep = keep & (table.free_tflops[rows] >= needed_tflops(table, rows, request))
    if asked.tflops_milli and not asked.percent_milli:
        keep &= table.compute_known[rows]
    return _kept(rows, keep & (table.free_vram[rows] >= needed_vram(table, rows, request)))


def needed_tflops(table: DeviceColumns, rows: Rows, request: GpuRequest) -> Int64s | int:
    """Per device where the request is a percentage."""
    percent = request.request.percent_milli
    if not percent:
        return request.request.tflops_milli
    return percent_of(percent, table.capacity_tflops[rows])


def percent_of(percent_milli: int, tflops_milli: Int64s) -> Int64s:
    """Of the compute of many devices, cut off to whole TFLOPS; `amounts.percent_of` for columns."""
    whole: Int64s = percent_milli * tflops_milli // _PERCENT_OF_MILLI * 1000
    return whole


def needed_vram(table: DeviceColumns, rows: Rows, request: GpuRequest) -> Int64s | int:
    percent = request.request.vram_percent_milli
    if not percent:
        return request.request.vram_bytes
    return vram_percent_of(percent, table.capacity_vram[rows])


def vram_percent_of(percent_milli: int, vram_bytes: Int64s) -> Int64s:
    """Cut off to bytes. In two parts, so that no product leaves 64 bits."""
    whole, rest = vram_bytes // 100_000, vram_bytes % 100_000
    part: Int64s = whole * percent_milli + rest * percent_milli // 100_000
    return part


def by_model(table: DeviceColumns, rows: Rows, *, model: str) -> Rows:
    return _kept(rows, table.model[rows] == table.strings.find(model)) if model else rows


def by_vendor(table: DeviceColumns, rows: Rows, *, vendor: str) -> Rows:
    return _kept(rows, table.vendor[rows] == table.strings.find(vendor)) if vendor else rows


def by_node_terms(table: DeviceColumns, rows: Rows, *, terms: tuple[NodeTerm, ...]) -> Rows:
    """Devices of nodes with such labels, as far as labels were told."""
    admitted = table.derived.get(("admits", terms))
    if admitted is None:
        if len(table.derived) >= _DERIVED_KEPT:
            table.derived.clear()
        admitted = table.derived["admits", terms] = np.zeros(len(table.strings), dtype=np.int64)
        nodes = table_of([NodeRow(name, labels) for name, labels in table.node_labels.items()])
        for name, fits in zip(nodes.names, matches_terms(nodes, terms).tolist(), strict=True):
            code = table.strings.find(name)
            if code > 0:
                admitted[code] = fits
    return _kept(rows, admitted[table.owner[rows]] != 0)


def by_worker_cap(table: DeviceColumns, rows: Rows, *, cap: int) -> Rows:
    if cap <= 0:
        return rows
    node = table.node[rows]
    return _kept(rows, (node == NO_NODE) | (table.workers[node] < cap))


def by_same_node(table: DeviceColumns, rows: Rows, *, count: int) -> Rows:
    """Devices in nodes that have enough of them; one without a node never counts."""
    if count <= 1:
        return rows
    node = table.node[rows]
    in_node = node != NO_NODE
    fitting = np.bincount(node[in_node], minlength=max(1, len(table.node_names)))
    return _kept(rows, in_node & (fitting[node] >= count))
