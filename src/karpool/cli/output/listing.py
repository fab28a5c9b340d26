"""Lists in the forms that kubectl has: one implementation for every command that lists.

A command makes a `Listing`; choosing, sorting and all forms of output are here. Expressions are about the
documents that `-o json` shows.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from karpool.cli.output.jsonpath import expand_template, show_value, values_at
from karpool.cli.output.text import NONE, columns, machine, printable
from karpool.model.errors import Invalid
from karpool.model.labels import parse_selector

TABLE, WIDE, JSON, YAML, NAME, CSV = "table", "wide", "json", "yaml", "name", "csv"
JSONPATH, CUSTOM_COLUMNS = "jsonpath=", "custom-columns="
FORMS = (TABLE, WIDE, JSON, YAML, NAME, CSV)
_NO_LABELS: Mapping[str, str] = {}


@dataclass(frozen=True)
class ListedItem:
    """`cells` are those of the table, `wide` those that follow them with -o wide."""

    name: str
    document: Mapping[str, Any]
    cells: Sequence[str]
    wide: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: _NO_LABELS)
    namespace: str = ""


@dataclass(frozen=True)
class Listing:
    """`resource` stands before names with -o name; `summary` are lines below the table, about all items."""

    kind: str
    resource: str
    header: Sequence[str]
    items: Sequence[ListedItem]
    wide_header: Sequence[str] = ()
    content: Mapping[str, Any] = field(default_factory=dict)
    summary: Sequence[str] = ()
    empty: str = "nothing"


@dataclass(frozen=True)
class ListingForm:
    """What is chosen and how it is shown; `cli.inspect.listing_options` has the flags."""

    output: str = TABLE
    selector: str = ""
    field_selector: str = ""
    sort_by: str = ""
    no_headers: bool = False
    label_columns: tuple[str, ...] = ()


def check_output(output: str) -> None:
    """Raises Invalid for a form that nobody has."""
    if output in FORMS:
        return
    if output.startswith(JSONPATH):
        expand_template(output.removeprefix(JSONPATH), {})
    elif output.startswith(CUSTOM_COLUMNS):
        _custom_columns(output)
    else:
        shown = ", ".join((*FORMS, "jsonpath=TEMPLATE", "custom-columns=TITLE:.PATH,..."))
        raise Invalid("--output", output, f"must be one of {shown}")


def chosen_items(listing: Listing, form: ListingForm) -> list[ListedItem]:
    """Those that selectors choose, in the order asked for. Raises Invalid."""
    items = list(listing.items)
    if form.selector:
        labels = parse_selector(form.selector)
        items = [item for item in items if labels.matches(item.labels)]
    for path, value, is_equal in _field_terms(form.field_selector):
        _check_field("--field-selector", path, listing)
        items = [item for item in items if (_shown_field(item, path) == value) == is_equal]
    if form.sort_by:
        path = path_of(form.sort_by)
        values_at({}, path)  # refused whether or not there is anything to sort
        _check_field("--sort-by", path, listing)
        items.sort(key=lambda item: _sort_key(item, path))
    return items


def render_listing(listing: Listing, form: ListingForm) -> str:
    items = chosen_items(listing, form)
    output = form.output
    if output in (JSON, YAML):
        documents = [dict(item.document) for item in items]
        return machine(listing.kind, {**listing.content, "items": documents}, output)
    if output.startswith(JSONPATH):
        content = {**listing.content, "kind": listing.kind, "items": [dict(item.document) for item in items]}
        return expand_template(output.removeprefix(JSONPATH), content)
    if output == NAME:
        return "\n".join(f"{listing.resource}/{item.name}" for item in items)
    if output.startswith(CUSTOM_COLUMNS):
        return _custom(items, output, form)
    if output == CSV:
        return _csv(listing, items, form)
    if not listing.items:
        return listing.empty
    summary = list(_summary(listing, items))
    if not items:
        return "\n".join(summary)
    if form.no_headers:  # rows only, for programs that count or cut them
        summary = []
    return "\n".join([*_table(listing, items, form), *(["", *summary] if summary else [])])


def table_of(
    listing: Listing, items: Sequence[ListedItem], form: ListingForm
) -> tuple[list[str], list[list[str]]]:
    """Titles and rows, labels that were asked for last."""
    wide = form.output in (WIDE, CSV)
    header = [*listing.header, *(listing.wide_header if wide else ())]
    header += (label.rpartition("/")[2].upper() for label in form.label_columns)
    rows = [
        [
            *item.cells,
            *(item.wide if wide else ()),
            *(item.labels.get(label, NONE) for label in form.label_columns),
        ]
        for item in items
    ]
    return header, rows


def _table(listing: Listing, items: Sequence[ListedItem], form: ListingForm) -> list[str]:
    return columns(*table_of(listing, items, form), titled=not form.no_headers).split("\n")


def _summary(listing: Listing, items: Sequence[ListedItem]) -> Iterator[str]:
    if len(items) < len(listing.items):
        shown = f"{len(items)} of {len(listing.items)} are shown"
        yield f"{shown}; of all:" if listing.summary else shown
    yield from listing.summary


def _csv(listing: Listing, items: Sequence[ListedItem], form: ListingForm) -> str:
    """Everything, as with -o wide. A cell that a spreadsheet would take for a formula is quoted as text."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    header, rows = table_of(listing, items, form)
    if not form.no_headers:
        writer.writerow(header)
    for row in rows:
        writer.writerow([_harmless(printable(cell)) for cell in row])
    return written.getvalue().rstrip("\n")


