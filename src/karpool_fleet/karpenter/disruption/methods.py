"""The three disruption methods, in the order in which they are tried."""

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
    """A command that is validated after a while before it is executed."""

    reason: str
    move: DisruptionCommand


def by_budget(
    candidates: Sequence[DisruptionCandidate], budgets: dict[str, int]
) -> list[DisruptionCandidate]:
    """Return as many candidates of each pool as its budget allows, in order."""
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
    """Propose all empty nodes that the budgets allow, at once."""
    kept = by_budget(candidates, budgets)
    return DisruptionProposal(EMPTY, DisruptionCommand(tuple(kept))) if kept else None


def multi_node(
    candidates: Sequence[DisruptionCandidate],
    budgets: dict[str, int],
    consolidate: Callable[[Sequence[DisruptionCandidate]], DisruptionCommand | NoMove],
) -> DisruptionProposal | None:
    """Propose the largest valid batch from the head of the ranking, found by binary search."""
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
    """Return one candidate of each pool in turn, in the order of its pool; pools by name."""
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
    """Propose the first node that can be deleted, or replaced by a cheaper one."""
    for candidate in by_turns(candidates):
        if budgets.get(candidate.pool.name, 0) < 1:
            continue
        move = consolidate([candidate])
        if isinstance(move, DisruptionCommand):
            return DisruptionProposal(UNDERUTILIZED, move)
        refused(candidate, move.reason)
    return None
