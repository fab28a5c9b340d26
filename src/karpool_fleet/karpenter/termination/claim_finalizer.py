"""Finalizes a claim: deletes its node, terminates its machine, then releases the claim.

Every step follows from the current state, so that it continues after a crash. `node_terminator` drains a
registered node; an unregistered node has no finalizer and is deleted with its machine, as a cloud controller
would do.
"""

from karpool.kube.clock import Clock
from karpool.kube.work_queue import Requeue
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import TERMINATION_FINALIZER, TERMINATION_TIMESTAMP, NodeClaim
from karpool.model.kubernetes.api_resources import NODECLAIMS
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool_fleet.karpenter.lifecycle.conditions import INSTANCE_TERMINATING, OF_CLAIM, TRUE, Conditions
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.karpenter.view import KarpenterState

POLL_SECONDS = 5.0


class ClaimFinalizer:
    def __init__(self, shared: Shared) -> None:
        self._clock = shared.context.clock
        self._view = shared.view
        self._machines = shared.machines
        self._say = shared.say

    async def finalize(self, claim: NodeClaim) -> Requeue | None:
        finalizers = claim.metadata.finalizers or []
        if TERMINATION_FINALIZER not in finalizers:
            return None
        self._machines.abandon(claim.metadata.uid)
        if (deadline := _missing_deadline(claim)) is not None:
            return await self._announce(claim, deadline)
        held = [node for node in self._view.nodes_of(claim) if is_held(node)]
        for node in held:
            if node.metadata.deletion_timestamp is None:
                await self._view.nodes.delete(node)
        if held:
            return None  # the event of the node brings us back
        if (instance := self._machines.of(claim)) is not None:
            self._machines.terminate(instance)
            await terminating(self._view, claim, self._clock)
            return Requeue(POLL_SECONDS)
        for node in self._view.nodes_of(claim):
            await self._view.nodes.delete(node)
        kept = [finalizer for finalizer in finalizers if finalizer != TERMINATION_FINALIZER]
        await self._view.claims.patch(claim, {"metadata": {"finalizers": kept}})
        return None

    async def _announce(self, claim: NodeClaim, deadline: str) -> Requeue | None:
        annotations = {TERMINATION_TIMESTAMP: deadline}
        if await self._view.claims.patch(claim, {"metadata": {"annotations": annotations}}) is None:
            return None
        message = f"All pods will be deleted by {deadline}"
        self._say.say(NODECLAIMS, claim, "Warning", "TerminationGracePeriodExpiring", message)
        return Requeue(0)


def is_held(node: Node) -> bool:
    """Whether the node has the termination finalizer, so that it is drained first."""
    return TERMINATION_FINALIZER in (node.metadata.finalizers or ())


def _missing_deadline(claim: NodeClaim) -> str | None:
    """Return the termination deadline if one is required and not written yet."""
    period, started = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    if not period or not started or TERMINATION_TIMESTAMP in claim.annotations:
        return None
    try:
        return rfc3339(parse_rfc3339(started) + durations.seconds(period))
    except Invalid:
        return None


async def terminating(
    view: KarpenterState, claim: NodeClaim, clock: Clock, *more: tuple[str, str, str]
) -> None:
    """Set the condition that the machine is terminating, and further conditions that are now true."""
    conditions = claim_conditions(claim, clock.now())
    for kind, status, reason in more:
        conditions.set(kind, status, reason)
    conditions.set(INSTANCE_TERMINATING, TRUE)
    await write_conditions(view, claim, conditions)


def claim_conditions(claim: NodeClaim, now: float) -> Conditions:
    return Conditions(
        claim.status.conditions,
        OF_CLAIM,
        created=claim.metadata.creation_timestamp or rfc3339(now),
        generation=claim.metadata.generation,
        now=rfc3339(now),
    )


async def write_conditions(
    view: KarpenterState, claim: NodeClaim, conditions: Conditions
) -> NodeClaim | None:
    wire = conditions.wire()
    if wire is None:
        return claim
    return await view.claims.patch(claim, {"status": {"conditions": wire}}, status=True)
