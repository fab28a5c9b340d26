"""One pass over one binding: look, decide, write, say; and what the queue is to do next.

A pass over an unchanged binding writes nothing. What the API server refused was never
promised; what it may have carried out stays promised until the binding itself tells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from karpool.kube.errors import KubeError
from karpool.model.karmada.binding import Binding, BindingKey
from karpool.model.kubernetes.meta import condition
from karpool.scheduler.controller.binding_store import BindingVersion, SchedulerStores, unread
from karpool.scheduler.controller.binding_writer import (
    SCHEDULED,
    BindingWriter,
    ScheduledCondition,
    WriteOutcome,
    WriteResult,
    outcome_of,
    result_patch,
)
from karpool.scheduler.controller.metrics import SchedulerMetrics
from karpool.scheduler.controller.reporting import BindingReporter
from karpool.scheduler.cycle.cycle import CycleResult, SchedulingCycle
from karpool.scheduler.cycle.decision import (
    SUCCESS_MESSAGE,
    ScheduleReason,
    SchedulingDecision,
    SchedulingMode,
)
from karpool.scheduler.promises.promise_annotation import PROMISES

log = structlog.get_logger(__name__)

Show = Callable[[SchedulingDecision], None]


class QueueAction(Enum):
    """What the queue is to do with the binding."""

    DONE = "done"
    AGAIN = "again"  # at once: it changed under our hands
    LATER = "later"  # after a back-off
    WAIT = "wait"  # for room


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    next: QueueAction
    after_seconds: float | None = None  # look again no later than this


DONE, AGAIN, LATER, WAIT = (ReconcileResult(action) for action in QueueAction)
_RETRIED = {
    ScheduleReason.SUCCESS: DONE,
    ScheduleReason.NO_CLUSTER_FIT: WAIT,  # for a cluster that fits; upstream leaves it to the next event
    ScheduleReason.UNSCHEDULABLE: WAIT,
    ScheduleReason.SCHEDULER_ERROR: WAIT,
    ScheduleReason.QUOTA_EXCEEDED: LATER,
}


class BindingReconciler:
    """`show` is given for a dry run: decisions go there and nothing is written."""

    def __init__(
        self,
        name: str,
        view: SchedulerStores,
        decider: SchedulingCycle,
        writer: BindingWriter,
        *,
        announcer: BindingReporter,
        metrics: SchedulerMetrics,
        show: Show | None = None,
    ) -> None:
        self._name = name
        self._view = view
        self._known = view.bindings
        self._clock = view.clock
        self._decider = decider
        self._writer = writer
        self._announcer = announcer
        self._metrics = metrics
        self._show = show

    async def place(self, key: BindingKey) -> ReconcileResult:
        known = self._known.get(key)
        if known is None or not known.is_ours(self._name):
            return DONE
        if known.head.is_deleting:
            if known.binding is not None:
                self._announcer.deleting(known.binding)
            return DONE
        if known.binding is None:
            return await self._refuse(known)
        start = self._clock.monotonic()
        decided = await self._decider.decide(key)
        if decided is None:
            return DONE
        if decided.is_held:
            log.info("not moved yet", binding=str(key), reason="contact to a cluster of its result was lost")
            return LATER
        if decided.decision is None:
            return await self._nothing_to_do(decided)
        try:
            passed = await self._carry_out(decided, decided.decision)
        finally:
            self._known.settled(key)
        took = self._clock.monotonic() - start
        failed = decided.decision.reason not in (ScheduleReason.SUCCESS, ScheduleReason.NO_CLUSTER_FIT)
        bad = failed or passed.next in (QueueAction.LATER, QueueAction.AGAIN)
        self._metrics.attempted("error" if bad else "scheduled", decided.trigger.schedule_type, took)
        return passed

    async def _refuse(self, known: BindingVersion) -> ReconcileResult:
        """The binding cannot be read: say so on it; it comes back when it is changed."""
        assert known.problem is not None
        outcome = ScheduledCondition(ScheduleReason.SCHEDULER_ERROR, str(known.problem))
        log.warning("binding cannot be read", binding=str(known.head.key), reason=outcome.message)
        if self._show is not None:
            self._show(
                SchedulingDecision(
                    known.head.key, SchedulingMode.STEADY, outcome.reason, outcome.message, None
                )
            )
            return DONE
        binding = unread(known)
        written = await self._writer.status(binding, outcome)
        if written.fate is WriteOutcome.WRITTEN:
            self._announcer.failed(binding, outcome)
            self._metrics.failed(outcome.reason)
        return (
            DONE
            if written.fate in (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED, WriteOutcome.GONE)
            else LATER
        )

    async def _nothing_to_do(self, decided: CycleResult) -> ReconcileResult:
        if self._show is not None:
            return DONE
        binding = decided.binding
        if not _is_said_to_be_placed(binding):
            # What failed is not wanted any more, or somebody died between the result and saying so.
            written = await self._writer.status(
                binding, ScheduledCondition(ScheduleReason.SUCCESS, SUCCESS_MESSAGE)
            )
        else:
            written = await self._writer.observed(binding)
        return self._after_status(written)

    async def _carry_out(self, decided: CycleResult, decision: SchedulingDecision) -> ReconcileResult:
        if self._show is not None:
            self._show(decision)
            self._view.keep(decided.token, 0)
            return _next(decided, decision)
        binding = decided.binding
        result = WriteResult(WriteOutcome.UNCHANGED, binding)
        if decision.targets is not None:
            patch = result_patch(binding, decision.targets, {PROMISES: decided.record})
            result = await self._writer.result(binding, patch)
        await self._settle(decided, result)
        if result.fate is WriteOutcome.REFUSED:
            outcome = ScheduledCondition(ScheduleReason.QUOTA_EXCEEDED, result.message)
            return await self._say(binding, decision, outcome, LATER)
        if result.fate in (WriteOutcome.FAILED, WriteOutcome.UNKNOWN):
            outcome = ScheduledCondition(_reason_when_not_written(decision), result.message)
            log.warning("result not written", binding=str(binding.key), reason=result.message)
            return await self._say(binding, decision, outcome, LATER)
        if result.fate is WriteOutcome.GONE:
            return DONE
        if result.fate is WriteOutcome.CONFLICT or result.binding is None:
            return AGAIN
        return await self._say(result.binding, decision, outcome_of(decision), _next(decided, decision))

    async def _settle(self, decided: CycleResult, result: WriteResult) -> None:
        """The promise follows what became of the decision."""
        match result.fate:
            case WriteOutcome.WRITTEN | WriteOutcome.UNCHANGED:
                assert result.binding is not None
                self._known.wrote(result.binding)
                self._view.keep(decided.token, result.binding.generation)
                self._look_at(result.binding.key)
            case WriteOutcome.CONFLICT | WriteOutcome.UNKNOWN:
                await self._find_out(decided)
            case _:
                self._view.take_back(decided.token)

    def _look_at(self, key: BindingKey) -> None:
        """While a result is being written the ledger heeds nothing else about the binding; now it does."""
        known = self._known.get(key)
        if known is not None and known.binding is not None:
            self._view.see(known.binding)

    async def _find_out(self, decided: CycleResult) -> None:
        """A repeated request conflicts with its own first try, so only the binding tells."""
        key = decided.binding.key
        try:
            current = await self._writer.read(key)
        except KubeError as error:
            log.info("binding not read", binding=str(key), reason=str(error))
            self._view.keep(decided.token, 0)
            return
        self._view.take_back(decided.token)
        if current is not None:
            self._known.wrote(current)
            self._view.see(current)

    async def _say(
        self,
        binding: Binding,
        decision: SchedulingDecision,
        outcome: ScheduledCondition,
        passed: ReconcileResult,
    ) -> ReconcileResult:
        fresh = decision.mode is not SchedulingMode.STEADY
        written = await self._writer.status(binding, outcome, scheduled_now=fresh and outcome.is_success)
        if written.fate is WriteOutcome.WRITTEN:
            self._announce(binding, decision, outcome)
        after = self._after_status(written)
        return passed if after is DONE else after

    def _after_status(self, written: WriteResult) -> ReconcileResult:
        if written.binding is not None:
            self._known.wrote(written.binding)
            if written.binding.aggregated:
                self._look_at(written.binding.key)  # what members reported meanwhile comes with it
        match written.fate:
            case WriteOutcome.WRITTEN | WriteOutcome.UNCHANGED | WriteOutcome.GONE:
                return DONE
            case WriteOutcome.CONFLICT:
                return AGAIN
        return LATER

    def _announce(self, binding: Binding, decision: SchedulingDecision, outcome: ScheduledCondition) -> None:
        for message in decision.failed_groups():
            self._announcer.group_failed(binding, message)
        if outcome.is_success:
            self._announcer.placed(binding, decision)
            log.info("binding scheduled", binding=str(binding.key), result=decision.shown_targets)
            return
        self._metrics.failed(outcome.reason)
        self._announcer.failed(binding, outcome)
        log.info(
            "binding not scheduled", binding=str(binding.key), reason=str(outcome.reason), why=outcome.message
        )


def _next(decided: CycleResult, decision: SchedulingDecision) -> ReconcileResult:
    passed = _RETRIED[decision.reason]
    if passed is not DONE and decided.cooling_seconds is not None:
        return ReconcileResult(passed.next, decided.cooling_seconds)
    return passed


def _reason_when_not_written(decision: SchedulingDecision) -> ScheduleReason:
    """A result that could not be cleared is still for want of a cluster."""
    return (
        ScheduleReason.NO_CLUSTER_FIT
        if decision.reason is ScheduleReason.NO_CLUSTER_FIT
        else ScheduleReason.SCHEDULER_ERROR
    )


def _is_said_to_be_placed(binding: Binding) -> bool:
    found = condition(list(binding.conditions), SCHEDULED)
    return found is not None and found.status == "True" and bool(binding.last_scheduled_time)
