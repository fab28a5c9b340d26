"""Events: what happened to which object, when, and the reporting component."""

from karpool.model.kubernetes.meta import Int64, Wire, WireObject
from karpool.model.kubernetes.times import moment


class InvolvedObject(Wire, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventSource(Wire, frozen=True):
    component: str = ""


class KubeEvent(WireObject, frozen=True):
    involved_object: InvolvedObject = InvolvedObject()
    source: EventSource | None = None
    reporting_component: str = ""
    type: str = ""
    reason: str = ""
    message: str = ""
    count: Int64 | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> float | None:
        """The last time it happened; None if no time can be read."""
        texts = (self.last_timestamp, self.event_time, self.first_timestamp, self.metadata.creation_timestamp)
        return next((at for at in map(moment, texts) if at is not None), None)

    @property
    def said_by(self) -> str:
        return self.reporting_component or (self.source.component if self.source else "")
