"""Executes a command: taints the nodes, launches the replacement, waits for it, then deletes the nodes.

On failure the nodes are untainted, and a launched replacement stays until it is found empty. Commands are not
kept across a restart; the loop cleans up what they left.
"""

import asyncio
from contextlib import suppress

import structlog

from karpool.cluster.nodes.expected import same_taint
from karpool.kube.errors import Conflict, KubeError
from karpool.model.karpenter.objects import DISRUPTED, NodeClaim
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODES
from karpool.model.kubernetes.node import Node
from karpool_fleet.karpenter.disruption.candidates import DisruptionCandidate
from karpool_fleet.karpenter.disruption.simulation import DisruptionCommand
from karpool_fleet.karpenter.lifecycle.conditions import DISRUPTION_REASON, TRUE
from karpool_fleet.karpenter.provisioning.claims import node_claim, wire_taint
from karpool_fleet.karpenter.provisioning.provisioner import Provisioner
from karpool_fleet.karpenter.shared import Shared
from karpool_fleet.karpenter.termination.claim_finalizer import claim_conditions, write_conditions

log = structlog.get_logger(__name__)
POLL_SECONDS = 1.0
TIMEOUT_SECONDS = 600.0
_TRIES = 5


class Commands:
    def __init__(self, shared: Shared, provisioner: Provisioner) -> None:
        self._shared = shared
        self._view = shared.view
        self._clock = shared.context.clock
        self._provisioner = provisioner
        self._queued: dict[str, None] = {}  # names of claims
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.get_running_loop().create_future()

    def is_queued(self, claim: str) -> bool:
        return claim in self._queued

    async def start(self, reason: str, move: DisruptionCommand) -> bool:
        """Start a command; return whether it was started. Its nodes are reserved from now on."""
        if self._group is None or any(self.is_queued(candidate.claim.name) for candidate in move.candidates):
            return False
        for candidate in move.candidates:
            self._queued[candidate.claim.name] = None
        closed = [candidate for candidate in move.candidates if await self._close(candidate, reason)]
        if not closed or (move.replacement is not None and len(closed) < len(move.candidates)):
            await self._roll_back(move.candidates)
            return False
        for candidate in move.candidates:
            if candidate not in closed:
                self._queued.pop(candidate.claim.name, None)
        replacement: NodeClaim | None = None
        if move.replacement is not None:
            replacement = await self._replace(move)
            if replacement is None:
                await self._roll_back(closed)
                return False
        for disruption_candidate in closed:
            self._view.mark(disruption_candidate.claim, going=True)
        for row in sorted(set((move.placed or {}).values())):
            self._view.nominate(row, self._shared.settings.nomination_seconds)
        self._group.create_task(self._carry_out(reason, tuple(closed), replacement))
        return True

    async def _replace(self, move: DisruptionCommand) -> NodeClaim | None:
        planned = move.replacement
        assert planned is not None
        pool = self._view.pools.get(planned.pool)
        if pool is None:
            return None
        body = node_claim(pool, planned, self._provisioner.requirements_of(planned))
        try:
            return await self._view.claims.create(body)
        except KubeError as error:
            log.warning("replacement not created", pool=planned.pool, reason=str(error))
            return None

    async def _carry_out(
        self, reason: str, candidates: tuple[DisruptionCandidate, ...], replacement: NodeClaim | None
    ) -> None:
        try:
            ready = replacement is None or await self._wait_for(replacement, reason)
            if not ready:
                await self._roll_back(candidates)
                return
            for candidate in candidates:
                claim = self._view.claims.get(candidate.claim.name)
                if claim is not None:
                    self._say_both(
                        claim, candidate.node, "DisruptionTerminating", f"Disrupting Node: {reason}"
                    )
                    await self._view.claims.delete(claim)
        except KubeError as error:
            log.warning("command failed", reason=str(error))
            await self._roll_back(candidates)
        finally:
            for disruption_candidate in candidates:
                self._queued.pop(disruption_candidate.claim.name, None)

    async def _wait_for(self, replacement: NodeClaim, reason: str) -> bool:
        say = self._shared.say.say
        say(NODECLAIMS, replacement, "Normal", "DisruptionLaunching", f"Launching NodeClaim: {reason}")
        until = self._clock.monotonic() + TIMEOUT_SECONDS
        while self._clock.monotonic() < until:
            await self._clock.sleep(POLL_SECONDS)
            claim = self._view.claims.get(replacement.name)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                return False
            if claim.is_initialized:
                return True
            say(
                NODECLAIMS,
                claim,
                "Normal",
                "DisruptionWaitingReadiness",
                "Waiting on readiness to continue disruption",
            )
        return False

    # Tainting and untainting

    async def _close(self, candidate: DisruptionCandidate, reason: str) -> bool:
        with suppress(KubeError):
            if not await self._taint(candidate.node.name, wanted=True):
                return False
            return await self._note(candidate.claim.name, reason)
        return False

    async def _roll_back(
        self, candidates: tuple[DisruptionCandidate, ...] | list[DisruptionCandidate]
    ) -> None:
        for candidate in candidates:
            claim = self._view.claims.get(candidate.claim.name)
            if claim is not None:
                self._view.mark(claim, going=False)
            self._queued.pop(candidate.claim.name, None)
            with suppress(KubeError):
                await self.open(candidate.node.name, candidate.claim.name)

    async def open(self, node: str, claim: str) -> None:
        """Undo what `start` wrote."""
        await self._taint(node, wanted=False)
        await self._note(claim, "")

    async def _taint(self, name: str, *, wanted: bool) -> bool:
        for _ in range(_TRIES):
            node = self._view.nodes.get(name)
            if node is None or node.metadata.deletion_timestamp is not None:
                return False
            taints = node.spec.taints or []
            if (DISRUPTED in taints) == wanted:
                return True
            kept = [taint for taint in taints if not same_taint(taint, DISRUPTED)]
            wire = [wire_taint(taint) for taint in (*kept, *((DISRUPTED,) if wanted else ()))]
            try:
                return await self._view.nodes.patch(node, {"spec": {"taints": wire}}) is not None
            except Conflict:
                await self._clock.sleep(0.05)
        return False

    async def _note(self, name: str, reason: str) -> bool:
        """Write the disruption reason to the claim; an empty reason removes it."""
        for _ in range(_TRIES):
            claim = self._view.claims.get(name)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                return False
            conditions = claim_conditions(claim, self._clock.now())
            if reason:
                conditions.set(DISRUPTION_REASON, TRUE, reason, reason)
            else:
                conditions.clear(DISRUPTION_REASON)
            try:
                return await write_conditions(self._view, claim, conditions) is not None
            except Conflict:
                await self._clock.sleep(0.05)
        return False

    def _say_both(self, claim: NodeClaim, node: Node, reason: str, message: str) -> None:
        self._shared.say.say(NODECLAIMS, claim, "Normal", reason, message)
        self._shared.say.say(NODES, node, "Normal", reason, message)
