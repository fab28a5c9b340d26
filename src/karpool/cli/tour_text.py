"""The tour as people read it: lines while it runs, a summary at its end."""

from collections.abc import Sequence
from typing import Any

from karpool.cli.output import columns, counted, machine, printable
from karpool.fleet.tour.chapter import Chapter, Outcome, Promise

KEPT, BROKEN = "✓", "✗"


def heading(number: int, of: int, chapter: Chapter) -> str:
    return f"\n{number}/{of}  {chapter.title}\n     {chapter.shows}"


def told(line: str) -> str:
    return f"     · {printable(line)}"


def verdicts(outcome: Outcome) -> str:
    """Every promise of a chapter, and what was seen."""
    lines = [_verdict(each) for each in outcome.promises]
    if outcome.error:
        lines.append(f"     {BROKEN} the chapter could not be played: {printable(outcome.error)}")
    return "\n".join(lines)


def _verdict(promise: Promise) -> str:
    mark = KEPT if promise.kept else BROKEN
    return f"     {mark} {promise.claim}\n       {printable(promise.seen)}"


def summary(outcomes: Sequence[Outcome], real_seconds: float) -> str:
    rows = [
        (outcome.chapter.title if first else "", figure.name, figure.before, figure.after)
        for outcome in outcomes
        for first, figure in zip((True, *[False] * len(outcome.figures)), outcome.figures, strict=False)
    ]
    table = columns(("CHAPTER", "NUMBER", "BEFORE", "AFTER"), rows)
    return f"{table}\n\n{conclusion(outcomes, real_seconds)}"


def conclusion(outcomes: Sequence[Outcome], real_seconds: float) -> str:
    promises = [each for outcome in outcomes for each in outcome.promises]
    kept = sum(each.kept for each in promises)
    of = counted(len(promises), "promise")
    minutes = counted(round(sum(outcome.seconds for outcome in outcomes) / 60), "minute")
    return (
        f"{kept} of {of} kept in {counted(len(outcomes), 'chapter')}:"
        f" {minutes} of the fleet in {counted(round(real_seconds), 'second')}"
    )


def broken(outcomes: Sequence[Outcome]) -> str:
    """What was not kept, in a line; empty when everything was."""
    found = [
        f"{outcome.chapter.title}: {each.claim} ({printable(each.seen)})"
        for outcome in outcomes
        for each in outcome.promises
        if not each.kept
    ]
    found += [
        f"{outcome.chapter.title}: {printable(outcome.error) or 'nothing was promised'}"
        for outcome in outcomes
        if outcome.error or not outcome.promises
    ]
    return "; ".join(found)


def document(outcomes: Sequence[Outcome], real_seconds: float, form: str) -> str:
    content: dict[str, Any] = {
        "kept": all(outcome.kept for outcome in outcomes),
        "realSeconds": round(real_seconds, 1),
        "chapters": [outcome.to_json() for outcome in outcomes],
    }
    return machine("Tour", content, form)
