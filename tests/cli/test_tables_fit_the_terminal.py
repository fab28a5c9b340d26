"""Tables in a narrow terminal: rows go on below themselves, and nothing is cut off."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from karpool.cli.output.text import FOLD, columns
from karpool.model.catalogue.files import load_shipped
from tests.cli.example_fleet import example_fleet

ROOT = Path(__file__).parent.parent.parent
WORDS = st.text("abc-", min_size=1, max_size=30)


@st.composite
def tables(draw):
    count = draw(st.integers(1, 9))
    header = draw(st.lists(WORDS, min_size=count, max_size=count))
    rows = draw(st.lists(st.lists(WORDS, min_size=count, max_size=count), max_size=4))
    return header, rows


@given(tables(), st.integers(33, 200))
def test_every_line_fits_and_every_cell_is_there(table, width):
    header, rows = table
    lines = columns(header, rows, width=width).split("\n")
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == [cell for row in (header, *rows) for cell in row]
    without = columns(header, rows, titled=False, width=width).split()
    assert without == [cell for row in rows for cell in row]
    whole = columns(header, rows, width=10**6)
    if max(map(len, whole.split("\n"))) <= width:
        assert lines == whole.split("\n")


@given(tables())
def test_in_files_and_pipes_a_row_is_a_line(table):
    header, rows = table
    assert len(columns(header, rows).split("\n")) == len(rows) + 1


def test_a_column_stands_below_its_title():
    shown = columns(
        ["NAME", "ZONE", "PRICE"], [["a-long-name", "zone-1", "0.1"], ["b", "z", "12.5"]], width=16
    )
    assert shown.split("\n") == [
        "NAME",
        FOLD + "ZONE     PRICE",
        "a-long-name",
        FOLD + "zone-1   0.1",
        "b",
        FOLD + "z        12.5",
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["top", "nodes"],
        ["top", "nodes", "-o", "wide"],
        ["top", "pools"],
        ["plan"],
        ["catalogue", "regions"],
        ["simulate", "--list"],
    ],
    ids=" ".join,
)
def test_sixty_columns_are_enough(command, tmp_path):
    snapshot = tmp_path / "fleet.yaml"
    snapshot.write_text(yaml.safe_dump_all(example_fleet(load_shipped("us-east-1"))))
    files = [] if command[0] in ("catalogue", "simulate") else ["--snapshot", str(snapshot)]
    outer, inner = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60", "PYTHONPATH": f"{ROOT}/src", "TERM": "xterm"}
    program = [sys.executable, "-m", "karpool", *command, *files]
    with subprocess.Popen(program, env=environment, stdout=inner, stderr=subprocess.DEVNULL) as running:
        os.close(inner)
        text = b""
        try:
            while chunk := os.read(outer, 65536):
                text += chunk
        except OSError:  # the other end is closed
            pass
    os.close(outer)
    assert running.returncode == 0
    lines = text.decode().splitlines()
    tables = [line for line in lines if "   " in line.strip() or line.startswith(FOLD)]
    assert len(tables) > 3
    assert [line for line in tables if len(line) > 60] == []
