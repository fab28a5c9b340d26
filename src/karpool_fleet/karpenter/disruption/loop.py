"""The disruption loop: one decision at a time, validated after fifteen seconds.

A pass tries its methods in order; the first that starts a command ends the pass. A method without result is
not tried again until the cluster changes or five minutes pass. Nothing is decided while a claim has no
machine.
"""

from collections.abc import Callable

from karpool.consolidation.execution.validation import same_outcome
from karpool.kube.errors import KubeError
from karpool.model.karpenter.objects import DISRUPTED, NodeClaim
from karpool.model.kubernetes.api_resources import NODECLAIMS, NODEPOOLS, NODES
from karpool.model.kubernetes.node import Node
from karpool.packing.new_nodes.pack_result import PackResult, PlannedNode
from karpool_fleet.karpenter.disruption import methods
from karpool_fleet.karpenter.disruption.candidates import (
    EMPTY,
    UNDERUTILIZED,
    Candidates,
    DisruptionCandidate,
    remaining_budgets,
)
from karpool_fleet.karpenter.disruption.commands import Commands
from karpool_fleet.karpenter.disruption.methods import DisruptionProposal
from karpool_fleet.karpenter.disruption.simulation import DisruptionCommand, NoMove, Simulator
from karpool_fleet.karpenter.lifecycle.conditions import DISRUPTION_REASON
from karpool_fleet.karpenter.provisioning.provisioner import Provisioner
from karpool_fleet.karpenter.shared import Shared

_UNSYNCED_SECONDS = 1.0
_REFRESH_SECONDS = 300.0
_UNCONSOLIDATABLE_SECONDS = 900.0
_POOL_BLOCKED_SECONDS = 60.0


