"""The rules that keep a node, in Karpenter's order, each with its reason.

`why_not_candidate` has the rules of every method, `why_not_method` those of one. Both take plain facts of one
node; `candidates` collects the facts of a cluster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from karpool.consolidation.policy.reasons import ConsolidationReason
from karpool.model import durations
from karpool.model.infeasible import Infeasible
from karpool.model.karpenter.objects import CAPACITY_TYPE, DO_NOT_DISRUPT, NODEPOOL
from karpool.model.kubernetes.node import ZONE


class DisruptionMethod(StrEnum):
    EMPTINESS = "emptiness"
    CONSOLIDATION = "consolidation"  # single-node and multi-node alike
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class EligibilityFacts:
    """The facts of one node. The defaults are those of a node that may be removed."""

    pool: str = "default"
    in_queue: bool = False
    managed: bool = True
    has_node: bool = True
    initialized: bool = True
    deleting: bool = False
    nominated: bool = False
    unreadable_pods: int = 0
    unreadable_pod: str = ""  # one of them
    reserved: str = ""  # who reserves it for future pods
    do_not_disrupt: bool = False
    pool_exists: bool = True
    pool_sells: bool = True  # it has an instance type that it could launch
    pool_problem: str = ""
    protecting_pod: str = ""  # a pod with do-not-disrupt
    bare_share: bool = False  # or with a GPU share and no owner that recreates it
    claiming_pod: str = ""  # a pod whose devices exist only here, or may do so
    held_claim: str = ""  # a claim without a pod that holds devices of the node
    unreadable_claim: str = ""  # an unreadable claim that may hold devices of the node
    held_pod: str = ""  # a pod that a disruption budget protects
    held_by: str = ""  # the budgets, separated by commas
    is_static: bool = False
    instance_type: str = "-"
    type_known: bool = True
    capacity_type: str = "-"
    zone: str = "-"
    consolidation_disabled: bool = False  # consolidateAfter is Never
    buffer_pods: bool = False
    empty: bool = False
    moves_pods: bool = True  # the policy is not WhenEmpty
    consolidatable: bool = True
    drifted: bool = False
    has_grace_period: bool = False  # terminationGracePeriod


Rule = Callable[[EligibilityFacts], Infeasible[ConsolidationReason] | None]


def why_not_candidate(
    facts: EligibilityFacts, method: DisruptionMethod = DisruptionMethod.CONSOLIDATION
) -> Infeasible[ConsolidationReason] | None:
    """Why the node is not a candidate of any method; None if it is one."""
    for rule in _ALWAYS:
        if why := rule(facts):
            return why
    # Drift has a deadline if the pool sets one; consolidation never overrules a pod.
    if method is DisruptionMethod.DRIFT and facts.has_grace_period:
        return None
    for rule in _PODS:
        if why := rule(facts):
            return why
    return None


def why_not_method(
    facts: EligibilityFacts, method: DisruptionMethod
) -> Infeasible[ConsolidationReason] | None:
    """Why the method cannot remove the candidate; None if it can."""
    for rule in _OF_METHOD[method]:
        if why := rule(facts):
            return why
    return None


def _rule(
    test: Callable[[EligibilityFacts], bool], reason: ConsolidationReason, detail: str, about: str = ""
) -> Rule:
    def rule(facts: EligibilityFacts) -> Infeasible[ConsolidationReason] | None:
        if not test(facts):
            return None
        return Infeasible(reason, detail.format(f=facts), about.format(f=facts))

    return rule


_ALWAYS: Sequence[Rule] = (
    _rule(lambda f: f.in_queue, ConsolidationReason.IN_QUEUE, "a move that takes it is under way"),
    _rule(
        lambda f: not f.managed, ConsolidationReason.UNMANAGED, "no NodeClaim: Karpenter does not manage it"
    ),
    _rule(lambda f: not f.has_node, ConsolidationReason.NO_NODE, "its NodeClaim has no node yet"),
    _rule(lambda f: not f.initialized, ConsolidationReason.NOT_INITIALIZED, "it is not initialised yet"),
    _rule(lambda f: f.deleting, ConsolidationReason.DELETING, "it is being deleted"),
    _rule(lambda f: f.nominated, ConsolidationReason.NOMINATED, "a pending pod is meant for it"),
    _rule(
        lambda f: bool(f.unreadable_pods),
        ConsolidationReason.POD_UNREADABLE,
        "{f.unreadable_pods} of its pods are invalid (pod {f.unreadable_pod}); see the problems",
        "pod {f.unreadable_pod}",
    ),
    _rule(lambda f: bool(f.reserved), ConsolidationReason.RESERVED, "it is held for {f.reserved}"),
    _rule(
        lambda f: f.do_not_disrupt,
        ConsolidationReason.NODE_DO_NOT_DISRUPT,
        f"its annotation {DO_NOT_DISRUPT} forbids it",
    ),
    _rule(lambda f: not f.pool, ConsolidationReason.NO_NODEPOOL_LABEL, f"it has no label {NODEPOOL}"),
    _rule(
        lambda f: not f.pool_exists and not f.pool_problem,
        ConsolidationReason.NODEPOOL_NOT_FOUND,
        "its nodepool {f.pool} does not exist, or cannot be read",
        "nodepool {f.pool}",
    ),
    _rule(
        # Karpenter ignores such a pool.
        lambda f: not f.pool_sells and not f.pool_problem,
        ConsolidationReason.NODEPOOL_NOT_FOUND,
        "no instance type is known for its nodepool {f.pool}",
        "nodepool {f.pool}",
    ),
    _rule(
        lambda f: bool(f.pool_problem),
        ConsolidationReason.NODEPOOL_UNREADABLE,
        "its nodepool {f.pool} is invalid: {f.pool_problem}",
        "nodepool {f.pool}",
    ),
)
_PODS: Sequence[Rule] = (
    _rule(
        lambda f: bool(f.protecting_pod) and f.bare_share,
        ConsolidationReason.POD_DO_NOT_DISRUPT,
        "pod {f.protecting_pod} holds a share of a GPU and has no owner that would create it again",
        "pod {f.protecting_pod}",
    ),
    _rule(
        lambda f: bool(f.protecting_pod),
        ConsolidationReason.POD_DO_NOT_DISRUPT,
        f"pod {{f.protecting_pod}} asks not to be disturbed ({DO_NOT_DISRUPT})",
        "pod {f.protecting_pod}",
    ),
    _rule(
        lambda f: bool(f.claiming_pod),
        ConsolidationReason.POD_RESOURCE_CLAIMS,
        "pod {f.claiming_pod} holds devices of resource claims, and it is unknown which other "
        "nodes have them",
        "pod {f.claiming_pod}",
    ),
    _rule(
        lambda f: bool(f.held_claim),
        ConsolidationReason.POD_RESOURCE_CLAIMS,
        "resource claim {f.held_claim} holds devices of this node and belongs to no pod",
        "resourceclaim {f.held_claim}",
    ),
    _rule(
        lambda f: bool(f.unreadable_claim),
        ConsolidationReason.POD_RESOURCE_CLAIMS,
        "resource claim {f.unreadable_claim} is invalid and may hold devices of this node",
        "resourceclaim {f.unreadable_claim}",
    ),
    _rule(
        lambda f: bool(f.held_pod) and "," in f.held_by,
        ConsolidationReason.MULTIPLE_PDBS,
        "several disruption budgets ({f.held_by}) select pod {f.held_pod}, and eviction supports one",
        "pod {f.held_pod}",
    ),
    _rule(
        lambda f: bool(f.held_pod),
        ConsolidationReason.PDB_BLOCKED,
        "disruption budget {f.held_by} allows no disruption of pod {f.held_pod}",
        "poddisruptionbudget {f.held_by}",
    ),
)
_STATIC = _rule(
    lambda f: f.is_static, ConsolidationReason.STATIC, "nodepool {f.pool} is static", "nodepool {f.pool}"
)
_DISABLED = _rule(
    lambda f: f.consolidation_disabled,
    ConsolidationReason.CONSOLIDATION_DISABLED,
    "consolidateAfter of nodepool {f.pool} is Never",
    "nodepool {f.pool}",
)
_TOO_EARLY = _rule(
    lambda f: not f.consolidatable,
    ConsolidationReason.NOT_CONSOLIDATABLE,
    "pods came or went within consolidateAfter of nodepool {f.pool}",
    "nodepool {f.pool}",
)
_OF_METHOD: Mapping[DisruptionMethod, Sequence[Rule]] = {
    DisruptionMethod.EMPTINESS: (
        _STATIC,
        _DISABLED,
        _rule(lambda f: f.buffer_pods, ConsolidationReason.BUFFER_PODS, "it holds a capacity buffer"),
        _rule(lambda f: not f.empty, ConsolidationReason.NOT_EMPTY, "it still runs pods"),
        _TOO_EARLY,
    ),
    DisruptionMethod.CONSOLIDATION: (
        _STATIC,
        _rule(
            lambda f: not f.type_known,
            ConsolidationReason.INSTANCE_TYPE_UNKNOWN,
            "its instance type {f.instance_type!r} is not in the catalogue",
        ),
        _rule(
            lambda f: not f.capacity_type,
            ConsolidationReason.NO_CAPACITY_TYPE_LABEL,
            f"it has no label {CAPACITY_TYPE}",
        ),
        _rule(lambda f: not f.zone, ConsolidationReason.NO_ZONE_LABEL, f"it has no label {ZONE}"),
        _DISABLED,
        _rule(
            lambda f: f.empty,
            ConsolidationReason.EMPTY_HANDLED_BY_EMPTINESS,
            "it is empty; the emptiness method removes it",
        ),
        _rule(
            lambda f: not f.moves_pods,
            ConsolidationReason.POLICY_WHEN_EMPTY,
            "the policy of nodepool {f.pool} is WhenEmpty, and it still runs pods",
            "nodepool {f.pool}",
        ),
        _TOO_EARLY,
    ),
    DisruptionMethod.DRIFT: (
        _STATIC,
        _rule(lambda f: not f.drifted, ConsolidationReason.NOT_DRIFTED, "it has not drifted"),
    ),
}


# Quiet periods


def is_under_window(wait: str, initialized_at: float | None, last_event_at: float | None, now: float) -> bool:
    """Whether the node is within its quiet period. `wait` is a duration or Never. Raises Invalid."""
    seconds = durations.seconds_or_never(wait)
    if not seconds or initialized_at is None:
        return False
    since = initialized_at if last_event_at is None else last_event_at
    return now - since < seconds


def is_consolidatable(
    wait: str, initialized_at: float | None, last_event_at: float | None, now: float
) -> bool:
    """The value of Karpenter's condition of that name."""
    if durations.seconds_or_never(wait) is None or initialized_at is None:
        return False
    return not is_under_window(wait, initialized_at, last_event_at, now)


def lifetime_remaining(expire_after_seconds: float | None, age_seconds: float) -> float:
    """The remaining share of a node's lifetime; 1 if it never expires."""
    if expire_after_seconds is None:
        return 1.0
    if expire_after_seconds <= 0:
        return 0.0
    return min(1.0, max(0.0, (expire_after_seconds - age_seconds) / expire_after_seconds))
