"""Charts as inline SVG, for reports that are one file and load nothing.

Colours are CSS variables of the page (`html_page`), so a chart follows light and dark.
Every text goes through `escape`: names in it come from clusters and may be hostile.
Each mark carries a <title>, which browsers show as a tooltip.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from karpool.cli.output.text import escape

WIDTH, HEIGHT = 720.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 16.0, 14.0, 44.0
_COLOURS = 6
_LEAST, _MOST = 1e-9, 1e150  # what a scale reaches to; beyond, arithmetic on positions would overflow
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A line through points, or marks alone. `notes`: what each point says when pointed at."""

    name: str
    points: Sequence[Point]
    notes: Sequence[str] = ()
    line: bool = True


@dataclass(frozen=True, slots=True)
class ChartBar:
    """One row: a value per series."""

    label: str
    values: Sequence[float]


def line_chart(series: Sequence[ChartSeries], *, title: str, x_label: str, y_label: str) -> str:
    """Axes from 0 to the largest value; without points, a sentence that says so."""
    points = [point for line in series for point in line.points if all(map(math.isfinite, point))]
    if not points:
        return '<p class="quiet">Nothing to draw.</p>'
    across = _Scale(max(x for x, _ in points), _LEFT, WIDTH - _RIGHT)
    up = _Scale(max(y for _, y in points), HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes(across, up, x_label, y_label)]
    for number, line in enumerate(series):
        parts += _drawn(line, number, across, up)
    return _svg(title, HEIGHT, parts) + legend([line.name for line in series])


def bar_chart(bars: Sequence[ChartBar], names: Sequence[str], *, title: str) -> str:
    """Rows of horizontal bars, one per series, with the value at the end of each."""
    if not bars:
        return '<p class="quiet">Nothing to draw.</p>'
    thick, gap, left = 15.0, 12.0, 190.0
    row = thick * len(names) + gap
    across = _Scale(max((max(bar.values, default=0.0) for bar in bars), default=0.0), left, WIDTH - 60)
    parts: list[str] = []
    for index, bar in enumerate(bars):
        top = _TOP + index * row
        middle = top + (row - gap) / 2
        parts.append(_text(left - 8, middle + 4, _short(bar.label), "end", title=bar.label))
        for number, value in enumerate(bar.values):
            y = top + number * thick
            width = max(across.at(value) - left, 0.0)
            tip = _tip(f"{bar.label}, {names[number]}: {_tick(value)}")
            parts.append(
                f'<rect class="f{number % _COLOURS}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
                f'height="{thick - 2:.1f}" rx="2">{tip}</rect>'
            )
            parts.append(_text(left + width + 5, y + thick - 5, _tick(value), "start"))
    return _svg(title, _TOP + row * len(bars) + 6, parts) + legend(names)


def legend(names: Sequence[str]) -> str:
    items = "".join(
        f'<li><span class="swatch b{number % _COLOURS}"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


class _Scale:
    """From values, 0 to a round number above the largest, to positions."""

    def __init__(self, largest: float, start: float, end: float) -> None:
        reach = min(max(largest, _LEAST), _MOST) if largest > 0 else 1.0
        self.step = _round_step(reach)
        self.top = self.step * math.ceil(reach / self.step - 1e-9)
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = min(max(value / self.top, 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        return (number * self.step for number in range(round(self.top / self.step) + 1))


def _round_step(largest: float) -> float:
    """1, 2 or 5 times a power of ten, so that four to ten steps reach the largest."""
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _axes(across: _Scale, up: _Scale, x_label: str, y_label: str) -> Iterator[str]:
    for value in up.ticks():
        y = up.at(value)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 8, y + 4, _tick(value), "end")
    for value in across.ticks():
        yield _text(across.at(value), HEIGHT - _BOTTOM + 18, _tick(value), "middle")
    base = HEIGHT - _BOTTOM
    yield f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>'
    yield _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, x_label, "middle")
    middle = (_TOP + base) / 2
    turned = f'transform="translate(14 {middle:.1f}) rotate(-90)"'
    yield f'<text {turned} text-anchor="middle">{escape(y_label)}</text>'


def _drawn(series: ChartSeries, number: int, across: _Scale, up: _Scale) -> Iterator[str]:
    colour = number % _COLOURS
    places = [(across.at(x), up.at(y)) for x, y in series.points if math.isfinite(x) and math.isfinite(y)]
    if series.line and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="l{colour}" points="{path}">{_tip(series.name)}</polyline>'
    if series.notes or not series.line:
        for index, (x, y) in enumerate(places):
            note = series.notes[index] if index < len(series.notes) else series.name
            yield f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{_tip(note)}</circle>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str, title: str = "") -> str:
    tip = _tip(title) if title and title != text else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}{tip}</text>'


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _tick(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _short(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
