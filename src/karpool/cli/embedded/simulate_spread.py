"""Several seeds of a scenario: every figure as a mean with its least and most, in a table and a picture.

Runs of one seed have the same arrivals under every variant, so variants are comparable
seed by seed; the spread says how much of a difference is chance.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from karpool.cli.embedded.simulate_svg import STYLE, colours
from karpool.cli.output.text import escape
from karpool_fleet.simulation.figures import Result, shown, titled

PANELS = ("cost", "evictions", "pendingP95")
_WIDTH, _MARGIN, _HEAD, _ROW, _LEFT, _RIGHT = 760, 20, 62, 26, 210, 150


@dataclass(frozen=True, slots=True)
class FigureSpread:
    mean: float
    least: float
    most: float


def by_variant(results: Sequence[Result]) -> dict[str, list[Result]]:
    results_of: dict[str, list[Result]] = {}
    for result in results:
        results_of.setdefault(result.variant, []).append(result)
    return results_of


def spread(results: Sequence[Result], figure: str) -> FigureSpread | None:
    """None where the figure does not apply to any of them."""
    values = [value for result in results if (value := result.figures[figure]) is not None]
    return FigureSpread(fmean(values), min(values), max(values)) if values else None


def spreads(results: Sequence[Result], figure: str) -> dict[str, FigureSpread | None]:
    return {variant: spread(runs, figure) for variant, runs in by_variant(results).items()}


def text(figure: str, spread: FigureSpread | None) -> str:
    if spread is None:
        return "-"
    mean, least, most = (shown(figure, value) for value in (spread.mean, spread.least, spread.most))
    return mean if least == most == mean else f"{mean} ({least} to {most})"


def table(results: Sequence[Result], names: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """A row for each figure that is not nothing throughout, a column for each variant."""
    variants = by_variant(results)
    rows = []
    for name in names:
        by_name = spreads(results, name)
        if any(spread is not None and spread.most for spread in by_name.values()):
            rows.append([titled(name), *(text(name, by_name[variant]) for variant in variants)])
    return ["FIGURE", *(variant.upper() for variant in variants)], rows


def document(results: Sequence[Result]) -> list[Mapping[str, object]]:
    """By variant: mean, least and most of every figure."""
    return [
        {
            "variant": variant,
            "seeds": [result.seed for result in runs],
            "figures": {
                name: None
                if (one := spread(runs, name)) is None
                else {"mean": round(one.mean, 9), "least": round(one.least, 9), "most": round(one.most, 9)}
                for name in runs[0].figures
            },
        }
        for variant, runs in by_variant(results).items()
    ]


def picture(title: str, results: Sequence[Result]) -> str:
    """A panel for each of a few figures: a bar to the mean, and a line from the least to the most."""
    variants = list(by_variant(results))
    seeds = len({result.seed for result in results})
    panel = _ROW * len(variants) + 56
    height = _HEAD + panel * len(PANELS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title><style>{STYLE}{colours()}"
        ".range { stroke: var(--ink); stroke-width: 1.5; }</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        f'<text class="title" x="{_MARGIN}" y="30">{escape(title)}</text>',
        f'<text x="{_MARGIN}" y="50">bars: mean of {seeds} seeds; lines: least and most</text>',
    ]
    for number, name in enumerate(PANELS):
        parts += _panel(name, spreads(results, name), _HEAD + panel * number)
    return "\n".join(parts) + "\n</svg>"


def _panel(name: str, spreads: Mapping[str, FigureSpread | None], top: int) -> Iterator[str]:
    most = (
        max(
            (spread.most for spread in spreads.values() if spread is not None),
            default=0.0,
        )
        or 1.0
    )
    wide = _WIDTH - _LEFT - _RIGHT - _MARGIN

    def at(value: float) -> str:
        return f"{_LEFT + wide * value / most:.1f}"

    yield f'<text class="name" x="{_MARGIN}" y="{top + 22}">{escape(titled(name).capitalize())}</text>'
    bottom = top + 34 + _ROW * len(spreads)
    yield f'<line class="axis" x1="{_LEFT}" y1="{top + 32}" x2="{_LEFT}" y2="{bottom}"/>'
    for number, (variant, spread) in enumerate(spreads.items()):
        y = top + 36 + _ROW * number
        yield f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(variant)}</text>'
        if spread is None:
            continue
        width = wide * max(spread.mean, 0.0) / most
        yield f'<rect class="f{number % 6}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="16" rx="2"/>'
        least, greatest = at(spread.least), at(spread.most)
        yield f'<line class="range" x1="{least}" y1="{y + 8}" x2="{greatest}" y2="{y + 8}"/>'
        for end in (spread.least, spread.most):
            yield f'<line class="range" x1="{at(end)}" y1="{y + 4}" x2="{at(end)}" y2="{y + 12}"/>'
        yield f'<text class="name" x="{_WIDTH - _RIGHT - 6}" y="{y + 13}">{escape(text(name, spread))}</text>'
