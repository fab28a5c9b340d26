"""Sends one request until it has a final answer: rate limit, time limits, retries, errors.

Back-off is exponential and jittered; a Retry-After of the server takes precedence. Attempts and total time
are bounded. A request that the server may have executed is repeated only if the caller says that this is
safe.
"""

import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from karpool import __version__
from karpool.kube import errors
from karpool.kube.clock import Clock
from karpool.kube.errors import ApiUnreachable, KubeError, ServerFault, Throttled
from karpool.kube.transport import backoff
from karpool.kube.transport.backoff import Backoff, Chance
from karpool.kube.transport.rate_limit import TokenBucket
from karpool.kube.transport_interface import HttpRequest, HttpResponse, StreamResponse, Transport

USER_AGENT = f"karpool/{__version__}"
ERROR_BODY_LIMIT = 64 * 1024
WARNING_LIMIT = 500  # characters
WARNINGS_MAX = 100  # different warnings
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries. `attempts` includes the first; `deadline` is in seconds from the first attempt."""

    attempts: int = 5
    deadline: float = 60.0
    backoff: Backoff = field(default=Backoff(first=0.25, limit=10.0))


DEFAULT_RETRY = RetryPolicy()
NEVER = RetryPolicy(attempts=1)


@dataclass(frozen=True, slots=True)
class RequestAttempt:
    """Facts of one attempt, for the metrics hook. `code` is 0 when no answer came."""

    method: str
    path: str
    code: int
    seconds: float


Observe = Callable[[RequestAttempt], None]


@dataclass(frozen=True, slots=True)
class WatchPace:
    """Timeouts and intervals of watches."""

    idle_seconds: float = 90.0  # servers send a bookmark about once a minute
    connection_seconds: float = 300.0  # minimum lifetime of a connection
    retry_seconds: float = 60.0  # longest interval between checks for a kind that is not served


STEADY_PACE = WatchPace()


class RestClient:
    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        *,
        limiter: TokenBucket | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float = 30.0,
        user_agent: str = USER_AGENT,
        chance: Chance = backoff.chance,
        observe: Observe | None = None,
        pace: WatchPace = STEADY_PACE,
    ) -> None:
        self.transport = transport
        self.pace = pace
        self.clock = clock
        self.chance = chance
        self._limiter = limiter
        self._retry = retry
        self._timeout = timeout
        self._headers = {"accept": "application/json", "user-agent": user_agent}
        self._observe = observe
        self._fence: Callable[[], None] = lambda: None
        self._warnings: set[str] = set()

    def without_limit(self) -> "RestClient":
        other = copy.copy(self)
        other._limiter = None
        return other

    def fenced(self, check: Callable[[], None]) -> "RestClient":
        """Return a copy that calls `check` right before each write attempt; `check` may raise."""
        other = copy.copy(self)
        other._fence = check
        return other

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        content_type: str = "application/json",
        repeatable: bool | None = None,
        final: Callable[[KubeError], bool] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> HttpResponse:
        """Return a successful answer, or raise a KubeError.

        `repeatable` says that executing the request twice is safe; by default only reads are. `final`
        identifies errors that more attempts would not change.
        """
        request = self.build(method, path, query, body, content_type)
        repeatable = method == "GET" if repeatable is None else repeatable
        rules = retry or self._retry
        started = self.clock.monotonic()
        failures = 0
        while True:
            try:
                remaining = started + rules.deadline - self.clock.monotonic()
                return await self._attempt(request, min(timeout or self._timeout, max(remaining, 1.0)))
            except KubeError as error:
                failures += 1
                wait = self._wait_before_retry(error, failures, rules, repeatable)
                if wait is None or (final is not None and final(error)):
                    raise
                if self.clock.monotonic() - started + wait > rules.deadline:
                    raise
            await self.clock.sleep(wait)

    def build(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        content_type: str = "application/json",
    ) -> HttpRequest:
        headers: Mapping[str, str] = self._headers
        if body:
            headers = {**self._headers, "content-type": content_type}
        return HttpRequest(method, path, tuple(query), headers, body)

    async def _attempt(self, request: HttpRequest, timeout: float) -> HttpResponse:
        if self._limiter is not None:
            await self._limiter.acquire()
        if request.method != "GET":
            # After every wait: leadership may be lost in the queue or before a second attempt.
            self._fence()
        started = self.clock.monotonic()
        code = 0
        try:
            response = await self.transport.request(request, timeout=timeout)
            code = response.status
        finally:
            self._note(request, code, started)
        if 200 <= response.status < 300:
            self._heed(request, response)
            return response
        raise errors.from_response(request, response, now=self.clock.now())

    def _heed(self, request: HttpRequest, response: HttpResponse) -> None:
        """Log each warning of the server once: unknown fields, deprecated versions."""
        text = response.headers.get("warning", "")[:WARNING_LIMIT]
        if text and text not in self._warnings and len(self._warnings) < WARNINGS_MAX:
            self._warnings.add(text)
            log.warning("warning from the API server", method=request.method, path=request.path, warning=text)

    def _wait_before_retry(
        self, error: KubeError, failures: int, rules: RetryPolicy, repeatable: bool
    ) -> float | None:
        """Return the seconds to wait, or None if the request must not be repeated after this error."""
        # 429 is sent before the request is processed, so any request may be repeated.
        harmless = repeatable or isinstance(error, Throttled)
        if isinstance(error, ApiUnreachable):
            harmless = harmless or not error.sent
        elif not isinstance(error, Throttled | ServerFault):
            return None
        if not harmless or failures >= rules.attempts:
            return None
        wait = rules.backoff.delay(failures, self.chance())
        asked = getattr(error, "retry_after", None)
        return wait if asked is None else max(asked, wait)

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, *, timeout: float | None = None
    ) -> AsyncIterator[StreamResponse]:
        """Yield an open answer with status 200; `timeout` bounds the time until it starts. No retries."""
        if self._limiter is not None:
            await self._limiter.acquire()
        started = self.clock.monotonic()
        code = 0
        try:
            async with self.transport.stream(request, timeout=timeout or self._timeout) as answer:
                code = answer.status
                if code != 200:
                    response = HttpResponse(code, answer.headers, await _read_some(answer))
                    raise errors.from_response(request, response, now=self.clock.now())
                yield answer
        finally:
            self._note(request, code, started)

    def _note(self, request: HttpRequest, code: int, started: float) -> None:
        if self._observe is not None:
            self._observe(
                RequestAttempt(request.method, request.path, code, self.clock.monotonic() - started)
            )


async def _read_some(answer: StreamResponse) -> bytes:
    body = b""
    async for chunk in answer.chunks():
        body += chunk
        if len(body) >= ERROR_BODY_LIMIT:
            break
    return body[:ERROR_BODY_LIMIT]
