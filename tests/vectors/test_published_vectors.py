import json
from pathlib import Path

import pytest

from tests.vectors import capabilities  # noqa: F401 - registers the handlers
from tests.vectors.__main__ import main
from tests.vectors.registry import HANDLERS, includes
from tests.vectors.running import check, kind_of

# `written`: our own, by the same rules, where published ones say little.
FOLDERS = [Path(__file__).parent / name for name in ("published", "written")]


def published_cases():
    for path in sorted(path for folder in FOLDERS for path in folder.glob("*.json")):
        document = json.loads(path.read_bytes())
        for number, case in enumerate(document.get("cases") or document["vectors"]):
            kind = kind_of(case)
            if kind in HANDLERS:
                yield pytest.param(case, kind, id=f"{kind}-{case.get('title') or case.get('name') or number}")


@pytest.mark.parametrize(("case", "kind"), list(published_cases()))
def test_published_case(case, kind):
    assert check(case, kind) == ""


def write(folder, name, document):
    (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))


def quantity(text, **expected):
    return {"kind": "quantity", "id": text, "input": {"text": text}, "expected": expected}


def test_a_folder_that_passes_says_so_last(tmp_path, capsys):
    write(tmp_path, "a.json", {"cases": [quantity("1", value=1)]})
    write(tmp_path, "b.json", {"vectors": [quantity("2k", value=2000)]})

    code = main([str(tmp_path), "--kinds", ""])

    assert code == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 0 failed"


def test_a_mismatch_shows_expected_and_actual(tmp_path, capsys):
    write(tmp_path, "a.json", {"cases": [quantity("1", value=2), quantity("1", value=1)]})

    code = main([str(tmp_path)])

    out = capsys.readouterr().out
    assert code == 1
    assert 'expected {"value": 2}, actual {"milli_value": 1000, "value": 1}' in out
    assert out.splitlines()[-1] == "1 passed, 1 failed"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        pytest.param("{", "cannot be read", id="not JSON"),
        pytest.param("[" * 100_000, "cannot be read", id="nested without end"),
        pytest.param({"cases": {}}, 'no list under "cases"', id="no list"),
        pytest.param({"cases": [3]}, "is no object with a kind", id="a case that is a number"),
        pytest.param({"cases": [{"kind": "frobnicate"}]}, "unknown kind", id="unknown kind"),
        pytest.param({"cases": [{"kind": "quantity"}]}, "expects nothing", id="nothing expected"),
        pytest.param(
            {"cases": [{"kind": "quantity", "expected": {}}]}, "could not be answered", id="no input"
        ),
        pytest.param({"vectors": [{"op": "allocate", "expect": {}}]}, "not built yet", id="not built"),
    ],
)
def test_what_cannot_be_run_is_one_failure_with_a_message(tmp_path, capsys, document, words, monkeypatch):
    monkeypatch.delitem(HANDLERS, "allocate")  # as if nothing answered it
    write(tmp_path, "a.json", document)
    write(tmp_path, "b.json", {"cases": [quantity("1", value=1)]})

    code = main([str(tmp_path)])

    out = capsys.readouterr().out
    assert code == 1
    assert words in out
    assert "Traceback" not in out
    assert out.splitlines()[-1] == "1 passed, 1 failed"


def test_kinds_leaves_the_others_out(tmp_path, capsys):
    write(tmp_path, "a.json", {"cases": [quantity("1", value=1), {"op": "allocate"}, {"kind": "new"}]})

    assert main([str(tmp_path), "--kinds", "quantity"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"


def test_an_unknown_wanted_kind_fails(tmp_path, capsys):
    write(tmp_path, "a.json", {"cases": [quantity("1", value=1)]})

    assert main([str(tmp_path), "--kinds", "quantiti"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_folder_without_vectors_fails(tmp_path, capsys, folder):
    (tmp_path / "empty").mkdir()

    assert main([str(tmp_path / folder)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed"


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, True, id="more is fine"),
        pytest.param({"a": 1}, {"b": 2}, False, id="missing"),
        pytest.param({"a": True}, {"a": 1}, False, id="a truth is not a number"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1, "c": 1}}, True, id="nested"),
        pytest.param([1], [1, 2], False, id="lists are compared whole"),
    ],
)
def test_comparison(expected, actual, same):
    assert includes(expected, actual) is same
