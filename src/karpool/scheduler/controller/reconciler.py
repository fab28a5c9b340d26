"""One pass over one binding: decide, write, report; and what the queue does next.

The cycle decides and promises (`cycle/cycle`, steps 1 to 7). Then:

 8. write result and promise in one patch (`BindingWriter` -> `WriteOutcome`)
 9. confirm or undo the promise
10. condition and event (`BindingReporter`)
11. `ReconcileResult` for the queue

A pass over an unchanged binding writes nothing. A write that the API server refused leaves no promise; one
that may have been applied stays promised until the binding shows the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import structlog

from karpool.kube.errors import KubeError
from karpool.model.karmada.binding import Binding, BindingKey
from karpool.model.kubernetes.meta import condition
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
from karpool.scheduler.cycle.binding_store import BindingVersion, SchedulerStores, unread
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
    """What the queue does with the binding."""

    DONE = "done"
    AGAIN = "again"  # at once: it changed during the pass
    LATER = "later"  # after a back-off
    WAIT = "wait"  # for capacity


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    next: QueueAction
    after_seconds: float | None = None  # retry no later than this


DONE, AGAIN, LATER, WAIT = (ReconcileResult(action) for action in QueueAction)
_RETRIED = {
    ScheduleReason.SUCCESS: DONE,
    ScheduleReason.NO_CLUSTER_FIT: WAIT,  # for a cluster that fits; Karmada waits for the next event
    ScheduleReason.UNSCHEDULABLE: WAIT,
    ScheduleReason.SCHEDULER_ERROR: WAIT,
    ScheduleReason.QUOTA_EXCEEDED: LATER,
}


class BindingReconciler:
    """`show` makes it a dry run: it receives the decisions, and nothing is written."""

    def __init__(
        self,
        name: str,
        stores: SchedulerStores,
        cycle: SchedulingCycle,
        writer: BindingWriter,
        *,
        reporter: BindingReporter,
        metrics: SchedulerMetrics,
        show: Show | None = None,
    ) -> None:
        self._name = name
        self._stores = stores
        self._bindings = stores.bindings
        self._clock = stores.clock
        self._cycle = cycle
        self._writer = writer
        self._reporter = reporter
        self._metrics = metrics
        self._show = show

    async def reconcile(self, key: BindingKey) -> ReconcileResult:
        version = self._bindings.get(key)
        if version is None or not version.is_ours(self._name):
            return DONE
        if version.head.is_deleting:
            if version.binding is not None:
                self._reporter.deleting(version.binding)
            return DONE
        if version.binding is None:
            return await self._report_unreadable(version)
        start = self._clock.monotonic()
        result = await self._cycle.decide(key)
        if result is None:
            return DONE
        if result.is_held:
            log.info("rescheduling delayed", binding=str(key), reason="a target cluster cannot be reached")
            return LATER
        if result.decision is None:
            return await self._without_decision(result)
        try:
            reconciled = await self._write_result(result, result.decision)
        finally:
            self._bindings.settled(key)
        seconds = self._clock.monotonic() - start
        failed = result.decision.reason not in (ScheduleReason.SUCCESS, ScheduleReason.NO_CLUSTER_FIT)
        is_error = failed or reconciled.next in (QueueAction.LATER, QueueAction.AGAIN)
        self._metrics.attempted("error" if is_error else "scheduled", result.trigger.schedule_type, seconds)
        return reconciled

    async def _report_unreadable(self, version: BindingVersion) -> ReconcileResult:
        """Write on the binding that it cannot be read; it is queued again when it changes."""
        assert version.problem is not None
        scheduled = ScheduledCondition(ScheduleReason.SCHEDULER_ERROR, str(version.problem))
        log.warning("binding is invalid", binding=str(version.head.key), reason=scheduled.message)
        if self._show is not None:
            self._show(
                SchedulingDecision(
                    version.head.key, SchedulingMode.STEADY, scheduled.reason, scheduled.message, None
                )
            )
            return DONE
        binding = unread(version)
        written = await self._writer.status(binding, scheduled)
        if written.outcome is WriteOutcome.WRITTEN:
            self._reporter.failed(binding, scheduled)
            self._metrics.failed(scheduled.reason)
        return (
            DONE
            if written.outcome in (WriteOutcome.WRITTEN, WriteOutcome.UNCHANGED, WriteOutcome.GONE)
            else LATER
        )

    async def _without_decision(self, result: CycleResult) -> ReconcileResult:
        if self._show is not None:
            return DONE
        binding = result.binding
        if not _is_said_to_be_placed(binding):
            # The failed result is no longer needed, or a process died between result and condition.
            written = await self._writer.status(
                binding, ScheduledCondition(ScheduleReason.SUCCESS, SUCCESS_MESSAGE)
            )
        else:
            written = await self._writer.observed(binding)
        return self._after_status(written)

    async def _write_result(self, cycle_result: CycleResult, decision: SchedulingDecision) -> ReconcileResult:
        if self._show is not None:
            self._show(decision)
            self._stores.keep(cycle_result.token, 0)
            return _next(cycle_result, decision)
        binding = cycle_result.binding
        written = WriteResult(WriteOutcome.UNCHANGED, binding)
        if decision.targets is not None:
            patch = result_patch(binding, decision.targets, {PROMISES: cycle_result.record})
            written = await self._writer.result(binding, patch)
        await self._settle_promise(cycle_result, written)
        if written.outcome is WriteOutcome.REFUSED:
            scheduled = ScheduledCondition(ScheduleReason.QUOTA_EXCEEDED, written.message)
            return await self._write_condition(binding, decision, scheduled, LATER)
        if written.outcome in (WriteOutcome.FAILED, WriteOutcome.UNKNOWN):
            scheduled = ScheduledCondition(_reason_when_not_written(decision), written.message)
            log.warning("result not written", binding=str(binding.key), reason=written.message)
            return await self._write_condition(binding, decision, scheduled, LATER)
        if written.outcome is WriteOutcome.GONE:
            return DONE
        if written.outcome is WriteOutcome.CONFLICT or written.binding is None:
            return AGAIN
        return await self._write_condition(
            written.binding, decision, outcome_of(decision), _next(cycle_result, decision)
        )

    async def _settle_promise(self, cycle_result: CycleResult, written: WriteResult) -> None:
        """Confirm or undo the promise according to the outcome of the write."""
        match written.outcome:
            case WriteOutcome.WRITTEN | WriteOutcome.UNCHANGED:
                assert written.binding is not None
                self._bindings.wrote(written.binding)
                self._stores.keep(cycle_result.token, written.binding.generation)
                self._observe(written.binding.key)
            case WriteOutcome.CONFLICT | WriteOutcome.UNKNOWN:
                await self._reread(cycle_result)
            case _:
                self._stores.take_back(cycle_result.token)

    def _observe(self, key: BindingKey) -> None:
        """Pass the binding to the ledger, which ignores it while a result is being written."""
        version = self._bindings.get(key)
        if version is not None and version.binding is not None:
            self._stores.observe(version.binding)

    async def _reread(self, cycle_result: CycleResult) -> None:
        """Read the binding after a conflict: a retried request conflicts with its own first attempt."""
        key = cycle_result.binding.key
        try:
            current = await self._writer.read(key)
        except KubeError as error:
            log.info("binding not read", binding=str(key), reason=str(error))
            self._stores.keep(cycle_result.token, 0)
            return
        self._stores.take_back(cycle_result.token)
        if current is not None:
            self._bindings.wrote(current)
            self._stores.observe(current)

    async def _write_condition(
        self,
        binding: Binding,
        decision: SchedulingDecision,
        scheduled: ScheduledCondition,
        next_result: ReconcileResult,
    ) -> ReconcileResult:
        fresh = decision.mode is not SchedulingMode.STEADY
        written = await self._writer.status(binding, scheduled, scheduled_now=fresh and scheduled.is_success)
        if written.outcome is WriteOutcome.WRITTEN:
            self._report(binding, decision, scheduled)
        after_write = self._after_status(written)
        return next_result if after_write is DONE else after_write

    def _after_status(self, written: WriteResult) -> ReconcileResult:
        if written.binding is not None:
            self._bindings.wrote(written.binding)
            if written.binding.aggregated:
                self._observe(written.binding.key)  # includes what members reported meanwhile
        match written.outcome:
            case WriteOutcome.WRITTEN | WriteOutcome.UNCHANGED | WriteOutcome.GONE:
                return DONE
            case WriteOutcome.CONFLICT:
                return AGAIN
        return LATER

    def _report(self, binding: Binding, decision: SchedulingDecision, scheduled: ScheduledCondition) -> None:
        for message in decision.failed_groups():
            self._reporter.group_failed(binding, message)
        if scheduled.is_success:
            self._reporter.placed(binding, decision)
            log.info("binding scheduled", binding=str(binding.key), result=decision.shown_targets)
            return
        self._metrics.failed(scheduled.reason)
        self._reporter.failed(binding, scheduled)
        log.info(
            "binding not scheduled",
            binding=str(binding.key),
            reason=str(scheduled.reason),
            why=scheduled.message,
        )


def _next(cycle_result: CycleResult, decision: SchedulingDecision) -> ReconcileResult:
    result = _RETRIED[decision.reason]
    if result is not DONE and cycle_result.cooling_seconds is not None:
        return ReconcileResult(result.next, cycle_result.cooling_seconds)
    return result


def _reason_when_not_written(decision: SchedulingDecision) -> ScheduleReason:
    """The reason if a result was not written; an uncleared result still has no fitting cluster."""
    return (
        ScheduleReason.NO_CLUSTER_FIT
        if decision.reason is ScheduleReason.NO_CLUSTER_FIT
        else ScheduleReason.SCHEDULER_ERROR
    )


def _is_said_to_be_placed(binding: Binding) -> bool:
    scheduled = condition(list(binding.conditions), SCHEDULED)
    return scheduled is not None and scheduled.status == "True" and bool(binding.last_scheduled_time)
