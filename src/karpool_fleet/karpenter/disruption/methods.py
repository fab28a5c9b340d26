"""The three ways to find something to disrupt, in the order in which they are tried."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from karpool.consolidation.policy.scoring import interleaved
from karpool_fleet.karpenter.disruption.candidates import (
    EMPTY,
    UNDERUTILIZED,
    DisruptionCandidate,
)
from karpool_fleet.karpenter.disruption.simulation import DisruptionCommand, NoMove

MULTI_NODE_MAX = 100


class DisruptionProposal(NamedTuple):
    """A move that is looked at again after a while before it is made."""

    reason: str
    move: DisruptionCommand


def by_budget(
    candidates: Sequence[DisruptionCandidate], budgets: dict[str, int]
) -> list[DisruptionCandidate]:
    """As many of each pool as its budget still allows, in order."""
    left = dict(budgets)
    kept: list[DisruptionCandidate] = []
    for candidate in candidates:
        if left.get(candidate.pool.name, 0) > 0:
            left[candidate.pool.name] -= 1
            kept.append(candidate)
    return kept


def emptiness(
    candidates: Sequence[DisruptionCandidate], budgets: dict[str, int]
) -> DisruptionProposal | None:
    """All empty nodes that the budgets allow, at once."""
    kept = by_budget(candidates, budgets)
    return DisruptionProposal(EMPTY, DisruptionCommand(tuple(kept))) if kept else None


def multi_node(
    candidates: Sequence[DisruptionCandidate],
    budgets: dict[str, int],
    consolidate: Callable[[Sequence[DisruptionCandidate]], DisruptionCommand | NoMove],
) -> DisruptionProposal | None:
    """The largest batch, from the head of the ranking, that a binary search finds to work."""
    kept = by_budget(candidates, budgets)
    low, high = 1, min(len(kept) - 1, MULTI_NODE_MAX)
    best: DisruptionCommand | None = None
    while low <= high:
        middle = (low + high) // 2
        move = consolidate(kept[: middle + 1])
        if isinstance(move, DisruptionCommand):
            best, low = move, middle + 1
        else:
            high = middle - 1
    return DisruptionProposal(UNDERUTILIZED, best) if best is not None else None


def by_turns(candidates: Sequence[DisruptionCandidate]) -> list[DisruptionCandidate]:
    """One of each pool in turn, each pool in its own order; pools by name."""
    by_pool: dict[str, list[DisruptionCandidate]] = {}
    for candidate in candidates:
        by_pool.setdefault(candidate.pool.name, []).append(candidate)
    return interleaved(dict(sorted(by_pool.items())))


def single_node(
    candidates: Sequence[DisruptionCandidate],
    budgets: dict[str, int],
    consolidate: Callable[[Sequence[DisruptionCandidate]], DisruptionCommand | NoMove],
    refused: Callable[[DisruptionCandidate, str], None],
) -> DisruptionProposal | None:
    """The first node that can go alone, or be replaced by a cheaper one."""
    for candidate in by_turns(candidates):
        if budgets.get(candidate.pool.name, 0) < 1:
            continue
        move = consolidate([candidate])
        if isinstance(move, DisruptionCommand):
            return DisruptionProposal(UNDERUTILIZED, move)
        refused(candidate, move.reason)
    return None
