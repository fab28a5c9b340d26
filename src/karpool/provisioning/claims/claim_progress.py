"""The life of a NodeClaim in the words of the design, and why one ended. Pure.

`Created` the object exists · `Launching` Karpenter works on it, no machine yet ·
`Registering` a machine runs, its node is not initialised · `Ready` initialised ·
`Failed` it goes, or went, without ever having had a node. A claim that goes after it
had one is not a failed launch, whatever events say.
"""

from dataclasses import dataclass
from enum import StrEnum

from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.meta import condition
from karpool.model.kubernetes.times import moment

# Karpenter's own limits, a little early: a claim is seen to go a moment before it is gone.
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
    """Where a claim stands; moments are seconds since the epoch, None when not reached."""

    claim: str
    uid: str
    pool: str
    stage: ClaimStage
    created: float
    launched: float | None = None
    registered: float | None = None
    initialized: float | None = None
    ended: float | None = None  # when it was first seen to go
    ending: LaunchReason | None = None  # None while it lives, or while the reason is not known yet
    gone: bool = False  # the object does not exist any more
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
    """What a claim says itself. `now` stands in for times that cannot be read."""
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
    """Why a claim that was last seen like this ended; None when an explanation may still come.

    Being out of stock ends only claims that had no node: one that had is gone for another reason.
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
    """Of the first condition that is not true yet and says why."""
    for kind in ("Launched", "Registered", "Initialized"):
        unmet = condition(claim.status.conditions, kind)
        if unmet is not None and unmet.status != "True" and unmet.message:
            return f"{kind}: {unmet.message}"
    return ""
