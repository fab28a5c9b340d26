"""The flags of every command that lists, spelled as kubectl spells them, and what they do."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import click

from karpool.cli.output.listing import (
    CSV,
    CUSTOM_COLUMNS,
    FORMS,
    JSONPATH,
    TABLE,
    WIDE,
    Listing,
    ListingForm,
    check_output,
    chosen_items,
    render_listing,
    table_of,
)
from karpool.cli.output.text import columns, emit
from karpool.manager.options import LongerThanNothing, Options, option
from karpool.model.errors import Invalid
from karpool.model.labels import parse_selector

_CLEAR = "\x1b[H\x1b[2J"
# A list of a large cluster takes seconds: whoever watches waits four times as long before the next.
_PATIENCE = 4


class StaticListingOptions(Options, frozen=True):
    """Of a list that stays what it is."""

    output: Annotated[
        str,
        option(
            "Output format: table, wide, json, yaml, name, csv, jsonpath=TEMPLATE, "
            "custom-columns=TITLE:.PATH,...",
            short="o",
            metavar="FORM",
            suggestions=(*FORMS, JSONPATH, CUSTOM_COLUMNS),
        ),
    ] = TABLE
    selector: Annotated[
        str, option("Show only objects with these labels. Default: all.", short="l", metavar="LABELS")
    ] = ""
    field_selector: Annotated[
        str,
        option(
            "Show only items whose fields in -o json have these values: pool=general,zone!=a. Default: all.",
            metavar="FIELDS",
        ),
    ] = ""
    sort_by: Annotated[
        str,
        option(
            "Sort by a field of -o json, like .pricePerHour. Default: the order of the list.", metavar="FIELD"
        ),
    ] = ""
    label_columns: Annotated[
        tuple[str, ...],
        option("Show this label as a column. Default: none.", short="L", metavar="LABEL"),
    ] = ()
    no_headers: Annotated[bool, option("Do not print the header line.")] = False

    @property
    def form(self) -> ListingForm:
        return ListingForm(
            self.output,
            self.selector,
            self.field_selector,
            self.sort_by,
            self.no_headers,
            self.label_columns,
        )

    def problems(self) -> Iterator[Invalid | str]:
        try:
            check_output(self.output)
            if self.selector:
                parse_selector(self.selector)
            chosen_items(Listing("", "", (), ()), self.form)
        except Invalid as error:
            yield error


class ListingOptions(StaticListingOptions, frozen=True):
    """Of a list of what lives in a cluster."""

    watch: Annotated[bool, option("Show changes until Ctrl-C.", short="w")] = False
    watch_interval_seconds: Annotated[
        LongerThanNothing, option("With --watch: time between two lists.", flag="watch-interval")
    ] = 2.0

    def problems(self) -> Iterator[Invalid | str]:
        yield from super().problems()
        if self.watch and self.output not in (TABLE, WIDE, CSV):
            yield f"--watch shows tables; it cannot be combined with -o {self.output}"


class NamespaceOptions(Options, frozen=True):
    namespace: Annotated[str, option("Show only this namespace. Default: all.", short="n")] = ""
    all_namespaces: Annotated[bool, option("Show all namespaces, as without --namespace.", short="A")] = False

    def problems(self) -> Iterator[Invalid | str]:
        if self.namespace and self.all_namespaces:
            yield "--all-namespaces cannot be combined with --namespace"


def in_a_terminal() -> bool:
    """Whether somebody sees what is drawn, and can press keys."""
    return sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM", "dumb") != "dumb"


@contextmanager
def _unknown_fields_as_usage() -> Iterator[None]:
    """Only a list that was made says which fields its items have; to name another is still wrong usage."""
    try:
        yield
    except Invalid as error:
        raise click.UsageError(str(error)) from None


def emit_listing(listing: Listing, form: ListingForm) -> None:
    with _unknown_fields_as_usage():
        text = render_listing(listing, form)
    emit(text)


def show_listing(make: Callable[[], Listing], options: ListingOptions) -> None:
    """Once, or again and again: in a terminal the whole table is drawn anew, elsewhere lines that changed."""
    if not options.watch:
        emit_listing(make(), options.form)
        return
    with suppress(KeyboardInterrupt):  # which is how watching ends
        _watch(make, options)


def _watch(make: Callable[[], Listing], options: ListingOptions) -> None:
    shown_rows: set[tuple[str, ...]] = set()
    is_first = True
    while True:
        began = time.monotonic()
        listing = make()
        taken = time.monotonic() - began
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
            emit_listing(listing, options.form)
        else:
            shown_rows = _emit_changes(
                listing, options, shown_rows, with_header=is_first and not options.no_headers
            )
        sys.stdout.flush()
        is_first = False
        time.sleep(max(options.watch_interval_seconds, _PATIENCE * taken))


def _emit_changes(
    listing: Listing, options: ListingOptions, shown_rows: set[tuple[str, ...]], *, with_header: bool
) -> set[tuple[str, ...]]:
    with _unknown_fields_as_usage():
        items = chosen_items(listing, options.form)
    header, cells = table_of(listing, items, options.form)
    rows = list(map(tuple, cells))
    changed = [row for row in rows if row not in shown_rows]
    if changed or with_header:
        emit(columns(header, changed, titled=with_header))
    return set(rows)
