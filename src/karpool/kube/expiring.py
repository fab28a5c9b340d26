"""What was heard lately: forgotten by age, and bounded in number."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from karpool.kube.clock import Clock

K = TypeVar("K")
V = TypeVar("V")

# An API server keeps events for an hour. Who remembers what they said for as long knows
# what a process that has just started would read, and no more.
EVENT_SECONDS = 3600.0
_LOOK_AT = 64


class ExpiringMap(Generic[K, V]):
    """Values by key. What was put `seconds` ago is gone; beyond `most` the oldest go first."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._held: OrderedDict[K, tuple[float, V]] = OrderedDict()  # oldest first

    def get(self, key: K) -> V | None:
        at, value = self._held.get(key, (0.0, None))
        return value if value is not None and at > self._edge() else None

    def put(self, key: K, value: V) -> None:
        """Hold it from now on."""
        self._held[key] = self._clock.monotonic(), value
        self._held.move_to_end(key)
        self._forget()

    def amend(self, key: K, value: V) -> None:
        """Another value for a key that is held, which becomes no younger."""
        self._held[key] = self._held[key][0], value

    def pop(self, key: K) -> None:
        self._held.pop(key, None)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[K]:
        edge = self._edge()
        return (key for key, (at, _) in self._held.items() if at > edge)

    def __len__(self) -> int:
        """How many take memory; some of them may be too old to be found."""
        return len(self._held)

    def _edge(self) -> float:
        return self._clock.monotonic() - self._seconds

    def _forget(self) -> None:
        edge = self._edge()
        while self._held and (len(self._held) > self._most or next(iter(self._held.values()))[0] <= edge):
            self._held.popitem(last=False)


class ExpiringSet(Generic[K]):
    """Keys that hold until a moment each. Those that do not any more take memory for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[K, float] = {}
        self._look_at = _LOOK_AT

    def put(self, key: K, seconds: float) -> None:
        self._ends[key] = self._clock.monotonic() + seconds
        if len(self._ends) >= self._look_at:
            now = self._clock.monotonic()
            self._ends = {member: end for member, end in self._ends.items() if end > now}
            self._look_at = 2 * len(self._ends) + _LOOK_AT

    def left(self, key: K) -> float:
        """Seconds that it still holds; 0 when it does not."""
        return max(0.0, self._ends.get(key, 0.0) - self._clock.monotonic())

    def pop(self, key: K) -> None:
        self._ends.pop(key, None)

    def __contains__(self, key: K) -> bool:
        return self.left(key) > 0

    def __len__(self) -> int:
        """How many take memory."""
        return len(self._ends)
