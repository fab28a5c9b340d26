"""Injects faults between components and the API server of an embedded cluster.

`Faults.wrap` wraps the transport of a component. Each command names its component ("*": all of them) and
returns a `Fault` that counts its hits and can be ended. The faults are: errors, delays, hanging requests,
answers that are lost after the work was done, watches that are cut, expire, or lose, repeat or delay events,
stale reads, a process that dies before or after its n-th write, and a process that is paused.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn, TypedDict, Unpack

import msgspec

from karpool.kube.clock import Clock
from karpool.kube.errors import ApiUnreachable
from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse, Transport
from karpool.kube.watch.silence import Interrupted, Interruption

EVERYONE = "*"
_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))


@dataclass
class Fault:
    """One fault. `times` None: until ended."""

    component: str
    method: str = ""  # "" for all; "WRITE" for all that change something
    path: str = ""  # a regular expression, searched in the path
    times: int | None = None
    status: int = 0
    retry_after: float | None = None
    seconds: float = 0.0
    hits: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def end(self) -> None:
        self.ended.set()

    def takes(self, component: str, request: HttpRequest) -> bool:
        """Whether this request is hit; counts the hit."""
        if self.ended.is_set() or self.component not in (EVERYONE, component):
            return False
        if (
            self.method
            and request.method != self.method
            and not (self.method == "WRITE" and is_write(request))
        ):
            return False
        if self.path and not re.search(self.path, request.path):
            return False
        self.hits += 1
        if self.times is not None and self.hits >= self.times:
            self.end()
        return True


class HitRequests(TypedDict, total=False):
    """Selects requests of a component; all by default."""

    method: str
    path: str
    times: int | None


def is_write(request: HttpRequest) -> bool:
    return request.method in _WRITES


class Faults:
    """All faults of one cluster."""

    def __init__(self, clock: Clock, crash: Callable[[str], object] | None = None) -> None:
        """Create the faults; `crash` stops a component by name and is needed for `crash_at_write`."""
        self.clock = clock
        self.crash = crash
        self.writes: dict[str, int] = {}  # by component, since the start
        self._errors: list[Fault] = []
        self._unanswered: list[Fault] = []
        self._delays: list[Fault] = []
        self._hangs: list[Fault] = []
        self._crashes: list[tuple[Fault, int, str]] = []
        self._paused: dict[str, asyncio.Event] = {}
        self._watch_faults: list[tuple[str, Fault]] = []  # faults of events: lose, repeat, late
        self._stale: list[Fault] = []
        self._streams: dict[_Stream, None] = {}

    def wrap(self, component: str, transport: Transport) -> Transport:
        return _Faulty(self, component, transport)

    # Commands

    def fail(
        self,
        component: str = EVERYONE,
        *,
        status: int,
        retry_after: float | None = None,
        **requests: Unpack[HitRequests],
    ) -> Fault:
        """Answer with an error before the server sees the request; status 0 means no answer."""
        return _kept(self._errors, Fault(component, status=status, retry_after=retry_after, **requests))

    def lose_answers(self, component: str = EVERYONE, **requests: Unpack[HitRequests]) -> Fault:
        """Execute requests, but break the connection before the answer.

        Affects writes if no method is named.
        """
        requests["method"] = requests.get("method") or "WRITE"
        return _kept(self._unanswered, Fault(component, **requests))

    def delay(self, component: str = EVERYONE, *, seconds: float, **requests: Unpack[HitRequests]) -> Fault:
        return _kept(self._delays, Fault(component, seconds=seconds, **requests))

    def hang(self, component: str = EVERYONE, **requests: Unpack[HitRequests]) -> Fault:
        """Hold requests, which never reach the server, until the fault ends."""
        return _kept(self._hangs, Fault(component, **requests))

    def crash_at_write(self, component: str, number: int, *, when: str) -> Fault:
        """Kill the component right before, or right after, the n-th write from now (1 is the next)."""
        assert when in ("before", "after"), when
        fault = Fault(component, "WRITE", times=1)
        self._crashes = [crash for crash in self._crashes if not crash[0].ended.is_set()]
        self._crashes.append((fault, self.writes.get(component, 0) + number, when))
        return fault

    def pause(self, component: str) -> None:
        """Pause the component at its next request, as SIGSTOP does."""
        self._paused.setdefault(component, asyncio.Event())

    def resume(self, component: str) -> None:
        if waiting := self._paused.pop(component, None):
            waiting.set()

    def cut_watches(self, component: str = EVERYONE, *, path: str = "", expired: bool = False) -> int:
        """End open watches, as a restarting proxy would; `expired` with a 410, which forces a new list."""
        hit = [stream for stream in self._streams if stream.matches(component, path)]
        for stream in hit:
            stream.cut(expired)
        return len(hit)

    def lose_events(self, component: str = EVERYONE, *, path: str = "", times: int | None = None) -> Fault:
        """Drop events of watches. End it and `cut_watches(expired=True)` to let the watcher recover."""
        return self._on_watch("lose", Fault(component, path=path, times=times))

    def repeat_events(self, component: str = EVERYONE, *, path: str = "", times: int | None = None) -> Fault:
        return self._on_watch("repeat", Fault(component, path=path, times=times))

    def late_events(
        self, component: str = EVERYONE, *, seconds: float, path: str = "", times: int | None = None
    ) -> Fault:
        return self._on_watch("late", Fault(component, path=path, times=times, seconds=seconds))

    def stale_reads(self, component: str = EVERYONE, *, seconds: float, path: str = "") -> Fault:
        """Answer reads with an earlier answer to the same read, if that is at most `seconds` old."""
        return _kept(self._stale, Fault(component, "GET", path, seconds=seconds))

    def _on_watch(self, how: str, fault: Fault) -> Fault:
        self._watch_faults = [fault for fault in self._watch_faults if not fault[1].ended.is_set()]
        self._watch_faults.append((how, fault))
        return fault

    # Called by the transports

    async def before(self, component: str, request: HttpRequest, limit: float | None) -> HttpResponse | None:
        """Wait as long as faults demand; return an answer that replaces the request, or None."""
        while waiting := self._paused.get(component):
            await waiting.wait()
        for fault in _taking(self._delays, component, request):
            await self.clock.sleep(fault.seconds)
        for fault in _taking(self._hangs, component, request):
            await self._hang(fault, request, limit)
        if is_write(request):
            self.writes[component] = self.writes.get(component, 0) + 1
            await self._maybe_crash(component, "before")
        for fault in _taking(self._errors, component, request):
            if fault.status == 0:
                raise ApiUnreachable(f"{request.method} {request.path}: connection lost (injected)")
            return error_response(fault.status, fault.retry_after)
        return None

    async def after(self, component: str, request: HttpRequest) -> None:
        if is_write(request):
            await self._maybe_crash(component, "after")
        if _taking(self._unanswered, component, request):
            raise ApiUnreachable(
                f"{request.method} {request.path}: connection lost before the answer (injected)"
            )

    async def _hang(self, fault: Fault, request: HttpRequest, limit: float | None) -> None:
        try:
            async with asyncio.timeout(limit):
                await fault.ended.wait()
        except TimeoutError:
            raise ApiUnreachable(
                f"{request.method} {request.path}: no answer in {limit} s (injected)"
            ) from None

    async def _maybe_crash(self, component: str, when: str) -> None:
        for fault, number, moment in self._crashes:
            if (
                fault.component == component
                and moment == when
                and not fault.ended.is_set()
                # Writes may overlap: the n-th can end after the next has started.
                and (
                    self.writes[component] == number or (when == "after" and self.writes[component] > number)
                )
            ):
                fault.hits += 1
                fault.end()
                await self._die(component)

    async def _die(self, component: str) -> NoReturn:
        """Crash the component; this await never returns."""
        assert self.crash is not None, "crash_at_write needs Faults(crash=...)"
        self.crash(component)
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    def stale(self, component: str, request: HttpRequest) -> float:
        """Return how old an answer to this read may be; 0: it must be fresh."""
        return max((fault.seconds for fault in _taking(self._stale, component, request)), default=0.0)

    def events(self, component: str, request: HttpRequest, line: bytes) -> tuple[list[bytes], float]:
        """Return the lines that replace one event, and their delay."""
        lines, wait = [line], 0.0
        for how, fault in self._watch_faults:
            if not fault.takes(component, request):
                continue
            if how == "lose":
                return [], 0.0
            if how == "repeat":
                lines = lines * 2
            else:
                wait += fault.seconds
        return lines, wait


def _kept(faults: list[Fault], fault: Fault) -> Fault:
    """Add a fault and drop ended ones, which would slow down every request."""
    faults[:] = [fault for fault in faults if not fault.ended.is_set()]
    faults.append(fault)
    return fault


def _taking(faults: list[Fault], component: str, request: HttpRequest) -> list[Fault]:
    return [fault for fault in faults if fault.takes(component, request)] if faults else []


def status_object(code: int, message: str) -> dict[str, object]:
    reason = _REASONS.get(code, "")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def error_response(code: int, retry_after: float | None = None) -> HttpResponse:
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = f"{retry_after:g}"
    return HttpResponse(code, headers, msgspec.json.encode(status_object(code, "injected fault")))


class _Faulty:
    """A `Transport` with faults."""

    def __init__(self, faults: Faults, component: str, inner: Transport) -> None:
        self._faults = faults
        self._component = component
        self._inner = inner
        self._remembered: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[float, HttpResponse]] = {}

    async def request(self, request: HttpRequest, *, timeout: float | None = None) -> HttpResponse:
        instead = await self._faults.before(self._component, request, timeout)
        if instead is not None:
            return instead
        if lag := self._faults.stale(self._component, request):
            return await self._lagging(request, lag, timeout)
        response = await self._inner.request(request, timeout=timeout)
        await self._faults.after(self._component, request)
        return response

    async def _lagging(self, request: HttpRequest, lag: float, timeout: float | None) -> HttpResponse:
        key, now = (request.path, tuple(request.query)), self._faults.clock.monotonic()
        answer = self._remembered.get(key)
        if answer is None or now - answer[0] > lag:
            # Drop expired answers; otherwise answers for other names would pile up.
            self._remembered = {key: old for key, old in self._remembered.items() if now - old[0] <= lag}
            answer = self._remembered[key] = (now, await self._inner.request(request, timeout=timeout))
        return answer[1]

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        instead = await self._faults.before(self._component, request, timeout)
        if instead is not None:
            yield _Ended(instead)
            return
        async with self._inner.stream(request, timeout=timeout) as inner:
            stream = _Stream(self._faults, self._component, request, inner)
            self._faults._streams[stream] = None
            try:
                yield stream
            finally:
                del self._faults._streams[stream]

    async def close(self) -> None:
        await self._inner.close()


class _Ended:
    """A plain answer to a stream request."""

    def __init__(self, response: HttpResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._body = response.body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body


class _Stream:
    def __init__(self, faults: Faults, component: str, request: HttpRequest, inner: StreamResponse) -> None:
        self.status = inner.status
        self.headers = inner.headers
        self._faults = faults
        self._component = component
        self._request = request
        self._inner = inner
        self._cut = Interruption()
        self._expired = False

    def matches(self, component: str, path: str) -> bool:
        return component in (EVERYONE, self._component) and bool(re.search(path, self._request.path))

    def cut(self, expired: bool) -> None:
        if not self._cut.is_asked():
            self._expired = expired
            self._cut.interrupt()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._inner.chunks()) as pieces:
            pending = b""
            while True:
                try:
                    piece = await self._cut.wait(lambda: anext(pieces, b""))
                except Interrupted:
                    if self._expired:
                        yield (
                            msgspec.json.encode({"type": "ERROR", "object": status_object(410, "injected")})
                            + b"\n"
                        )
                    return
                if not piece:
                    return
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    for out in await self._after_faults(line + b"\n"):
                        yield out

    async def _after_faults(self, line: bytes) -> list[bytes]:
        lines, wait = self._faults.events(self._component, self._request, line)
        if wait:
            await self._faults.clock.sleep(wait)
        return lines
