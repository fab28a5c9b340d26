"""What `karpool top nodes --watch` draws in a terminal: bars, prices, what came and what went.

Pure: from items and a position to a picture of as many lines as there are. Text of a cluster is printable
before it gets here (`Text` obeys no markup).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from karpool.cli.output.text import NONE, UNKNOWN, printable
from karpool.model import resources

BAR, SHORT_BAR = 12, 4  # characters of a bar
NARROW = 110  # columns of a terminal below which only what matters most is shown
CAME_SECONDS = 60.0  # a node counts as new for this long
WENT_SECONDS = 30.0  # one that went is still shown, so that somebody sees it
_OVER, _FULL, _EMPTY = 0.85, "█", "░"  # a node that is filled beyond this is shown as full
_SORTS: tuple[tuple[str, str], ...] = (
    ("NAME", "name"),
    ("POOL", "pool"),
    ("TYPE", "type"),
    ("ZONE", "zone"),
    ("CPU", "cpu"),
    ("MEMORY", "memory"),
    ("PODS", "pods"),
    ("$/H", "price"),
)
_SHARE = 6  # characters of a percentage beside its bar
KEYS = "q quit   s sort   r reverse   ↑↓ PgUp PgDn scroll"
ABOUT_MAX = 3  # lines over the table: the cluster, and what is missing
_AROUND = 4 + ABOUT_MAX  # lines that are not rows: these, bars, a gap, the header, keys


@dataclass(frozen=True)
class ViewedNode:
    name: str
    document: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ViewPosition:
    """Where somebody is: column of the order, which way round, and the first row that is seen."""

    sort: int = 0
    reverse: bool = False
    top: int = 0

    def pressed(self, key: str, rows: int, height: int) -> "ViewPosition":
        """After a key; those that mean nothing change nothing."""
        page = max(height - _AROUND, 1)
        last = max(rows - page, 0)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, " ": page}
        if key in steps:
            return replace(self, top=min(max(self.top + steps[key], 0), last))
        if key in ("home", "g"):
            return replace(self, top=0)
        if key in ("end", "G"):
            return replace(self, top=last)
        if key in ("s", "right"):
            return replace(self, sort=(self.sort + 1) % len(_SORTS), top=0)
        if key in ("S", "left"):
            return replace(self, sort=(self.sort - 1) % len(_SORTS), top=0)
        if key == "r":
            return replace(self, reverse=not self.reverse, top=0)
        return self


class NodeChurn:
    """Which nodes came and went while somebody looked."""

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.went: dict[str, tuple[float, ViewedNode]] = {}
        self._seen: dict[str, ViewedNode] | None = None

    def see(self, nodes: Sequence[ViewedNode], now: float) -> None:
        there = {node.name: node for node in nodes}
        if self._seen is not None:  # the first look finds everything, and nothing is new
            for name in there.keys() - self._seen.keys():
                self.came[name] = now
                self.went.pop(name, None)
            for name in self._seen.keys() - there.keys():
                self.went[name] = now, self._seen[name]
                self.came.pop(name, None)
        self._seen = there
        self.came = {name: at for name, at in self.came.items() if now - at < CAME_SECONDS}
        self.went = {name: at for name, at in self.went.items() if now - at[0] < WENT_SECONDS}


def picture(
    about: Sequence[str],
    nodes: Sequence[ViewedNode],
    churn: NodeChurn,
    position: ViewPosition,
    *,
    width: int,
    height: int,
    label_columns: Sequence[str] = (),
) -> RenderableType:
    """`about` are lines about all nodes, the first of which stand on top."""
    rows = ordered([*nodes, *(node for _, node in churn.went.values())], position)
    page = max(height - _AROUND, 1)
    top = min(position.top, max(len(rows) - page, 0))
    by, order = _SORTS[position.sort][0], "▲" if position.reverse else "▼"
    is_narrow = width < NARROW
    length = SHORT_BAR if is_narrow else BAR
    shown = [column for column in _columns(label_columns) if not (is_narrow and column.may_go)]
    table = Table(box=None, pad_edge=False, padding=(0, 1 if is_narrow else 2, 0, 0), header_style="bold")
    for column in shown:
        mark = order if column.title == by else ""
        least = column.least + (length if column.has_bar else 0)
        table.add_column(
            f"{column.title}{mark}", no_wrap=True, overflow="ellipsis", justify=column.side, min_width=least
        )
    for node in rows[top : top + page]:
        cells = [column.cell(node, length) for column in shown]
        table.add_row(*cells, style=_style(node.name, churn))
    seen = f"{top + 1}-{min(top + page, len(rows))} of {len(rows)}" if rows else "no nodes"
    changes = f"+{len(churn.came)} -{len(churn.went)} within a minute"
    keys = f"{seen}   by {by}{order}   {changes}   {KEYS}"  # the column itself may not be shown
    return Group(
        *(
            Text(printable(line), style="bold" if line is about[0] else "", no_wrap=True, overflow="ellipsis")
            for line in about[:ABOUT_MAX]
        ),
        _totals(nodes, length),
        Text(""),
        table,
        Text(keys, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def ordered(nodes: Sequence[ViewedNode], position: ViewPosition) -> list[ViewedNode]:
    key = _SORTS[position.sort][1]
    numbers = key in ("cpu", "memory", "pods", "price")
    # What is largest is what people look for: numbers begin with it.
    by_name = sorted(nodes, key=lambda node: node.name)
    return sorted(by_name, key=lambda node: _sort_value(node, key), reverse=numbers != position.reverse)


def _sort_value(node: ViewedNode, key: str) -> Any:
    document = node.document
    if key == "name":
        return node.name
    if key in ("pool", "type", "zone"):
        return document.get(key) or ""
    if key == "pods":
        return document.get("pods") or 0
    if key == "price":
        price = document.get("pricePerHour")
        return -1.0 if price is None else price
    return _share(document, key)


def _share(document: Mapping[str, Any], name: str) -> float:
    there = document["allocatable"].get(name, 0)
    return document["requested"].get(name, 0) / there if there else 0.0


def _style(name: str, churn: NodeChurn) -> str:
    if name in churn.went:
        return "dim strike"
    return "green" if name in churn.came else ""


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[ViewedNode, int], Text]
    side: Literal["left", "right"] = "left"
    may_go: bool = False  # where there is little room
    least: int = 0  # characters that it keeps
    has_bar: bool = False


def _columns(label_columns: Sequence[str]) -> list[_Column]:
    def field_of(key: str) -> Callable[[ViewedNode, int], Text]:
        return lambda node, length: Text(printable(str(node.document.get(key) or NONE)))

    def label(name: str) -> Callable[[ViewedNode, int], Text]:
        return lambda node, length: Text(printable(node.labels.get(name, NONE)))

    return [
        _Column("NAME", lambda node, length: Text(printable(node.name)), least=5),
        _Column("POOL", field_of("pool"), may_go=True),
        _Column("TYPE", field_of("type")),
        _Column("ZONE", field_of("zone"), may_go=True),
        _Column(
            "CPU",
            lambda node, length: bar(_share(node.document, resources.CPU), length),
            least=_SHARE,
            has_bar=True,
        ),
        _Column(
            "MEMORY",
            lambda node, length: bar(_share(node.document, resources.MEMORY), length),
            least=_SHARE,
            has_bar=True,
        ),
        _Column(
            "PODS", lambda node, length: Text(f"{node.document['pods']}/{node.document['slots']}"), "right"
        ),
        _Column(
            "$/H", lambda node, length: Text(_price(node.document.get("pricePerHour"))), "right", least=5
        ),
        _Column("CAPACITY", field_of("capacityType"), may_go=True),
        *(_Column(printable(name.rpartition("/")[2].upper()), label(name)) for name in label_columns),
    ]


def _price(price: float | None) -> str:
    return UNKNOWN if price is None else f"{price:.3f}"


def bar(share: float, length: int = BAR) -> Text:
    """How full something is, as length, number and colour."""
    filled = round(min(max(share, 0.0), 1.0) * length)
    colour = "red" if share > 1 else "yellow" if share > _OVER else "green"
    text = Text()
    text.append(_FULL * filled, style=colour)
    text.append(_EMPTY * (length - filled), style="dim")
    text.append(f" {share * 100:4.0f}%")
    return text


def _totals(nodes: Sequence[ViewedNode], length: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for name in (resources.CPU, resources.MEMORY):
        there = sum(node.document["allocatable"].get(name, 0) for node in nodes)
        asked = sum(node.document["requested"].get(name, 0) for node in nodes)
        text.append(f"{name} ")
        text.append_text(bar(asked / there if there else 0.0, length))
        text.append(f"  {resources.show_rounded(name, asked)} of {resources.show_rounded(name, there)}   ")
    return text
