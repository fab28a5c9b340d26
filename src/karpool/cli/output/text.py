"""Results in the forms people and scripts ask for.

Tables look like kubectl's: columns padded with spaces, no lines, no colour
needed to read them. Machine forms carry `apiVersion` and `kind`, so that a script
can tell when they change.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import click
import msgspec
import yaml

API_VERSION = "karpool.dev/v1alpha1"
GAP = "   "


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, as wide as their widest cell."""
    cells = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(header))]
    return "\n".join(
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def printable(text: str) -> str:
    """On one line, and nothing that a terminal would obey: texts of a cluster may be hostile."""
    return (
        text
        if text.isprintable()
        else "".join(character if character.isprintable() else "?" for character in text)
    )


def machine(kind: str, content: dict[str, Any], form: str) -> str:
    """One versioned document as JSON or YAML."""
    document = {"apiVersion": API_VERSION, "kind": kind, **content}
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def join_names(names: Sequence[str], most: int = 10) -> str:
    """Names in a sentence, the first of them where there are many."""
    shown = ", ".join(map(printable, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def note(text: str) -> None:
    """Something for the person, not for the pipe."""
    click.echo(text, err=True)
