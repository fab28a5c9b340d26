"""The stages of a NodeClaim, and why a claim ended. Pure.

`Created`: the object exists. `Launching`: Karpenter works on it, there is no machine yet. `Registering`: a
machine runs, its node is not initialized. `Ready`: initialized. `Failed`: it is being deleted, or was,
without ever having had a node. A claim that is deleted after it had a node is not a failed launch, whatever
events say.
"""

from dataclasses import dataclass
from enum import StrEnum

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.times import moment

# Slightly less than Karpenter's own limits: deletion is seen a moment before the claim is gone.
LAUNCH_SECONDS = 300.0
REGISTRATION_SECONDS = 900.0
_EARLY_SECONDS = 10.0


class ClaimStage(StrEnum):
    CREATED = "Created"
    LAUNCHING = "Launching"
    REGISTERING = "Registering"
    READY = "Ready"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ClaimProgress:
    """The progress of a claim; times are seconds since the epoch, None if not reached."""

    claim: str
    uid: str
    pool: str
    stage: ClaimStage
    created: float
    launched: float | None = None
    registered: float | None = None
    initialized: float | None = None
    ended: float | None = None  # when its deletion was first seen
    ending: LaunchReason | None = None  # None while it exists, or while the reason is not known yet
    gone: bool = False  # the object no longer exists
    provider_id: str = ""
    node: str = ""
    message: str = ""


def stage_of(claim: NodeClaim) -> ClaimStage:
    if claim.is_deleting and not claim.is_registered:
        return ClaimStage.FAILED
    if claim.is_initialized:
        return ClaimStage.READY
    if claim.is_launched:
        return ClaimStage.REGISTERING
    return ClaimStage.LAUNCHING if claim.status.conditions else ClaimStage.CREATED


def progress_of(claim: NodeClaim, now: float) -> ClaimProgress:
    """Return the progress that the claim itself shows. `now` replaces times that cannot be read."""
    created = moment(claim.metadata.creation_timestamp)
    since = now if created is None else created
    launched = _reached(claim, "Launched", now)
    registered = _reached(claim, "Registered", now)
    going = moment(claim.metadata.deletion_timestamp) if claim.metadata.deletion_timestamp else None
    if claim.is_deleting and going is None:
        going = now
    return ClaimProgress(
        claim.name,
        claim.metadata.uid,
        claim.pool_name,
        stage_of(claim),
        since,
        launched,
        registered,
        _reached(claim, "Initialized", now),
        ended=going,
        provider_id=claim.provider_id,
        node=claim.status.node_name,
        message=_message(claim),
    )


def ending_of(last: ClaimProgress, stock_out: bool, patience_over: bool) -> LaunchReason | None:
    """Return why a claim with this last progress ended; None if an explanation may still arrive.

    A stock-out ends only claims without a node; a claim that had a node was deleted for another reason.
    """
    if last.registered is not None or last.node or last.initialized is not None:
        return LaunchReason.REMOVED
    if stock_out:
        return LaunchReason.STOCK_OUT
    age = 0.0 if last.ended is None else last.ended - last.created
    if last.launched is not None and age >= REGISTRATION_SECONDS - _EARLY_SECONDS:
        return LaunchReason.REGISTRATION_TIMEOUT
    if last.launched is None and age >= LAUNCH_SECONDS - _EARLY_SECONDS:
        return LaunchReason.LAUNCH_TIMEOUT
    return LaunchReason.CLAIM_LOST if patience_over else None


def _reached(claim: NodeClaim, kind: str, now: float) -> float | None:
    reached = condition(claim.status.conditions, kind)
    if reached is None or reached.status != "True":
        return None
    at = moment(reached.last_transition_time)
    return now if at is None else at


def _message(claim: NodeClaim) -> str:
    """Return the message of the first condition that is not true and has a message."""
    for kind in ("Launched", "Registered", "Initialized"):
        unmet = condition(claim.status.conditions, kind)
        if unmet is not None and unmet.status != "True" and unmet.message:
            return f"{kind}: {unmet.message}"
    return ""
