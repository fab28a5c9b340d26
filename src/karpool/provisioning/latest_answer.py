"""Polls an external source in a background thread.

Callers get the latest answer at once; only the first answer is waited for, so that a one-shot command has it.
A failure is kept as a reason.
"""

import http.client
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from karpool.kube.clock import Clock
from karpool.kube.errors import ConfigError, KubeError
from karpool.model.errors import Invalid

TIMEOUT_SECONDS = 5.0
T = TypeVar("T")


class LatestAnswer(Generic[T]):
    """The latest answer of a source. `failure` says why there is no newer answer."""

    def __init__(self, ask: Callable[[], T], clock: Clock, *, every_seconds: float) -> None:
        """`ask` may raise network and parse errors, and must time out by itself."""
        self._ask, self._clock, self._every = ask, clock, every_seconds
        self._asked: float | None = None
        self._answered: float | None = None
        self._answer: T | None = None
        self.failure = "it was not asked yet"
        self._thread: threading.Thread | None = None

    def within(self, seconds: float) -> T | None:
        """Return the latest answer; None if it is older than this."""
        now = self._clock.monotonic()
        is_idle = self._thread is None or not self._thread.is_alive()
        if is_idle and (self._asked is None or now - self._asked >= self._every):
            is_first, self._asked = self._asked is None, now
            self._thread = threading.Thread(target=self._ask_once, name="latest answer", daemon=True)
            self._thread.start()
            if is_first:
                self._thread.join(TIMEOUT_SECONDS + 1)
        is_fresh = self._answered is not None and self._clock.monotonic() - self._answered < seconds
        return self._answer if is_fresh else None

    def _ask_once(self) -> None:
        try:
            answer = self._ask()
        except (OSError, http.client.HTTPException, KubeError, ConfigError, Invalid) as error:
            self.failure = str(error)[:300] or type(error).__name__
            return
        if answer != self._answer:  # keeps the identity of an equal answer for callers
            self._answer = answer
        self._answered = self._clock.monotonic()
