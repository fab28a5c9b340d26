"""Chapters of a tour: promises, observations, and numbers before and after.

A chapter is a function that acts in the fleet and notes the result. It does not decide how the tour ends:
each promise is kept or not, and the tour is kept when all of them are.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from karpool_fleet.tour.stage import TourStage


@dataclass(frozen=True, slots=True)
class ChapterPromise:
    """A promise of Karpool, and whether it was kept."""

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
    """Notes of a chapter while it runs; `tell` shows a line at once."""

    tell: Callable[[str], None] = lambda line: None
    promises: list[ChapterPromise] = field(default_factory=list)
    figures: list[ChapterFigure] = field(default_factory=list)

    def promise(self, claim: str, kept: bool, seen: str) -> None:
        self.promises.append(ChapterPromise(claim, kept, seen))

    def figure(self, name: str, before: object, after: object) -> None:
        self.figures.append(ChapterFigure(name, str(before), str(after)))


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter. `shows` is one sentence for a newcomer."""

    name: str
    title: str
    shows: str
    play: Callable[["TourStage", Notes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ChapterOutcome:
    """The outcome of a chapter. `seconds` is fleet time. `error`: why the chapter could not finish."""

    chapter: Chapter
    promises: tuple[ChapterPromise, ...]
    figures: tuple[ChapterFigure, ...]
    seconds: float
    error: str = ""

    @property
    def kept(self) -> bool:
        """Whether all promises were kept; a chapter without promises has shown nothing."""
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
