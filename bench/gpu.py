"""The GPU allocator: single allocations on a large pool, and the openb trace.

The trace is replayed through the allocator itself, reservation and commit included; the
published policies are replayed through bench/openb_policies.py by the same protocol.
KARPOOL_OPENB_SEEDS sets how many seeds each replay takes (published: ten).
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import openb, openb_policies
from bench.openb import WHOLE, Ints, TracePod, nodes, published, replay, usual, variants
from karpool.gpu.allocation.allocator import Allocator, AllocatorSettings
from karpool.gpu.allocation.open_nodes import NodeChoice
from karpool.gpu.strategies import registry as strategies
from karpool.gpu.strategies.fragmentation import TIE, FragmentationStrategy
from karpool.gpu.strategies.fragmentation_score import FragmentationScore
from karpool.gpu.strategies.request_mix import RequestMix, mix_of_counts, shape_of
from karpool.gpu.strategies.strategy import PlacementStrategy
from karpool.gpu.strategies.strategy_name import StrategyName
from karpool.model.devices.amounts import DeviceAmount, DeviceShare
from karpool.model.devices.device import RUNNING, Device
from karpool.model.devices.isolation import SHARED, SOFT
from karpool.model.devices.request import GpuRequest
from karpool.model.infeasible import Infeasible
from karpool.model.requirements import NodeTerm, ValueSet
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools
from karpool.packing.tables.node_table import NodeRow, NodeTable, table_of

POOL = "openb"
MODEL_LABEL = "gpu-model"
MIB, GIB = 2**20, 2**30
FIRST_SEED = 42


# The trace as devices and requests


def request_of(pod: TracePod, number: int = 0) -> GpuRequest:
    """A thousandth of a GPU is a thousandth of a TFLOP here: the trace knows shares only."""
    models = ValueSet(frozenset(pod.models))
    whole = pod.gpu_milli == WHOLE
    return GpuRequest(
        uid=f"pod-{number}",
        pool=POOL,
        request=DeviceShare() if whole else DeviceShare(pod.gpu_milli),
        isolation=SHARED if whole else SOFT,
        count=pod.gpus,
        node_terms=(NodeTerm(((MODEL_LABEL, models),)),) if pod.models else None,
        cpu_milli=pod.cpu_milli,
        memory_bytes=pod.memory_mib * MIB,
    )


def usual_mix(variant: str) -> RequestMix:
    """What FGD knows beforehand: the usual specs and how often each comes."""
    counted = {shape_of(request_of(pod)): number for pod, number in usual(variant).items()}
    return mix_of_counts(counted, covered=1.0)


def _has_room(allocator: Allocator, request: GpuRequest) -> Bools:
    table = allocator.table
    fits: Bools = (table.cpu_room >= request.cpu_milli) & (table.memory_room >= request.memory_bytes)
    return fits


class Karpool:
    """The allocator as the cluster of a replay."""

    def __init__(self, variant: str, strategy: PlacementStrategy | None = None) -> None:
        self.strategy = FragmentationStrategy(usual_mix(variant)) if strategy is None else strategy
        self.allocator = Allocator(AllocatorSettings(strategy=self.strategy, workers_per_node=0))
        given = nodes()
        for place, name in enumerate(given.names):
            labels = {MODEL_LABEL: given.models[place]}
            for number in range(int(given.gpus[place])):
                self.allocator.put_device(
                    Device(
                        f"{name}-{number}",
                        node=name,
                        owner=name,
                        pool=POOL,
                        phase=RUNNING,
                        model=given.models[place],
                        index=number,
                        capacity=DeviceAmount(WHOLE, 0),
                    )
                )
            self.allocator.put_node(
                name,
                labels,
                cpu_milli=int(given.cpu_milli[place]),
                memory_bytes=int(given.memory_mib[place]) * MIB,
            )
        self.allocator.open()
        self.seconds: list[float] = []
        self._came = 0
        self._nodes: NodeTable | None = None
        self._score: FragmentationScore | None = None
        self._gains: dict[
            int, tuple[Ints, npt.NDArray[np.float64]]
        ] = {}  # by CPU: of which version, and what

    def place(self, pod: TracePod) -> bool:
        self._came += 1
        request = request_of(pod, self._came)
        if not pod.gpus:
            return self._place_without_gpu(request)
        start = perf_counter()
        found = self.allocator.try_allocate(request, nodes=self._open_to(request))
        self.seconds.append(perf_counter() - start)
        if isinstance(found, Infeasible):
            return False
        self.allocator.commit(request.uid)
        return True

    def _open_to(self, request: GpuRequest) -> NodeChoice:
        """Nodes that take the pod: the trace knows CPU, memory and models of nodes, and nothing else."""
        is_open = _has_room(self.allocator, request)
        if request.node_terms is not None:
            names = self.allocator.table.node_names
            if self._nodes is None or self._nodes.n != len(names):
                labels = self.allocator.table.node_labels
                self._nodes = table_of([NodeRow(name, labels.get(name, {})) for name in names])
            is_open[: len(names)] &= matches_terms(self._nodes, request.node_terms)
        return NodeChoice(is_open)

    def _place_without_gpu(self, request: GpuRequest) -> bool:
        table = self.allocator.table
        where = np.flatnonzero(_has_room(self.allocator, request)[: len(table.node_names)])
        if not len(where):
            return False
        ours = self.strategy
        node = (
            self._least_missed(ours.score(table), where, request.cpu_milli)
            if isinstance(ours, FragmentationStrategy)
            else int(where[0])
        )
        table.occupy(node, request.cpu_milli, request.memory_bytes, int(table.workers[node]))
        return True

    def _least_missed(self, score: FragmentationScore, where: Ints, cpu_milli: int) -> int:
        """The node whose GPUs miss the CPU of a pod without GPU least; the trace has such pods, too."""
        table = self.allocator.table
        if score is not self._score:
            self._score = score
            self._gains.clear()
        size = len(table.node_names)
        version, gain = self._gains.setdefault(cpu_milli, (np.full(size, -1), np.zeros(size)))
        stale = where[version[where] != table.version[where]]
        if len(stale):
            batch = score.node_batch(table, stale)
            left = score.lost(batch, batch.cpu - cpu_milli, batch.tflops, batch.vram)
            gain[stale], version[stale] = score.node_lost[stale] - left, table.version[stale]
        steps = np.floor((gain[where] + score.unfed_change(table, where, cpu_milli, 0.0)) / TIE)
        tied = where[steps == steps.max()]
        spare = table.cpu_room[tied] / np.maximum(score.node_idle[tied], 1.0)
        return int(min(tied[spare == spare.max()].tolist(), key=table.node_names.__getitem__))

    def free_gpus(self) -> Ints:
        table = self.allocator.table
        rows = table.node_rows[: len(table.node_names)]
        return np.where(rows >= 0, table.free_tflops[rows], -1)

    def free_cpu(self) -> Ints:
        table = self.allocator.table
        return table.cpu_room[: len(table.node_names)]


# Replays


def seeds(usually: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + int(os.environ.get("KARPOOL_OPENB_SEEDS", usually)))


def policy(name: str) -> dict[str, Any]:
    """How far the mean of a policy, reproduced, is from the published one."""
    made = openb_policies.BY_NAME[name]
    outcomes = [replay("default", seed, made("default", seed)) for seed in seeds(3 if name == "FGD" else 10)]
    mean = statistics.fmean(outcome.allocated_percent for outcome in outcomes)
    lost = statistics.fmean(each.fragmented_percent for each in outcomes)
    told = published()["default", name]
    return {
        "name": f"openb {name}: {mean:.2f} % (published {told:.2f}), lost {lost:.2f} %; off by",
        "unit": "pt",
        "values": [abs(mean - told)],
        "target": 1.0,
        "allocated": [each.allocated_percent for each in outcomes],
        "fragmented": [each.fragmented_percent for each in outcomes],
    }


@cache
def replayed(variant: str, times: int) -> tuple[list[openb.Outcome], list[float]]:
    """Outcomes and seconds; the cluster is built beforehand."""
    outcomes, seconds = [], []
    for seed in seeds(times):
        cluster = Karpool(variant)
        start = perf_counter()
        outcomes.append(replay(variant, seed, cluster))
        seconds.append(perf_counter() - start)
    return outcomes, seconds


def ours() -> dict[str, Any]:
    outcomes, _ = replayed("default", 3)
    lost = statistics.fmean(outcome.fragmented_percent for outcome in outcomes)
    return {
        "name": f"openb default, ours: allocated at 100 % arrival, lost {lost:.2f} %",
        "unit": "%",
        "values": [each.allocated_percent for each in outcomes],
        "target": 95.8,
        "better": "higher",
        "fragmented": [each.fragmented_percent for each in outcomes],
    }


def ours_on(variant: str) -> dict[str, Any]:
    outcomes, _ = replayed(variant, 1)
    return {
        "name": f"openb {variant}, ours: allocated at 100 % arrival",
        "unit": "%",
        "values": [outcome.allocated_percent for outcome in outcomes],
        "target": round(published()[variant, "FGD"], 2),
        "better": "higher",
    }


def replay_seconds() -> dict[str, Any]:
    _, seconds = replayed("default", 3)
    return {"name": "openb replay, ours, 8,000+ pods", "unit": "s", "values": seconds, "target": 30.0}


# Single allocations, no trace needed

NODES, DEVICES = 1_523, 6_212
_SHAPES = (
    (0.44, 12_000, WHOLE, 1),
    (0.20, 4_000, 810, 1),
    (0.12, 8_000, 470, 1),
    (0.08, 6_000, 320, 1),
    (0.06, 9_000, 650, 1),
    (0.05, 4_000, 230, 1),
    (0.03, 90_000, WHOLE, 8),
    (0.02, 22_000, WHOLE, 2),
)


def pool(strategy: PlacementStrategy, filled: float = 0.6) -> tuple[Allocator, list[GpuRequest]]:
    """Nodes of 1, 2, 4 or 8 GPUs, two models, filled to a part with the usual requests."""
    random = np.random.default_rng(5)
    allocator = Allocator(AllocatorSettings(strategy=strategy))
    sizes = [8] * 560 + [2] * 580 + [4] * 80
    sizes += [1] * max(0, NODES - len(sizes))
    left = DEVICES
    for place, wanted in enumerate(sizes):
        name, size = f"node-{place:05}", max(1, min(wanted, left - (NODES - place - 1)))
        left -= size
        for number in range(size):
            allocator.put_device(
                Device(
                    f"{name}-{number}",
                    node=name,
                    owner=name,
                    pool=POOL,
                    phase=RUNNING,
                    model="A100" if place % 3 else "L4",
                    index=number,
                    capacity=DeviceAmount(312_000, 80 * GIB)
                    if place % 3
                    else DeviceAmount(121_000, 24 * GIB),
                )
            )
        allocator.put_node(name, {}, cpu_milli=12_000 * size + 4_000, memory_bytes=512 * GIB)
    allocator.open()
    requests = [_request(random, number) for number in range(12_000)]
    target = filled * DEVICES * WHOLE
    taken = 0.0
    while taken < target:
        request = requests.pop()
        if not isinstance(
            allocator.try_allocate(request, nodes=NodeChoice(_has_room(allocator, request))), Infeasible
        ):
            allocator.commit(request.uid)
            taken += request.count * (request.request.percent_milli / 100 or WHOLE)
    return allocator, requests


def _request(random: np.random.Generator, number: int) -> GpuRequest:
    _, cpu, milli, count = _SHAPES[random.choice(len(_SHAPES), p=[shape[0] for shape in _SHAPES])]
    whole = milli == WHOLE
    share = DeviceShare() if whole else DeviceShare(percent_milli=milli * 100, vram_percent_milli=milli * 100)
    request = GpuRequest(
        uid=f"pod-{number}",
        pool=POOL,
        request=share,
        limit=share,
        isolation=SHARED if whole else SOFT,
        count=count,
        cpu_milli=cpu,
    )
    return replace(request, model="A100") if number % 10 == 0 else request


@cache
def allocation_times(strategy: str) -> list[float]:
    """Try and commit; every second pod leaves again, so the pool fills slowly."""
    allocator, requests = pool(strategies.named(StrategyName(strategy)))
    values = []
    for number, request in enumerate(requests[:2_000]):
        start = perf_counter()
        if not isinstance(
            allocator.try_allocate(request, nodes=NodeChoice(_has_room(allocator, request))), Infeasible
        ):
            allocator.commit(request.uid)
        values.append((perf_counter() - start) * 1e3)
        if number % 2:
            allocator.drop(request.uid)
    return values


def one_allocation(strategy: str) -> dict[str, Any]:
    name = f"one allocation, {DEVICES:,} GPUs, {strategy}, p50"
    return {"name": name, "unit": "ms", "values": allocation_times(strategy), "target": 1.0}


def slow_allocation(strategy: str) -> dict[str, Any]:
    slow = float(np.percentile(allocation_times(strategy), 99))
    name = f"one allocation, {DEVICES:,} GPUs, {strategy}, p99"
    return {"name": name, "unit": "ms", "values": [slow], "target": 5.0}


def benchmarks() -> list[Callable[[], dict[str, Any]]]:
    single = [
        _named(f"{measure.__name__}_{name}", measure, name)
        for name in StrategyName
        for measure in (one_allocation, slow_allocation)
    ]
    return [*single, *_of_trace()]


def _of_trace() -> list[Callable[[], dict[str, Any]]]:
    try:
        openb.folder()
    except openb.TraceAbsent as absent:
        message = str(absent)

        def openb_trace() -> dict[str, Any]:
            raise openb.TraceAbsent(message)

        return [openb_trace]
    return [
        ours,
        replay_seconds,
        *(_named(f"policy_{name}", policy, name) for name in openb_policies.NAMES),
        *(_named(f"variant_{name}", ours_on, name) for name in variants() if name != "default"),
    ]


def _named(name: str, measure: Callable[[str], dict[str, Any]], of: str) -> Callable[[], dict[str, Any]]:
    def measured() -> dict[str, Any]:
        return measure(of)

    measured.__name__ = name
    return measured
