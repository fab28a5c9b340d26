"""Events of Karpenter: equal events about the same object are recorded once per window."""

from karpool.kube.event_recorder import EventType, ref
from karpool.kube.expiring import ExpiringSet
from karpool.kube.transport.rate_limit import TokenBucket
from karpool.model.kubernetes.api_resources import ApiResource
from karpool.model.kubernetes.meta import WireObject
from karpool_fleet.runtime.supervisor import Context

WINDOW_SECONDS = 120.0
FAILED_SCHEDULING_SECONDS = 300.0


class KarpenterReporter:
    def __init__(self, context: Context) -> None:
        self._events = context.events
        self._said = ExpiringSet[tuple[str, str]](context.clock)  # events within their window

    def say(
        self,
        resource: ApiResource,
        obj: WireObject,
        event_type: EventType,
        reason: str,
        message: str,
        *,
        window_seconds: float = WINDOW_SECONDS,
        limit: TokenBucket | None = None,
    ) -> None:
        """Record an event. `limit` is shared by events of a kind; events beyond it are dropped."""
        key = (obj.metadata.uid, reason)
        if key in self._said or (limit is not None and not limit.try_acquire()):
            return
        self._said.put(key, window_seconds)
        self._events.record(ref(resource, obj), event_type, reason, message)
