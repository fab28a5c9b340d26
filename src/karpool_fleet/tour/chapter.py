"""A tour as values: what each chapter claims, what was seen, the numbers before and after.

A chapter is a function that does something in the fleet and notes what came of it. It never
decides by itself how the tour ends: a promise is kept or it is not, and the tour is
kept when all of them are.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from karpool_fleet.tour.stage import TourStage


@dataclass(frozen=True, slots=True)
class ChapterPromise:
    """What Karpool says of itself, and whether it was so."""

    claim: str
    kept: bool
    seen: str


@dataclass(frozen=True, slots=True)
class ChapterFigure:
    name: str
    before: str
    after: str


@dataclass(slots=True)
class Notes:
    """What a chapter writes down while it is played; `tell` shows a line of it at once."""

    tell: Callable[[str], None] = lambda line: None
    promises: list[ChapterPromise] = field(default_factory=list)
    figures: list[ChapterFigure] = field(default_factory=list)

    def promise(self, claim: str, kept: bool, seen: str) -> None:
        self.promises.append(ChapterPromise(claim, kept, seen))

    def figure(self, name: str, before: object, after: object) -> None:
        self.figures.append(ChapterFigure(name, str(before), str(after)))


@dataclass(frozen=True, slots=True)
class Chapter:
    """`shows` is one sentence for somebody who sees it for the first time."""

    name: str
    title: str
    shows: str
    play: Callable[["TourStage", Notes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ChapterOutcome:
    """`seconds` is time of the fleet. `error`: why the chapter could not be played to its end."""

    chapter: Chapter
    promises: tuple[ChapterPromise, ...]
    figures: tuple[ChapterFigure, ...]
    seconds: float
    error: str = ""

    @property
    def kept(self) -> bool:
        """A chapter that promised nothing has shown nothing."""
        return not self.error and bool(self.promises) and all(promise.kept for promise in self.promises)

    def to_json(self) -> dict[str, Any]:
        return {
            "chapter": self.chapter.name,
            "title": self.chapter.title,
            "kept": self.kept,
            "seconds": round(self.seconds, 1),
            **({"error": self.error} if self.error else {}),
            "promises": [
                {"claim": promise.claim, "kept": promise.kept, "seen": promise.seen}
                for promise in self.promises
            ],
            "figures": [
                {"name": figure.name, "before": figure.before, "after": figure.after}
                for figure in self.figures
            ],
        }
