"""The pages are plain English, by the rules of docs/style.md that a program can check."""

import re
from pathlib import Path

import pytest

from tests.docs.shown_commands import PAGES, ROOT
from tests.docs.test_pages_hang_together import prose

TEXTS = [page for page in PAGES if page != ROOT / "docs" / "style.md"]  # which shows what not to write
# Words that hide who acts, and words that measure nothing.
UNCLEAR = re.compile(
    r"\b(?:whoever|whomever|nobody|somebody|any more|so long as|looked? at|carr(?:y|ied) out|"
    r"tak(?:e|es|en) (?:away|back|off)|came? true|came about|simply|easily|obviously)\b",
    re.IGNORECASE,
)
# What a reader keeps in mind: a longer clause becomes two sentences, or a list.
CLAUSE_WORDS_MAX = 45
CLAUSE_WORDS_MEAN = 20


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "CODE", text)


def clauses(page: Path) -> list[str]:
    """Of paragraphs and lists. Headings, cells of tables and code have their own form."""
    text = re.sub(r"<!--.*?-->|^ {4,}\S.*$", "", prose(page), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "#", "!"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", without_code(paragraph)) for paragraph in paragraphs)
    return [clause for paragraph in plain for clause in re.split(r"(?<=[.?!:;])\s+", paragraph) if clause]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_words_are_plain(page: Path) -> None:
    assert not UNCLEAR.findall(without_code(prose(page)))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    lengths = {clause: len(clause.split()) for clause in clauses(page)}
    assert not {clause: words for clause, words in lengths.items() if words > CLAUSE_WORDS_MAX}
    assert not lengths or sum(lengths.values()) / len(lengths) <= CLAUSE_WORDS_MEAN


def test_riddles_and_long_sentences_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    long = "word " * (CLAUSE_WORDS_MAX + 1)
    page.write_text(f"# T\n\nWhoever waits gets room; nobody is told.\n\n- {long}\n\n| {long} |\n")

    assert UNCLEAR.findall(prose(page)) == ["Whoever", "nobody"]
    assert [len(clause.split()) > CLAUSE_WORDS_MAX for clause in clauses(page)] == [False, False, True]
