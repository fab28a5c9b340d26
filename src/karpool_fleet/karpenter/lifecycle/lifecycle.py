"""The life cycle of a NodeClaim: from its creation to an initialised node, and until its expiry.

One reconciliation does what is possible now, in upstream's order: launch, register, initialise, mark it for
disruption, and check deadlines; then it writes the status once. Deadlines follow from the claim itself, so a
restart changes nothing. `claim_finalizer` handles claims that are being deleted.
"""

from collections.abc import Iterable
from typing import Any

import structlog

from karpool.kube.work_queue import Requeue, WorkQueue
from karpool.model import durations
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import TERMINATION_FINALIZER, NodeClaim, NodePool
from karpool.model.kubernetes.api_resources import NODECLAIMS
from karpool.model.kubernetes.node import Node
from karpool.model.kubernetes.times import parse_rfc3339, rfc3339
from karpool.model.resources import quantities
from karpool_fleet.cloud.cloud import Instance
from karpool_fleet.karpenter.lifecycle import marks, registration
from karpool_fleet.karpenter.lifecycle.conditions import (
    CONSOLIDATABLE,
    DRIFTED,
    FALSE,
    INITIALIZED,
    LAUNCHED,
    REGISTERED,
    TRUE,
    UNKNOWN,
    Conditions,
)
from karpool_fleet.karpenter.provisioning.machines import LaunchFailed, OutOfStock
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.karpenter.termination.claim_finalizer import ClaimFinalizer, claim_conditions
from karpool_fleet.runtime.controller import looking_again

log = structlog.get_logger(__name__)
_LAUNCH_RETRY_SECONDS = 5.0
_EVENT_MESSAGE_MAX = 300


