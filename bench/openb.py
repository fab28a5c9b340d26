"""The openb trace and the protocol of its published results.

The pods of a list arrive in shuffled order, topped up or thinned to 130 % of all GPUs,
never leave and are not retried. Reported is the GPU share allocated when the pods
that came so far ask for 100 %, and how much of it is then idle and of no use.

The trace is not part of this repository: KARPOOL_OPENB names its folder.
"""

import csv
import gzip
import os
import statistics
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
WHOLE = 1000
ARRIVING = 1.3
TYPICAL = 0.95
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "gpu_openb"


class TraceAbsent(Exception):
    """The trace is not here."""


@dataclass(frozen=True, slots=True)
class TracePod:
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        return self.gpus * self.gpu_milli


@dataclass(frozen=True)
class TraceNodes:
    names: list[str]
    cpu_milli: Ints
    memory_mib: Ints
    gpus: Ints
    models: list[str]

    @property
    def total_milli(self) -> int:
        return int(self.gpus.sum()) * WHOLE


def folder() -> Path:
    given = os.environ.get("KARPOOL_OPENB")
    found = Path(given) if given else BESIDE
    if not (found / "nodes_gpu_node.csv.gz").is_file():
        raise TraceAbsent("no trace: set KARPOOL_OPENB to a folder with nodes_gpu_node.csv.gz, pods_*.csv.gz")
    return found


def _table(name: str) -> list[dict[str, str]]:
    with gzip.open(folder() / name, "rt", newline="") as lines:
        return list(csv.DictReader(lines))


@cache
def nodes() -> TraceNodes:
    rows = sorted(_table("nodes_gpu_node.csv.gz"), key=lambda row: row["sn"])

    def column(name: str) -> Ints:
        return np.array([int(row[name]) for row in rows], dtype=np.int64)

    return TraceNodes(
        [row["sn"] for row in rows],
        column("cpu_milli"),
        column("memory_mib"),
        column("gpu"),
        [row["model"] for row in rows],
    )


@cache
def pods(variant: str) -> tuple[TracePod, ...]:
    rows = sorted(_table(f"pods_{variant}.csv.gz"), key=lambda row: row["name"])
    return tuple(
        TracePod(
            int(row["cpu_milli"]),
            int(row["memory_mib"]),
            int(row["num_gpu"]),
            int(row["gpu_milli"]) if int(row["num_gpu"]) else 0,
            tuple(sorted(set(filter(None, (row.get("gpu_spec") or "").split("|"))))),
        )
        for row in rows
    )


def variants() -> list[str]:
    """Those with published results."""
    return sorted({name for name, _ in published()})


@cache
def published() -> dict[tuple[str, str], float]:
    """Mean over the seeds of the GPU percentage allocated at 100 % arrival, by variant and policy."""
    values: dict[tuple[str, str], list[float]] = {}
    for row in _table("fgd_expected_alloc.csv.gz"):
        key = (row["workload"].removeprefix("openb_pod_list_"), row["sc_policy"].partition("-")[2])
        values.setdefault(key, []).append(float(row["100"]))
    return {key: statistics.fmean(each) for key, each in values.items()}


def arrivals(variant: str, seed: int) -> list[TracePod]:
    random, known = np.random.default_rng(seed), pods(variant)
    most = nodes().total_milli * ARRIVING
    arriving = [known[place] for place in random.permutation(len(known))]
    asked = sum(pod.asked for pod in arriving)
    while asked + (pod := known[random.integers(len(known))]).gpu_milli <= most:
        arriving.append(pod)
        asked += pod.asked
    while asked > most:
        asked -= arriving.pop(int(random.integers(len(arriving)))).asked
    return arriving


def usual(variant: str) -> Counter[TracePod]:
    """The specs of the list that make up 95 % of it; memory is not part of a spec."""
    counted = Counter(
        TracePod(pod.cpu_milli, 0, pod.gpus, pod.gpu_milli, pod.models) for pod in pods(variant)
    )
    kept, reached = Counter[TracePod](), 0
    for pod, number in counted.most_common():
        kept[pod] = number
        reached += number
        if reached >= TYPICAL * counted.total():
            break
    return kept


class Placing(Protocol):
    """A cluster under one policy."""

    def place(self, pod: TracePod) -> bool: ...

    def free_gpus(self) -> Ints:
        """Free thousandths per node and GPU; -1 where there is none."""
        ...

    def free_cpu(self) -> Ints: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    allocated_percent: float
    fragmented_percent: float
    refused: int


def replay(variant: str, seed: int, cluster: Placing) -> Outcome:
    """Until the pods that came ask for 100 % of the GPUs; the mean over the last percent."""
    total = nodes().total_milli
    came = placed = refused = 0
    shares = []
    for pod in arrivals(variant, seed):
        came += pod.asked
        if cluster.place(pod):
            placed += pod.asked
        else:
            refused += 1
        percent = came / total * 100
        if percent >= 99.5:
            shares.append(placed / total * 100)
        if percent > 100.5:
            break
    lost = Fragments(usual(variant)).lost(
        cluster.free_cpu(), cluster.free_gpus(), np.arange(len(nodes().names))
    )
    return Outcome(statistics.fmean(shares), float(lost.sum()) / total * 100, refused)


class Fragments:
    """Idle GPU that the usual pods cannot use, as the authors of the trace define it."""

    def __init__(self, typical: Counter[TracePod]) -> None:
        total = typical.total()
        together: dict[tuple[int, int, tuple[str, ...]], list[tuple[int, float]]] = {}
        for pod, number in typical.items():
            if pod.gpus:
                key = (pod.gpu_milli, pod.gpus, pod.models)
                together.setdefault(key, []).append((pod.cpu_milli, number / total))
        self._groups = []
        for (milli, gpus, models), members in together.items():
            members.sort()
            cpu = np.array([each for each, _ in members], dtype=np.int64)
            likely = np.concatenate(([0.0], np.cumsum([weight for _, weight in members])))
            allowed = np.array([not models or model in models for model in nodes().models])
            self._groups.append((milli, gpus, allowed, cpu, likely))

    def lost(self, cpu: Ints, gpus: Ints, which: Ints) -> Floats:
        """Of nodes in these states; `which` are the numbers of the nodes."""
        free = np.maximum(gpus, 0)
        found: Floats = free.sum(axis=1).astype(np.float64)
        usable: dict[int, tuple[Ints, Ints]] = {}
        for milli, count, allowed, needs, likely in self._groups:
            if milli not in usable:
                fits = gpus >= milli
                usable[milli] = fits.sum(axis=1), (free * fits).sum(axis=1)
            number, amount = usable[milli]
            chance = likely[np.searchsorted(needs, cpu, side="right")]
            found -= chance * (allowed[which] & (number >= count)) * amount
        return found
