"""Selects candidates by spread constraints: by region, or by cluster.

As in Karmada, constraints by zone and provider act through filters only, and labels have no effect. Static
weights ignore constraints.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from karpool.model.infeasible import Infeasible
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.placement import ReplicaStrategy, SpreadConstraint
from karpool.scheduler.cycle.decision import ClusterCandidate, ClusterSelection, NotScheduled, ScheduleReason
from karpool.scheduler.cycle.settings import CostPreference

STAGE = "failed to select clusters"
_UNIT = 1000  # of a group's score: capacity first, then the scores of its clusters
_NONE = SpreadConstraint("", "", 0, 0)


def ordered(
    candidates: Iterable[ClusterCandidate], cost: CostPreference = CostPreference.OFF
) -> list[ClusterCandidate]:
    """Sort by tier, score, capacity and name; by price as configured."""
    if cost is CostPreference.OFF:
        return sorted(
            candidates,
            key=lambda candidate: (candidate[1], -candidate[2], -(candidate[3] + candidate[4]), candidate[0]),
        )
    if cost is CostPreference.TIE_BREAK:
        return sorted(
            candidates,
            key=lambda candidate: (
                candidate.tier,
                -candidate.score,
                -candidate.total,
                price_of(candidate),
                candidate.name,
            ),
        )
    return sorted(
        candidates,
        key=lambda candidate: (
            candidate.tier,
            -candidate.score,
            price_of(candidate),
            -candidate.total,
            candidate.name,
        ),
    )


def price_of(candidate: ClusterCandidate) -> float:
    """An unknown price sorts last."""
    return float("inf") if candidate.price is None else candidate.price


def select(
    candidates: Sequence[ClusterCandidate],
    binding: Binding,
    need: int | None,
    *,
    cost: CostPreference,
    partial: bool,
) -> ClusterSelection | NotScheduled:
    """Select from the ordered `candidates` with capacity for `need` replicas (or sets); None: any."""
    placement = binding.placement
    if not placement.spread or placement.ignores_spread:
        ignored = placement.spread and placement.strategy is ReplicaStrategy.STATIC
        notes = ("spread constraints do not act on static weights",) if ignored else ()
        return ClusterSelection(tuple(candidates), notes)
    by_region, by_cluster = placement.spread_by("region"), placement.spread_by("cluster")
    if by_region is not None:
        rules = SpreadRules(by_region, by_cluster or _NONE, binding.replicas, placement.is_duplicated)
        return select_by_region(candidates, rules, cost)
    if by_cluster is not None:
        return select_by_cluster(candidates, by_cluster, need, partial=partial)
    return _failed("just support cluster and region spread constraint")


def select_by_cluster(
    candidates: Sequence[ClusterCandidate],
    constraint: SpreadConstraint,
    need: int | None,
    *,
    partial: bool = False,
) -> ClusterSelection | NotScheduled:
    if len(candidates) < constraint.min_groups:
        return _failed("the number of feasible clusters is less than spreadConstraint.MinGroups")
    size = min(len(candidates), constraint.max_groups)
    chosen, rest = list(candidates[:size]), list(candidates[size:])
    notes = [f"the first {size} of {len(candidates)} clusters"]
    if need is None:
        return ClusterSelection(tuple(chosen), tuple(notes))
    room = sum(candidate.total for candidate in chosen)
    for place in range(size - 1, -1, -1):
        if room >= need or not rest:
            break
        best = max(range(len(rest)), key=lambda index: rest[index].total)
        leaving, coming = chosen[place], rest[best]
        if coming.total > leaving.total:
            chosen[place], rest[best] = coming, leaving
            room += coming.total - leaving.total
            notes.append(
                f"{coming.name} ({coming.total}) instead of {leaving.name} ({leaving.total}) for room"
            )
    if size == 0 or (room < need and not (partial and room > 0)):
        text = f"no enough resource when selecting {size} clusters"
        return Infeasible(ScheduleReason.SCHEDULER_ERROR, f"{STAGE}: {text}", resolvable=size > 0)
    return ClusterSelection(tuple(chosen), tuple(notes))


class SpreadRules(NamedTuple):
    """The constraints of a selection by region."""

    region: SpreadConstraint
    cluster: SpreadConstraint
    replicas: int
    is_duplicated: bool


class RegionCandidates(NamedTuple):
    name: str
    score: int
    clusters: Sequence[ClusterCandidate]


def select_by_region(
    candidates: Sequence[ClusterCandidate], rules: SpreadRules, cost: CostPreference = CostPreference.OFF
) -> ClusterSelection | NotScheduled:
    members: dict[str, list[ClusterCandidate]] = {}
    for candidate in candidates:
        if candidate.region:
            members.setdefault(candidate.region, []).append(candidate)
    regions = [
        RegionCandidates(name, group_score(clusters, rules), clusters) for name, clusters in members.items()
    ]
    return select_regions(regions, rules, cost)


def select_regions(
    regions: Sequence[RegionCandidates], rules: SpreadRules, cost: CostPreference = CostPreference.OFF
) -> ClusterSelection | NotScheduled:
    if len(regions) < rules.region.min_groups:
        return _failed("the number of feasible region is less than spreadConstraint.MinGroups")
    by_name = {region.name: region for region in regions}
    groups = [RegionGroup(region.name, len(region.clusters), region.score) for region in regions]
    selected = select_groups(
        groups, rules.region.min_groups, rules.region.max_groups, rules.cluster.min_groups
    )
    if selected is None:
        return _failed("the number of clusters is less than the cluster spreadConstraint.MinGroups")
    taken = [by_name[group.name] for group in selected]
    chosen = [region.clusters[0] for region in taken]
    rest = ordered((candidate for region in taken for candidate in region.clusters[1:]), cost)
    chosen += rest[: max(rules.cluster.max_groups - len(chosen), 0)]
    notes = [
        f"region {region.name}: score {region.score}, {len(region.clusters)} clusters" for region in taken
    ]
    return ClusterSelection(tuple(chosen), tuple(notes))


def group_score(clusters: Sequence[ClusterCandidate], rules: SpreadRules) -> int:
    """How well a group could take its part: capacity first, then the scores of its clusters."""
    if rules.is_duplicated:
        able = [candidate for candidate in clusters if candidate.total >= rules.replicas]
        return len(able) * _UNIT + sum(candidate.score for candidate in able) // len(able) if able else 0
    least = rules.region.min_groups
    share = -(-rules.replicas // max(least, 1))
    min_clusters = max(rules.cluster.min_groups, least)
    room = scores = used = 0
    for cluster in clusters:
        if used >= min_clusters and room >= share:
            break
        room, scores, used = room + cluster.total, scores + cluster.score, used + 1
    if room < share:
        return room * _UNIT + sum(candidate.score for candidate in clusters) // len(clusters)
    return share * _UNIT + (scores // used if used else 0)


def _failed(text: str) -> NotScheduled:
    return Infeasible(ScheduleReason.SCHEDULER_ERROR, f"{STAGE}: {text}")


# Selection of regions. Karmada tries combinations depth first; their number grows exponentially. The same
# choice is found here in polynomial time: combinations are chains through the groups sorted by size, a chain
# ends as soon as it suffices, and of two ways to continue only the better one matters.


class RegionGroup(NamedTuple):
    name: str
    clusters: int
    score: int


# Ranked by total score, then clusters, then by position: a depth-first search visits chains in the order of
# their positions.
_Chain = tuple[int, int, tuple[int, ...]]  # minus the score, minus the clusters, positions
_State = tuple[int, int]  # groups taken, clusters still missing


def select_groups(
    groups: Sequence[RegionGroup], min_groups: int, max_groups: int, min_clusters: int
) -> list[RegionGroup] | None:
    """The groups to take, best first; None if no combination suffices.

    Total score decides, then the number of clusters, then the position. Of the winner, only its best groups
    are taken if those suffice as well. At most O(groups x max_groups x min_clusters).
    """
    min_groups = max(min_groups, 1)
    if len(groups) < min_groups or max_groups < min_groups:
        return None
    if sum(group.clusters for group in groups) < min_clusters:
        return None
    ordered = sorted(groups, key=lambda group: (group.clusters, -group.score, group.name))
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
    """Chains with equal numbers of groups and missing clusters continue alike: only the best is kept."""
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
    """Whether Karmada would have recorded the combination: it suffices, but not without its last group."""
    if len(ordered) == min_groups and len(part) < min_groups:
        return False
    total = sum(group.clusters for group in part)
    enough = min_groups <= len(part) <= max_groups and total >= min_clusters
    before = total - part[-1].clusters
    return enough and not (len(part) > min_groups and before >= min_clusters)
