"""History of a fleet over the last hour, day and 30 days, in ring buffers of fixed size.

A ring has one row for each step: amounts are the mean of the samples, counts the sum. A step without samples
has no values. The cluster with an empty name is the whole fleet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from karpool.dashboard.api.list_views import TimeSeries
from karpool.dashboard.api.views import ClusterRow
from karpool.model import resources
from karpool.model.errors import Invalid

SAMPLE_SECONDS = 10.0
FLEET = ""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A number of steps and their length in seconds. A chart has pixels for 360 to 720 points."""

    name: str
    step_seconds: int
    steps: int

    @property
    def seconds(self) -> int:
        return self.step_seconds * self.steps


RANGES = (TimeRange("hour", 10, 360), TimeRange("day", 120, 720), TimeRange("month", 3600, 720))
# Name, unit, and whether it is a sum within a step (otherwise a mean).
SERIES: tuple[tuple[str, str, bool], ...] = (
    ("cost", "$/h", False),
    ("nodes", "nodes", False),
    ("cpuRequested", "milli-CPU", False),
    ("cpuFree", "milli-CPU", False),
    ("memoryRequested", "bytes", False),
    ("memoryFree", "bytes", False),
    ("waiting", "pods", False),
    ("evictions", "pods", True),
    ("promises", "replicas", False),
    ("clusters", "clusters", False),
)
NAMES = tuple(name for name, _, _ in SERIES)
_COUNTED = np.array([counted for _, _, counted in SERIES])
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StoredStep:
    """One row of a ring for storage: the number of samples in `looks`, and their sums."""

    cluster: str
    step_seconds: int
    step: int
    looks: int
    sums: tuple[float, ...]


def range_of(name: str) -> TimeRange:
    for time_range in RANGES:
        if time_range.name == name:
            return time_range
    raise Invalid("range", name, f"must be one of {', '.join(time_range.name for time_range in RANGES)}")


def filled(own: TimeSeries, past: Mapping[str, Mapping[int, float]], remark: str) -> TimeSeries:
    """Fill steps without samples from another source, by series and step."""
    steps = [round(at / own.step_seconds) for at in own.times]
    series = {
        name: [
            past.get(name, {}).get(step) if value is None else value
            for step, value in zip(steps, values, strict=True)
        ]
        for name, values in own.series.items()
    }
    return replace(own, series=series, remarks=[remark] if remark else [])


