"""How many equal pods devices serve, one after the other, as the scheduler would place them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from karpool.packing.dra.outcome import DraStatus
from karpool.packing.dra.pod_claims import DraNode, DraState, PodDemand, place_pod, with_pod

PODS_MAX = 256  # of one node; kubelets run 110, or 250 where they are told to
LIMIT = "limit"

Demand = Callable[[DraState], PodDemand]


class DraCount(NamedTuple):
    """`stopped_by`: a DraStatus, or "limit"."""

    pods: int
    stopped_by: str


def count_on(state: DraState, demand: Demand, node: DraNode, limit: int = PODS_MAX) -> DraCount:
    """One node, as if it were the only one that is used."""
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
    """Each pod goes to the first node that takes it. Devices and claims of several nodes count once.

    `caps`: how many pods each node has room for, whatever its devices say."""
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
            start = row  # devices only become fewer: who refused one refuses the next
        per_node[row] += 1
        pods += 1
    return DraTotal(pods, tuple(per_node), LIMIT)
