"""Traces: CSV files of pods (or of machines), read into arrivals.

What a file holds is told by its columns, gzip or not. Times count in seconds from the
trace's zero; an empty creation time is a pod that was there before, an empty deletion time
one that outlives the trace. A row that cannot be read is an error with its line: a
trace that is silently shorter would be another trace.
"""

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from karpool.fleet.simulation.arrivals import Arrival, Object, build
from karpool.fleet.simulation.scenario_file import Scenario, Trace
from karpool.fleet.strict_file import FleetError
from karpool.gpu.devices import PREFIX
from karpool.model import durations

BYTES_MAX = 512 * 2**20  # unpacked
FIELD_MAX = 4096
_MIB = 2**20
_GIB = 2**30
Row = Mapping[str, str]
Rows = Iterator[tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class TracedPod:
    """`gpu_share` is of one device, 0 to 1; with whole devices it is 1. Times are the trace's own."""

    name: str
    created: float | None
    deleted: float | None
    cpu_milli: int
    memory_bytes: int
    gpus: int = 0
    gpu_share: float = 1.0
    gpu_memory_bytes: int = 0


def trace_arrivals(scenario: Scenario, folder: Path) -> list[Arrival]:
    """Of all traces, in order of time. Raises FleetError."""
    found: list[Arrival] = []
    for index, trace in enumerate(scenario.traces):
        found.extend(_of(trace, scenario, folder, index))
    return sorted(found, key=lambda each: each.at)


def _of(trace: Trace, scenario: Scenario, folder: Path, index: int) -> Iterator[Arrival]:
    path = folder / trace.file
    home = trace.cluster or scenario.home
    start = durations.seconds(trace.start)
    with _opened(path) as lines:
        header, rows = _rows(path, lines, trace.select)
        if set(header) >= _MACHINES:
            yield from _machines(path, rows, trace, Arrival(start, home, {}))
            return
        pods = list(_reader(path, header)(path, rows))
    skip = durations.seconds(trace.skip)
    kept = [pod for pod in pods if pod.deleted is None or pod.deleted > skip]
    kept.sort(key=lambda pod: (pod.created or 0.0, pod.name))
    for number, pod in enumerate(kept[: trace.limit]):
        since = max((pod.created or 0.0) - skip, 0.0)
        at = start + since / trace.speed
        if at >= scenario.seconds:
            return
        left = None if pod.deleted is None else max(pod.deleted - skip - since, 1.0) / trace.speed
        built = _object(trace, pod, f"trace-{index}-{number}", left)
        yield Arrival(at, home, built, at + left if left is not None and trace.kind == "Deployment" else None)


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


# Reading


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """Raises FleetError."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise FleetError(f"{path}: {error.strerror}; give the path of a CSV file") from None
    with raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        with gzip.GzipFile(fileobj=raw) if packed else raw as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")


def _rows(path: Path, lines: io.TextIOWrapper, select: Mapping[str, str]) -> tuple[Sequence[str], Rows]:
    reader = csv.DictReader(_bounded(path, lines), restkey="", restval="")
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
    except (csv.Error, UnicodeDecodeError, OSError, EOFError) as error:
        raise FleetError(f"{path}: is not a CSV file: {error}") from None
    reader.fieldnames = header
    if missing := sorted(set(select) - set(header)):
        raise FleetError(f"{path}: select: has no column {missing[0]!r}; there are {', '.join(header[:40])}")

    def rows() -> Rows:
        try:
            for row in reader:
                if all(row[name] == value for name, value in select.items()):
                    yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError, OSError, EOFError) as error:
            raise FleetError(f"{path}:{reader.line_num}: is not a CSV file: {error}") from None

    return header, rows()


def _bounded(path: Path, lines: io.TextIOWrapper) -> Iterator[str]:
    left = BYTES_MAX
    while line := lines.readline(FIELD_MAX * 64):
        left -= len(line)
        if left < 0:
            raise FleetError(f"{path}: is larger than {BYTES_MAX // _MIB} MiB; cut it into parts")
        yield line


def _reader(path: Path, header: Sequence[str]) -> Callable[[Path, Rows], Iterator[TracedPod]]:
    columns = set(header)
    for needed, read in _FORMATS:
        if columns >= needed:
            return read
    known = "; ".join(", ".join(sorted(needed)) for needed, _ in _FORMATS)
    raise FleetError(
        f"{path}:1: columns {', '.join(header[:20])} are not those of a known trace; one of: {known}"
    )


def _number(path: Path, line: int, row: Row, column: str) -> float:
    """Empty is 0. Raises FleetError."""
    text = row[column].strip()
    try:
        value = float(text) if text else 0.0
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or value > 1e18:
        raise FleetError(f"{path}:{line}: {column}: {text[:100]!r} is not a number from 0")
    return value


def _time(path: Path, line: int, row: Row, column: str) -> float | None:
    return _number(path, line, row, column) if row.get(column, "").strip() else None


def _openb(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Pods of Alibaba's GPU trace of 2023, and every file with its columns."""
    for line, row in rows:
        share = _number(path, line, row, "gpu_milli") / 1000 if "gpu_milli" in row else 1.0
        yield TracedPod(
            row.get("name", str(line)),
            _time(path, line, row, "creation_time"),
            _time(path, line, row, "deletion_time"),
            cpu_milli=round(_number(path, line, row, "cpu_milli")),
            memory_bytes=round(_number(path, line, row, "memory_mib") * _MIB),
            gpus=round(_number(path, line, row, "num_gpu")) if "num_gpu" in row else 0,
            gpu_share=share or 1.0,
        )


def _dlrm(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Instances of Alibaba's recommendation services of 2025: cores and GiB."""
    for line, row in rows:
        yield TracedPod(
            row.get("instance_sn", str(line)),
            _time(path, line, row, "creation_time"),
            _time(path, line, row, "deletion_time"),
            cpu_milli=round(_number(path, line, row, "cpu_request") * 1000),
            memory_bytes=round(_number(path, line, row, "memory_request") * _GIB),
            gpus=round(_number(path, line, row, "gpu_request")) if "gpu_request" in row else 0,
        )


_SERVING_CPU_MILLI = 1000  # the trace of GPU use does not say; one core and 4 GiB serve a model
_SERVING_MEMORY = 4 * _GIB


def _use(path: Path, rows: Rows) -> Iterator[TracedPod]:
    """Samples of GPU use become one pod each, sized by its peak; it lives from first to last sample."""
    seen: dict[str, list[float]] = {}  # first, last, duty, memory
    for line, row in rows:
        at = _number(path, line, row, "t_s")
        duty, memory = (_number(path, line, row, name) for name in ("gpu_duty_pct", "gpu_mem_mib"))
        known = seen.setdefault(row["pod"], [at, at, 0.0, 0.0])
        known[0], known[1] = min(known[0], at), max(known[1], at)
        known[2], known[3] = max(known[2], duty), max(known[3], memory)
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


_Read = Callable[[Path, Rows], Iterator[TracedPod]]
_FORMATS: Sequence[tuple[set[str], _Read]] = (
    ({"cpu_milli", "memory_mib", "creation_time"}, _openb),
    ({"cpu_request", "memory_request", "creation_time"}, _dlrm),
    ({"t_s", "pod", "gpu_duty_pct", "gpu_mem_mib"}, _use),
)
_MACHINES = {"gpu_model", "gpu_capacity_num", "cpu_num", "node_name"}
_MEMORY_PER_CPU = 4 * _GIB  # the list of machines does not say


def _machines(path: Path, rows: Rows, trace: Trace, where: Arrival) -> Iterator[Arrival]:
    """A list of machines becomes nodes that are there from the start."""
    for number, (line, row) in enumerate(rows):
        if number >= trace.limit:
            return
        cpu, gpus = (round(_number(path, line, row, name)) for name in ("cpu_num", "gpu_capacity_num"))
        amounts = {"cpu": str(cpu), "memory": str(cpu * _MEMORY_PER_CPU), "pods": "110"}
        if gpus and trace.gpu and trace.gpu != "fraction":
            amounts[trace.gpu] = str(gpus)
        name = f"traced-{number}"
        labels = {"kubernetes.io/hostname": name, "gpu-model": row["gpu_model"][:63], **trace.labels}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": f"static:///traced/{name}"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
        yield Arrival(where.at, where.cluster, node)
