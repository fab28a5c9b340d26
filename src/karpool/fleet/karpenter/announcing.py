"""Events as Karpenter says them: the same statement about the same thing once per window."""

from karpool.fleet.runtime import Context
from karpool.kube.events import EventType, ref
from karpool.kube.ratelimit import TokenBucket
from karpool.kube.resource import Resource
from karpool.model.meta import WireObject

WINDOW_SECONDS = 120.0
FAILED_SCHEDULING_SECONDS = 300.0
_REMEMBERED_LIMIT = 20_000


class Announcer:
    def __init__(self, context: Context) -> None:
        self._events = context.events
        self._clock = context.clock
        self._said: dict[tuple[str, str], float] = {}  # until when it is not said again

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
        now = self._clock.monotonic()
        key = (obj.metadata.uid, reason)
        if self._said.get(key, 0.0) > now or (limit is not None and not limit.try_acquire()):
            return
        if len(self._said) >= _REMEMBERED_LIMIT:
            self._said = {each: until for each, until in self._said.items() if until > now}
        self._said[key] = now + window_seconds
        self._events.record(ref(resource, obj), type_, reason, message)
