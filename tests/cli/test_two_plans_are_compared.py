"""`karpool plan diff OLD NEW`: what came, went and differs, for people, machines and pull requests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from karpool.cli.main import run
from karpool.cli.output.text import machine
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.planning.plan_diff import MoveChange, plan_diff
from karpool.consolidation.planning.plan_file import KIND, SavedPlan, to_document
from tests.consolidation.test_plans_are_shown import plan


def saved(path: Path, content: ConsolidationPlan) -> str:
    path.write_text(machine(KIND, to_document(SavedPlan(content, {}, "east")), "json"))
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["plan", "diff", *arguments], "karpool") == 0
    text: str = capsys.readouterr().out
    return text


def test_a_plan_is_as_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.json", plan())

    assert plan_diff(plan(), plan()).moves == ()
    assert "no move differs" in shown(capsys, path, path)


def test_what_went_and_came_mirrors_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = plan()
    fewer = replace(more, moves=more.moves[1:])
    gone, added = plan_diff(more, fewer).moves[0], plan_diff(fewer, more).moves[0]

    assert (gone.change, added.change) == (MoveChange.GONE, MoveChange.ADDED)
    assert gone.move == added.move == more.moves[0]
    assert gone.why
    paths = saved(tmp_path / "more.json", more), saved(tmp_path / "fewer.json", fewer)
    document: dict[str, Any] = json.loads(shown(capsys, *paths, "-o", "json"))
    assert document["kind"] == "ConsolidationPlanDiff"
    assert [each["change"] for each in document["moves"]] == ["gone"]
    assert document["savingsPerHour"] == pytest.approx(fewer.savings_per_hour - more.savings_per_hour)
    table = shown(capsys, *paths)
    assert "gone" in table and "saves less than the first" in table
    markdown = shown(capsys, *paths, "-o", "markdown")
    assert markdown.startswith("## Plans compared") and "| gone |" in markdown


@pytest.mark.parametrize(
    ("content", "says"),
    [("{}", "is not a ConsolidationPlan"), ("[]", "is not a ConsolidationPlan"), ("{", "other.json")],
)
def test_what_is_no_plan_is_named(
    tmp_path: Path, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "a.json", plan())
    other = tmp_path / "other.json"
    other.write_text(content)

    assert run(["plan", "diff", path, str(other)], "karpool") == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["only-one.json"], ["none.json", "none.json"]])
def test_two_files_are_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "diff", *arguments], "karpool") == 2
    assert "Error" in capsys.readouterr().err
