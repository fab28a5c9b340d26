"""Who is told that something changed, and of what: one number for each view, which only grows.

A listener gets the numbers as they are when it looks, never a queue of changes: one that
is slow, or was away, has missed nothing that the next look does not show.
"""

import asyncio
from collections.abc import Iterable
from enum import StrEnum


class Area(StrEnum):
    FLEET = "fleet"
    PLACEMENTS = "placements"
    PROMISES = "promises"
    SCALE_UPS = "scale-ups"
    CONSOLIDATION = "consolidation"
    EVENTS = "events"


class Bell:
    def __init__(self) -> None:
        self._versions = dict.fromkeys(Area, 0)
        self._listeners: set[asyncio.Event] = set()

    def ring(self, areas: Iterable[Area]) -> None:
        for area in areas:
            self._versions[area] += 1
        for listener in self._listeners:
            listener.set()

    def version(self, *areas: Area) -> tuple[int, ...]:
        return tuple(self._versions[area] for area in areas)

    def versions(self) -> dict[str, int]:
        return {area.value: number for area, number in self._versions.items()}

    def listen(self) -> "Listener":
        return Listener(self._listeners)


class Listener:
    """`with bell.listen() as listener: await listener.rung()`."""

    def __init__(self, listeners: set[asyncio.Event]) -> None:
        self._listeners = listeners
        self._event = asyncio.Event()

    def __enter__(self) -> "Listener":
        self._listeners.add(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._listeners.discard(self._event)

    async def rung(self) -> None:
        """Returns when the bell rang since the last call."""
        await self._event.wait()
        self._event.clear()
