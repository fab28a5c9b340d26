"""The six policies with published results, after their published descriptions.

One score per feasible node, cut off to an integer; ties go to the smallest node name.
"""

import numpy as np

from bench.openb import WHOLE, Floats, Fragments, Ints, TracePod, nodes, usual

CPU_MAX, GPU_MAX = 128_000, 8_000
NAMES = ("Random", "DotProd", "GpuClustering", "GpuPacking", "BestFit", "FGD")


class Policy:
    """The cluster, feasibility, and the choice of GPUs; a subclass scores nodes."""

    def __init__(self, variant: str, seed: int) -> None:
        given = nodes()
        self.cpu, self.memory = given.cpu_milli.copy(), given.memory_mib.copy()
        places = np.arange(int(given.gpus.max()))
        self.gpus: Ints = np.where(places < given.gpus[:, None], WHOLE, -1)
        self.count = given.gpus
        self.random = np.random.default_rng(seed)
        self._models = np.array(given.models)
        self.prepare(variant)

    def prepare(self, variant: str) -> None:
        """What a policy needs to know beforehand."""

    def score(self, pod: TracePod, where: Ints) -> Ints:
        raise NotImplementedError

    def placed(self, pod: TracePod, node: int) -> None:
        """A pod is on this node now."""

    def place(self, pod: TracePod) -> bool:
        where = self.feasible(pod)
        if not len(where):
            return False
        node = int(where[np.argmax(self.score(pod, where))])
        for gpu in self.choose_gpus(pod, node) if pod.gpus else ():
            self.gpus[node, gpu] -= pod.gpu_milli
        self.cpu[node] -= pod.cpu_milli
        self.memory[node] -= pod.memory_mib
        self.placed(pod, node)
        return True

    def feasible(self, pod: TracePod) -> Ints:
        fits = (self.cpu >= pod.cpu_milli) & (self.memory >= pod.memory_mib)
        if pod.gpus:
            fits &= (self.gpus >= pod.gpu_milli).sum(axis=1) >= pod.gpus
        if pod.models:
            fits &= np.isin(self._models, pod.models)
        return np.flatnonzero(fits)

    def choose_gpus(self, pod: TracePod, node: int) -> Ints:
        """The fitting GPUs with the least left, the lowest number first."""
        free = self.gpus[node]
        fitting = np.flatnonzero(free >= pod.gpu_milli)
        return fitting[np.argsort(free[fitting], kind="stable")[: pod.gpus]]

    def free(self, where: Ints) -> Ints:
        total: Ints = np.maximum(self.gpus[where], 0).sum(axis=1)
        return total

    def free_gpus(self) -> Ints:
        return self.gpus

    def free_cpu(self) -> Ints:
        return self.cpu


class Random(Policy):
    def score(self, pod: TracePod, where: Ints) -> Ints:
        return self.random.permutation(len(where))

    def choose_gpus(self, pod: TracePod, node: int) -> Ints:
        return self.random.permutation(np.flatnonzero(self.gpus[node] >= pod.gpu_milli))[: pod.gpus]


class DotProd(Policy):
    def score(self, pod: TracePod, where: Ints) -> Ints:
        along = self.cpu[where] / CPU_MAX * (pod.cpu_milli / CPU_MAX)
        along = along + self.free(where) / GPU_MAX * (pod.asked / GPU_MAX)
        return _cut((1.0 - along / 2) * 100)


class GpuClustering(Policy):
    def prepare(self, variant: str) -> None:
        self._running: list[set[str]] = [set() for _ in self.cpu]

    def placed(self, pod: TracePod, node: int) -> None:
        if pod.gpus:
            self._running[node].add(_class(pod))

    def score(self, pod: TracePod, where: Ints) -> Ints:
        if not pod.gpus:
            return np.zeros(len(where), dtype=np.int64)
        band = np.array([_band(self._running[node], _class(pod)) for node in where])
        return _cut(band + 25 * (GPU_MAX - self.free(where)) / GPU_MAX)


def _class(pod: TracePod) -> str:
    return "share" if pod.gpu_milli < WHOLE else str(pod.gpus)


def _band(running: set[str], own: str) -> int:
    if not running:
        return 25
    if own not in running:
        return 0
    return 75 if len(running) == 1 else 50


