"""Traces: CSV files of pods (or of machines) that become arrivals.

The columns of a file determine its format; gzip is supported. Times are seconds from the trace's zero; a pod
without creation time existed before, and one without deletion time outlives the trace. A row that cannot be
read is an error with its line: a silently shorter trace would be another trace. Memory is bounded by the
`limit` of a trace, not by its file.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from karpool.model import durations
from karpool.model.devices.device import PREFIX
from karpool_fleet.clusters.strict_file import FleetError
from karpool_fleet.simulation.arrivals import Arrival, Object, build
from karpool_fleet.simulation.scenario_file import ARRIVALS_MAX, Scenario, Trace
from karpool_fleet.simulation.trace_rows import Progress, Row, Rows, can_be_read_twice, opened, shown

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class TracedPod:
    """A pod of a trace.

    `gpu_share` is of one device, 0 to 1; with whole devices it is 1. Times are the trace's.
    """

    name: str
    created: float | None
    deleted: float | None
    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_share: float = 1.0
    gpu_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TracedMachine:
    cpu_milli: int
    memory_bytes: int
    gpus: int
    gpu_model: str


@dataclass
class Traced:
    """The arrivals of all traces in order of time; `notes` say what is left out or missing."""

    arrivals: list[Arrival] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_traces(scenario: Scenario, folder: Path) -> None:
    """Check that the files exist and have known columns. Raises FleetError."""
    for index, trace in enumerate(scenario.traces):
        path = folder / trace.file
        if can_be_read_twice(path):
            with opened(path) as table:
                _format(path, table.header)
                next(table.rows(trace.select), None)
                _check_home(scenario, index, path, table.header)


def read_traces(scenario: Scenario, folder: Path, progress: Progress = lambda share: None) -> Traced:
    """Read the traces. Raises FleetError."""
    trace = Traced()
    count = len(scenario.traces)
    for index in range(count):

        def one(share: float, done: int = index) -> None:
            progress((done + share) / count)

        trace.arrivals.extend(_of(scenario, index, folder, one, trace.notes))
    trace.arrivals.sort(key=lambda arrival: arrival.at)
    progress(1.0)
    return trace


def _of(
    scenario: Scenario, index: int, folder: Path, progress: Progress, notes: list[str]
) -> Iterator[Arrival]:
    trace = scenario.traces[index]
    path = folder / trace.file
    home = trace.cluster or scenario.home
    with opened(path, progress) as table:
        rows = table.rows(trace.select)
        _check_home(scenario, index, path, table.header)
        kind = _format(path, table.header)
        if kind.machine is not None:
            start, number = durations.seconds(trace.start), -1
            for number, (line, row) in enumerate(rows):
                if number == trace.limit:
                    notes.append(f"{path}: only the first {trace.limit:,} machines are there (limit)")
                    return
                yield Arrival(start, home, _node(trace, kind.machine(path, line, row), f"{index}-{number}"))
            if number < 0:
                notes.append(_nothing(path, trace))
            return
        assert kind.pods is not None
        within = _Within(trace, scenario.seconds)
        first = within.first(kind.pods(path, rows))
    if within.rows == 0:
        notes.append(_nothing(path, trace))
    elif within.kept > trace.limit:
        notes.append(f"{path}: the first {trace.limit:,} of {within.kept:,} pods come (limit)")
    for number, pod in enumerate(first):
        left = within.left(pod)
        at = within.at(pod)
        built = _object(trace, pod, f"trace-{index}-{number}", left)
        yield Arrival(at, home, built, at + left if left is not None and trace.kind == "Deployment" else None)


def _nothing(path: Path, trace: Trace) -> str:
    return f"{path}: has no rows" + (" that are selected" if trace.select else "")


class _Within:
    """Maps the pods of a trace into the time of the scenario."""

    def __init__(self, trace: Trace, seconds: float) -> None:
        self._limit, self._speed, self._seconds = trace.limit, trace.speed, seconds
        self._skip, self._start = durations.seconds(trace.skip), durations.seconds(trace.start)
        self.rows = self.kept = 0

    def first(self, pods: Iterator[TracedPod]) -> list[TracedPod]:
        """Return the first pods in order of time, up to the limit; only these are held in memory."""
        return heapq.nsmallest(
            self._limit, self._counted(pods), key=lambda pod: (pod.created or 0.0, pod.name)
        )

    def _counted(self, pods: Iterator[TracedPod]) -> Iterator[TracedPod]:
        for pod in pods:
            self.rows += 1
            if (pod.deleted is None or pod.deleted > self._skip) and self.at(pod) < self._seconds:
                self.kept += 1
                yield pod

    def at(self, pod: TracedPod) -> float:
        return self._start + self._since(pod) / self._speed

    def left(self, pod: TracedPod) -> float | None:
        """Return how long a pod runs."""
        if pod.deleted is None:
            return None
        return max(pod.deleted - self._skip - self._since(pod), 1.0) / self._speed

    def _since(self, pod: TracedPod) -> float:
        return max((pod.created or 0.0) - self._skip, 0.0)


def _object(trace: Trace, pod: TracedPod, name: str, seconds: float | None) -> Object:
    requests = {
        "cpu": f"{max(1, round(pod.cpu_milli * trace.cpu))}m",
        "memory": str(max(1, round(pod.memory_bytes * trace.memory))),
    }
    annotations: dict[str, str] = {}
    if pod.gpus and trace.gpu == "fraction":
        percent = max(1, round(100 * pod.gpu_share))
        annotations[PREFIX + "compute-percent-request"] = str(percent)
        annotations[PREFIX + "gpu-count"] = str(pod.gpus)
        if pod.gpu_memory_bytes:
            annotations[PREFIX + "vram-request"] = str(pod.gpu_memory_bytes)
    elif pod.gpus and trace.gpu:
        requests[trace.gpu] = str(pod.gpus)
    return build(
        trace.kind,
        name,
        trace.namespace,
        requests,
        labels=trace.labels,
        annotations=annotations,
        pod=trace.pod,
        run_seconds=seconds,
    )


def _node(trace: Trace, machine: TracedMachine, name: str) -> Object:
    amounts = {"cpu": f"{machine.cpu_milli}m", "memory": str(machine.memory_bytes), "pods": "110"}
    if machine.gpus and trace.gpu and trace.gpu != "fraction":
        amounts[trace.gpu] = str(machine.gpus)
    labels = {"kubernetes.io/hostname": f"traced-{name}", **trace.labels}
    if machine.gpu_model:
        labels["gpu-model"] = machine.gpu_model[:63]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"traced-{name}", "labels": labels},
        "spec": {"providerID": f"static:///traced/traced-{name}"},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


# Formats


def _number(path: Path, line: int, row: Row, column: str) -> float:
    """Return a number; 0 for an empty field. Raises FleetError."""
    text = row[column].strip()
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or value > 1e18:
        raise FleetError(f"{path}:{line}: {column}: {text[:100]!r} is not a number from 0")
    return value


def _whole(path: Path, line: int, row: Row, column: str) -> int:
    """Return a whole number; 0 without the column. Raises FleetError."""
    value = _number(path, line, row, column) if column in row else 0.0
    if not value.is_integer():
        raise FleetError(f"{path}:{line}: {column}: {row[column][:100]!r} is not a whole number")
    return int(value)


def _times(path: Path, line: int, row: Row) -> tuple[float | None, float | None]:
    created, deleted = (
        _number(path, line, row, column) if row.get(column, "").strip() else None
        for column in ("creation_time", "deletion_time")
    )
    if created is not None and deleted is not None and deleted < created:
        raise FleetError(
            f"{path}:{line}: deletion_time: {deleted:g} is before creation_time, which is {created:g}"
        )
    return created, deleted


def _openb(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Read pods of Alibaba's GPU trace of 2023, and of every file with its columns."""
    for line, row in rows:
        share = _number(path, line, row, "gpu_milli") / 1000 if "gpu_milli" in row else 1.0
        yield TracedPod(
            row.get("name", str(line)),
            *_times(path, line, row),
            cpu_milli=round(_number(path, line, row, "cpu_milli")),
            memory_bytes=round(_number(path, line, row, "memory_mib") * _MIB),
            gpus=_whole(path, line, row, "num_gpu"),
            gpu_share=share or 1.0,
        )


