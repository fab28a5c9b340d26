"""How many equal pods the devices serve if the scheduler places them one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from karpool.packing.dra.outcome import DraStatus
from karpool.packing.dra.pod_claims import DraNode, DraState, PodDemand, place_pod, with_pod

PODS_MAX = 256  # pods on one node; kubelets run 110 by default, or up to 250 if configured
LIMIT = "limit"

Demand = Callable[[DraState], PodDemand]


class DraCount(NamedTuple):
    """The number of pods; `stopped_by` is a DraStatus or "limit"."""

    pods: int
    stopped_by: str


def count_on(state: DraState, demand: Demand, node: DraNode, limit: int = PODS_MAX) -> DraCount:
    """Count pods on one node as if it were the only one."""
    pods = 0
    while pods < limit:
        asked = demand(state)
        placed = place_pod(state, asked, node)
        if not placed.fits:
            return DraCount(pods, placed.outcome.status)
        state = with_pod(state, asked, placed)
        pods += 1
    return DraCount(pods, LIMIT)


@dataclass(frozen=True, slots=True)
class DraTotal:
    pods: int
    per_node: tuple[int, ...]
    stopped_by: str


def count_over(
    state: DraState, demand: Demand, nodes: Sequence[DraNode], limit: int, caps: Sequence[int] | None = None
) -> DraTotal:
    """Count pods over several nodes; each pod goes to the first node that takes it.

    Devices and claims of several nodes count once. `caps` is how many pods each node has room for, ignoring
    devices.
    """
    per_node = [0] * len(nodes)
    pods = start = 0
    while pods < limit:
        asked = demand(state)
        stopped_by: str = DraStatus.UNSCHEDULABLE
        for row in range(start, len(nodes)):
            if caps is not None and per_node[row] >= caps[row]:
                continue
            placed = place_pod(state, asked, nodes[row])
            if placed.fits or placed.outcome.status is not DraStatus.UNSCHEDULABLE:
                break
        else:
            return DraTotal(pods, tuple(per_node), stopped_by)
        if not placed.fits:
            return DraTotal(pods, tuple(per_node), placed.outcome.status)
        state = with_pod(state, asked, placed)
        if not any(claim.key for claim in asked.claims):
            start = row  # devices only become fewer: a node that rejects one pod rejects the next
        per_node[row] += 1
        pods += 1
    return DraTotal(pods, tuple(per_node), LIMIT)
