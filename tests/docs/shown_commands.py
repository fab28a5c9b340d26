"""The commands that pages show, and what is said about those that are not executed here.

A fenced block without a language, or `sh`, holds commands. What stands on a line of its own right before it:

    <!-- not executed: it needs Helm and a cluster -->
    <!-- executed by tests/tour -->
    <!-- checked by tests/deploy/test_install_instructions.py -->
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
PROGRAMS = (
    "karpool",
    "kubectl",
    "make",
    "python",
    "export",
    "helm",
    "openssl",
    "podman",
    "curl",
    "grpcurl",
    "pip",
    "pip-audit",
    "git",
)
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*) -->\n)?^ *```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)})(?:\s|$)")


@dataclass(frozen=True)
class Shown:
    page: Path
    line: int
    text: str  # without comments, on one line
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def shown_on(page: Path) -> Iterator[Shown]:
    source = page.read_text()
    for block in _BLOCK.finditer(source):
        if block["language"] not in ("", "sh"):
            continue
        first = source[: block.start("text")].count("\n") + 1
        yield from _commands(page, first, block["text"], block["mark"] or "")


def _commands(page: Path, first: int, text: str, mark: str) -> Iterator[Shown]:
    pending, start = "", first
    for number, line in enumerate(text.splitlines(), first):
        start = start if pending else number
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        if _COMMAND.match(pending):
            yield Shown(page, start, _without_comment(pending), mark)
        pending = ""


def _without_comment(line: str) -> str:
    return re.sub(r"\s+#\s.*$", "", line).strip()


@dataclass(frozen=True)
class Stage:
    """One program of a pipeline."""

    words: tuple[str, ...]
    into: str = ""  # a file


def pipelines(text: str) -> Iterator[list[Stage]]:
    """What a shell would make of it: `a | b > file && c`, and nothing more."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&>")
    lexer.whitespace_split = True
    stages: list[Stage] = []
    words: list[str] = []
    into = ""
    for word in lexer:
        if word in ("|", "&&"):
            stages.append(Stage(tuple(words), into))
            words, into = [], ""
            if word == "&&":
                yield stages
                stages = []
        elif word == ">":
            into = next(lexer)
        else:
            assert not set(word) <= set("|&>"), f"{word} in {text}"
            words.append(word)
    yield [*stages, Stage(tuple(words), into)]
