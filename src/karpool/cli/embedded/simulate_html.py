"""A simulation as one HTML file: figures side by side, plots over time, and what was not as expected."""

from collections.abc import Iterator, Sequence

from karpool.cli.output import charts, html_page, plan_markdown
from karpool_fleet.simulation.figures import FIGURES, Result, shown, titled

POINTS_MAX = 400  # of one line; more cannot be seen and make the file heavy
_HOUR = 3600.0


def report(title: str, description: str, results: Sequence[Result], broken: Sequence[str]) -> str:
    return html_page.page(title, _body(title, description, results, broken))


def _body(title: str, description: str, results: Sequence[Result], broken: Sequence[str]) -> Iterator[str]:
    yield html_page.text(title, "h1")
    if description:
        yield html_page.text(description)
    first = results[0]
    yield html_page.text(f"Simulated {first.seconds / _HOUR:g} h with seed {first.seed}.", style="quiet")
    for line in broken:
        yield html_page.text(f"Not as expected: {line}", style="bad")
    if len(results) > 1:  # one point alone shows nothing that the figures do not
        yield html_page.text("Cost against disruption", "h2")
        yield cost_and_disruption(results)
    yield html_page.text("Over time", "h2")
    titles = {name: series.title for result in results for name, series in result.series.items()}
    quiet = [name for name in titles if not _has_values(results, name)]
    for name, heading in titles.items():
        if name not in quiet:
            yield html_page.text(heading.capitalize(), "h3")
            yield over_time(results, name)
    if quiet:
        yield html_page.text(f"Always 0: {', '.join(titles[name] for name in quiet)}.", style="quiet")
    yield html_page.text("Figures", "h2")
    yield _figures(results)
    if len(first.by_cluster) > 1:
        yield html_page.text("Clusters", "h2")
        yield from (_clusters(result) for result in results)
    yield html_page.copied("Copy as Markdown", plan_markdown.table(_figure_table(results)))
    digests = [[result.variant, result.log_sha256] for result in results]
    yield html_page.text("Decision logs", "h2")
    yield html_page.table(["variant", "SHA-256"], digests)


def _has_values(results: Sequence[Result], name: str) -> bool:
    return any(value for result in results if name in result.series for value in result.series[name].values)


def over_time(results: Sequence[Result], name: str) -> str:
    drawn = []
    for result in results:
        series = result.series.get(name)
        if series is None:  # it was 0 all the time; its colour stays its own
            drawn.append(
                charts.ChartSeries(
                    result.variant,
                    [(time / _HOUR, 0.0) for time in result.times[:: len(result.times) - 1 or 1]],
                )
            )
            continue
        points = [
            (time / _HOUR, value)
            for time, value in zip(result.times, series.values, strict=True)
            if value is not None
        ]
        step = max(1, -(-len(points) // POINTS_MAX))
        drawn.append(charts.ChartSeries(result.variant, points[::step]))
    first = next(result.series[name] for result in results if name in result.series)
    return charts.line_chart(drawn, title=first.title, x_label="hours", y_label=first.unit)


def cost_and_disruption(results: Sequence[Result]) -> str:
    series = []
    for result in results:
        cost, evictions = result.figures["cost"] or 0.0, result.figures["evictions"] or 0.0
        text = f"{result.variant}: ${cost:,.2f}, {evictions:,.0f} pods evicted"
        series.append(charts.ChartSeries(result.variant, [(evictions, cost)], [text], line=False))
    return charts.line_chart(
        series, title="Cost against disruption", x_label="pods evicted", y_label="cost in $"
    )


def _figures(results: Sequence[Result]) -> str:
    header, rows = _figure_table(results)
    return html_page.table(header, rows, numbers=range(1, len(header)))


def _figure_table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    header = ["", *(result.variant for result in results)]
    rows = [
        [titled(name), *(shown(name, result.figures[name]) for result in results)]
        for name in FIGURES
        if any(result.figures[name] is not None for result in results)  # what does not apply is not there
    ]
    return header, rows


def _clusters(result: Result) -> str:
    header = ["", *result.by_cluster]
    rows = [
        [titled(name), *(shown(name, figures[name]) for figures in result.by_cluster.values())]
        for name in FIGURES
        if any(figures[name] for figures in result.by_cluster.values())
    ]
    return html_page.details(result.variant, html_page.table(header, rows, numbers=range(1, len(header))))
