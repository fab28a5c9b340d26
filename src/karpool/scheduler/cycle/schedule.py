"""Decides about one binding from its spec and the clusters, in numbered steps.

Call `plan_cycle` once, then `decide` until it returns a decision: it asks for the availability of only those
clusters whose capacity matters, affinity group by affinity group. Pure: the same input gives the same
decision, however often and in whatever order it is called.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from karpool.model.infeasible import Infeasible
from karpool.model.karmada.binding import Binding
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.model.karmada.placement import AffinityGroup, KarmadaPlacement, ReplicaStrategy
from karpool.model.taints import untolerated
from karpool.scheduler.cycle import assignment, plugin_timing, plugins, selection
from karpool.scheduler.cycle.assignment import Assignment, AssignmentTask
from karpool.scheduler.cycle.components import is_divided, places_sets, targets_for
from karpool.scheduler.cycle.decision import (
    SUCCESS_MESSAGE,
    AffinityAttempt,
    ClusterAvailability,
    ClusterCandidate,
    NotScheduled,
    ScheduleReason,
    SchedulingDecision,
    SchedulingMode,
)
from karpool.scheduler.cycle.plugin_timing import PluginTimer
from karpool.scheduler.cycle.plugins import AffinityPeers
from karpool.scheduler.cycle.settings import SchedulingSettings

DEFAULTS = SchedulingSettings()
FILTERED_MAX = 256  # cached placements: more than the policies of one fleet in a burst
_Passed = Sequence[MemberCluster]
_Refused = tuple[NotScheduled, ...]


@dataclass(frozen=True, slots=True)
class NeedsEstimates:
    """No decision yet: it needs the availability of these clusters."""

    clusters: tuple[MemberCluster, ...]


@dataclass(frozen=True, slots=True)
class CyclePlan:
    binding: Binding
    clusters: Sequence[MemberCluster]
    settings: SchedulingSettings
    peers: AffinityPeers | None
    mode: SchedulingMode
    start: int  # index of the first group to try
    timing: PluginTimer | None = field(default=None, compare=False)
    filtered: "FilteredClusters | None" = field(default=None, compare=False)
    _screened: dict[int, "_Screened"] = field(default_factory=dict, compare=False)

    def screened(self, index: int) -> "_Screened":
        screened = self._screened.get(index)
        if screened is None:
            screened = self._screened[index] = _screen(self, index)
        return screened


class FilteredClusters:
    """A cache of filter results for bindings of which only placement and kind matter to filters.

    These are not placed anywhere, have no peers, and use our own plugins only. Cleared when a cluster
    changes.
    """

    def __init__(self) -> None:
        self._clusters: Sequence[MemberCluster] = ()
        # By the identity of a placement, which is kept alive here.
        self._held: dict[tuple[int, int, str, str, bool], tuple[KarmadaPlacement, _Passed, _Refused]] = {}

    def of(self, plan: CyclePlan, index: int) -> "tuple[_Passed, _Refused]":
        binding, template = plan.binding, plan.binding.template
        if plan.timing or plan.peers or plan.settings.others or binding.targets or binding.evicting:
            return _filtered(plan, index)
        if self._clusters is not plan.clusters or len(self._held) >= FILTERED_MAX:
            self._clusters = plan.clusters
            self._held.clear()
        placement = binding.placement
        key = (id(placement), index, template.api_version, template.kind, binding.is_workload)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = (placement, *_filtered(plan, index))
        return held[1:]


@dataclass(frozen=True, slots=True)
class _Screened:
    passed: Sequence[MemberCluster]
    refused: tuple[NotScheduled, ...]
    needs_room: bool


def plan_cycle(
    binding: Binding,
    clusters: Sequence[MemberCluster],
    settings: SchedulingSettings = DEFAULTS,
    *,
    peers: AffinityPeers | None = None,
    mode: SchedulingMode = SchedulingMode.STEADY,
    timing: PluginTimer | None = None,
    filtered: FilteredClusters | None = None,
) -> CyclePlan:
    """`peers` is for bindings with workload affinity, if its gate is on. `mode` is the trigger's."""
    placement = binding.placement
    start = 0 if mode is SchedulingMode.FRESH else placement.start_group(binding.observing_affinity_name)
    active_peers = peers if settings.workload_affinity else None
    return CyclePlan(binding, clusters, settings, active_peers, mode, start, timing, filtered)


