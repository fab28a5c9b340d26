"""Notifies listeners of changes: each view has a version number that only grows.

A listener reads the current numbers, not a queue of changes. So a slow or disconnected listener misses
nothing that its next read does not show. Numbers grow at most once per pace; this bounds how often an answer
is rebuilt, for any number of clients.
"""

import asyncio
from collections.abc import Iterable
from enum import StrEnum


class ViewArea(StrEnum):
    FLEET = "fleet"
    PLACEMENTS = "placements"
    PROMISES = "promises"
    SCALE_UPS = "scale-ups"
    CONSOLIDATION = "consolidation"
    EVENTS = "events"
    MOVES = "moves"
    TIME = "time"


# A busy cluster changes a hundred times a second; people do not read that fast.
PACE_SECONDS = 0.5


class ChangeNotifier:
    """Belongs to one event loop; `ring` must be called on it."""

    def __init__(self, pace_seconds: float = PACE_SECONDS) -> None:
        self._pace = pace_seconds
        self._versions = dict.fromkeys(ViewArea, 0)
        self._listeners: set[asyncio.Event] = set()
        self._changed: set[ViewArea] = set()
        self._told_at = -pace_seconds
        self._telling: asyncio.TimerHandle | None = None

    def ring(self, areas: Iterable[ViewArea]) -> None:
        """Notify listeners at once after a quiet time, otherwise once per pace."""
        self._changed.update(areas)
        if self._telling is None:
            loop = asyncio.get_running_loop()
            wait = max(0.0, self._told_at + self._pace - loop.time())
            self._telling = loop.call_later(wait, self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._telling, self._told_at = None, loop.time()
        for area in self._changed:
            self._versions[area] += 1
        self._changed.clear()
        for listener in self._listeners:
            listener.set()

    def version(self, *areas: ViewArea) -> tuple[int, ...]:
        return tuple(self._versions[area] for area in areas)

    def versions(self) -> dict[str, int]:
        return {area.value: number for area, number in self._versions.items()}

    def listen(self) -> "ChangeListener":
        return ChangeListener(self._listeners)


class ChangeListener:
    """`with bell.listen() as listener: await listener.rung()`."""

    def __init__(self, listeners: set[asyncio.Event]) -> None:
        self._listeners = listeners
        self._event = asyncio.Event()

    def __enter__(self) -> "ChangeListener":
        self._listeners.add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._listeners.discard(self._event)

    async def rung(self) -> None:
        """Wait for the next notification since the last call."""
        await self._event.wait()
        self._event.clear()
