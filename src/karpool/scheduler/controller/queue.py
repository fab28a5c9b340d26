"""The queue of bindings: active ones, backed-off ones, and those that wait for capacity.

Higher priorities come first, then older entries. A failed binding returns after 1, 2, 4, 8, then 10 seconds.
One without capacity returns when `wake` says that there may be some, or after five minutes. Any event of a
binding returns it at once and resets its failures. One worker at a time handles a binding.
"""

from collections.abc import Callable, Hashable
from typing import Generic, Literal, TypeVar

from karpool.kube.clock import Clock
from karpool.kube.work_queue import QueueObserver, WorkQueue

K = TypeVar("K", bound=Hashable)

# Karmada's numbers.
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 10.0)
UNSCHEDULABLE_SECONDS = 300.0

Pool = Literal["active", "backoff", "unschedulable"]
POOLS: tuple[Pool, ...] = ("active", "backoff", "unschedulable")


class BindingQueue(Generic[K]):
    """`prioritized=False` is Karmada's queue without the gate PriorityBasedScheduling: FIFO."""

    def __init__(
        self,
        clock: Clock,
        *,
        prioritized: bool = True,
        backoff_seconds: Callable[[int], float] = lambda attempts: BACKOFF_SECONDS[
            min(attempts, len(BACKOFF_SECONDS)) - 1
        ],
        unschedulable_seconds: float = UNSCHEDULABLE_SECONDS,
        tell: QueueObserver | None = None,
    ) -> None:
        self._queue: WorkQueue[K] = WorkQueue(clock, tell=tell)
        self._prioritized = prioritized
        self._backoff = backoff_seconds
        self._unschedulable_seconds = unschedulable_seconds
        self._attempts: dict[K, int] = {}
        self._backed_off: dict[K, int] = {}  # -> priority
        self._waiting: dict[K, int] = {}  # for capacity -> priority
        self._closed = False
        self.cycle = 0  # incremented when capacity may have appeared

    def add(self, key: K, *, priority: int = 0) -> None:
        """Queue the binding after an event."""
        self._attempts.pop(key, None)
        self._activate(key, priority)

    def wake(self, may_fit: Callable[[K], bool] = lambda key: True) -> int:
        """Capacity may have appeared: return the waiting bindings that may fit."""
        self.cycle += 1
        woken = {key: priority for key, priority in self._waiting.items() if may_fit(key)}
        for key, priority in woken.items():
            self._activate(key, priority)
        return len(woken)

    def failed(self, key: K, *, priority: int = 0) -> float:
        """Back off; call before `done`. Returns the delay, which grows."""
        self._attempts[key] = attempts = self._attempts.get(key, 0) + 1
        delay = self._backoff(attempts)
        self._backed_off[key] = self._rank(priority)
        self._queue.add_after(key, delay, priority=self._rank(priority))
        return delay

    def unschedulable(
        self, key: K, cycle: int, *, priority: int = 0, within_seconds: float | None = None
    ) -> None:
        """Wait for capacity or the timeout; call before `done`.

        `cycle` is its value when the binding was evaluated. If capacity has appeared since, the binding
        returns at once, because that wake-up did not include it.
        """
        if cycle != self.cycle:
            self._queue.add(key, priority=self._rank(priority))
            return
        self._waiting[key] = self._rank(priority)
        longest = self._unschedulable_seconds
        wait = longest if within_seconds is None else min(longest, within_seconds)
        self._queue.add_after(key, wait, priority=self._rank(priority))

    def succeeded(self, key: K) -> None:
        self._attempts.pop(key, None)

    def forget(self, key: K) -> None:
        """Remove a binding that is gone, or no longer ours."""
        for held in (self._attempts, self._backed_off, self._waiting):
            held.pop(key, None)

    async def get(self) -> K:
        """The next key; `done` must follow. Raises ShutDown if shut down and empty."""
        key = await self._queue.get()
        while self._closed:
            self._queue.done(key)
            key = await self._queue.get()
        self._backed_off.pop(key, None)
        self._waiting.pop(key, None)
        return key

    def done(self, key: K) -> None:
        self._queue.done(key)

    def shut_down(self) -> None:
        """Accept nothing more, and start nothing that is queued."""
        self._closed = True
        self._queue.shut_down()

    def waiting(self) -> list[K]:
        """The bindings that wait for capacity."""
        return list(self._waiting)

    def sizes(self) -> dict[Pool, int]:
        return {
            "active": len(self._queue),
            "backoff": len(self._backed_off),
            "unschedulable": len(self._waiting),
        }

    def _activate(self, key: K, priority: int) -> None:
        self._backed_off.pop(key, None)
        self._waiting.pop(key, None)
        self._queue.add(key, priority=self._rank(priority))

    def _rank(self, priority: int) -> int:
        return priority if self._prioritized else 0
