"""The tour as people read it: lines while it runs, a summary at its end.

Sentences are wrapped to the width of the terminal, and to a readable one in a log.
"""

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from karpool.cli.output.text import machine, pluralize, printable
from karpool_fleet.tour.chapter import Chapter, ChapterOutcome, ChapterPromise

KEPT, BROKEN = "✓", "✗"
WIDEST, NARROWEST = 100, 40
_MARGIN = " " * 5


def heading(number: int, of: int, chapter: Chapter) -> str:
    return f"\n{number}/{of}  {chapter.title}\n{_wrapped(chapter.shows)}"


def told(line: str) -> str:
    return _wrapped(line, "· ")


def _wrapped(text: str, mark: str = "") -> str:
    width = max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))
    return textwrap.fill(
        printable(text),
        width,
        initial_indent=_MARGIN + mark,
        subsequent_indent=_MARGIN + " " * len(mark),
        break_on_hyphens=False,
    )


def verdicts(outcome: ChapterOutcome) -> str:
    """Every promise of a chapter, and what was seen."""
    lines = [_verdict(promise) for promise in outcome.promises]
    if outcome.error:
        lines.append(_wrapped(f"the chapter could not run: {outcome.error}", f"{BROKEN} "))
    return "\n".join(lines)


def _verdict(promise: ChapterPromise) -> str:
    mark = KEPT if promise.kept else BROKEN
    return f"{_wrapped(promise.claim, f'{mark} ')}\n{_wrapped(promise.seen, '  ')}"


def summary(outcomes: Sequence[ChapterOutcome], real_seconds: float) -> str:
    """Numbers by chapter, in columns that are the same for all of them."""
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    name, before = (
        max((len(getattr(figure, what)) for figure in figures), default=0) for what in ("name", "before")
    )
    before = max(before, len("BEFORE"))
    lines = [f"  {'':{name}}  {'BEFORE':{before}}  AFTER"] if figures else []
    for outcome in outcomes:
        lines.append(f"{KEPT if outcome.kept else BROKEN} {outcome.chapter.title}")
        lines += [
            f"  {printable(figure.name):{name}}  {printable(figure.before):{before}}  "
            f"{printable(figure.after)}"
            for figure in outcome.figures
        ]
    table = "\n".join(lines)
    return f"{table}\n\n{conclusion(outcomes, real_seconds)}"


def conclusion(outcomes: Sequence[ChapterOutcome], real_seconds: float) -> str:
    promises = [promise for outcome in outcomes for promise in outcome.promises]
    kept = sum(chapter_promise.kept for chapter_promise in promises)
    of = pluralize(len(promises), "promise")
    minutes = pluralize(round(sum(outcome.seconds for outcome in outcomes) / 60), "minute")
    return (
        f"{kept} of {of} kept in {pluralize(len(outcomes), 'chapter')}:"
        f" {minutes} of the fleet in {pluralize(round(real_seconds), 'second')}"
    )


def broken(outcomes: Sequence[ChapterOutcome]) -> str:
    """What was not kept, in a line; empty when everything was."""
    promises = [
        f"{outcome.chapter.title}: {promise.claim} ({printable(promise.seen)})"
        for outcome in outcomes
        for promise in outcome.promises
        if not promise.kept
    ]
    promises += [
        f"{outcome.chapter.title}: {printable(outcome.error) or 'nothing was promised'}"
        for outcome in outcomes
        if outcome.error or not outcome.promises
    ]
    return "; ".join(promises)


def document(outcomes: Sequence[ChapterOutcome], real_seconds: float, form: str) -> str:
    content: dict[str, Any] = {
        "kept": all(outcome.kept for outcome in outcomes),
        "realSeconds": round(real_seconds, 1),
        "chapters": [outcome.to_json() for outcome in outcomes],
    }
    return machine("Tour", content, form)
