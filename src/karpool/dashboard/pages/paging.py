"""The query of a list page: search words, sort column, offset and limit.

Pure. A wrong value raises Invalid with the name of the parameter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from karpool.model.errors import Invalid

RowT = TypeVar("RowT")
LIMIT = 100
LIMIT_MAX = 500  # a screen shows fifty; API clients page for more
_OFFSET_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class ListQuery:
    """A query. All `words` must match; `cluster` and `pool` are exact."""

    words: tuple[str, ...] = ()
    cluster: str = ""
    pool: str = ""
    sort: str = ""
    descending: bool = False
    offset: int = 0
    limit: int = LIMIT

    def finds(self, *texts: str) -> bool:
        whole = "\n".join(texts).lower()
        return all(word in whole for word in self.words)


def list_query(given: Mapping[str, str], sorts: Iterable[str]) -> ListQuery:
    """Parse a query. `sorts` are the sortable columns; a minus before one reverses the order."""
    asked = given.get("sort", "")
    column = asked.removeprefix("-")
    allowed = sorted(sorts)
    if column and column not in allowed:
        raise Invalid("sort", asked, f"must be one of {', '.join(allowed)}, or one of them after a minus")
    return ListQuery(
        words=tuple(given.get("q", "").lower().split()),
        cluster=given.get("cluster", ""),
        pool=given.get("pool", ""),
        sort=column,
        descending=asked.startswith("-"),
        offset=_whole(given, "offset", 0, _OFFSET_MAX),
        limit=_whole(given, "limit", LIMIT, LIMIT_MAX),
    )


def _whole(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Invalid(name, text, "must be a whole number, 0 or more")
    return min(int(text), most)


def in_order(
    rows: Sequence[RowT], query: ListQuery, columns: Mapping[str, Callable[[RowT], Any]]
) -> Sequence[RowT]:
    """Sort rows by the requested column, or keep their order. Rows without a value are last."""
    column = columns.get(query.sort)
    if column is None:
        return rows
    values = [column(row) for row in rows]
    told = [number for number, value in enumerate(values) if value is not None]
    told.sort(key=values.__getitem__, reverse=query.descending)
    unknown = (row for row, value in zip(rows, values, strict=True) if value is None)
    return [*(rows[number] for number in told), *unknown]


def page_of(rows: Sequence[RowT], query: ListQuery) -> list[RowT]:
    return list(rows[query.offset : query.offset + query.limit])
