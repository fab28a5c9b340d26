"""Groups that failed to grow are left alone for a while, longer every time.

Five minutes at first, twice as long each time up to half an hour, and from the start
again when three hours passed without a failure. Held in memory, as upstream does: a
restart forgets it. Times are monotonic seconds.
"""

from dataclasses import dataclass

from karpool_fleet.cluster_autoscaler.groups import AutoscalerSettings


@dataclass(frozen=True)
class GroupFailure:
    """Spelled as the status shows it."""

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
        """Failures while it is held do not make it longer: they belong to the same attempt."""
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
        """Why the group is left alone now; None when it is not."""
        entry = self._held.get(group)
        return entry.failure if entry is not None and now < entry.since + entry.seconds else None

    def succeeded(self, group: str, now: float) -> None:
        """All nodes of a scale-up came: the next failure is a first one."""
        if self.holding(group, now) is None:
            self._held.pop(group, None)
