"""What a NodeClaim shows about its pool: created, launched, registered, refused or given up. Pure."""

from karpool.cluster.market.failures import LaunchFailures
from karpool.cluster.market.launch_reasons import LaunchReason
from karpool.cluster.market.stock_outs import offer_of
from karpool.model.karpenter.objects import NodeClaim
from karpool.model.kubernetes.meta import Condition, condition
from karpool.model.kubernetes.times import moment

# Karpenter gives up a launch after 5 minutes, a registration after 15; other components delete sooner.
GIVEN_UP_SECONDS = 240.0


def observe(claim: NodeClaim, failures: LaunchFailures, created: float, now: float) -> None:
    """Record what the conditions of the claim say; idempotent."""
    pool = claim.pool_name
    if not pool:
        return
    failures.claimed(pool, created)
    registered = condition(claim.status.conditions, "Registered")
    if registered is not None and registered.status == "True":
        failures.succeeded(pool, offer_of(claim), _at(registered, now))
    launched = condition(claim.status.conditions, "Launched")
    if launched is not None and launched.status != "True" and _says_why(launched):
        failures.failed(
            pool, LaunchReason.LAUNCH_FAILED, _at(launched, now), f"{claim.name}: {launched.message}"
        )


def given_up(
    name: str, pool: str, *, created: float, launched: bool, failures: LaunchFailures, now: float
) -> None:
    """Record a failure if a claim was deleted after minutes without ever having had a node."""
    age = now - created
    if pool and age >= GIVEN_UP_SECONDS:
        cause = LaunchReason.REGISTRATION_FAILED if launched else LaunchReason.LAUNCH_FAILED
        failures.failed(pool, cause, now, f"{name} was deleted after {int(age)} s without a node")


def _at(reached: Condition, now: float) -> float:
    at = moment(reached.last_transition_time)
    return now if at is None else at


def _says_why(launched: Condition) -> bool:
    return bool(launched.message) and launched.reason not in (None, "", "AwaitingReconciliation", "Launched")
