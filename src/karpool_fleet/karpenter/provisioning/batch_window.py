"""The batch window: pods are collected before capacity is planned for all of them at once.

The first trigger opens it. It closes when no trigger came for a while, or when it has been open for long.
Pure: times are passed in.
"""

from dataclasses import dataclass, field


@dataclass
class BatchWindow:
    idle_seconds: float
    max_seconds: float
    _opened: float | None = None
    _last: float = 0.0
    _seen: set[str] = field(default_factory=set)

    def trigger(self, uid: str, now: float) -> None:
        if self._opened is None:
            self._opened = now
        if uid not in self._seen:
            self._seen.add(uid)
            self._last = now

    def closes_at(self) -> float | None:
        """Return the closing time; None before the first trigger."""
        if self._opened is None:
            return None
        return min(self._last + self.idle_seconds, self._opened + self.max_seconds)

    def close(self) -> None:
        self._opened = None
        self._seen.clear()
