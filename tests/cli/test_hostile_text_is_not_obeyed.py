"""Names that others chose never reach a terminal, or a page, as anything but text."""

import ast
import json
from pathlib import Path

import pytest
import structlog
import yaml

import karpool.cli
from karpool.cli import logging
from karpool.cli.main import run
from karpool.cli.output import html_page
from karpool.cli.output.text import emit, machine, note

# A colour, a title of the window, C1's CSI, right-to-left override and isolate, a separator of lines, a bell.
EVIL = "a\x1b[31m\x1b]0;x\x07\x9b31m\u202egnp\u2066\u2028\r\x08z"
Capture = pytest.CaptureFixture[str]


def obeyed(text: str) -> list[str]:
    return [character for character in text if not character.isprintable() and character != "\n"]


def test_results_and_notes_are_text(capsys: Capture) -> None:
    emit(f"first {EVIL}\nsecond")
    note(f"one line {EVIL}\nand no other")

    shown = capsys.readouterr()
    assert not obeyed(shown.out) and shown.out.count("\n") == 2
    assert not obeyed(shown.err) and shown.err.count("\n") == 1


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_machine_forms_carry_the_value_and_nothing_that_is_obeyed(form: str) -> None:
    text = machine("X", {"name": EVIL, "plain": "grün"}, form)

    assert not obeyed(text)
    document = json.loads(text) if form == "json" else yaml.safe_load(text)
    assert document["name"] == EVIL
    assert document["plain"] == "grün"


def test_readable_text_stays_readable_in_yaml() -> None:
    assert "grün" in machine("X", {"plain": "grün"}, "yaml")


def test_pages_are_text() -> None:
    page = html_page.page(EVIL, [html_page.text(EVIL), html_page.table(["a"], [[EVIL]])])

    assert not obeyed(page)


@pytest.mark.parametrize("form", ["table", "wide", "json", "yaml", "html"])
def test_a_hostile_file_is_shown_as_text(tmp_path: Path, capsys: Capture, form: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": EVIL, "labels": {EVIL: EVIL}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": EVIL, "namespace": EVIL},
        "spec": {"nodeName": EVIL, "containers": [{"resources": {"requests": {"cpu": EVIL}}}]},
    }
    path = tmp_path / "evil.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, pod]}))
    commands = [["plan"]] if form == "html" else [["plan"], ["top"], ["top", "pools"]]

    for command in commands:
        assert run([*command, "--snapshot", str(path), "-o", form], "karpool") == 0
        shown = capsys.readouterr()
        assert "skipped: " in shown.err
        assert not obeyed(shown.out + shown.err)


def test_errors_and_complaints_are_text(capsys: Capture) -> None:
    assert run(["top", "--kubeconfig", f"/nosuch/{EVIL}"], "karpool") == 1
    assert run([f"top{EVIL}"], "karpool") == 2

    shown = capsys.readouterr().err
    assert "nosuch" in shown and not obeyed(shown)


def test_log_lines_are_text(capsys: Capture) -> None:
    before = structlog.get_config()
    try:
        logging.configure(0, as_json=False)
        structlog.get_logger("karpool.test").warning("skipped", name=EVIL, reason=f"is {EVIL}")
    finally:
        structlog.configure(**before)

    shown = capsys.readouterr().err
    assert "skipped" in shown and not obeyed(shown)


# What may write without `text`: it is ours alone, or was made printable before.
_WRITERS = {"text.py", "completion.py", "main.py", "simulate.py"}


def test_commands_have_one_way_out() -> None:
    folder = Path(karpool.cli.__file__).parent
    for path in folder.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and (ast.unparse(node.func) in ("print", "click.echo", "click.secho", "html.escape"))
        ]
        assert not calls or path.name in _WRITERS, f"{path}: use emit, note or escape of cli.output.text"
