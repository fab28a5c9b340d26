"""Commands that list, wherever their items come from: the same flags and forms, and namespaces."""

import csv
import io
import json
from pathlib import Path

import click
import pytest

from karpool.cli.inspect.get_moves import moves
from karpool.cli.inspect.get_promises import promises
from karpool.cli.inspect.get_scale_ups import scale_ups
from karpool.cli.inspect.top import top
from karpool.cli.main import commands, run
from karpool.consolidation.execution.record import selection
from tests.dashboard.fleets import scale_ups as scale_up_objects

Capture = pytest.CaptureFixture[str]
NOW = 1_790_000_000.0
LISTS = {
    "catalogue list": ["catalogue", "list", "--region", "us-east-1", "--family", "m5"],
    "catalogue regions": ["catalogue", "regions", "--provider", "azure"],
    "schema": ["schema"],
}
SORTED_BY = {"catalogue list": ".name", "catalogue regions": ".region", "schema": ".command"}


def flags_of(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Scale-ups, one of them in another namespace."""
    objects = [obj for obj in scale_up_objects(NOW) if obj["kind"] == "ScaleUp"]
    objects[0]["metadata"]["namespace"] = "other"
    path = tmp_path / "fleet.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return str(path)


def named(words: list[str], capsys: Capture) -> list[str]:
    assert run([*words, "-o", "name"], "karpool") == 0
    return capsys.readouterr().out.split()


def test_scale_ups_of_one_namespace_and_of_all(file: str, capsys: Capture) -> None:
    words = ["get", "scale-ups", "--snapshot", file]
    everything = named(words, capsys)

    assert len(everything) == 3
    assert named([*words, "-A"], capsys) == everything
    (only,) = named([*words, "-n", "other"], capsys)
    assert only in everything
    assert named([*words, "-n", "nowhere"], capsys) == []
    assert run([*words, "-A", "-o", "wide"], "karpool") == 0
    assert " other " in capsys.readouterr().out
    assert run([*words, "-A", "-n", "other"], "karpool") == 2
    assert "--all-namespaces cannot be combined with --namespace" in capsys.readouterr().err


def test_moves_of_all_namespaces_are_asked_for_without_one() -> None:
    assert selection("").namespace is None
    assert selection("karpool-system").namespace == "karpool-system"


@pytest.mark.parametrize("command", [promises, moves, scale_ups])
def test_what_has_a_namespace_can_be_chosen_by_it(command: click.Command) -> None:
    assert {"-n", "--namespace", "-A", "--all-namespaces"} <= flags_of(command)


@pytest.mark.parametrize("command", [promises, moves, scale_ups, top])
def test_what_lives_can_be_watched_and_has_the_flags_of_lists(command: click.Command) -> None:
    assert {"-o", "-l", "--field-selector", "--sort-by", "--no-headers", "-w", "-L"} <= flags_of(command)


@pytest.mark.parametrize("name", LISTS)
def test_what_is_shipped_has_the_flags_of_lists_and_nothing_to_watch(name: str) -> None:
    context = click.Context(commands)
    command = commands.get_command(context, name.split(maxsplit=1)[0])
    if " " in name:
        assert isinstance(command, click.Group)
        command = command.get_command(context, name.split()[1])
    assert command is not None
    flags = flags_of(command)

    assert {"-o", "-l", "--field-selector", "--sort-by", "--no-headers", "-L"} <= flags
    assert "-w" not in flags


@pytest.mark.parametrize("name", LISTS)
def test_every_form_has_the_same_items(name: str, capsys: Capture) -> None:
    words = [*LISTS[name], "--sort-by", SORTED_BY[name]]
    names = [text.partition("/")[2] for text in named(words, capsys)]
    assert len(names) > 5

    assert run([*words, "-o", "json"], "karpool") == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert [item.get("name") or item.get("region") or item["kind"] for item in items] == names
    assert run([*words, "-o", "csv", "--no-headers"], "karpool") == 0
    assert [row[0] for row in csv.reader(io.StringIO(capsys.readouterr().out))] == names
    assert run([*words, "--no-headers"], "karpool") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.split("\n\n")[0].splitlines()] == names


def test_shipped_scenarios_are_listed_in_every_form(capsys: Capture) -> None:
    names = [text.removeprefix("scenario/") for text in named(["simulate", "--list"], capsys)]
    assert "pool-limits" in names
    assert run(["simulate", "--list", "-o", "jsonpath={.items[*].name}"], "karpool") == 0
    assert capsys.readouterr().out.split() == names


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["catalogue", "regions", "-o", "html"], "must be one of"),
        (["catalogue", "regions", "--sort-by", ".a["], "cannot be parsed from"),
        (["catalogue", "list", "--region", "us-east-1", "-l", "a in ("], "unbalanced"),
        (["catalogue", "list", "--region", "us-east-1", "--field-selector", "name"], "--field-selector"),
        (["simulate", "--list", "-o", "html"], "must be one of"),
        (["simulate", "pool-limits", "-o", "name"], "is not one of"),
        (["get", "scale-ups", "-n"], "requires an argument"),
    ],
)
def test_wrong_input_is_said(words: list[str], says: str, capsys: Capture) -> None:
    assert run(words, "karpool") == 2
    assert says in capsys.readouterr().err
