"""Something that others know, asked for beside the process, again and again.

Whoever needs it takes the latest answer at once; only the first is waited for, so that a command that ends
after one look has it. What cannot be had is a reason.
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
    """`failure` says why there is no newer answer."""

    def __init__(self, ask: Callable[[], T], clock: Clock, *, every_seconds: float) -> None:
        """`ask` raises what a network or an answer may raise, and gives up by itself."""
        self._ask, self._clock, self._every = ask, clock, every_seconds
        self._asked: float | None = None
        self._answered: float | None = None
        self._answer: T | None = None
        self.failure = "it was not asked yet"
        self._thread: threading.Thread | None = None

    def within(self, seconds: float) -> T | None:
        """The latest answer; None when that is older."""
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
        if answer != self._answer:  # whoever compares by identity sees news only
            self._answer = answer
        self._answered = self._clock.monotonic()