class TimeRing:
    def __init__(self, range_: TimeRange) -> None:
        self.range = range_
        self._steps = np.full(range_.steps, -1, dtype=np.int64)
        self._looks = np.zeros(range_.steps, dtype=np.int64)
        self._sums = np.zeros((range_.steps, len(SERIES)))

    def add(self, now: float, values: Values) -> int:
        """Add a sample; return its step."""
        step = int(now // self.range.step_seconds)
        self._put(step, self._looks_of(step) + 1, self._sums_of(step) + values)
        return step

    def restore(self, step: int, looks: int, sums: Sequence[float]) -> None:
        if step > self._steps[step % self.range.steps]:
            self._put(step, looks, np.array(sums))

    def stored(self, step: int) -> tuple[int, tuple[float, ...]]:
        return self._looks_of(step), tuple(self._sums_of(step).tolist())

    def between(self, begin: float, end: float) -> Iterator[tuple[int, Values | None]]:
        """Yield each step with its values; None without samples."""
        size = self.range.step_seconds
        last = int(end // size)
        first = max(int(begin // size), last - self.range.steps + 1)
        for step in range(first, last + 1):
            looks = self._looks_of(step)
            if not looks:
                yield step, None
                continue
            sums = self._sums_of(step)
            yield step, np.where(_COUNTED, sums, sums / looks)

    def _put(self, step: int, looks: int, sums: Values) -> None:
        row = step % self.range.steps
        self._steps[row], self._looks[row], self._sums[row] = step, looks, sums

    def _looks_of(self, step: int) -> int:
        row = step % self.range.steps
        return int(self._looks[row]) if self._steps[row] == step else 0

    def _sums_of(self, step: int) -> Values:
        row = step % self.range.steps
        return self._sums[row] if self._steps[row] == step else np.zeros(len(SERIES))


class FleetHistory:
    """The rings of every cluster. A removed cluster keeps its history while there is space."""

    def __init__(self, clusters_max: int = 500) -> None:
        self._clusters_max = clusters_max
        self._rings: dict[str, tuple[TimeRing, ...]] = {}
        self._evicted: dict[str, int] = {}

    def sample(
        self, rows: Iterable[ClusterRow], evictions: Mapping[str, int], now: float
    ) -> list[StoredStep]:
        """Add samples; clusters that are not synced are left out.

        Returns the changed rows. `evictions` are totals since the start.
        """
        total = np.zeros(len(SERIES))
        changed: list[StoredStep] = []
        for row in rows:
            if row.not_ready:
                continue
            before = self._evicted.get(row.name, 0)
            self._evicted[row.name] = evictions.get(row.name, before)
            values = _values(row, max(0, self._evicted[row.name] - before))
            total += values
            changed += self._add(row.name, values, now)
        if total[NAMES.index("clusters")]:
            changed += self._add(FLEET, total, now)
        return changed

    def restore(self, steps: Iterable[StoredStep]) -> None:
        for stored in steps:
            for ring in self._of(stored.cluster):
                if ring.range.step_seconds == stored.step_seconds and len(stored.sums) == len(SERIES):
                    ring.restore(stored.step, stored.looks, stored.sums)

    def read(
        self, cluster: str, range_: str, begin: float | None, end: float | None, now: float
    ) -> TimeSeries:
        """Return the series of a cluster, or of the fleet. Raises Invalid for an unknown range."""
        chosen = range_of(range_)
        until = min(now, end) if end is not None else now
        since = max(until - chosen.seconds, begin) if begin is not None else until - chosen.seconds
        rings = self._rings.get(cluster, ())
        ring = next((ring for ring in rings if ring.range == chosen), TimeRing(chosen))
        steps = list(ring.between(since, until))
        return TimeSeries(
            at=now,
            cluster=cluster,
            begin=since,
            end=until,
            step_seconds=chosen.step_seconds,
            times=[float(step * chosen.step_seconds) for step, _ in steps],
            series={
                name: [None if values is None else float(values[number]) for _, values in steps]
                for number, name in enumerate(NAMES)
            },
            units={name: unit for name, unit, _ in SERIES},
        )

    def _add(self, cluster: str, values: Values, now: float) -> Iterator[StoredStep]:
        for ring in self._of(cluster):
            step = ring.add(now, values)
            yield StoredStep(cluster, ring.range.step_seconds, step, *ring.stored(step))

    def _of(self, cluster: str) -> tuple[TimeRing, ...]:
        if cluster not in self._rings:
            while len(self._rings) >= self._clusters_max:
                del self._rings[next(name for name in self._rings if name != FLEET)]
            self._rings[cluster] = tuple(map(TimeRing, RANGES))
        return self._rings[cluster]


def series_of(row: ClusterRow) -> dict[str, float]:
    """Return the sampled values of a cluster, without its evictions."""
    amounts = {
        name: (amount.requested, max(0, amount.allocatable - amount.requested))
        for name, amount in row.amounts.items()
    }
    cpu, memory = amounts.get(resources.CPU, (0, 0)), amounts.get(resources.MEMORY, (0, 0))
    return {
        "cost": row.price_per_hour,
        "nodes": row.nodes,
        "cpuRequested": cpu[0],
        "cpuFree": cpu[1],
        "memoryRequested": memory[0],
        "memoryFree": memory[1],
        "waiting": row.pending,
        "promises": row.promised_replicas,
        "clusters": 1.0,
    }


def _values(row: ClusterRow, evictions: int) -> Values:
    values = {**series_of(row), "evictions": evictions}
    return np.array([values[name] for name in NAMES], dtype=np.float64)
