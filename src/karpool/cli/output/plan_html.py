"""A plan as one HTML file to hand around: what moves, what it saves, what stays and why."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from karpool.cli.output import charts, html_page, plan_markdown, plan_text
from karpool.cli.output.plan_text import money
from karpool.consolidation.planning.comparison import PlanAlternative
from karpool.consolidation.planning.device_freeing import DeviceFreeing
from karpool.consolidation.planning.plan import ConsolidationPlan, Move
from karpool.consolidation.policy.prices import HOURS_PER_MONTH

TYPES_SHOWN = 20


def report(
    alternatives: Sequence[PlanAlternative], cluster: str = "", freeing: DeviceFreeing | None = None
) -> str:
    """The first alternative in full; with several, all of them side by side before it."""
    title = f"Consolidation plan{f' of {cluster}' if cluster else ''}"
    return html_page.page(title, _body(alternatives, title, cluster, freeing))


def _body(
    alternatives: Sequence[PlanAlternative], title: str, cluster: str, freeing: DeviceFreeing | None
) -> Iterator[str]:
    plan = alternatives[0].plan
    made = datetime.fromtimestamp(plan.made_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield html_page.text(title, "h1")
    yield html_page.text(f"Made {made}. Nothing was changed. Fingerprint {plan.fingerprint}.", style="quiet")
    if plan.stopped is not None:
        yield html_page.text(f"Stopped: {plan.stopped.detail}", style="bad")
    if len(alternatives) > 1:
        yield html_page.text("Policies side by side", "h2")
        yield html_page.table(*plan_text.comparison_table(alternatives), numbers=range(1, 10))
        yield _compared(alternatives)
    for alternative in alternatives:
        if len(alternatives) > 1:
            yield html_page.text(alternative.label, "h2")
        yield from _plan(alternative.plan)
    if freeing is not None:
        yield from _freeing(freeing)
    yield html_page.copied(
        "Copy as Markdown, for a change request", plan_markdown.report(alternatives, cluster, freeing)
    )


def _compared(alternatives: Sequence[PlanAlternative]) -> str:
    return charts.line_chart(
        [
            charts.ChartSeries(
                alternative.label,
                [(float(alternative.plan.disturbed), alternative.plan.savings_per_hour * HOURS_PER_MONTH)],
                [
                    f"{alternative.label}: {money(alternative.plan.savings_per_hour)} per hour, "
                    f"{alternative.plan.disturbed} pods"
                ],
                line=False,
            )
            for alternative in alternatives
        ],
        title="What each policy saves, and how many pods it disturbs",
        x_label="pods disturbed",
        y_label="saves $ per month",
    )


def _plan(plan: ConsolidationPlan) -> Iterator[str]:
    yield html_page.facts(
        [
            ("saved per hour", f"${money(plan.savings_per_hour)}"),
            ("saved per month", f"${money(plan.savings_per_hour * HOURS_PER_MONTH)}"),
            ("of the cost", plan_text.share(plan)),
            ("nodes", f"{plan.before.nodes} → {plan.after.nodes}"),
            ("pods disturbed", f"{plan.disturbed} of {plan.before.pods}"),
            ("moves", f"{len(plan.moves)}, {len(plan.rejected)} rejected"),
        ]
    )
    if plan.certificate is not None:
        left_out = "; ".join(plan.certificate.leaves_out)
        note = f" (the bound leaves out: {left_out})" if left_out else ""
        yield html_page.text(f"{plan_text.certificate_line(plan)}{note}", style="quiet")
    if plan.moves or plan.rejected:
        yield html_page.text("Savings against disruption", "h3")
        yield curve(plan)
    if plan.moves:
        yield html_page.text("Nodes before and after", "h3")
        yield before_and_after(plan)
    else:
        yield html_page.text("Nothing to draw: no node is removed.", style="quiet")
    yield html_page.table(*plan_text.totals_table(plan), numbers=range(1, 7))
    yield html_page.text(f"Moves ({len(plan.moves)})", "h3")
    yield from (_move(move) for move in plan.moves)
    if plan.rejected:
        yield html_page.text(f"Rejected moves ({len(plan.rejected)})", "h3")
        yield html_page.table(*plan_text.rejected_table(plan.rejected, wide=True), numbers=range(5, 10))
    if plan.held:
        yield html_page.text(f"Nodes that stay ({len(plan.held)})", "h3")
        yield html_page.table(*plan_text.held_table(plan.held), numbers=(2, 3))
    if plan.pools:
        yield html_page.text("Pools", "h3")
        yield html_page.table(*plan_text.pool_table(plan), numbers=(2, 3, 4))
    yield from _shortcomings(plan)


def _move(move: Move) -> str:
    into = ", ".join(plan_text.new_node(node) for node in move.new_nodes)
    names = ", ".join(move.names)
    summary = f"{move.kind} {names}{f' → {into}' if into else ''}: ${money(move.savings_per_hour)} per hour"
    parts = [html_page.table(*plan_text.move_table([move], wide=True), numbers=range(5, 10))]
    if move.pods:
        parts.append(html_page.table(*plan_text.pod_table([move]), numbers=(2,)))
    parts += [html_page.text(note, style="quiet") for note in move.notes]
    return html_page.details(summary, "".join(parts))


def _shortcomings(plan: ConsolidationPlan) -> Iterator[str]:
    for considered in plan.not_looked_at:
        yield html_page.text(f"Not considered ({considered.why})", "h3")
        yield html_page.text(", ".join(considered.nodes))
    if plan.problems:
        yield html_page.text(f"Invalid objects ({len(plan.problems)})", "h3")
        yield "<ul>" + "".join(html_page.text(problem, "li") for problem in plan.problems) + "</ul>"


def _freeing(freeing: DeviceFreeing) -> Iterator[str]:
    yield html_page.text("Devices", "h2")
    yield html_page.text(plan_text.freeing_summary(freeing))
    for title, table in plan_text.freeing_tables(freeing):
        yield html_page.text(f"{title} ({len(table[1])})", "h3")
        yield html_page.table(*table)


def curve(plan: ConsolidationPlan) -> str:
    """Cumulated, the most saved per disruption first; what was rejected goes on from there."""
    taken = _cumulated(plan.moves, 0.0, 0.0)
    end = taken.points[-1]
    series = [charts.ChartSeries("in the plan", taken.points, taken.notes)]
    if plan.rejected:
        more = _cumulated([move.move for move in plan.rejected], *end)
        series.append(charts.ChartSeries("rejected, if each were added", more.points, more.notes))
    return charts.line_chart(
        series,
        title="Savings against disruption",
        x_label="disruption (1 per node and what its pods cost)",
        y_label="saves $ per hour",
    )


def _cumulated(moves: Sequence[Move], disruption: float, saved: float) -> charts.ChartSeries:
    points, notes = [(disruption, saved)], ["start"]
    for move in sorted(moves, key=lambda move: -move.savings_per_hour / max(move.disruption, 1e-9)):
        disruption, saved = disruption + move.disruption, saved + max(move.savings_per_hour, 0.0)
        points.append((disruption, saved))
        notes.append(f"{move.kind} {', '.join(move.names)}: ${money(move.savings_per_hour)} per hour")
    return charts.ChartSeries("", points, notes)


def before_and_after(plan: ConsolidationPlan) -> str:
    before, after = plan.before.by_type, plan.after.by_type
    names = sorted(before.keys() | after.keys(), key=lambda name: (-before.get(name, 0), name))
    bars = [
        charts.ChartBar(name or "unknown type", (before.get(name, 0), after.get(name, 0)))
        for name in names[:TYPES_SHOWN]
    ]
    if rest := names[TYPES_SHOWN:]:
        sums = [sum(counts.get(name, 0) for name in rest) for counts in (before, after)]
        bars.append(charts.ChartBar(f"{len(rest)} other types", sums))
    return charts.bar_chart(bars, ["before", "after"], title="Nodes by instance type, before and after")