def decide(
    plan: CyclePlan, availability: Mapping[str, ClusterAvailability]
) -> SchedulingDecision | NeedsEstimates:
    """The decision, or the clusters whose availability it needs.

    Groups are tried in order; if all fail, the first error counts.
    """
    attempts: list[AffinityAttempt] = []
    for index in range(plan.start, len(plan.binding.placement.groups)):
        screened = plan.screened(index)
        if screened.needs_room:
            missing = [cluster for cluster in screened.passed if cluster.name not in availability]
            if missing:
                return NeedsEstimates(tuple(missing))
        attempt = _attempt(plan, index, availability)
        attempts.append(attempt)
        if attempt.failure is None:
            return _success(plan, attempt, attempts)
    partial = next(
        (affinity_attempt for affinity_attempt in attempts if affinity_attempt.targets is not None), None
    )
    return _failure(plan, attempts) if partial is None else _partial(plan, partial, attempts)


# 1. Filter


def _screen(plan: CyclePlan, index: int) -> _Screened:
    passed, refused = _filtered(plan, index) if plan.filtered is None else plan.filtered.of(plan, index)
    group = plan.binding.placement.groups[index]
    return _Screened(passed, refused, bool(passed) and _needs_room(plan, group, passed))


def _filtered(plan: CyclePlan, index: int) -> tuple[_Passed, _Refused]:
    group = plan.binding.placement.groups[index]
    checks = plugins.checks_for(plan.binding, group, plan.settings.plugins, plan.peers, plan.settings.others)
    passed, refused = plugin_timing.screen(plan.clusters, checks, plan.timing)
    return passed, tuple(refused)


def _needs_room(plan: CyclePlan, group: AffinityGroup, passed: Sequence[MemberCluster]) -> bool:
    """Whether the result depends on availability. If not, no estimator is asked."""
    binding, placement = plan.binding, plan.binding.placement
    if not binding.replicas and not binding.components:
        return False
    if placement.spread and not placement.ignores_spread:
        return True
    if not is_divided(binding) or placement.strategy in (ReplicaStrategy.DUPLICATED, ReplicaStrategy.STATIC):
        return False
    if plan.mode is SchedulingMode.FRESH or group.overflow:
        return True
    assigned = binding.assigned()
    if not assigned:
        return binding.replicas > 0
    return sum(assigned.get(cluster.name, 0) for cluster in passed) < binding.replicas


# 2. Score, and availability of each candidate


def _candidates(
    plan: CyclePlan,
    group: AffinityGroup,
    index: int,
    availability_by_cluster: Mapping[str, ClusterAvailability],
) -> list[ClusterCandidate]:
    screened, binding, settings = plan.screened(index), plan.binding, plan.settings
    assigned = binding.assigned()
    if places_sets(binding, settings):
        assigned = dict.fromkeys(assigned, 1)  # the existing set
    has_overflow = bool(group.overflow) and binding.is_workload
    tolerations = binding.placement.tolerations
    rates = plugins.scores_for(binding, assigned, settings.plugins, settings.others)
    scores = plugin_timing.score(screened.passed, rates, plan.timing)
    candidates: list[ClusterCandidate] = []
    for cluster, score in zip(screened.passed, scores, strict=True):
        name = cluster.name
        availability = availability_by_cluster[name] if screened.needs_room else None
        room = 0 if availability is None or availability.replicas < 0 else availability.replicas
        if settings.spare_tainted and name in assigned and untolerated(cluster.taints, tolerations):
            room = 0
        candidates.append(
            ClusterCandidate(
                name,
                group.tier(cluster) if has_overflow else 0,
                score,
                room,
                assigned.get(name, 0),
                cluster.region,
                cluster.price,
                availability,
            )
        )
    return selection.ordered(candidates, settings.cost)


# 3. Select, 4. assign


