"""The newest events of a cluster, for the live list.

The number of events is bounded: the oldest are dropped first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from karpool.cluster.changes import ObjectChange
from karpool.dashboard.api.views import RecentEvent, RecentEventList
from karpool.model.kubernetes.api_resources import ObjectKey
from karpool.model.kubernetes.event import KubeEvent

HELD_MAX = 2000
SHOWN_MAX = 500
_TEXT_MAX = 1024


class EventBuffer:
    """A sink. It holds twice the limit before it sorts, so that many events cost little."""

    def __init__(self, limit: int = HELD_MAX) -> None:
        self._limit = limit
        self._held: dict[ObjectKey, tuple[float, KubeEvent]] = {}

    def apply(self, changes: Sequence[ObjectChange[KubeEvent]], /) -> None:
        for change in changes:
            if change.type == "DELETED" or change.object is None:
                self._held.pop(change.key, None)
            else:
                self._held[change.key] = change.object.at or 0.0, change.object
        if len(self._held) > 2 * self._limit:
            self._forget_the_oldest()

    def __iter__(self) -> Iterator[KubeEvent]:
        return (event for _, event in self._held.values())

    def _forget_the_oldest(self) -> None:
        newest = sorted(self._held.items(), key=lambda item: item[1][0], reverse=True)
        self._held = dict(newest[: self._limit])


@dataclass(frozen=True, slots=True)
class EventChoice:
    """A filter of events. `about` is the object, such as `Pod team/web-0`; all `words` must occur."""

    cluster: str = ""
    type: str = ""
    about: str = ""
    words: tuple[str, ...] = ()

    def takes(self, event: RecentEvent) -> bool:
        if self.type not in ("", event.type) or self.about not in ("", event.object):
            return False
        text = "\n".join((event.object, event.reason, event.message, event.cluster)).lower()
        return all(word in text for word in self.words)


EVERYTHING = EventChoice()


def recent_events(
    clusters: Iterable[tuple[str, Iterable[KubeEvent]]], now: float, choice: EventChoice = EVERYTHING
) -> RecentEventList:
    """Return the events of all clusters, the newest first."""
    happenings = (
        _happening(cluster, event)
        for cluster, events in clusters
        if choice.cluster in ("", cluster)
        for event in events
    )
    chosen = list(filter(choice.takes, happenings))
    chosen.sort(key=lambda event: (-event.at, event.cluster, event.object, event.reason, event.message))
    return RecentEventList(at=now, items=chosen[:SHOWN_MAX], left_out=max(0, len(chosen) - SHOWN_MAX))


def _happening(cluster: str, event: KubeEvent) -> RecentEvent:
    about = event.involved_object
    name = f"{about.namespace}/{about.name}" if about.namespace else about.name
    return RecentEvent(
        cluster=cluster,
        at=event.at or 0.0,
        type=event.type or "Normal",
        reason=event.reason[:_TEXT_MAX],
        object=f"{about.kind} {name}".strip(),
        message=event.message[:_TEXT_MAX],
        count=max(1, event.count or 1),
        source=event.said_by,
    )
