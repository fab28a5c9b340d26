"""Compares orders of moves by saving per disruption: the published experiment with our code.

5,000 pods with log-normal sizes are packed onto nodes; ten rounds of churn leave nodes half empty. Every
round offers, per node, a replacement by a cheaper type and a delete onto the free capacity of the others. All
moves are then ordered in four ways, and the saving is measured against the disruption spent. Moves are
independent: the model ignores that a delete uses capacity that another needs. Seeded, so the numbers are
reproducible.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from karpool.consolidation.policy.scoring import NODE_COST, TOLERANCE, Bools, Codes, Floats

SEED = 42
RANDOM_ORDER_SEED = 43
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
_VCPUS = (2, 4, 8, 16, 32, 48, 64, 96, 192)
# Family: price of the smallest and of one vCPU (us-east-1 on demand), GiB per vCPU, number of sizes.
_FAMILIES = ((0.0893, 0.044625, 2, 8), (0.1008, 0.0504, 4, 9), (0.1323, 0.06615, 8, 9))
_POD_COSTS = (0, 1, 1, 1, 1, 1, 10)


@dataclass(frozen=True, slots=True)
class ExperimentTypes:
    """Cheapest first."""

    price: Floats
    cpu: Floats
    memory: Floats

    def cheapest(self, cpu: float, memory: float) -> int:
        return int(np.argmax((self.cpu >= cpu) & (self.memory >= memory)))


def instance_types() -> ExperimentTypes:
    rows = sorted(
        (smallest if vcpus == 2 else round(per_vcpu * vcpus, 6), float(vcpus), float(vcpus * memory))
        for smallest, per_vcpu, memory, sizes in _FAMILIES
        for vcpus in _VCPUS[:sizes]
    )
    price, cpu, memory = (np.array(column) for column in zip(*rows, strict=True))
    return ExperimentTypes(price, cpu, memory)


@dataclass(frozen=True, slots=True)
class ExperimentPods:
    cpu: Floats
    memory: Floats
    cost: Codes

    @property
    def size(self) -> Floats:
        return self.cpu * self.memory


def draw_pods(rng: np.random.Generator, number: int) -> ExperimentPods:
    cpu = rng.lognormal(0, 1, number)
    memory = rng.lognormal(1.5, 1.2, number)
    return ExperimentPods(
        cpu=np.clip(np.round(cpu * 2) / 2, 0.25, 16),
        memory=np.clip(np.round(memory), 1, 120),
        cost=rng.choice(_POD_COSTS, number),
    )


@dataclass
class ExperimentCluster:
    """`held`: the pods of each node. Free capacity is kept beside it."""

    types: ExperimentTypes
    pods: ExperimentPods
    kind: list[int] = field(default_factory=list)
    held: list[list[int]] = field(default_factory=list)
    free_cpu: Floats = field(default_factory=lambda: np.zeros(0))
    free_memory: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def cost_per_hour(self) -> float:
        return float(self.types.price[self.kind].sum())

    def put(self, node: int, pod: int, times: int = 1) -> None:
        self.free_cpu[node] -= times * self.pods.cpu[pod]
        self.free_memory[node] -= times * self.pods.memory[pod]

    def fits(self, pod: int) -> Bools:
        mask: Bools = (self.free_cpu >= self.pods.cpu[pod]) & (self.free_memory >= self.pods.memory[pod])
        return mask

    def disruption(self, node: int) -> float:
        return NODE_COST + float(self.pods.cost[self.held[node]].sum()) if self.held[node] else NODE_COST


def packed(types: ExperimentTypes, pods: ExperimentPods) -> ExperimentCluster:
    """The largest pod first, each onto the first node with room, else onto the cheapest new one."""
    cluster = ExperimentCluster(types, pods)
    number = len(pods.cpu)
    cluster.free_cpu, cluster.free_memory = np.full(number, -1.0), np.full(number, -1.0)
    for pod in np.argsort(-pods.size, kind="stable").tolist():
        room = cluster.fits(pod)
        node = int(room.argmax())
        if not room[node]:
            node = len(cluster.held)
            kind = types.cheapest(float(pods.cpu[pod]), float(pods.memory[pod]))
            cluster.kind.append(kind)
            cluster.held.append([])
            cluster.free_cpu[node], cluster.free_memory[node] = types.cpu[kind], types.memory[kind]
        cluster.held[node].append(pod)
        cluster.put(node, pod)
    used = len(cluster.held)
    cluster.free_cpu, cluster.free_memory = cluster.free_cpu[:used], cluster.free_memory[:used]
    return cluster


def churn(cluster: ExperimentCluster, rng: np.random.Generator) -> None:
    """Nodes with several pods lose up to 80 % of them; then up to three random ones come, where they fit."""
    for node, held in enumerate(cluster.held):
        if len(held) > 1:
            gone = int(len(held) * rng.uniform(0, 0.8))
            for position in sorted(rng.choice(len(held), gone, replace=False).tolist(), reverse=True):
                cluster.put(node, held.pop(position), -1)
        for _ in range(int(rng.integers(0, 4))):
            pod = int(rng.integers(0, len(cluster.pods.cpu)))
            if cluster.fits(pod)[node]:
                held.append(pod)
                cluster.put(node, pod)


@dataclass(frozen=True, slots=True)
class ExperimentMoves:
    """One entry per move: its saving, its disruption, and its score in the pool of its round."""

    savings: Floats
    disruption: Floats
    score: Floats


Row = tuple[float, float, float]


def collect(cluster: ExperimentCluster) -> tuple[list[Row], list[Row]]:
    """Every replacement and every delete that the cluster offers, each on its own."""
    disruption = [cluster.disruption(node) for node in range(len(cluster.held))]
    cost, total = cluster.cost_per_hour, sum(disruption)

    def row(node: int, saving: float) -> Row:
        return saving, disruption[node], (saving / cost) / (disruption[node] / total)

    replaces, deletes = [], []
    for node, held in enumerate(cluster.held):
        if not held:
            continue
        price = float(cluster.types.price[cluster.kind[node]])
        smaller = cluster.types.cheapest(
            float(cluster.pods.cpu[held].sum()), float(cluster.pods.memory[held].sum())
        )
        if cluster.types.price[smaller] < price:
            replaces.append(row(node, price - float(cluster.types.price[smaller])))
        if _fits_elsewhere(cluster, node):
            deletes.append(row(node, price))
    return replaces, deletes


def _fits_elsewhere(cluster: ExperimentCluster, node: int) -> bool:
    """Best fit, the largest pod first. Changes nothing."""
    cpu, memory = cluster.free_cpu.copy(), cluster.free_memory.copy()
    cpu[node] = -1.0
    pods = cluster.pods
    for pod in sorted(cluster.held[node], key=lambda each: -pods.size[each]):
        room = np.flatnonzero((cpu >= pods.cpu[pod]) & (memory >= pods.memory[pod]))
        if not room.size:
            return False
        best = room[np.argmin(cpu[room] + memory[room])]
        cpu[best] -= pods.cpu[pod]
        memory[best] -= pods.memory[pod]
    return True


@dataclass(frozen=True, slots=True)
class SavingsCurve:
    """Savings against disruption spent, both as shares. `points` are for drawing."""

    order: str
    at: tuple[float, ...]  # savings at each of SHARES
    area: float
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class ThresholdShare:
    """What a threshold lets through, as shares of all moves."""

    k: int
    moves: float
    savings: float
    disruption: float


@dataclass(frozen=True, slots=True)
class ExperimentOutcome:
    name: str
    moves: int
    curves: tuple[SavingsCurve, ...]
    passing: tuple[ThresholdShare, ...]


@dataclass(frozen=True, slots=True)
class RankingExperiment:
    pods: int
    nodes: int
    cost_per_hour: float
    rounds: int
    kinds: tuple[ExperimentOutcome, ...]


def run(
    *, pods: int = 5000, rounds: int = 10, thresholds: Sequence[int] = (1, 2, 3), seed: int = SEED
) -> RankingExperiment:
    """Run the experiment; takes a few seconds with the published settings."""
    rng = np.random.default_rng(seed)
    cluster = packed(instance_types(), draw_pods(rng, pods))
    nodes, cost = len(cluster.held), cluster.cost_per_hour
    rows_by_method: dict[str, list[Row]] = {"REPLACE": [], "DELETE": []}
    for _ in range(rounds):
        churn(cluster, rng)
        replaces, deletes = collect(cluster)
        rows_by_method["REPLACE"] += replaces
        rows_by_method["DELETE"] += deletes
    return RankingExperiment(pods, nodes, cost, rounds, tuple(_kinds(rows_by_method, thresholds)))


def _kinds(found: Mapping[str, list[Row]], thresholds: Sequence[int]) -> Iterator[ExperimentOutcome]:
    for name, rows in found.items():
        columns = np.array(rows, dtype=np.float64).reshape(len(rows), 3).T
        moves = ExperimentMoves(*columns)
        curves = tuple(curve(order, moves, positions) for order, positions in orders(moves).items())
        yield ExperimentOutcome(name, len(rows), curves, tuple(passing(moves, k) for k in thresholds))


def orders(moves: ExperimentMoves) -> dict[str, Codes]:
    rng = np.random.default_rng(RANDOM_ORDER_SEED)
    return {
        "score": np.argsort(-moves.savings / moves.disruption, kind="stable"),
        "savings only": np.argsort(-moves.savings, kind="stable"),
        "disruption only": np.argsort(moves.disruption, kind="stable"),
        "random": rng.permutation(len(moves.savings)),
    }


def curve(order: str, moves: ExperimentMoves, positions: Codes, drawn: int = 101) -> SavingsCurve:
    if not len(positions):
        return SavingsCurve(order, (0.0,) * len(SHARES), 0.0, ((0.0, 0.0),))
    spent = np.concatenate(([0.0], np.cumsum(moves.disruption[positions]))) / moves.disruption.sum()
    saved = np.concatenate(([0.0], np.cumsum(moves.savings[positions]))) / moves.savings.sum()
    shares = np.linspace(0.0, 1.0, drawn)
    points = zip(shares.tolist(), np.interp(shares, spent, saved).tolist(), strict=True)
    return SavingsCurve(
        order,
        at=tuple(np.interp(SHARES, spent, saved).tolist()),
        area=float(np.trapezoid(saved, spent)),
        points=tuple(points),
    )


def passing(moves: ExperimentMoves, k: int) -> ThresholdShare:
    through = moves.score >= 1.0 / k - TOLERANCE
    if not len(through):
        return ThresholdShare(k, 0.0, 0.0, 0.0)
    return ThresholdShare(
        k,
        moves=float(through.mean()),
        savings=float(moves.savings[through].sum() / moves.savings.sum()),
        disruption=float(moves.disruption[through].sum() / moves.disruption.sum()),
    )