class Lifecycle:
    def __init__(self, shared: Shared) -> None:
        context, view = shared.context, shared.view
        self.queue: WorkQueue[str] = WorkQueue(context.clock, chance=context.random.random)
        self._clock = context.clock
        self._view = view
        self._machines = shared.machines
        self._catalogue = shared.market.catalogue
        self._health = shared.health
        self._say = shared.say
        self._settings = shared.settings
        self._finalizer = ClaimFinalizer(shared)
        shared.machines.on_launched.append(self.queue.add)
        view.claims.subscribe(self._on_claim)
        view.nodes.subscribe(self._on_node)
        view.pools.subscribe(self._on_pool)

    async def run(self) -> None:
        await self.queue.run(looking_again(self.reconcile), workers=8)

    # Triggers

    def _on_claim(self, before: NodeClaim | None, after: NodeClaim | None) -> None:
        if after is not None:
            self.queue.add(after.name)
        elif before is not None:
            self._machines.forget(before.metadata.uid)

    def _on_node(self, before: Node | None, after: Node | None) -> None:
        for node in (before, after):
            if node is not None and (claim := self._view.claim_of(node)) is not None:
                self.queue.add(claim.name)

    def _on_pool(self, before: NodePool | None, after: NodePool | None) -> None:
        if before is None or after is None or _pool_changed(before, after):
            names = {pool.name for pool in (before, after) if pool is not None}
            for claim in self._view.claims.objects():
                if claim.pool_name in names:
                    self.queue.add(claim.name)

    # One reconciliation

    async def reconcile(self, name: str) -> Requeue | None:
        claim = self._view.claims.get(name)
        if claim is None:
            return None
        if claim.metadata.deletion_timestamp is not None:
            return await self._finalizer.finalize(claim)
        return await self._advance(claim)

    async def _advance(self, claim: NodeClaim) -> Requeue | None:
        if TERMINATION_FINALIZER not in (claim.metadata.finalizers or ()):
            finalizers = [*(claim.metadata.finalizers or ()), TERMINATION_FINALIZER]
            patched = await self._view.claims.patch(claim, {"metadata": {"finalizers": finalizers}})
            if patched is None:
                return None
            claim = patched
        if overdue := self._overdue(claim):
            log.info("claim deleted", claim=claim.name, reason=overdue)
            await self._view.claims.delete(claim)
            return None
        look = _Look(claim, self._clock.now())
        launched = claim.is_launched or await self._launch(look)
        if look.claim is None:
            return None
        if launched:
            if (node := await self._register(look)) is not None:
                await self._initialize(look, node)
            self._mark(look)
        if launched or look.failed:
            await self._write(look)
        look.wake(self._deadlines(claim, look.conditions))
        return Requeue(max(0.0, look.again)) if look.again is not None else None

    async def _launch(self, look: "_Look") -> bool:
        claim = look.claim
        assert claim is not None
        outcome = self._machines.launch(claim)
        if isinstance(outcome, Instance):
            labels = {**outcome.labels, **claim.labels}
            if labels != dict(claim.labels):
                look.claim = await self._view.claims.patch(claim, {"metadata": {"labels": labels}})
            look.status |= {
                "providerID": outcome.provider_id,
                "capacity": quantities(outcome.type.capacity),
                "allocatable": quantities(outcome.type.allocatable),
            }
            look.conditions.set(LAUNCHED, TRUE)
            return True
        if isinstance(outcome, OutOfStock):
            message = f"NodeClaim {claim.name} event: {outcome.message}"
            self._say.say(
                NODECLAIMS, claim, "Warning", "InsufficientCapacityError", message[:_EVENT_MESSAGE_MAX]
            )
            await self._view.claims.delete(claim)
            look.claim = None
        elif isinstance(outcome, LaunchFailed):
            self._machines.forget(claim.metadata.uid)
            look.failed = True
            look.conditions.set(LAUNCHED, UNKNOWN, "LaunchFailed", outcome.message)
            look.wake([_LAUNCH_RETRY_SECONDS])
        return False

    async def _register(self, look: "_Look") -> Node | None:
        """Register the node; return it once it is registered."""
        claim = look.claim
        assert claim is not None
        provider_id = claim.provider_id or look.status.get("providerID", "")
        nodes = self._view.nodes_with(provider_id)
        if not nodes:
            if not look.conditions.is_true(REGISTERED):
                look.conditions.set(REGISTERED, UNKNOWN, "NodeNotFound", "Node not registered with cluster")
            if not look.conditions.is_true(INITIALIZED):
                look.conditions.set(INITIALIZED, UNKNOWN, "NodeNotFound", "Node not registered with cluster")
            return None
        if len(nodes) > 1:
            look.conditions.set(
                REGISTERED, FALSE, "MultipleNodesFound", "Invariant violated, matched multiple nodes"
            )
            return None
        node: Node | None = nodes[0]
        assert node is not None
        if look.conditions.is_true(REGISTERED):
            return node
        if patch := registration.registration_patch(claim, node):
            node = await self._view.nodes.patch(node, patch)
            if node is None:
                return None
        look.conditions.set(REGISTERED, TRUE)
        look.status["nodeName"] = node.name
        self._health.record(claim.pool_name, succeeded=True)
        return node

    async def _initialize(self, look: "_Look", node: Node) -> None:
        if look.conditions.is_true(INITIALIZED):
            return
        assert look.claim is not None
        if (waiting := registration.not_initialized(look.claim, node)) is not None:
            look.conditions.set(INITIALIZED, UNKNOWN, *waiting)
            return
        patch = registration.initialization_patch(node)
        if patch and await self._view.nodes.patch(node, patch) is None:
            return
        look.conditions.set(INITIALIZED, TRUE)

    def _mark(self, look: "_Look") -> None:
        claim = look.claim
        assert claim is not None
        pool = self._view.pools.get(claim.pool_name)
        ready = look.conditions.get(INITIALIZED)
        since = ready.last_transition_time if ready is not None and ready.status == TRUE else None
        window = marks.consolidatable(claim, pool, since, look.now)
        if window.open:
            look.conditions.set(CONSOLIDATABLE, TRUE)
        else:
            look.conditions.clear(CONSOLIDATABLE)
            if window.in_seconds is not None:
                look.wake([window.in_seconds])
        age = look.now - parse_rfc3339(claim.metadata.creation_timestamp or rfc3339(look.now))
        reason = marks.drift(claim, pool, self._catalogue, age, self._settings.drift_type_seconds)
        if reason is None:
            look.conditions.clear(DRIFTED)
        else:
            look.conditions.set(DRIFTED, TRUE, reason, reason)

    async def _write(self, look: "_Look") -> None:
        """Write the status once, and only what changed."""
        assert look.claim is not None
        conditions = look.conditions.wire()
        status: dict[str, Any] = dict(look.status)
        if conditions is not None:
            status["conditions"] = conditions
        if status:
            await self._view.claims.patch(look.claim, {"status": status}, status=True)
        if look.conditions.is_true(LAUNCHED):
            self._machines.forget(look.claim.metadata.uid)

    # Deadlines

    def _overdue(self, claim: NodeClaim) -> str:
        """Return why the claim has expired, or an empty text."""
        age = self._clock.now() - parse_rfc3339(claim.metadata.creation_timestamp or "")
        expires = _expire_after(claim)
        if expires is not None and age >= expires:
            return "expired"
        if not claim.is_launched:
            if age >= self._settings.launch_timeout_seconds:
                self._health.record(claim.pool_name, succeeded=False, message="launch timed out")
                return "launch_timeout"
        elif not claim.is_registered and age >= self._settings.registration_timeout_seconds:
            self._health.record(claim.pool_name, succeeded=False, message="registration timed out")
            return "registration_timeout"
        return ""

    def _deadlines(self, claim: NodeClaim, conditions: Conditions) -> Iterable[float]:
        # A creation time in the future counts as now: the clock may be corrected meanwhile.
        age = max(0.0, self._clock.now() - parse_rfc3339(claim.metadata.creation_timestamp or ""))
        if (expires := _expire_after(claim)) is not None:
            yield expires - age
        if not conditions.is_true(LAUNCHED):
            yield self._settings.launch_timeout_seconds - age
        elif not conditions.is_true(REGISTERED):
            yield self._settings.registration_timeout_seconds - age


class _Look:
    """One reconciliation of a claim: what to write, and when to reconcile again."""

    def __init__(self, claim: NodeClaim, now: float) -> None:
        self.claim: NodeClaim | None = claim
        self.now = now
        self.status: dict[str, Any] = {}
        self.failed = False  # the launch failed for now
        self.again: float | None = None
        self.conditions = claim_conditions(claim, now)

    def wake(self, delays: Iterable[float]) -> None:
        for seconds in delays:
            self.again = seconds if self.again is None else min(self.again, seconds)


def _expire_after(claim: NodeClaim) -> float | None:
    try:
        return durations.seconds_or_never(claim.spec.expire_after or "720h")
    except Invalid:
        return None


def _pool_changed(before: NodePool, after: NodePool) -> bool:
    return before.spec != after.spec or before.metadata.annotations != after.metadata.annotations
