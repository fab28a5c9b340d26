"""A tour is kept when every promise is: whatever a chapter does, it cannot be taken for kept."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from karpool.cli.embedded import tour_text
from karpool.kube.errors import ApiUnreachable
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.tour.chapter import Chapter, ChapterOutcome, Notes
from karpool_fleet.tour.tour import CHAPTER_SECONDS, CHAPTERS, play

FAILURES = Counter[str]()


async def keeps(_: Any, notes: Notes) -> None:
    notes.tell("a node came")
    notes.figure("nodes", 0, 1)
    notes.promise("a node comes", True, "1 node")


async def breaks(_: Any, notes: Notes) -> None:
    notes.promise("a node comes", True, "1 node")
    notes.promise("a second one, too", False, "\x1b[31mnone")


async def says_nothing(_: Any, notes: Notes) -> None:
    notes.figure("nodes", 0, 0)


async def fails(_: Any, notes: Notes) -> None:
    notes.promise("a node comes", True, "1 node")
    raise ApiUnreachable("GET /api/v1/nodes: refused")


async def hangs(_: Any, notes: Notes) -> None:
    notes.promise("a node comes", True, "1 node")
    await asyncio.Event().wait()


async def is_left_by_a_controller(_: Any, notes: Notes) -> None:
    notes.promise("a node comes", True, "1 node")
    FAILURES["scheduler in karmada"] += 1


def chapter(what: Any) -> Chapter:
    return Chapter(what.__name__, what.__name__.replace("_", " "), "shows", what)


def played(*what: Any, **listeners: Any) -> list[ChapterOutcome]:
    stage: Any = SimpleNamespace(clock=LoopClock(), team=SimpleNamespace(failures=FAILURES.copy))
    return run_manual(play(stage, [chapter(each) for each in what], **listeners))


def test_what_was_kept_is_kept_with_its_numbers() -> None:
    lines: list[str] = []

    (outcome,) = played(keeps, tell=lines.append)

    assert outcome.kept
    assert tour_text.broken([outcome]) == ""
    assert lines == ["a node came"]
    assert tour_text.summary([outcome], 3.0).splitlines() == [
        "         BEFORE  AFTER",
        "✓ keeps",
        "  nodes  0       1",
        "",
        "1 of 1 promise kept in 1 chapter: 0 minutes of the fleet in 3 seconds",
    ]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param(breaks, "breaks: a second one, too (?[31mnone)", id="a broken promise"),
        pytest.param(says_nothing, "says nothing: nothing was promised", id="no promise at all"),
        pytest.param(fails, "fails: GET /api/v1/nodes: refused", id="an error"),
        pytest.param(hangs, f"hangs: did not end within {CHAPTER_SECONDS:.0f} s of the fleet", id="no end"),
        pytest.param(
            is_left_by_a_controller,
            "is left by a controller: failed and had to be started again: scheduler in karmada",
            id="a controller that fails",
        ),
    ],
)
def test_what_was_not_kept_is_named_and_the_tour_goes_on(what: Any, said: str) -> None:
    outcomes = played(what, keeps)

    assert [outcome.kept for outcome in outcomes] == [False, True]
    assert tour_text.broken(outcomes) == said
    assert json.loads(tour_text.document(outcomes, 1.0, "json"))["kept"] is False


def test_verdicts_are_shown_as_they_fall() -> None:
    begun, ended = list[str](), list[str]()

    played(
        breaks,
        fails,
        begins=lambda each: begun.append(each.name),
        ended=lambda outcome: ended.append(tour_text.verdicts(outcome)),
    )

    assert begun == ["breaks", "fails"]
    assert "✗ a second one, too\n       ?[31mnone" in ended[0]
    assert ended[1].endswith("✗ the chapter could not run: GET /api/v1/nodes: refused")


def test_a_narrow_terminal_breaks_sentences_and_keeps_their_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    (outcome,) = played(breaks)
    lines = [
        tour_text.heading(1, 5, CHAPTERS[0]),
        tour_text.told("a node came " * 9),
        tour_text.verdicts(outcome),
    ]
    shown = [line for each in lines for line in each.splitlines()]

    assert max(map(len, shown)) <= 50
    assert all(line.startswith("     ") for line in shown if line and not line.startswith("1/5"))


def test_chapters_have_names_of_their_own() -> None:
    assert len({each.name for each in CHAPTERS}) == len(CHAPTERS) == 5