class GpuPacking(Policy):
    def score(self, pod: TracePod, where: Ints) -> Ints:
        if not pod.gpus:
            return np.zeros(len(where), dtype=np.int64)
        gpus = self.gpus[where]
        untouched = np.maximum(gpus, 0).sum(axis=1) == self.count[where] * WHOLE
        partly = np.sort(np.where((gpus >= pod.gpu_milli) & (gpus < WHOLE), gpus, GPU_MAX), axis=1)
        partly = partly[:, : pod.gpus]
        used = partly < GPU_MAX
        missing = pod.gpus - used.sum(axis=1)
        free_percent = np.where(used, partly, 0).sum(axis=1) / 10
        on_used = np.maximum(50, 100 - free_percent / 10)
        on_node = np.maximum(33, 50 - missing)
        return _cut(np.where(untouched, 33 - self.count[where], np.where(missing == 0, on_used, on_node)))


class BestFit(Policy):
    def score(self, pod: TracePod, where: Ints) -> Ints:
        left = 0.5 * (self.cpu[where] - pod.cpu_milli) / CPU_MAX
        left = left + 0.5 * (self.free(where) - pod.asked) / GPU_MAX
        scores = _cut((1.0 - left) * 100)
        lowest, highest = scores.min(), scores.max()
        rescaled: Ints = (scores - lowest) * 100 // max(1, highest - lowest)
        return rescaled


class FGD(Policy):
    """Least growth of what is lost, every GPU tried; remembered per spec until the node changes."""

    def prepare(self, variant: str) -> None:
        self._fragments = Fragments(usual(variant))
        self._version = np.zeros(len(self.cpu), dtype=np.int64)
        self._lost = self._fragments.lost(self.cpu, self.gpus, np.arange(len(self.cpu)))
        self._known: dict[TracePod, tuple[Ints, Ints, Ints]] = {}

    def placed(self, pod: TracePod, node: int) -> None:
        one = np.array([node])
        self._version[node] += 1
        self._lost[node] = self._fragments.lost(self.cpu[one], self.gpus[one], one)[0]

    def score(self, pod: TracePod, where: Ints) -> Ints:
        version, scores, gpu = self._known.setdefault(
            pod, (np.full(len(self.cpu), -1), *np.zeros((2, len(self.cpu)), dtype=np.int64))
        )
        stale = where[version[where] != self._version[where]]
        if len(stale):
            scores[stale], gpu[stale] = self._evaluated(pod, stale)
            version[stale] = self._version[stale]
        return scores[where]

    def choose_gpus(self, pod: TracePod, node: int) -> Ints:
        if pod.gpu_milli == WHOLE:
            return np.flatnonzero(self.gpus[node] == WHOLE)[: pod.gpus]
        return self._known[pod][2][node : node + 1]

    def _evaluated(self, pod: TracePod, where: Ints) -> tuple[Ints, Ints]:
        gpus, cpu = self.gpus[where], self.cpu[where] - pod.cpu_milli
        gpu = np.full(len(where), -1)
        if not pod.gpus:
            return self._scored(where, cpu, gpus), gpu
        if pod.gpu_milli == WHOLE:
            idle = gpus == WHOLE
            taken = idle & (np.cumsum(idle, axis=1) <= pod.gpus)
            return self._scored(where, cpu, np.where(taken, 0, gpus)), gpu
        best = np.full(len(where), -1)
        for place in range(gpus.shape[1]):
            fits = np.flatnonzero(gpus[:, place] >= pod.gpu_milli)
            after = gpus[fits]
            after[:, place] -= pod.gpu_milli
            scores = self._scored(where[fits], cpu[fits], after)
            better = scores > best[fits]
            best[fits[better]], gpu[fits[better]] = scores[better], place
        return best, gpu

    def _scored(self, where: Ints, cpu: Ints, gpus: Ints) -> Ints:
        gain = self._lost[where] - self._fragments.lost(cpu, gpus, where)
        return _cut(100 / (1 + np.exp(-gain / 1000)))


def _cut(scores: Floats) -> Ints:
    return scores.astype(np.int64)


BY_NAME = {policy.__name__: policy for policy in (Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD)}
