"""Answers: typed values that print as the command does and convert to polars and pandas tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from karpool.cli.output.text import escape, printable_lines

if TYPE_CHECKING:
    import pandas
    import polars

Row = Mapping[str, Any]


class KarpoolError(Exception):
    """The question could not be answered; the text is the error of the command."""


class Answer:
    """Base of all answers. `rows` is its table: one mapping of plain values per row."""

    @property
    def rows(self) -> Sequence[Row]:
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `-o json`."""
        raise NotImplementedError

    def __str__(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.rows) or f"<pre>{escape(str(self))}</pre>"

    def to_polars(self) -> "polars.DataFrame":
        """Return the rows as a polars data frame. Needs polars."""
        try:
            import polars
        except ModuleNotFoundError:
            raise KarpoolError("to_polars needs polars: pip install polars") from None
        return polars.DataFrame([dict(row) for row in self.rows], infer_schema_length=None)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a pandas data frame. Needs pandas."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise KarpoolError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame([dict(row) for row in self.rows])


@dataclass(frozen=True, repr=False)
class CommandAnswer(Answer):
    """The answer of a command: its text, its JSON document, and its table."""

    text: str
    document: str
    table: tuple[Row, ...]

    @property
    def rows(self) -> Sequence[Row]:
        return self.table

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = msgspec.json.decode(self.document)
        return document

    def __str__(self) -> str:
        return printable_lines(self.text)


def html_table(rows: Sequence[Row]) -> str:
    """Return an HTML table; empty without rows. Names from a cluster are escaped: they may be hostile."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    lines = [[escape(shown_value(row.get(name))) for name in names] for row in rows]
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def shown_value(value: Any) -> str:
    if value is None:
        return "?"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ", ".join(map(shown_value, value))
    return str(value)
