"""Conditions that make a node a disruption candidate: Consolidatable and Drifted. Pure."""

from typing import NamedTuple

from karpool.consolidation.policy.eligibility import is_consolidatable
from karpool.model import durations
from karpool.model.catalogue.catalogue import Catalogue
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import DEFAULT_DISRUPTION, NodeClaim, NodePool, requirements_of
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.node import INSTANCE_TYPE
from karpool.model.kubernetes.times import parse_rfc3339
from karpool.model.requirements import WELL_KNOWN, conflict, from_labels
from karpool_fleet.karpenter.lifecycle.conditions import INITIALIZED
from karpool_fleet.karpenter.provisioning.claims import HASH, HASH_VERSION

_LOOK_AGAIN_SECONDS = 60.0


class ConsolidateAfterWindow(NamedTuple):
    """`open`: Consolidatable.

    Otherwise `in_seconds` is the time until then; None if waiting is not enough.
    """

    open: bool
    in_seconds: float | None = None


def consolidatable(
    claim: NodeClaim, pool: NodePool | None, initialized_at: str | None, now: float
) -> ConsolidateAfterWindow:
    """Return the window of a claim; `initialized_at` is None if the claim is not initialised."""
    if pool is None or initialized_at is None:
        return ConsolidateAfterWindow(False)
    after = consolidate_after(pool)
    if after is None:
        return ConsolidateAfterWindow(False)
    since, last_event = parse_rfc3339(initialized_at), claim.status.last_pod_event_time
    last_event_at = parse_rfc3339(last_event) if last_event else None
    wait = (pool.spec.disruption or DEFAULT_DISRUPTION).consolidate_after
    if is_consolidatable(wait, since, last_event_at, now):
        return ConsolidateAfterWindow(True)
    left = (since if last_event_at is None else last_event_at) + after - now
    # A longer wait comes from a wrong clock, which may be corrected at any time.
    return ConsolidateAfterWindow(False, min(left, max(after, _LOOK_AGAIN_SECONDS)))


def consolidate_after(pool: NodePool) -> float | None:
    """Return `consolidateAfter` in seconds; None for never, and for a value that cannot be read."""
    disruption = pool.spec.disruption or DEFAULT_DISRUPTION
    try:
        return durations.seconds_or_never(disruption.consolidate_after)
    except Invalid:
        return None


def is_under_window(claim: NodeClaim, pool: NodePool | None, now: float) -> bool:
    """Whether its node may not receive pods from consolidation yet."""
    if pool is None or not consolidate_after(pool):
        return False
    initialized = condition(claim.status.conditions, INITIALIZED)
    if initialized is None or initialized.status != "True":
        return False
    return not consolidatable(claim, pool, initialized.last_transition_time, now).open


def drift(
    claim: NodeClaim, pool: NodePool | None, catalogue: Catalogue, age: float, type_seconds: float
) -> str | None:
    """Return why the node differs from what its pool would launch today, as the reason of the condition."""
    if pool is None or not claim.is_launched:
        return None
    ours, theirs = claim.annotations, pool.annotations
    comparable = ours.get(HASH_VERSION) == theirs.get(HASH_VERSION) and HASH in ours and HASH in theirs
    if comparable and ours[HASH] != theirs[HASH]:
        return "NodePoolDrifted"
    try:
        requirements = requirements_of(
            pool.spec.template.spec.requirements or (), "spec.template.spec.requirements"
        )
    except Invalid:
        return None
    if conflict(from_labels(claim.labels), requirements, WELL_KNOWN) is not None:
        return "RequirementsDrifted"
    if age >= type_seconds and claim.labels.get(INSTANCE_TYPE) not in catalogue.types:
        return "InstanceTypeNotFound"
    return None
