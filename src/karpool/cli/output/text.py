"""Results in the forms people and scripts ask for.

Tables look like kubectl's: columns padded with spaces, no lines, no colour
needed to read them. Machine forms carry `apiVersion` and `kind`, so that a script
can tell when they change.

Names and messages of a cluster, or of a file, may be hostile. All text leaves through here: `emit` and
`note` for terminals and pipes, `escape` for HTML. Characters that a terminal obeys, or that turn the
direction of text, do not pass; machine forms carry them escaped.
"""

import html
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click
import msgspec

API_VERSION = "karpool.dev/v1alpha1"
GAP = "   "
FOLD = "  "  # before what goes on in the next line
UNKNOWN, NONE = "?", "-"  # what is not known, and what is not there


def columns(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, titled: bool = True, width: int | None = None
) -> str:
    """Left-aligned columns, as wide as their widest cell. Where a terminal (or `width`) is narrower, each row
    goes on below itself, indented: nothing is cut off. `titled` is with the line of titles."""
    width = terminal_width() if width is None else width
    cells = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(header))]
    groups = [range(len(widths))] if width is None else list(_fitting(widths, width))
    lines: list[str] = []
    for row in cells if titled else cells[1:]:
        for number, group in enumerate(groups):
            line = GAP.join(row[index].ljust(widths[index]) for index in group).rstrip()
            indent = FOLD if number else ""
            if width is None or len(indent) + len(line) <= width:
                lines.append(indent + line)
            else:  # one cell, wider than the terminal
                lines += textwrap.wrap(line, width, initial_indent=indent, subsequent_indent=FOLD)
    return "\n".join(lines)


def _fitting(widths: Sequence[int], width: int) -> Iterator[range]:
    """Runs of columns that fit side by side; a column that is too wide stands alone."""
    first, used = 0, 0
    for index, column in enumerate(widths):
        more = column + (len(GAP) if index > first else len(FOLD) if first else 0)
        if index > first and used + more > width:
            yield range(first, index)
            first, used = index, len(FOLD) + column
        else:
            used += more
    yield range(first, len(widths))


def terminal_width() -> int | None:
    """None where nothing has to fit: in files and pipes."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def printable(text: str) -> str:
    """On one line, and nothing that a terminal would obey: texts of a cluster may be hostile."""
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "?" for character in text)
    )


def printable_lines(text: str) -> str:
    """The same for text that has lines of its own, and tabs between fields."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def machine(kind: str, content: dict[str, Any], form: str) -> str:
    """One versioned document as JSON or YAML."""
    document = {"apiVersion": API_VERSION, "kind": kind, **content}
    if form == "json":
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
        return "\n".join(_escaped(line) for line in text.split("\n"))
    import yaml  # only whoever asks for it waits for it

    document = msgspec.json.decode(msgspec.json.encode(document))  # a value under two keys is written twice
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False).rstrip()


def _escaped(line: str) -> str:
    """A line of JSON with the same meaning, and nothing that a terminal would obey."""
    if line.isprintable():
        return line
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in line
    )


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join_names(names: Sequence[str], most: int = 10) -> str:
    """Names in a sentence, the first of them where there are many."""
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def emit(text: str, *, err: bool = False) -> None:
    """A result, of as many lines as it has."""
    click.echo(printable_lines(text), err=err)


def note(text: str) -> None:
    """One line for the person, not for the pipe."""
    click.echo(printable(text), err=True)


def escape(text: str) -> str:
    """Text inside HTML or SVG."""
    return html.escape(printable_lines(text))
