"""Watches one kind from a resource version on, across broken connections.

Every change is delivered once and in order while the server still has the version. When it does not (HTTP
410, an ERROR event, or a server with a new history), `Gone` is raised and the caller lists again. An object
that cannot be decoded arrives as a named event without object, and the watch continues. Lines are assembled
here, because an event may exceed the line limit of a stream reader and a chunk may end anywhere.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, cast

import msgspec
import structlog

from karpool.kube import errors
from karpool.kube.api.decoding import (
    ObjectIdentity,
    Report,
    SkippedObject,
    identity_of,
    log_bad_objects,
    raw_identity,
)
from karpool.kube.errors import ApiUnreachable, Gone, KubeError, ServerFault, Throttled
from karpool.kube.transport.backoff import Backoff
from karpool.kube.transport.rest import RestClient
from karpool.kube.watch.silence import SilenceTimeout
from karpool.model.kubernetes.api_resources import ALL, ApiResource, ListOptions, ObjectKey

T = TypeVar("T")

log = structlog.get_logger(__name__)

LINE_LIMIT = 64 * 1024 * 1024  # etcd limits objects to 1.5 MiB; this only bounds a hostile server
BACKOFF = Backoff(first=0.5, limit=30.0)
STEADY_SECONDS = 30.0  # the end of a connection this old is not an error
BROKEN_LIMIT = 3  # unreadable streams in a row before listing again


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
    """An event. `object` is None for bookmarks and for undecodable objects; the latter have a `reason`."""

    type: str  # ADDED, MODIFIED, DELETED or BOOKMARK
    key: ObjectKey
    uid: str
    version: str
    object: T | None = None
    raw: bytes = b""
    reason: str = ""


class BrokenStream(Exception):
    """The bytes are not a watch stream; missed events are sent again on resume."""


class LineSplitter:
    """Splits chunks into whole lines, in linear time."""

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._pieces: list[bytes] = []
        self._held = 0
        self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        *whole, rest = chunk.split(b"\n")
        if whole and self._pieces:
            whole[0] = b"".join((*self._pieces, whole[0]))
            self._pieces.clear()
            self._held = 0
        if rest:
            self._pieces.append(rest)
            self._held += len(rest)
        if self._held > self._limit:
            raise BrokenStream(f"a line is longer than {self._limit} bytes")
        return [line for line in whole if line and not line.isspace()]


class _RawEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


_RAW_EVENT = msgspec.json.Decoder(_RawEvent)
_CHANGES = frozenset(("ADDED", "MODIFIED", "DELETED"))
_NOT_DECODED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


@cache
def _event_decoder(into: type) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(msgspec.defstruct("TypedEvent", [("type", str), ("object", into)]))


class WatchEventReader(Generic[T]):
    """Turns the chunks of one connection into events."""

    def __init__(self, resource: ApiResource, into: type[T], report: Report = log_bad_objects) -> None:
        self._resource = resource
        self._decoder = _event_decoder(cast("Any", into))
        self._report = report
        self._lines = LineSplitter()
        self.failure: BrokenStream | KubeError | None = None

    def feed(self, chunk: bytes) -> list[WatchEvent[T]]:
        """Return the events that this chunk completes. Once `failure` is set, no more events follow."""
        events: list[WatchEvent[T]] = []
        if self.failure is not None:
            return events
        try:
            for line in self._lines.feed(chunk):
                event = self._read(line)
                if event is not None:
                    events.append(event)
        except (BrokenStream, KubeError) as error:
            self.failure = error  # the caller raises it after it has delivered the events before it
        return events

    def _read(self, line: bytes) -> WatchEvent[T] | None:
        try:
            typed = self._decoder.decode(line)
            if typed.type in _CHANGES:
                who = identity_of(typed.object)
                if who.key.name:
                    return WatchEvent(typed.type, who.key, who.uid, who.version, typed.object)
            reason = "has no metadata.name"
        except _NOT_DECODED as error:
            reason = str(error)
        return self._read_carefully(line, reason)

    def _read_carefully(self, line: bytes, reason: str) -> WatchEvent[T] | None:
        """Read bookmarks, errors, and objects that do not fit the type."""
        try:
            raw = _RAW_EVENT.decode(line)
        except _NOT_DECODED as error:
            raise BrokenStream(str(error)) from None
        if raw.type == "ERROR":
            raise errors.from_status(f"WATCH {self._resource}", bytes(raw.object))
        who = raw_identity(raw.object) or ObjectIdentity(ObjectKey("", ""), "", "")
        if raw.type == "BOOKMARK":
            return WatchEvent("BOOKMARK", who.key, who.uid, who.version)
        self._report([SkippedObject(str(self._resource), str(who.key), f"{raw.type} event: {reason}")])
        if raw.type in _CHANGES and who.key.name:
            return WatchEvent(raw.type, who.key, who.uid, who.version, raw=bytes(raw.object), reason=reason)
        return None


class Watch(Generic[T]):
    """A watch. `version` advances with the delivered events; a resume starts there."""

    def __init__(
        self,
        rest: RestClient,
        resource: ApiResource,
        version: str,
        into: type[T],
        *,
        selection: ListOptions = ALL,
        report: Report = log_bad_objects,
        on_contact: Callable[[], None] = lambda: None,
        on_failure: Callable[[KubeError], None] = lambda error: None,
    ) -> None:
        self.version = version
        self._rest = rest
        self._resource = resource
        self._into = into
        self._selection = selection
        self._report = report
        self._on_contact = on_contact
        self._on_failure = on_failure

    async def batches(self) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Yield events in batches as they arrive; a batch is never empty and the generator never ends.

        Raises Gone when the caller has to list again, and Denied, NotFound or Rejected when a retry would not
        help.
        """
        failures = broken = 0
        while True:
            before, opened = self.version, self._rest.clock.monotonic()
            asked: float | None = None
            try:
                async with aclosing(self._connection()) as connection:
                    async for batch in connection:
                        yield batch
            except BrokenStream as error:
                broken = broken + 1 if self.version == before else 1
                log.warning("watch stream not readable", resource=str(self._resource), reason=str(error))
                if broken >= BROKEN_LIMIT:
                    raise Gone(f"WATCH {self._resource}", 410, message=str(error)) from None
            except (ApiUnreachable, Throttled, ServerFault) as error:
                asked = self._wait_asked_by(error)
                self._on_failure(error)
                log.debug("watch interrupted", resource=str(self._resource), reason=str(error))
            lived = self._rest.clock.monotonic() - opened
            if self.version != before or lived >= STEADY_SECONDS:
                failures = 0
            if failures or asked or self.version == before:
                # Without progress, even a regular end must not become a tight loop.
                failures += 1
                wait = BACKOFF.delay(failures, self._rest.chance())
                await self._rest.clock.sleep(max(wait, min(asked or 0.0, 60.0)))

    def _wait_asked_by(self, error: KubeError) -> float | None:
        if isinstance(error, ServerFault) and error.has_cause("ResourceVersionTooLarge"):
            # The server's history is shorter than ours: it was restored or recreated.
            raise Gone(error.what, 410, reason=error.reason, message=error.message) from error
        return getattr(error, "retry_after", None)

    async def _connection(self) -> AsyncGenerator[Sequence[WatchEvent[T]], None]:
        """Yield the batches of one connection until it breaks, ends, or is silent for too long."""
        request = self._rest.build("GET", self._resource.collection(self._selection.namespace), self._query())
        reader = WatchEventReader(self._resource, self._into, self._report)
        async with self._rest.stream(request) as answer, aclosing(answer.chunks()) as chunks:
            self._on_contact()
            with closing(SilenceTimeout(self._rest.pace.idle_seconds)) as silence:
                while (chunk := await self._next(chunks, silence)) is not None:
                    self._on_contact()
                    if events := reader.feed(chunk):
                        self.version = next((e.version for e in reversed(events) if e.version), self.version)
                        yield events
                    if reader.failure is not None:
                        raise reader.failure

    async def _next(self, chunks: AsyncGenerator[bytes, None], silence: SilenceTimeout) -> bytes | None:
        """Return the next chunk, or None at the end."""
        try:
            return await silence.wait(lambda: anext(chunks, None))
        except TimeoutError:
            raise ApiUnreachable(
                f"WATCH {self._resource}: silent for {self._rest.pace.idle_seconds:g} s"
            ) from None

    def _query(self) -> list[tuple[str, str]]:
        # A random lifetime keeps many watches from reconnecting at the same time.
        seconds = int(self._rest.pace.connection_seconds * (1 + self._rest.chance()))
        return [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self.version),
            ("timeoutSeconds", str(seconds)),
            *self._selection.query(),
        ]
