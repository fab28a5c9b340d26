"""Maps and sets whose entries expire and whose size is bounded."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from karpool.kube.clock import Clock

K = TypeVar("K")
V = TypeVar("V")

# An API server keeps events for an hour. With the same age, a long-running process
# knows the same events as a process that has just started.
EVENT_SECONDS = 3600.0
_LOOK_AT = 64


class ExpiringMap(Generic[K, V]):
    """A map whose entries expire after `seconds`; beyond `most` entries the oldest are dropped."""

    def __init__(self, clock: Clock, seconds: float, most: int) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._held: OrderedDict[K, tuple[float, V]] = OrderedDict()  # oldest first

    def get(self, key: K) -> V | None:
        at, value = self._held.get(key, (0.0, None))
        return value if value is not None and at > self._edge() else None

    def put(self, key: K, value: V) -> None:
        """Set a value; its age starts at 0."""
        self._held[key] = self._clock.monotonic(), value
        self._held.move_to_end(key)
        self._forget()

    def amend(self, key: K, value: V) -> None:
        """Change the value of a present key; its age stays the same."""
        self._held[key] = self._held[key][0], value

    def pop(self, key: K) -> None:
        self._held.pop(key, None)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[K]:
        edge = self._edge()
        return (key for key, (at, _) in self._held.items() if at > edge)

    def __len__(self) -> int:
        """Return the number of entries in memory, including expired ones that are not dropped yet."""
        return len(self._held)

    def _edge(self) -> float:
        return self._clock.monotonic() - self._seconds

    def _forget(self) -> None:
        edge = self._edge()
        while self._held and (len(self._held) > self._most or next(iter(self._held.values()))[0] <= edge):
            self._held.popitem(last=False)


class ExpiringSet(Generic[K]):
    """A set of keys, each with its own end. Expired keys stay in memory for a while."""

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
        """Return the remaining seconds of a key; 0 if it is absent or expired."""
        return max(0.0, self._ends.get(key, 0.0) - self._clock.monotonic())

    def pop(self, key: K) -> None:
        self._ends.pop(key, None)

    def __contains__(self, key: K) -> bool:
        return self.left(key) > 0

    def __len__(self) -> int:
        """Return the number of keys in memory."""
        return len(self._ends)
