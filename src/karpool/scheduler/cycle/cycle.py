"""Take one decision against everything that was promised before it.

Estimators are asked before it is the binding's turn. In its turn, answers that have
become old (something was promised there since, or the cluster reported anew) are asked
for again, and between the last answer and the promise nothing else happens: every
await is followed by another look at what it may have changed. What is not placed for want
of room was refused by answers that were asked for it, not by ones that were kept.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

from karpool.model.karmada.binding import Binding, BindingKey
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.controller.binding_store import SchedulerStores
from karpool.scheduler.controller.metrics import Step
from karpool.scheduler.controller.settings import SchedulingSettings
from karpool.scheduler.cycle.decision import (
    ClusterAvailability,
    ScheduleReason,
    SchedulingDecision,
    SchedulingMode,
)
from karpool.scheduler.cycle.plugin_timing import EVERY, PluginTimer
from karpool.scheduler.cycle.plugins import AffinityPeers, peers_of
from karpool.scheduler.cycle.schedule import CyclePlan, NeedsEstimates, decide, plan_cycle
from karpool.scheduler.cycle.triggers import ScheduleTrigger, TriggerAction, trigger
from karpool.scheduler.descheduler import cool_down
from karpool.scheduler.promises.ledger import PendingPromise

# One decides while another asks ahead. More would only ask for what is old by their turn.
ASKING_AT_ONCE = 2


class AvailabilitySource(Protocol):
    async def gather(
        self, binding: Binding, clusters: Sequence[MemberCluster], *, fresh: bool = False
    ) -> Mapping[str, ClusterAvailability]:
        """How many more replicas each of the clusters takes, promises to others taken off. Never raises,
        and answers for every cluster. `fresh`: no answer of before will do."""

    def held(self) -> frozenset[str]:
        """Clusters that were lost a moment ago: nothing is to be moved off them yet."""


@dataclass(frozen=True)
class CycleResult:
    """`decision` None: nothing had to be decided. `token` is there where something was promised."""

    binding: Binding
    trigger: ScheduleTrigger
    decision: SchedulingDecision | None = None
    token: PendingPromise | None = None
    record: str | None = None  # the promises, to be written along with the result
    cooling_seconds: float | None = None  # until a cluster may be tried again
    is_held: bool = False  # nothing was decided, because a cluster was lost a moment ago


class _Answer(NamedTuple):
    availability: ClusterAvailability
    cluster: MemberCluster
    grown: int  # what the ledger said when it was asked for


@dataclass
class _Sight:
    """What a decision is taken on."""

    binding: Binding
    trigger: ScheduleTrigger
    plan: CyclePlan
    members: Sequence[MemberCluster]
    cooling: Mapping[str, float]
    answers: dict[str, _Answer] = field(default_factory=dict)

    def decide(self) -> SchedulingDecision | NeedsEstimates:
        known = {name: answer.availability for name, answer in self.answers.items()}
        return decide(self.plan, cool_down.without_room(known, self.cooling) if self.cooling else known)

    def kept(self) -> list[MemberCluster]:
        """Those whose answer was not asked for just now."""
        found = self.answers.values()
        return [answer.cluster for answer in found if any(part.is_kept for part in answer.availability.parts)]


class SchedulingCycle:
    def __init__(
        self,
        view: SchedulerStores,
        asks: AvailabilitySource,
        settings: SchedulingSettings,
        *,
        observe: Callable[[Step, float], None] = lambda step, seconds: None,
        timing: PluginTimer | None = None,
    ) -> None:
        self._view = view
        self._asks = asks
        self._settings = settings
        self._observe = observe
        self._timing = timing
        self._decisions = 0
        self._turn = asyncio.Lock()
        self._asking = asyncio.Semaphore(ASKING_AT_ONCE)

    async def decide(self, key: BindingKey) -> CycleResult | None:
        """Decide and promise; None when the binding is gone or cannot be read any more."""
        async with self._asking:
            answers = await self._ask_ahead(key)
            async with self._turn:
                return await self._decide(key, answers)

    async def _ask_ahead(self, key: BindingKey) -> dict[str, _Answer]:
        sight = self._look(key, {})
        if sight is None or sight.trigger.action is not TriggerAction.SCHEDULE:
            return {}
        if isinstance(step := sight.decide(), NeedsEstimates):
            await self._ask(sight, step.clusters)
        return sight.answers

    async def _decide(self, key: BindingKey, answers: dict[str, _Answer]) -> CycleResult | None:
        self._decisions += 1
        timing = self._timing if self._decisions % EVERY == 0 else None
        while True:
            sight = self._look(key, answers, timing)
            if sight is None:
                return None
            if sight.trigger.action is not TriggerAction.SCHEDULE:
                return CycleResult(sight.binding, sight.trigger)
            if sight.trigger.mode is SchedulingMode.FRESH and self._asks.held() & set(
                sight.binding.assigned()
            ):
                return CycleResult(sight.binding, sight.trigger, is_held=True)
            start = perf_counter()
            step = sight.decide()
            if isinstance(step, NeedsEstimates):
                self._observe("Filter", perf_counter() - start)
                await self._ask(sight, step.clusters)
            elif step.reason is not ScheduleReason.SUCCESS and (kept := sight.kept()):
                await self._ask(sight, kept, fresh=True)
            else:
                self._observe("AssignReplicas", perf_counter() - start)
                return self._promise(sight, step)
            answers = sight.answers

    def _look(
        self, key: BindingKey, answers: Mapping[str, _Answer], timing: PluginTimer | None = None
    ) -> _Sight | None:
        """The binding and the clusters as they are at this instant, with the answers that still hold."""
        known = self._view.bindings.get(key)
        if known is None or known.binding is None:
            return None
        binding, members = known.binding, self._view.clusters.all()
        deleting = {member.name for member in members if member.is_deleting}
        found = trigger(binding, deleting, self._settings)
        peers = self._peers(binding)
        plan = plan_cycle(binding, members, self._settings, peers=peers, mode=found.mode, timing=timing)
        left = cool_down.cooling(binding.annotations, self._view.clock.now())
        held = {name: answer for name, answer in answers.items() if self._holds(answer)}
        return _Sight(binding, found, plan, members, left, held)

    def _peers(self, binding: Binding) -> AffinityPeers | None:
        if not self._settings.workload_affinity:
            return None
        return peers_of(binding, self._view.bindings.in_groups_of(binding))

    async def _ask(self, sight: _Sight, clusters: Sequence[MemberCluster], *, fresh: bool = False) -> None:
        grown = {member_cluster.name: self._grown(member_cluster.name) for member_cluster in clusters}
        found = await self._asks.gather(sight.binding, clusters, fresh=fresh)
        for cluster in clusters:
            sight.answers[cluster.name] = _Answer(found[cluster.name], cluster, grown[cluster.name])

    def _holds(self, answer: _Answer) -> bool:
        name = answer.cluster.name
        return self._view.clusters.get(name) is answer.cluster and self._grown(name) == answer.grown

    def _grown(self, cluster: str) -> int:
        ledger = self._view.ledger
        return 0 if ledger is None else ledger.grown(cluster)

    def _promise(self, sight: _Sight, decision: SchedulingDecision) -> CycleResult:
        binding = sight.binding
        left = min(sight.cooling.values(), default=None)
        decided = CycleResult(binding, sight.trigger, decision, cooling_seconds=left)
        if decision.targets is None:
            return decided
        self._view.bindings.decided(binding.key, decision.targets)
        ledger, clock = self._view.ledger, self._view.clock
        if ledger is None or not binding.is_workload or decision.targets == binding.targets:
            return decided
        now = clock.monotonic()
        token = ledger.promise(binding, decision.targets, now)
        record = ledger.record(binding.key, now, clock.now())
        return CycleResult(binding, sight.trigger, decision, token, record, left)
