"""Events as Karpenter says them: the same statement about the same thing once per window."""

from karpool.fleet.runtime import Context
from karpool.kube.events import EventType, ref
from karpool.kube.ratelimit import TokenBucket
from karpool.kube.recent import Until
from karpool.kube.resource import Resource
from karpool.model.meta import WireObject

WINDOW_SECONDS = 120.0
FAILED_SCHEDULING_SECONDS = 300.0


class Announcer:
    def __init__(self, context: Context) -> None:
        self._events = context.events
        self._said = Until[tuple[str, str]](context.clock)  # it is not said again

    def say(
        self,
        resource: Resource,
        obj: WireObject,
        type_: EventType,
        reason: str,
        message: str,
        *,
        window_seconds: float = WINDOW_SECONDS,
        limit: TokenBucket | None = None,
    ) -> None:
        """`limit` is shared by statements of a kind; those beyond it are not made."""
        key = (obj.metadata.uid, reason)
        if key in self._said or (limit is not None and not limit.try_acquire()):
            return
        self._said.put(key, window_seconds)
        self._events.record(ref(resource, obj), type_, reason, message)
