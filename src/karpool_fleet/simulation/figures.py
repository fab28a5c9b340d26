"""The figures of a run: definitions, units and formats.

One table for all output formats and for `expect` in a scenario file. A figure that does not apply to a run
(no GPU, no price) is None, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    unit: str
    digits: int = 0
    about: str = ""


FIGURES: Mapping[str, Figure] = {
    "cost": Figure("cost", "$", 2, "of all machines, by the hour and the catalogue's price"),
    "costPerHour": Figure("cost per hour", "$/h", 3, "mean"),
    "billed": Figure("billed", "$", 2, "of all machines under the contract, commitments included"),
    "billPredicted": Figure("bill as controllers saw it", "$", 2, "sampled"),
    "nodesMean": Figure("nodes, mean", "", 1),
    "nodesMost": Figure("nodes, most", ""),
    "nodesEnd": Figure("nodes at the end", ""),
    "launched": Figure("machines launched", ""),
    "refused": Figure("launches refused", "", 0, "by a cloud that was out of stock"),
    "pods": Figure("pods created", "", 0, "without placeholders and daemons"),
    "podsBound": Figure("pods given a node", ""),
    "podsEnded": Figure("pods that finished", ""),
    "pendingP50": Figure("pending, median", "s", 1, "from creation to a node; pods that still wait count"),
    "pendingP95": Figure("pending, 95 %", "s", 1),
    "pendingMost": Figure("pending, longest", "s", 1),
    "pendingEnd": Figure("pods pending at the end", ""),
    "stuckMost": Figure("over-commitment, most", "pods", 0, "pods that waited longer than `stuckAfter`"),
    "stuckHours": Figure("over-commitment", "pod h", 3, "time beyond `stuckAfter`, summed over pods"),
    "overfull": Figure("nodes filled beyond their size", "", 0, "at a moment a pod was bound"),
    "evictions": Figure("pods evicted", "", 0, "through the eviction API"),
    "evictionsPerPodDay": Figure("evictions per pod and day", "", 4),
    "lost": Figure("pods lost with their node", ""),
    "nodesRemoved": Figure("nodes that went", ""),
    "cpuUse": Figure("CPU requested", "%", 1, "of what there was, over the time"),
    "memoryUse": Figure("memory requested", "%", 1),
    "gpuUse": Figure("GPU utilisation", "%", 1, "GPUs and fractions that were given away"),
    "gpuHours": Figure("GPU hours given", "h", 2),
    "placed": Figure("placements decided", "", 0, "changes of a binding's clusters"),
    "replicasMoved": Figure("replicas moved", "", 0, "taken from one cluster while another got more"),
    "moves": Figure("consolidation moves done", ""),
    "movesRejected": Figure("moves rolled back or rejected", ""),
    "scaleUps": Figure("GPU scale-ups", ""),
    "leftovers": Figure("placeholders left at the end", ""),
    "arrivalsRefused": Figure("arrivals refused", "", 0, "objects that a cluster did not accept"),
    "restarts": Figure("controllers that failed and came back", ""),
    "decisions": Figure("lines of the decision log", ""),
}


@dataclass(frozen=True)
class FigureSeries:
    """One line of a plot: a value per sample, None where there was none."""

    title: str
    unit: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Result:
    """The result of one variant. `log` holds the lines of the decision log, without line ends."""

    variant: str
    seed: int
    seconds: float
    figures: Mapping[str, float | None]
    by_cluster: Mapping[str, Mapping[str, float | None]]
    times: Sequence[float]  # times of the samples, in seconds
    series: Mapping[str, FigureSeries]
    log: Sequence[bytes] = field(repr=False, default=())
    log_sha256: str = ""
    notes: Sequence[str] = ()  # remarks about the traces for readers of the figures


def shown(name: str, value: float | None) -> str:
    """Format a value for people: rounded, with thousands separators; the title of the row has the unit."""
    if value is None:
        return "-"
    return f"{value:,.{FIGURES[name].digits}f}"


def titled(name: str) -> str:
    figure = FIGURES[name]
    return f"{figure.title} ({figure.unit})" if figure.unit else figure.title


def document(result: Result) -> dict[str, Any]:
    """Return the document for machines: rounded to nine digits, so that it is the same on every machine."""
    return {
        "variant": result.variant,
        "seed": result.seed,
        "simulatedSeconds": result.seconds,
        "figures": _rounded(result.figures),
        "clusters": {name: _rounded(found) for name, found in result.by_cluster.items()},
        "times": [round(time, 3) for time in result.times],
        "series": {
            name: {"title": series.title, "unit": series.unit, "values": [_round(v) for v in series.values]}
            for name, series in result.series.items()
        },
        "decisionLogSha256": result.log_sha256,
    }


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _round(value) for name, value in figures.items()}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 9)
