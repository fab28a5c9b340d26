"""Back-off of node groups that failed to grow.

It is five minutes at first, doubles with each failure up to half an hour, and resets after three hours
without a failure. It is held in memory, as upstream: a restart forgets it. Times are monotonic seconds.
"""

from dataclasses import dataclass

from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings


@dataclass(frozen=True)
class GroupFailure:
    """A failure, spelled as in the status."""

    code: str
    message: str


@dataclass
class _Held:
    failure: GroupFailure
    seconds: float
    since: float


class GroupBackoffs:
    def __init__(self, settings: AutoscalerSettings) -> None:
        self._settings = settings
        self._held: dict[str, _Held] = {}

    def failed(self, group: str, failure: GroupFailure, now: float) -> None:
        """Record a failure. Failures during the back-off belong to the same attempt and do not extend it."""
        entry = self._held.get(group)
        if entry is None or now - entry.since >= self._settings.backoff_reset_seconds:
            seconds = self._settings.initial_backoff_seconds
        elif now < entry.since + entry.seconds:
            entry.failure = failure
            return
        else:
            seconds = min(entry.seconds * 2, self._settings.max_backoff_seconds)
        self._held[group] = _Held(failure, seconds, now)

    def holding(self, group: str, now: float) -> GroupFailure | None:
        """Return the failure behind the current back-off of the group; None without back-off."""
        entry = self._held.get(group)
        return entry.failure if entry is not None and now < entry.since + entry.seconds else None

    def succeeded(self, group: str, now: float) -> None:
        """Record that all nodes of a scale-up came: the next failure counts as the first."""
        if self.holding(group, now) is None:
            self._held.pop(group, None)
