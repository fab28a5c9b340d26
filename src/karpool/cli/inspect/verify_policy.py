"""`karpool verify-policy`: check what the Balanced policy promises, and draw what its ranking is worth."""

from collections.abc import Iterator
from typing import Any

import click

from karpool.cli.exit_codes import CommandFailed
from karpool.cli.options.cluster import output_option
from karpool.cli.output import charts, html_page
from karpool.cli.output.text import columns, emit, machine
from karpool.consolidation.verification import properties, ranking_experiment
from karpool.consolidation.verification.properties import PolicyVerification
from karpool.consolidation.verification.ranking_experiment import SHARES, RankingExperiment
from karpool.model.documents import camel_case, document_of


@click.command("verify-policy", epilog="Example: karpool verify-policy -o html > balanced.html")
@click.option(
    "--ranking/--no-ranking", default=True, show_default=True, help="Also run the ranking experiment."
)
@output_option("table", "wide", "json", "yaml", "html")
def verify_policy(ranking: bool, output: str) -> None:
    """Check the properties of the Balanced policy in every case of a small model, and what each k allows.

    The ranking experiment compares four orders of moves on 5,000 random pods. Does not read a cluster.
    The exit code is 1 if a property does not hold.
    """
    verification = properties.verify()
    experiment = ranking_experiment.run() if ranking else None
    emit(render(verification, experiment, output))
    broken = [policy_property for policy_property in verification.properties if not policy_property.holds]
    if broken:
        raise CommandFailed(
            "; ".join(
                f"{policy_property.name} does not hold: {policy_property.counterexample}"
                for policy_property in broken
            )
        )


def render(verification: PolicyVerification, experiment: RankingExperiment | None, output: str) -> str:
    if output in ("json", "yaml"):
        return machine("PolicyVerification", _content(verification, experiment), output)
    if output == "html":
        return html_page.page("The Balanced policy, verified", _html(verification, experiment))
    parts = [columns(*_properties(verification)), columns(*_thresholds(verification, wide=output == "wide"))]
    if experiment is not None:
        parts += [_about(experiment), columns(*_ranking(experiment)), columns(*_passing(experiment))]
    return "\n\n".join(parts)


def _content(verification: PolicyVerification, experiment: RankingExperiment | None) -> dict[str, Any]:
    content: dict[str, Any] = document_of(verification, old_keys=True)
    for row, threshold in zip(content["thresholds"], verification.thresholds, strict=True):
        row.update(camel_case({"chain_length": threshold.chain_length}, old_keys=True))
    content["holds"] = verification.holds
    if experiment is not None:
        content["ranking"] = {"shares": SHARES, **document_of(experiment, old_keys=True)}
    return content


Table = tuple[list[str], list[list[str]]]


def _properties(verification: PolicyVerification) -> Table:
    rows = [
        [
            policy_property.name,
            "yes" if policy_property.holds else "NO",
            f"{policy_property.checked:,}",
            policy_property.statement,
            policy_property.note or "-",
        ]
        for policy_property in verification.properties
    ]
    return ["PROPERTY", "HOLDS", "CASES", "STATEMENT", "NOTE"], rows


def _thresholds(verification: PolicyVerification, *, wide: bool) -> Table:
    rows = [
        [
            str(row.k),
            f"{row.threshold:.3f}",
            f"{row.approved_pairs}/{verification.pairs}",
            str(row.configurations),
            str(len(row.new_pairs)),
            str(row.chain_length),
            *([" > ".join(map(str, row.longest_chain)) if row.chain_length else "-"] if wide else []),
        ]
        for row in verification.thresholds
    ]
    header = ["K", "THRESHOLD", "APPROVED PAIRS", "CONFIGURATIONS", "NEW PAIRS", "LONGEST CHAIN"]
    return [*header, *(["PRICES"] if wide else [])], rows


def _about(experiment: RankingExperiment) -> str:
    return (
        f"ranking: {experiment.pods:,} pods on {experiment.nodes:,} nodes "
        f"(${experiment.cost_per_hour:.2f} per hour), {experiment.rounds} rounds of churn; "
        "share of all savings, by share of the disturbance spent"
    )


def _ranking(experiment: RankingExperiment) -> Table:
    rows = [
        [
            f"{kind.name} ({kind.moves:,})",
            curve.order,
            *(f"{saved:.3f}" for saved in curve.at),
            f"{curve.area:.3f}",
        ]
        for kind in experiment.kinds
        for curve in kind.curves
    ]
    return ["MOVES", "ORDER", *(f"{share:.0%}" for share in SHARES), "AREA"], rows


def _passing(experiment: RankingExperiment) -> Table:
    rows = [
        [kind.name, str(share.k), f"{share.moves:.0%}", f"{share.savings:.0%}", f"{share.disruption:.0%}"]
        for kind in experiment.kinds
        for share in kind.passing
    ]
    return ["MOVES", "K", "APPROVED", "OF SAVINGS", "OF DISTURBANCE"], rows


def _html(verification: PolicyVerification, experiment: RankingExperiment | None) -> Iterator[str]:
    yield html_page.text("The Balanced policy, verified", "h1")
    yield html_page.text(
        "All cases of a small model: 15 prices, 1 to 6 nodes, 0 to 4 pods per node, k from 1 to 5.",
        style="quiet",
    )
    yield html_page.text("Properties", "h2")
    yield html_page.table(*_properties(verification), numbers=(2,))
    yield html_page.text("What each k allows in pools of equal nodes", "h2")
    yield html_page.table(*_thresholds(verification, wide=True), numbers=(0, 1, 2, 3, 4, 5))
    if experiment is None:
        return
    yield html_page.text("What ranking by score is worth", "h2")
    yield html_page.text(_about(experiment), style="quiet")
    for kind in experiment.kinds:
        yield html_page.text(f"{kind.name}: {kind.moves:,} moves", "h3")
        yield charts.line_chart(
            [charts.ChartSeries(curve.order, curve.points) for curve in kind.curves],
            title=f"{kind.name}: savings against disturbance",
            x_label="share of the disturbance spent",
            y_label="share of the savings",
        )
    yield html_page.table(*_ranking(experiment), numbers=range(2, 3 + len(SHARES)))
    yield html_page.table(*_passing(experiment), numbers=(1, 2, 3, 4))
