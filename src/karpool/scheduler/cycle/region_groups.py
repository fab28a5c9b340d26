"""Which groups of clusters (regions) to take, given how many are wanted.

Karmada tries combinations depth first; their number grows exponentially. The same
choice is found here in polynomial time: combinations are chains through the groups
sorted by size, a chain ends as soon as it suffices, and of two ways to go on only the
better one matters.
"""

from collections.abc import Sequence
from typing import NamedTuple


class RegionGroup(NamedTuple):
    name: str
    clusters: int
    score: int


# Ranked by total score, then clusters, then by who is found first: a depth-first walk meets chains
# in the order of their places.
_Chain = tuple[int, int, tuple[int, ...]]  # minus the score, minus the clusters, places
_State = tuple[int, int]  # groups taken, clusters still missing


def select_groups(
    groups: Sequence[RegionGroup], min_groups: int, max_groups: int, min_clusters: int
) -> list[RegionGroup] | None:
    """The groups to take, best first; None when no combination suffices.

    Total score decides, then the number of clusters, then who is found first. Of the winner, its
    best groups alone are taken when those suffice as well. At most O(groups x max_groups x min_clusters).
    """
    min_groups = max(min_groups, 1)
    if len(groups) < min_groups or max_groups < min_groups:
        return None
    if sum(group.clusters for group in groups) < min_clusters:
        return None
    ordered = sorted(groups, key=lambda each: (each.clusters, -each.score, each.name))
    best = _best_chain(ordered, min_groups, max_groups, min_clusters)
    if best is None:
        return None
    chosen = sorted((ordered[place] for place in best[2]), key=_preference)
    for size in range(1, len(chosen)):
        part = sorted(chosen[:size], key=ordered.index)
        if _is_chain(part, ordered, min_groups, max_groups, min_clusters):
            return chosen[:size]
    return chosen


def _preference(group: RegionGroup) -> tuple[int, str]:
    return (-group.score, group.name)


def _best_chain(
    ordered: Sequence[RegionGroup], min_groups: int, max_groups: int, min_clusters: int
) -> _Chain | None:
    """Chains that took as many groups and miss as many clusters go on alike: only the best is kept."""
    ways: dict[_State, _Chain] = {(0, max(min_clusters, 0)): (0, 0, ())}
    best: _Chain | None = None
    for place, group in enumerate(ordered):
        for (taken, missing), (score, clusters, places) in list(ways.items()):
            chain = (score - group.score, clusters - group.clusters, (*places, place))
            state = (taken + 1, max(missing - group.clusters, 0))
            if state[0] >= min_groups and not state[1]:
                best = chain if best is None else min(best, chain)
            elif state[0] < max_groups and (state not in ways or chain < ways[state]):
                ways[state] = chain
    return best


def _is_chain(
    part: Sequence[RegionGroup],
    ordered: Sequence[RegionGroup],
    min_groups: int,
    max_groups: int,
    min_clusters: int,
) -> bool:
    """Whether a combination would have been recorded: enough, and not before its last group."""
    if len(ordered) == min_groups and len(part) < min_groups:
        return False
    total = sum(group.clusters for group in part)
    enough = min_groups <= len(part) <= max_groups and total >= min_clusters
    before = total - part[-1].clusters
    return enough and not (len(part) > min_groups and before >= min_clusters)
