"""Records Kubernetes Events about decisions, without flooding the API server.

`record` never raises, waits or writes: it queues. `run` writes in the background. Equal events about the same
object within the window become one Event with a count. Each object has its own rate limit. When events arrive
faster than they can be written, the newest are dropped and counted. Core v1 Events are used because `kubectl
describe` shows their count best.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import structlog

from karpool.kube.api.client import Client
from karpool.kube.api.decoding import Object, identity_of
from karpool.kube.errors import KubeError, NotFound
from karpool.kube.expiring import ExpiringMap
from karpool.kube.transport.rate_limit import TokenBucket
from karpool.model.kubernetes.api_resources import EVENTS, ApiResource
from karpool.model.kubernetes.times import rfc3339

log = structlog.get_logger(__name__)

EventType = Literal["Normal", "Warning"]

WINDOW_SECONDS = 600.0
PENDING_LIMIT = 1000
REMEMBERED_LIMIT = 4096
# client-go's spam filter: 25 at once, then one in five minutes.
OBJECT_BURST = 25
OBJECT_QPS = 1 / 300
MESSAGE_LIMIT = 1024  # the API's own limit on an event's message
REASON_LIMIT = 128


class ObjectReference(NamedTuple):
    """The object of an event. `kubectl describe` finds events by its `uid`."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    def wire(self) -> Object:
        pairs = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in pairs.items() if value}


def ref(resource: ApiResource, obj: Any) -> ObjectReference:
    """Return a reference to a decoded object of `resource`."""
    (namespace, name), uid, _ = identity_of(obj)
    return ObjectReference(resource.api_version, resource.kind, namespace, name, uid)


class _Statement(NamedTuple):
    about: ObjectReference
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Pending:
    count: int
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class _Written:
    name: str
    count: int


class EventRecorder:
    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        window_seconds: float = WINDOW_SECONDS,
        pending_limit: int = PENDING_LIMIT,
    ) -> None:
        self.dropped = 0  # events lost to limits or errors
        self._client = client
        self._clock = client.clock
        self._component = component
        self._instance = instance or component
        self._pending_limit = pending_limit
        self._pending: dict[_Statement, _Pending] = {}
        self._written = ExpiringMap[_Statement, _Written](self._clock, window_seconds, REMEMBERED_LIMIT)
        self._limits: OrderedDict[ObjectReference, TokenBucket] = OrderedDict()
        self._wake = asyncio.Event()

    def record(self, about: ObjectReference, type_: EventType, reason: str, message: str) -> None:
        statement = _Statement(about, type_, reason[:REASON_LIMIT], _cut(message))
        now = self._clock.now()
        waiting = self._pending.get(statement)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
        elif len(self._pending) >= self._pending_limit or not self._limit_of(about).try_acquire():
            self.dropped += 1
        else:
            self._pending[statement] = _Pending(1, now, now)
            self._wake.set()

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()

    async def flush(self) -> None:
        """Write all queued events; those that cannot be written are dropped and counted."""
        for statement in list(self._pending):
            noted = self._pending.pop(statement, None)
            if noted is None:
                continue  # another flush has written it meanwhile
            try:
                await self._write(statement, noted)
            except KubeError as error:
                self.dropped += 1
                log.info("event not written", object=str(statement.about.name), reason=str(error))

    async def _write(self, statement: _Statement, noted: _Pending) -> None:
        event = self._written.get(statement)
        if event is not None:
            try:
                await self._count_up(statement, event, noted)
                return
            except NotFound:
                pass  # events live about an hour; a new one replaces it
        await self._create(statement, noted)

    async def _count_up(self, statement: _Statement, written: _Written, noted: _Pending) -> None:
        total = written.count + noted.count
        patch = {"count": total, "lastTimestamp": rfc3339(noted.last)}
        await self._client.patch(EVENTS, written.name, patch, namespace=_namespace(statement.about))
        self._written.put(statement, _Written(written.name, total))

    async def _create(self, statement: _Statement, noted: _Pending) -> None:
        about = statement.about
        # Events outlive their objects; a random suffix keeps those of equal names apart.
        name = f"{about.name[:220]}.{int(self._client.chance() * 2**64):016x}"
        namespace = _namespace(about)
        event = {
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": about.wire(),
            "type": statement.type,
            "reason": statement.reason,
            "message": statement.message,
            "count": noted.count,
            "firstTimestamp": rfc3339(noted.first),
            "lastTimestamp": rfc3339(noted.last),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        await self._client.create(EVENTS, event)
        self._written.put(statement, _Written(name, noted.count))

    def _limit_of(self, about: ObjectReference) -> TokenBucket:
        limit = self._limits.get(about)
        if limit is None:
            while self._limits and (
                len(self._limits) >= REMEMBERED_LIMIT or next(iter(self._limits.values())).is_full
            ):
                self._limits.popitem(last=False)
            limit = self._limits[about] = TokenBucket(OBJECT_QPS, OBJECT_BURST, self._clock)
        self._limits.move_to_end(about)
        return limit


def _namespace(about: ObjectReference) -> str:
    return about.namespace or "default"  # namespace of events about cluster-scoped objects


def _cut(message: str) -> str:
    encoded = message.encode("utf-8", "replace")
    if len(encoded) <= MESSAGE_LIMIT:
        return encoded.decode()
    return encoded[: MESSAGE_LIMIT - 3].decode("utf-8", "ignore") + "..."
