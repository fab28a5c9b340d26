"""Run golden-vector files against the handlers.

Whatever a file holds, the outcome is a count and a list of failures: a file that
cannot be read, a case without a kind and a handler that raises are failures with
a message.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.vectors.registry import HANDLERS, KNOWN, Case

_SHOWN = 400


@dataclass(frozen=True)
class Failure:
    file: str
    kind: str
    case: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.kind}: {self.case}: {self.message}"


@dataclass
class Report:
    passed: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    not_built: dict[str, int] = field(default_factory=dict)

    @property
    def total_passed(self) -> int:
        return sum(self.passed.values())

    @property
    def total_failed(self) -> int:
        return len(self.failures)

    def kinds(self) -> list[str]:
        return sorted({*self.passed, *(failure.kind for failure in self.failures)})


def run(folder: Path, wanted: Collection[str] = ()) -> Report:
    """All cases of all files of a folder; with `wanted`, only those kinds.

    A case is wanted by its kind, by the group that its file puts it in, or by its capability.
    """
    report = Report()
    met: set[str] = set()
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        problem = "holds no *.json" if folder.is_dir() else "is not a folder"
        report.failures.append(Failure(str(folder), "file", "", f"{problem}; give a folder of vector files"))
    for path in files:
        _run_file(path, wanted, report, met)
    for name in wanted:
        if name in KNOWN:
            report.passed.setdefault(name, 0)
        elif name not in met:
            report.failures.append(Failure("--kinds", name, "", "unknown kind"))
    return report


def _run_file(path: Path, wanted: Collection[str], report: Report, met: set[str]) -> None:
    try:
        cases = list(_cases(json.loads(path.read_bytes())))
    except (OSError, ValueError, RecursionError) as error:
        report.failures.append(Failure(path.name, "file", "", f"cannot be read: {error}"))
        return
    for number, case in enumerate(cases):
        kind = kind_of(case)
        if wanted and kind is not None:
            names = [name for name in (kind, case.get("group"), KNOWN.get(kind)) if name in list(wanted)]
            if not names:
                continue
            met.update(names)
        where = f"case {number + 1} ({_title(case)})"
        if kind is None:
            report.failures.append(
                Failure(path.name, "malformed", where, "is no object with a kind, category or op")
            )
        elif kind not in KNOWN:
            report.failures.append(Failure(path.name, kind, where, "unknown kind"))
        elif kind not in HANDLERS:
            report.not_built[kind] = report.not_built.get(kind, 0) + 1
            message = f"not built yet: the {KNOWN[kind]} does not answer this kind"
            report.failures.append(Failure(path.name, kind, where, message))
        elif message := check(case, kind):
            report.failures.append(Failure(path.name, kind, where, message))
        else:
            report.passed[kind] = report.passed.get(kind, 0) + 1


def check(case: Case, kind: str) -> str:
    """What is wrong with the answer to one case; empty when it is right."""
    expected = case.get("expected", case.get("expect"))
    if expected is None:
        return "malformed: the case expects nothing"
    handler = HANDLERS[kind]
    try:
        actual = handler.answer(case)
        if handler.same(expected, actual):
            return ""
    except Exception as error:  # a case may hold anything, and one must not stop the others
        return f"could not be answered: {type(error).__name__}: {_short(str(error))}"
    return f"expected {_short(json.dumps(expected))}, actual {_short(json.dumps(actual, default=str))}"


def kind_of(case: Any) -> str | None:
    if not isinstance(case, dict):
        return None
    found = next((case[key] for key in ("kind", "category", "op") if key in case), None)
    return found if isinstance(found, str) and found else None


def _cases(document: Any) -> Iterator[Any]:
    cases = document
    if isinstance(document, dict):
        cases = document.get("cases", document.get("vectors"))
    if not isinstance(cases, list):
        raise ValueError('no list under "cases" or "vectors"')
    yield from cases


def _title(case: Any) -> str:
    if not isinstance(case, dict):
        return type(case).__name__
    found = next((case[key] for key in ("id", "name", "title") if case.get(key)), "no name")
    return _short(str(found), 120)


def _short(text: str, limit: int = _SHOWN) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
