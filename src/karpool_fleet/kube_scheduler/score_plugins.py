"""Scores of nodes for a pod, as in kube-scheduler's score plugins, for all nodes at once.

Plain functions of a snapshot. Scores are from 0 to 100; they are normalised over the nodes that fit
(`open_nodes`).
"""

import numpy as np
import numpy.typing as npt

from karpool.model.kubernetes.pod_shape import PodShape, WeightedNodeTerm
from karpool.model.resources import CPU, MEMORY
from karpool.model.taints import PREFER_NO_SCHEDULE, Toleration
from karpool.packing.feasibility import matches_terms
from karpool.packing.tables.columns import Bools, Int64s
from karpool.packing.tables.node_table import NodeTable
from karpool.packing.tables.room import Room
from karpool.packing.topology.constraints import SpreadRule
from karpool.packing.topology.domains import NOWHERE
from karpool_fleet.kube_scheduler.settings import MOST_ALLOCATED, KubeSchedulerSettings

Floats = npt.NDArray[np.float64]
BEST = 100


def room_score(snapshot: Room, shape: PodShape, settings: KubeSchedulerSettings) -> Int64s:
    """Return LeastAllocated or MostAllocated of cpu and memory, and their balance."""
    asked = dict(shape.requests)
    cpu = _left_share(snapshot, CPU, asked.get(CPU, 0))
    memory = _left_share(snapshot, MEMORY, asked.get(MEMORY, 0))
    left: Floats = np.floor(BEST * cpu) + np.floor(BEST * memory)
    if settings.strategy == MOST_ALLOCATED:
        left = 2 * BEST - left
    weights = settings.weights
    balance = BEST - np.abs(cpu - memory) * (BEST / 2)
    score: Floats = weights.resources * (left // 2) + weights.balance * np.floor(balance)
    return score.astype(np.int64)


def _left_share(snapshot: Room, resource: str, units: int) -> Floats:
    offered = snapshot.allocatable(resource)
    share: Floats = np.zeros(len(offered))
    np.divide(snapshot.free(resource) - float(units), offered, out=share, where=offered > 0)
    return share.clip(0.0, 1.0)


def preferred_nodes(nodes: NodeTable, terms: tuple[WeightedNodeTerm, ...]) -> Int64s:
    """Return the sum of the weights of the preferred terms that each node matches."""

    def compute(table: NodeTable) -> Int64s:
        total = np.zeros(table.n, dtype=np.int64)
        for term in terms:
            total += term.weight * matches_terms(table, (term.term,))
        return total

    return nodes.per_node(("preferred nodes", terms), compute)


def soft_taints(nodes: NodeTable, tolerations: tuple[Toleration, ...]) -> Int64s:
    """Return how many PreferNoSchedule taints of each node are not tolerated."""

    def compute(table: NodeTable) -> Int64s:
        by_set = [
            sum(
                taint.effect == PREFER_NO_SCHEDULE
                and not any(toleration.tolerates(taint) for toleration in tolerations)
                for taint in taints
            )
            for taints in table.taint_sets
        ]
        counts: Int64s = np.array(by_set, dtype=np.int64)[table.taint_codes]
        return counts

    return nodes.per_node(("soft taints", tolerations), compute)


def most_is_best(raw: Int64s, open_nodes: Bools) -> Int64s:
    """Return the share of the highest score."""
    highest = int(raw[open_nodes].max())
    return raw * BEST // highest if highest > 0 else np.zeros_like(raw)


def least_is_best(raw: Int64s, open_nodes: Bools) -> Int64s:
    highest = int(raw[open_nodes].max())
    return BEST - raw * BEST // highest if highest > 0 else np.full_like(raw, BEST)


def between_extremes(raw: Int64s, open_nodes: Bools) -> Int64s:
    """Scale the lowest to 0 and the highest to 100; 0 for all if they are equal."""
    lowest, highest = int(raw[open_nodes].min()), int(raw[open_nodes].max())
    if lowest == highest:
        return np.zeros_like(raw)
    return ((raw - lowest) * BEST / (highest - lowest)).astype(np.int64)


def spread_score(rules: list[SpreadRule], open_nodes: Bools) -> Int64s:
    """Return the spread score: fewer pods in a domain are better; without a topology label there is none."""
    raw: Floats = np.zeros(len(open_nodes))
    lacking: Bools = np.zeros(len(open_nodes), dtype=np.bool_)
    for rule in rules:
        codes = rule.axis.codes
        used = np.bincount(codes[open_nodes], minlength=rule.axis.size)
        used[NOWHERE] = 0
        domains = np.count_nonzero(used)
        # A domain weighs more, the more domains there are.
        raw += rule.group.tally.counts[codes] * np.log(domains + 2) + (rule.max_skew - 1)
        lacking |= codes == NOWHERE
    labelled = open_nodes & ~lacking
    if not labelled.any():
        return np.zeros(len(raw), dtype=np.int64)
    raw = np.round(raw)
    lowest, highest = float(raw[labelled].min()), float(raw[labelled].max())
    score = np.full(len(raw), BEST) if highest == 0 else BEST * (highest + lowest - raw) / highest
    return np.where(lacking, 0, score).astype(np.int64)