class DisruptionLoop:
    def __init__(self, shared: Shared, provisioner: Provisioner) -> None:
        self.commands = Commands(shared, provisioner)
        self._shared = shared
        self._view = shared.view
        self._clock = shared.context.clock
        self._settings = shared.settings
        self._candidates = Candidates(shared.view, shared.market, self.commands.is_queued)
        self._simulator = Simulator(shared, provisioner)
        self._fruitless: dict[str, tuple[tuple[int, int], float]] = {}

    async def run(self) -> None:
        while True:
            try:
                if not self._view.is_synced:
                    wait = _UNSYNCED_SECONDS
                else:
                    wait = 0.0 if await self.once() else self._settings.disruption_poll_seconds
            except KubeError:
                wait = _UNSYNCED_SECONDS
            await self._clock.sleep(wait)

    async def once(self) -> bool:
        """Run one pass; return whether a command was started."""
        await self._clean_up()
        steps: tuple[tuple[str, str, Callable[[], DisruptionProposal | None]], ...] = (
            ("emptiness", EMPTY, self._emptiness),
            ("multi", UNDERUTILIZED, self._multi),
            ("single", UNDERUTILIZED, self._single),
        )
        for name, reason, find in steps:
            if self._is_fruitless(name):
                continue
            command = find()
            if command is None:
                self._note_fruitless(name, reason)
            elif await self._validate_and_start(command):
                return True
        return False

    # Methods

    def _eligible(
        self, test: Callable[[DisruptionCandidate], str], *, explain: bool = False
    ) -> list[DisruptionCandidate]:
        kept: list[DisruptionCandidate] = []
        for candidate in self._candidates.all(self._clock.now(), refuse=self._blocked):
            reason = test(candidate)
            if not reason:
                kept.append(candidate)
            elif explain and '"' in reason:
                self._unconsolidatable(candidate, reason)
        return kept

    def _budgets(self, reason: str) -> dict[str, int]:
        left = remaining_budgets(self._view, reason, self._clock.now())
        for pool in self._view.pools.objects():
            if left.get(pool.name) == 0 and self._view.usage(pool.name).get("nodes"):
                self._shared.say.say(
                    NODEPOOLS,
                    pool,
                    "Normal",
                    "DisruptionBlocked",
                    f"No allowed disruptions for disruption reason {reason} due to blocking budget",
                    window_seconds=_POOL_BLOCKED_SECONDS,
                )
        return left

    def _emptiness(self) -> DisruptionProposal | None:
        eligible = self._eligible(self._for_emptiness())
        return methods.emptiness(eligible, self._budgets(EMPTY)) if eligible else None

    def _for_emptiness(self) -> Callable[[DisruptionCandidate], str]:
        held = self._simulator.buffer_rows()
        test = self._candidates.for_emptiness
        return lambda one: "hosts pods of a buffer" if one.name in held else test(one)

    def _multi(self) -> DisruptionProposal | None:
        eligible = self._eligible(self._candidates.for_consolidation)
        if len(eligible) < 2:
            return None
        return methods.multi_node(eligible, self._budgets(UNDERUTILIZED), self._simulator.consolidate)

    def _single(self) -> DisruptionProposal | None:
        eligible = self._eligible(self._candidates.for_consolidation, explain=True)
        if not eligible:
            return None
        budgets = self._budgets(UNDERUTILIZED)
        return methods.single_node(eligible, budgets, self._simulator.consolidate, self._unconsolidatable)

    # Validation

    async def _validate_and_start(self, found: DisruptionProposal) -> bool:
        await self._clock.sleep(self._settings.validation_seconds)
        again = self._revalidated(found.reason, found.move)
        return again is not None and await self.commands.start(found.reason, again)

    def _revalidated(self, reason: str, move: DisruptionCommand) -> DisruptionCommand | None:
        """Return the command as valid now: emptiness may drop nodes, other methods need all of them."""
        test = self._for_emptiness() if reason == EMPTY else self._candidates.for_consolidation
        now = {
            disruption_candidate.claim.name: disruption_candidate
            for disruption_candidate in self._eligible(test)
        }
        still = [now[candidate.claim.name] for candidate in move.candidates if candidate.claim.name in now]
        within = methods.by_budget(still, remaining_budgets(self._view, reason, self._clock.now()))
        if reason == EMPTY:
            return DisruptionCommand(tuple(within)) if within else None
        if len(within) < len(move.candidates):
            return None
        packing = self._simulator.simulate(within)
        if isinstance(packing, NoMove) or not _still_holds(move, packing):
            return None
        return DisruptionCommand(tuple(within), move.replacement, packing.placed)

    # Methods without result

    def _state(self) -> tuple[int, int]:
        pools = sum(pool.metadata.generation for pool in self._view.pools.objects())
        return self._view.snapshot().room.version + self._view.overlays.version, pools

    def _is_fruitless(self, name: str) -> bool:
        since = self._fruitless.get(name)
        return since is not None and since[0] == self._state() and since[1] > self._clock.monotonic()

    def _note_fruitless(self, name: str, reason: str) -> None:
        """Remember a method without result, unless a budget was exhausted: budgets change with time alone."""
        if all(remaining_budgets(self._view, reason, self._clock.now()).values()):
            self._fruitless[name] = self._state(), self._clock.monotonic() + _REFRESH_SECONDS

    async def _clean_up(self) -> None:
        """Untaint nodes that are marked for disruption and belong to no command."""
        for claim in self._view.claims.objects():
            if self.commands.is_queued(claim.name):
                continue
            for node in self._view.nodes_of(claim):
                closed = DISRUPTED in (node.spec.taints or ()) or claim.is_true(DISRUPTION_REASON)
                if closed and not self._view.is_leaving(claim, node):
                    await self.commands.open(node.name, claim.name)

    # Events

    def _blocked(self, claim: NodeClaim, node: Node | None, reason: str) -> None:
        self._say(claim, node, "DisruptionBlocked", reason, 120.0)

    def _unconsolidatable(self, one: DisruptionCandidate, reason: str) -> None:
        self._say(one.claim, one.node, "Unconsolidatable", reason, _UNCONSOLIDATABLE_SECONDS)

    def _say(self, claim: NodeClaim, node: Node | None, kind: str, message: str, seconds: float) -> None:
        say = self._shared.say.say
        say(NODECLAIMS, claim, "Normal", kind, message, window_seconds=seconds)
        if node is not None:
            say(NODES, node, "Normal", kind, message, window_seconds=seconds)


def _still_holds(move: DisruptionCommand, packing: PackResult) -> bool:
    planned = None if move.replacement is None else _types(move.replacement)
    types = _types(packing.nodes[0]) if packing.nodes else frozenset()
    # The simulator refuses unplaced pods.
    return same_outcome(planned, len(packing.nodes), types, unplaced=False)


def _types(node: PlannedNode) -> frozenset[str]:
    return frozenset(choice.instance_type for choice in node.options)
