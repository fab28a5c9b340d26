"""A simulation as one picture: cost (under a contract the bill) and disruption over time, a line for each
variant.

A file of its own that pages embed, so it brings its colours along, for light and dark.
"""

from collections.abc import Iterator, Sequence

from karpool.cli.embedded.simulate_html import over_time
from karpool.cli.output import charts
from karpool.cli.output.text import escape
from karpool_fleet.simulation.figures import Result, shown

PANELS = ("costPerHour", "evictions")
PANELS_UNDER_CONTRACT = ("billPerHour", "billSoFar", "evictions")
_WIDTH, _MARGIN, _HEAD, _ROW, _PANEL = 760, 20, 46, 22, 350
STYLE = """
svg { --bg: #fff; --ink: #1a1d21; --quiet: #5c6570; --rule: #d9dee3;
  --c0: #2563a8; --c1: #c25b12; --c2: #2a7f62; --c3: #8a4fa3; --c4: #7a6a1f; --c5: #a33a5c; }
@media (prefers-color-scheme: dark) { svg { --bg: #14171a; --ink: #e6e9ec; --quiet: #9aa5b1; --rule: #333a41;
  --c0: #6ea8e8; --c1: #f0a064; --c2: #68c9a4; --c3: #c79be0; --c4: #cdb95a; --c5: #ea8fae; } }
text { fill: var(--quiet); font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; }
.title { fill: var(--ink); font-size: 16px; font-weight: 600; } .name { fill: var(--ink); font-size: 13px; }
.page { fill: var(--bg); } .grid { stroke: var(--rule); } .axis { stroke: var(--quiet); }
polyline { fill: none; stroke-width: 2; }
"""


def picture(title: str, results: Sequence[Result]) -> str:
    is_billed = any(result.figures["billed"] is not None for result in results)
    panels = PANELS_UNDER_CONTRACT if is_billed else PANELS
    drawn = [name for name in panels if any(name in result.series for result in results)]
    top = _HEAD + _ROW * len(results) + 8
    height = top + _PANEL * len(drawn) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title><style>{STYLE}{colours()}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_MARGIN}" y="30">{escape(title)}</text>',
        *_legend(results),
    ]
    for number, name in enumerate(drawn):
        y = top + _PANEL * number
        heading = next(result.series[name].title for result in results if name in result.series)
        parts.append(f'<text class="name" x="{_MARGIN}" y="{y + 14}">{escape(heading.capitalize())}</text>')
        parts.append(_nested(over_time(results, name), y + 22))
    return "\n".join(parts) + "\n</svg>"


def _nested(chart: str, y: int) -> str:
    """The chart alone, without its list of names, at its place."""
    whole = chart[: chart.index("</svg>") + len("</svg>")]
    place = f'x="{_MARGIN}" y="{y}" width="{charts.WIDTH:.0f}" height="{charts.HEIGHT:.0f}"'
    return whole.replace("<svg ", f"<svg {place} ", 1)


def _legend(results: Sequence[Result]) -> Iterator[str]:
    for number, result in enumerate(results):
        y = _HEAD + _ROW * number
        evicted = shown("evictions", result.figures["evictions"])
        yield f'<rect class="f{number % 6}" x="{_MARGIN}" y="{y}" width="12" height="12" rx="2"/>'
        yield (
            f'<text class="name" x="{_MARGIN + 20}" y="{y + 11}">'
            f"{escape(result.variant)}: {_spent(result)}, {evicted} pods evicted</text>"
        )


def _spent(result: Result) -> str:
    if result.figures["billed"] is None:
        return f"${shown('cost', result.figures['cost'])}"
    billed = f"${shown('billed', result.figures['billed'])} billed"
    predicted = result.figures["billPredicted"]
    return billed if predicted is None else f"{billed}, ${shown('billPredicted', predicted)} predicted"


def colours() -> str:
    return "".join(f".l{n} {{ stroke: var(--c{n}); }} .f{n} {{ fill: var(--c{n}); }}\n" for n in range(6))