def _harmless(cell: str) -> str:
    begins_formula = cell[:1] in ("=", "+", "@", "\t") or (cell[:1] == "-" and len(cell) > 1)
    return f"'{cell}" if begins_formula and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _custom_columns(output: str) -> list[tuple[str, str]]:
    pairs = []
    for part in output.removeprefix(CUSTOM_COLUMNS).split(","):
        title, separator, path = part.partition(":")
        if not separator or not title or not path:
            raise Invalid("--output", part, "is not a column; write TITLE:.PATH, like NAME:.name")
        values_at({}, path_of(path))
        pairs.append((title, path_of(path)))
    return pairs


def _custom(items: Sequence[ListedItem], output: str, form: ListingForm) -> str:
    pairs = _custom_columns(output)
    rows = [
        [",".join(map(show_value, values_at(item.document, path))) or "<none>" for _, path in pairs]
        for item in items
    ]
    return columns([title for title, _ in pairs], rows, titled=not form.no_headers)


def path_of(expression: str) -> str:
    """`.a.b`, `a.b` and `{.a.b}` mean the same, as for kubectl."""
    path = expression.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$")
    return path if path[:1] in (".", "[") else f".{path}"


def _sort_key(item: ListedItem, path: str) -> tuple[int, float, str]:
    """Numbers before texts, and what is not there last."""
    values = [value for value in values_at(item.document, path) if value is not None]
    if not values:
        return 2, 0.0, ""
    if isinstance(values[0], int | float):
        return 0, float(values[0]), ""
    return 1, 0.0, show_value(values[0])


def _field_terms(selector: str) -> Iterator[tuple[str, str, bool]]:
    for term in filter(None, selector.split(",")):
        name, separator, value = term.partition("=")
        if not separator or not name.rstrip("!"):
            raise Invalid("--field-selector", term, "is not like pool=general or zone!=a")
        yield path_of(name.rstrip("!").strip()), value.removeprefix("=").strip(), not name.endswith("!")


def _check_field(flag: str, path: str, listing: Listing) -> None:
    """Refuses a field that no document has: a misspelled name would choose nothing, or sort by nothing."""
    fields = {name for item in listing.items for name in item.document}
    name = re.match(r"\.([\w-]+)", path)
    if fields and name is not None and name[1] not in fields:
        current = sorted(name for name in fields if "_" not in name)  # not the old spellings
        raise Invalid(flag, path, f"no such field; there are {', '.join(current)}")


def _shown_field(item: ListedItem, path: str) -> str:
    values = values_at(item.document, path)
    return show_value(values[0]) if values and values[0] is not None else ""
