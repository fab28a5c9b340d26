"""Events of a cluster, the newest of them, as the live list shows them.

Only so many are held, whatever a cluster writes: the oldest go first.
"""

from collections.abc import Iterable, Iterator, Sequence

from karpool.dashboard.views import Happening, Happenings
from karpool.kube.event_object import Event
from karpool.kube.informer import Change
from karpool.kube.resource import Key

HELD_MAX = 2000
SHOWN_MAX = 500
_TEXT_MAX = 1024


class RecentEvents:
    """A sink. Holds twice what it keeps before it sorts, so that a storm costs little."""

    def __init__(self, limit: int = HELD_MAX) -> None:
        self._limit = limit
        self._held: dict[Key, tuple[float, Event]] = {}

    def apply(self, changes: Sequence[Change[Event]], /) -> None:
        for change in changes:
            if change.type == "DELETED" or change.object is None:
                self._held.pop(change.key, None)
            else:
                self._held[change.key] = change.object.at or 0.0, change.object
        if len(self._held) > 2 * self._limit:
            self._forget_the_oldest()

    def __iter__(self) -> Iterator[Event]:
        return (event for _, event in self._held.values())

    def _forget_the_oldest(self) -> None:
        newest = sorted(self._held.items(), key=lambda item: item[1][0], reverse=True)
        self._held = dict(newest[: self._limit])


def happenings(clusters: Iterable[tuple[str, Iterable[Event]]], now: float) -> Happenings:
    """Of all clusters together, the newest first."""
    found = [_happening(cluster, each) for cluster, events in clusters for each in events]
    found.sort(key=lambda each: (-each.at, each.cluster, each.object, each.reason, each.message))
    return Happenings(at=now, items=found[:SHOWN_MAX], left_out=max(0, len(found) - SHOWN_MAX))


def _happening(cluster: str, event: Event) -> Happening:
    about = event.involved_object
    name = f"{about.namespace}/{about.name}" if about.namespace else about.name
    return Happening(
        cluster=cluster,
        at=event.at or 0.0,
        type=event.type or "Normal",
        reason=event.reason[:_TEXT_MAX],
        object=f"{about.kind} {name}".strip(),
        message=event.message[:_TEXT_MAX],
        count=max(1, event.count or 1),
        source=event.said_by,
    )
