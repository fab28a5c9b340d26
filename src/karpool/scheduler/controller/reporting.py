"""Reports the result of scheduling on a binding and its template: events in Karmada's words.

An event is sent once per change; repeated attempts with the same outcome send none.
"""

from collections.abc import Iterator

from karpool.kube.event_recorder import EventRecorder, EventType, ObjectReference
from karpool.model.karmada.binding import Binding
from karpool.scheduler.controller.binding_writer import ScheduledCondition
from karpool.scheduler.cycle.decision import SchedulingDecision

SUCCEEDED = "ScheduleBindingSucceed"
FAILED = "ScheduleBindingFailed"
DESCHEDULED = "DescheduleBindingSucceed"
DESCHEDULING_FAILED = "DescheduleBindingFailed"


class BindingReporter:
    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def placed(self, binding: Binding, decision: SchedulingDecision) -> None:
        colon = ":" if binding.key.is_namespaced else ""  # as in Karmada
        text = f"Binding has been scheduled successfully. Result{colon} {decision.shown_targets}"
        self.report(binding, "Normal", SUCCEEDED, text)

    def failed(self, binding: Binding, outcome: ScheduledCondition) -> None:
        self.report(binding, "Warning", FAILED, outcome.message)

    def group_failed(self, binding: Binding, message: str) -> None:
        self.report(binding, "Warning", FAILED, message)

    def deleting(self, binding: Binding) -> None:
        kind = binding.key.kind[0].lower() + binding.key.kind[1:]
        self.report(binding, "Warning", FAILED, f"skip schedule deleting {kind}: {binding.key}")

    def report(self, binding: Binding, event_type: EventType, reason: str, message: str) -> None:
        for about in _subjects(binding):
            self._recorder.record(about, event_type, reason, message)


def _subjects(binding: Binding) -> Iterator[ObjectReference]:
    resource, key = binding.key.resource, binding.key
    yield ObjectReference(resource.api_version, resource.kind, key.namespace, key.name, binding.uid)
    template = binding.template
    if template.kind and template.name:
        yield ObjectReference(
            template.api_version, template.kind, template.namespace, template.name, template.uid
        )