def _dlrm(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Read instances of Alibaba's recommendation services of 2025: cores and GiB."""
    for line, row in rows:
        yield TracedPod(
            row.get("instance_sn", str(line)),
            *_times(path, line, row),
            cpu_milli=round(_number(path, line, row, "cpu_request") * 1000),
            memory_bytes=round(_number(path, line, row, "memory_request") * _GIB),
            gpus=_whole(path, line, row, "gpu_request"),
        )


_SERVING_CPU_MILLI = 1000  # not in the trace of GPU use; one core and 4 GiB serve a model
_SERVING_MEMORY = 4 * _GIB


def _use(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Turn samples of GPU use into one pod each, with its peak as size, from first to last sample."""
    seen: dict[str, list[float]] = {}  # first, last, duty, memory
    for line, row in rows:
        at = _number(path, line, row, "t_s")
        duty, memory = (_number(path, line, row, name) for name in ("gpu_duty_pct", "gpu_mem_mib"))
        span = seen.setdefault(row["pod"], [at, at, 0.0, 0.0])
        span[0], span[1] = min(span[0], at), max(span[1], at)
        span[2], span[3] = max(span[2], duty), max(span[3], memory)
        if len(seen) > ARRIVALS_MAX:
            raise FleetError(f"{path}:{line}: has more than {ARRIVALS_MAX:,} pods; cut it into parts")
    for name, (first, last, duty, memory) in seen.items():
        yield TracedPod(
            name,
            first,
            last,
            _SERVING_CPU_MILLI,
            _SERVING_MEMORY,
            gpus=1,
            gpu_share=min(max(duty / 100, 0.01), 1.0),
            gpu_memory_bytes=round(memory * _MIB),
        )


_MEMORY_PER_CPU = 4 * _GIB  # not in the list of spot machines


def _spot_machine(path: Path, line: int, row: Row) -> TracedMachine:
    """Read a machine of Alibaba's spot GPU trace of 2026."""
    cpu = round(_number(path, line, row, "cpu_num"))
    gpus = _whole(path, line, row, "gpu_capacity_num")
    return TracedMachine(cpu * 1000, cpu * _MEMORY_PER_CPU, gpus, row["gpu_model"].strip())


def _openb_machine(path: Path, line: int, row: Row) -> TracedMachine:
    """Read a machine of Alibaba's GPU trace of 2023."""
    return TracedMachine(
        cpu_milli=round(_number(path, line, row, "cpu_milli")),
        memory_bytes=round(_number(path, line, row, "memory_mib") * _MIB),
        gpus=_whole(path, line, row, "gpu"),
        gpu_model=row["model"].strip(),
    )


@dataclass(frozen=True)
class _Format:
    """The columns of a file format, and its reader: for pods, or for one machine per row."""

    columns: tuple[str, ...]
    pods: Callable[[Path, Rows], Iterator[TracedPod]] | None = None
    machine: Callable[[Path, int, Row], TracedMachine] | None = None


_FORMATS: Sequence[_Format] = (
    _Format(("cpu_milli", "memory_mib", "creation_time"), pods=_openb),
    _Format(("cpu_milli", "memory_mib", "num_gpu"), pods=_openb),  # all exist from the start
    _Format(("cpu_request", "memory_request", "creation_time"), pods=_dlrm),
    _Format(("t_s", "pod", "gpu_duty_pct", "gpu_mem_mib"), pods=_use),
    _Format(("gpu_model", "gpu_capacity_num", "cpu_num", "node_name"), machine=_spot_machine),
    _Format(("sn", "cpu_milli", "memory_mib", "gpu", "model"), machine=_openb_machine),
)


def _format(path: Path, header: Sequence[str]) -> _Format:
    """Return the format. Raises FleetError with the columns that the nearest format needs."""
    columns = set(header)
    for trace_format in _FORMATS:
        if columns.issuperset(trace_format.columns):
            return trace_format
    nearest = max(
        _FORMATS,
        key=lambda trace_format: len(columns.intersection(trace_format.columns)) / len(trace_format.columns),
    )
    if columns.intersection(nearest.columns):
        missing = [name for name in nearest.columns if name not in columns]
        raise FleetError(
            f"{path}:1: has no column {', '.join(missing)}, which goes with "
            f"{', '.join(name for name in nearest.columns if name in columns)}"
        )
    formats = "; ".join(", ".join(trace_format.columns) for trace_format in _FORMATS)
    raise FleetError(f"{path}:1: columns {shown(header)} are not those of a known trace; one of: {formats}")


def _check_home(scenario: Scenario, index: int, path: Path, header: Sequence[str]) -> None:
    trace = scenario.traces[index]
    if scenario.karmada is None or _format(path, header).machine is None:
        return
    if (trace.cluster or scenario.home) == scenario.karmada.name:
        raise FleetError(f"{path}: has machines, which Karmada has not: set traces[{index}].cluster")
