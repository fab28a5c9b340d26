"""One scheduling cycle: from a binding to a decision and a promise, considering all earlier promises.

 1. read the newest `BindingVersion`
 2. `ScheduleTrigger`: is it due, and in which mode
 3. filter the clusters
 4. gather `ClusterAvailability` where it matters, less the promises to others
 5. select clusters by spread constraints
 6. assign replicas
 7. promise (`PendingPromise`), and return the `CycleResult`

`BindingReconciler.reconcile` continues: 8 write result and promise in one patch, 9 confirm or undo the
promise, 10 condition and event, 11 `ReconcileResult` for the queue.

Steps 3, 5 and 6 are pure (`schedule.decide`) and return the clusters whose availability they need; only step
4 awaits. After an await steps 1 and 2 are repeated, and nothing runs between the last answer and the promise.
Estimators are asked before the binding's turn; in its turn, outdated answers (something was promised there
since, or the cluster reported again) are requested again. A binding is only refused for lack of capacity by
answers that were requested for it, not by cached ones.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple, Protocol

from karpool.model.karmada.binding import Binding, BindingKey
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.scheduler.cycle import cool_down
from karpool.scheduler.cycle.binding_store import SchedulerStores
from karpool.scheduler.cycle.decision import (
    ClusterAvailability,
    ScheduleReason,
    SchedulingDecision,
    SchedulingMode,
)
from karpool.scheduler.cycle.plugin_timing import EVERY, PluginTimer, Step
from karpool.scheduler.cycle.plugins import peers_of
from karpool.scheduler.cycle.schedule import CyclePlan, FilteredClusters, NeedsEstimates, decide, plan_cycle
from karpool.scheduler.cycle.settings import SchedulingSettings
from karpool.scheduler.cycle.triggers import ScheduleTrigger, TriggerAction, trigger
from karpool.scheduler.promises.ledger import PendingPromise

# One decides while another gathers ahead. More would only gather answers that are outdated by their turn.
GATHERING_AT_ONCE = 2


class AvailabilitySource(Protocol):
    async def gather(
        self, binding: Binding, clusters: Sequence[MemberCluster], *, fresh: bool = False
    ) -> Mapping[str, ClusterAvailability]:
        """How many more replicas each of the clusters takes, less the promises to others.

        Never raises, and answers for every cluster. `fresh`: do not use cached answers.
        """

    def asks(self, clusters: Sequence[MemberCluster]) -> bool:
        """Whether `gather` waits for an estimator; otherwise it computes the answer locally."""

    def held(self) -> frozenset[str]:
        """Clusters that became unreachable a moment ago: nothing is moved off them yet."""


@dataclass(frozen=True)
class CycleResult:
    """`decision` None: nothing had to be decided. `token` is set if something was promised."""

    binding: Binding
    trigger: ScheduleTrigger
    decision: SchedulingDecision | None = None
    token: PendingPromise | None = None
    record: str | None = None  # the promises, to be written with the result
    cooling_seconds: float | None = None  # until a cluster may be tried again
    is_held: bool = False  # nothing was decided, because a cluster became unreachable a moment ago


class _Answer(NamedTuple):
    availability: ClusterAvailability
    cluster: MemberCluster
    growth: int  # `PromiseLedger.grown` at the time of the question


@dataclass
class _CycleState:
    """The input of a decision: steps 1 and 2, and the valid answers of step 4."""

    binding: Binding
    trigger: ScheduleTrigger
    plan: CyclePlan
    cooling_seconds: Mapping[str, float]  # excluded clusters that replicas were taken off
    answers: dict[str, _Answer]

    def decide(self) -> SchedulingDecision | NeedsEstimates:
        """Run steps 3, 5 and 6."""
        availability = {name: answer.availability for name, answer in self.answers.items()}
        if self.cooling_seconds:
            availability = cool_down.without_room(availability, self.cooling_seconds)
        return decide(self.plan, availability)

    def clusters_with_kept_answers(self) -> list[MemberCluster]:
        """Clusters whose answer was cached, not requested just now."""
        return [
            answer.cluster
            for answer in self.answers.values()
            if any(part.is_kept for part in answer.availability.parts)
        ]


def plan_for(
    stores: SchedulerStores,
    binding: Binding,
    settings: SchedulingSettings,
    *,
    fresh: bool = False,
    timing: PluginTimer | None = None,
    filtered: FilteredClusters | None = None,
) -> tuple[ScheduleTrigger, CyclePlan]:
    """Whether the binding is due, and the plan of its cycle, from the current bindings and clusters.

    `fresh`: plan as if nothing were placed, whatever the trigger says.
    """
    members = stores.clusters.all()
    deleting = {member.name for member in members if member.is_deleting}
    schedule_trigger = trigger(binding, deleting, settings)
    mode = SchedulingMode.FRESH if fresh else schedule_trigger.mode
    peers = None
    if settings.workload_affinity:
        peers = peers_of(binding, stores.bindings.in_groups_of(binding))
    plan = plan_cycle(binding, members, settings, peers=peers, mode=mode, timing=timing, filtered=filtered)
    return schedule_trigger, plan


class SchedulingCycle:
    def __init__(
        self,
        stores: SchedulerStores,
        availability: AvailabilitySource,
        settings: SchedulingSettings,
        *,
        observe: Callable[[Step, float], None] = lambda step, seconds: None,
        timing: PluginTimer | None = None,
    ) -> None:
        self._stores = stores
        self._availability = availability
        self._settings = settings
        self._observe = observe
        self._timing = timing
        self._decisions = 0
        self._filtered = FilteredClusters()
        self._turn = asyncio.Lock()
        self._gathering = asyncio.Semaphore(GATHERING_AT_ONCE)

    async def decide(self, key: BindingKey) -> CycleResult | None:
        """Decide and promise; None if the binding is gone or cannot be read."""
        async with self._gathering:
            answers = await self._gather_ahead(key)
            async with self._turn:
                return await self._decide(key, answers)

    async def _gather_ahead(self, key: BindingKey) -> dict[str, _Answer]:
        if not self._availability.asks(self._stores.clusters.all()):
            return {}  # gathering is cheap then, and happens in turn
        state = self._read(key, {})
        if state is None or state.trigger.action is not TriggerAction.SCHEDULE:
            return {}
        if isinstance(step := state.decide(), NeedsEstimates):
            await self._gather(state, step.clusters)
        return state.answers

    async def _decide(self, key: BindingKey, answers: dict[str, _Answer]) -> CycleResult | None:
        self._decisions += 1
        timing = self._timing if self._decisions % EVERY == 0 else None
        state: _CycleState | None = None
        waited = False
        while True:
            if state is None or waited:
                state = self._read(key, answers, timing, state)  # steps 1 and 2
            if state is None:
                return None
            if state.trigger.action is not TriggerAction.SCHEDULE:
                return CycleResult(state.binding, state.trigger)
            if self._is_held(state):
                return CycleResult(state.binding, state.trigger, is_held=True)
            start = perf_counter()
            step = state.decide()  # steps 3, 5 and 6
            if isinstance(step, NeedsEstimates):
                self._observe("Filter", perf_counter() - start)
                waited = await self._gather(state, step.clusters)  # step 4
            elif step.reason is not ScheduleReason.SUCCESS and (kept := state.clusters_with_kept_answers()):
                waited = await self._gather(state, kept, fresh=True)
            else:
                self._observe("AssignReplicas", perf_counter() - start)
                return self._promise(state, step)  # step 7
            answers = state.answers

    def _read(
        self,
        key: BindingKey,
        answers: Mapping[str, _Answer],
        timing: PluginTimer | None = None,
        before: _CycleState | None = None,
    ) -> _CycleState | None:
        """The current binding and clusters, with the answers that are still valid.

        `before`: the previous state; its plan is reused for the same binding and clusters.
        """
        version = self._stores.bindings.get(key)
        if version is None or version.binding is None:
            return None
        binding = version.binding
        if before is not None and self._is_unchanged(before, binding):
            schedule_trigger, plan = before.trigger, before.plan
        else:
            schedule_trigger, plan = plan_for(
                self._stores, binding, self._settings, timing=timing, filtered=self._filtered
            )
        cooling_seconds = cool_down.cooling(binding.annotations, self._stores.clock.now())
        valid = {name: answer for name, answer in answers.items() if self._is_valid(answer)}
        return _CycleState(binding, schedule_trigger, plan, cooling_seconds, valid)

    def _is_unchanged(self, state: _CycleState, binding: Binding) -> bool:
        """Whether the plan can be reused; with workload affinity it depends on other bindings."""
        is_alone = not self._settings.workload_affinity
        return is_alone and state.binding is binding and state.plan.clusters is self._stores.clusters.all()

    def _is_held(self, state: _CycleState) -> bool:
        """Whether a Fresh decision must wait, because a cluster of the binding was just lost."""
        is_fresh = state.trigger.mode is SchedulingMode.FRESH
        return is_fresh and bool(self._availability.held() & set(state.binding.assigned()))

    async def _gather(
        self, state: _CycleState, clusters: Sequence[MemberCluster], *, fresh: bool = False
    ) -> bool:
        """Gather availability; return whether it waited, so that everything may have changed."""
        waits = self._availability.asks(clusters)
        growths = [self._growth(cluster.name) for cluster in clusters]
        availability = await self._availability.gather(state.binding, clusters, fresh=fresh)
        for cluster, growth in zip(clusters, growths, strict=True):
            state.answers[cluster.name] = _Answer(availability[cluster.name], cluster, growth)
        return waits

    def _is_valid(self, answer: _Answer) -> bool:
        name = answer.cluster.name
        return self._stores.clusters.get(name) is answer.cluster and self._growth(name) == answer.growth

    def _growth(self, cluster: str) -> int:
        ledger = self._stores.ledger
        return 0 if ledger is None else ledger.grown(cluster)

    def _promise(self, state: _CycleState, decision: SchedulingDecision) -> CycleResult:
        binding = state.binding
        cooling_seconds = min(state.cooling_seconds.values(), default=None)
        result = CycleResult(binding, state.trigger, decision, cooling_seconds=cooling_seconds)
        if decision.targets is None:
            return result
        self._stores.bindings.decided(binding.key, decision.targets)
        ledger, clock = self._stores.ledger, self._stores.clock
        if ledger is None or not binding.is_workload or decision.targets == binding.targets:
            return result
        now = clock.monotonic()
        token = ledger.promise(binding, decision.targets, now)
        record = ledger.record(binding.key, now, clock.now())
        return replace(result, token=token, record=record)