def _attempt(
    plan: CyclePlan, index: int, availability_by_cluster: Mapping[str, ClusterAvailability]
) -> AffinityAttempt:
    binding, settings = plan.binding, plan.settings
    group, screened = binding.placement.groups[index], plan.screened(index)
    size = len(plan.clusters)
    if not screened.passed:
        failure = Infeasible(ScheduleReason.NO_CLUSTER_FIT, plugins.fit_error(size, screened.refused))
        return AffinityAttempt(group.name, index, size, screened.refused, failure=failure)
    candidates = tuple(_candidates(plan, group, index, availability_by_cluster))
    chosen = selection.select(
        candidates, binding, _needed(plan), cost=settings.cost, partial=settings.partial
    )
    if isinstance(chosen, Infeasible):
        return AffinityAttempt(group.name, index, size, screened.refused, candidates, failure=chosen)
    assigned = _assign(plan, group, screened, chosen.chosen)
    if isinstance(assigned, Infeasible):
        return AffinityAttempt(
            group.name, index, size, screened.refused, candidates, chosen, failure=assigned
        )
    return AffinityAttempt(
        group.name,
        index,
        size,
        screened.refused,
        candidates,
        chosen,
        assigned.divisions,
        targets_for(binding, settings, assigned.replicas, [candidate.name for candidate in chosen.chosen]),
        assigned.failure,
    )


def _needed(plan: CyclePlan) -> int | None:
    """The capacity that the selection needs; None: any."""
    if plan.binding.placement.is_duplicated:
        return None
    return 1 if places_sets(plan.binding, plan.settings) else plan.binding.replicas


def _assign(
    plan: CyclePlan, group: AffinityGroup, screened: _Screened, chosen: Sequence[ClusterCandidate]
) -> Assignment | NotScheduled:
    binding, settings, placement = plan.binding, plan.settings, plan.binding.placement
    if not is_divided(binding):
        return (
            Assignment({}, ())
            if chosen
            else assignment.assign((), AssignmentTask(ReplicaStrategy.DUPLICATED, plan.mode, 0, ""))
        )
    task = AssignmentTask(
        placement.strategy,
        plan.mode,
        binding.replicas,
        binding.template.uid,
        binding.targets,
        static_weights(placement, screened.passed),
        bool(group.overflow),
        settings.partial,
        settings.cost,
        placement.scheduling_type,
        placement.division_preference,
        settings.room_order,
        settings.unlimited_weight,
    )
    return assignment.assign(chosen, task)


def static_weights(placement: KarmadaPlacement, clusters: Iterable[MemberCluster]) -> dict[str, int] | None:
    """The highest weight of the matching rules, by cluster."""
    rules = placement.weights
    if rules is None or placement.strategy is not ReplicaStrategy.STATIC:
        return None
    weights: dict[str, int] = {}
    for cluster in clusters:
        matching = [rule.weight for rule in rules if rule.matches(cluster)]
        if matching:
            weights[cluster.name] = max(matching)
    return weights


# 5. Conclude


def _success(
    plan: CyclePlan, attempt: AffinityAttempt, attempts: Sequence[AffinityAttempt]
) -> SchedulingDecision:
    return SchedulingDecision(
        plan.binding.key,
        plan.mode,
        ScheduleReason.SUCCESS,
        SUCCESS_MESSAGE,
        attempt.targets,
        attempt.group,
        attempts=tuple(attempts),
    )


def _partial(
    plan: CyclePlan, attempt: AffinityAttempt, attempts: Sequence[AffinityAttempt]
) -> SchedulingDecision:
    """What fits in the first group with any capacity, if no group has capacity for all."""
    replicas, failure = plan.binding.replicas, attempt.failure
    placed = sum(target.replicas for target in attempt.targets or ())
    assert failure is not None
    return SchedulingDecision(
        plan.binding.key,
        plan.mode,
        failure.reason,
        f"{failure.detail} {placed} of {replicas} replicas are placed.",
        attempt.targets,
        attempt.group,
        replicas - placed,
        tuple(attempts),
    )


def _failure(plan: CyclePlan, attempts: Sequence[AffinityAttempt]) -> SchedulingDecision:
    first = attempts[0].failure
    assert first is not None
    cleared = () if first.reason is ScheduleReason.NO_CLUSTER_FIT else None
    return SchedulingDecision(
        plan.binding.key, plan.mode, first.reason, first.detail, cleared, attempts=tuple(attempts)
    )
