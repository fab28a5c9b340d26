"""A plan in Markdown, for a pull request or a change request: what moves, what it saves, and what stays."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from karpool.cli.output import plan_text
from karpool.cli.output.plan_text import NAMES, SHORT, Table
from karpool.cli.output.text import pluralize, printable
from karpool.consolidation.planning.comparison import PlanAlternative
from karpool.consolidation.planning.device_freeing import DeviceFreeing
from karpool.consolidation.planning.plan import ConsolidationPlan

# Characters that Markdown or the HTML in it would obey; names and messages of a cluster may be hostile.
_OBEYED = {character: f"\\{character}" for character in "\\`*_{}[]<>|#!~"} | {"@": "@<!-- -->"}


def report(
    alternatives: Sequence[PlanAlternative], cluster: str = "", freeing: DeviceFreeing | None = None
) -> str:
    """The first alternative in full; with several, all of them side by side before it."""
    parts = [*_parts(alternatives, cluster), *(_freeing(freeing) if freeing is not None else ())]
    return "\n\n".join(parts)


def _parts(alternatives: Sequence[PlanAlternative], cluster: str) -> Iterator[str]:
    plan = alternatives[0].plan
    made = datetime.fromtimestamp(plan.made_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"## Consolidation plan{f' of {text(cluster)}' if cluster else ''}"
    if plan.stopped is not None:
        yield f"**Stopped:** {text(plan.stopped.detail)}"
    yield f"**{text(plan_text.summary(plan))}**"
    yield f"Made {made} by `karpool plan`; nothing was changed. Fingerprint `{plan.fingerprint}`."
    if len(alternatives) > 1:
        yield "### Policies side by side"
        yield table(plan_text.comparison_table(alternatives))
    yield from _plan(plan)


def _plan(plan: ConsolidationPlan) -> Iterator[str]:
    yield table(plan_text.totals_table(plan))
    if plan.moves:
        yield "### Moves"
        yield table(plan_text.move_table(plan.moves, wide=False))
        yield _folded(
            f"{pluralize(sum(len(move.pods) for move in plan.moves), 'pod')} and where each goes",
            plan_text.pod_table(plan.moves),
        )
    if plan.rejected:
        yield _folded(
            f"{pluralize(len(plan.rejected), 'move')} rejected, and why",
            plan_text.rejected_table(plan.rejected, wide=False),
        )
    if plan.held:
        yield _folded(
            f"{pluralize(len(plan.held), 'node')} that stay, by reason",
            plan_text.held_by_reason(plan.held),
        )
    for considered in plan.not_looked_at:
        names = ", ".join(text(node) for node in considered.nodes[:NAMES])
        yield (
            f"Not considered: {pluralize(len(considered.nodes), 'node')} ({text(considered.why)}): {names}"
        )


def _freeing(freeing: DeviceFreeing) -> Iterator[str]:
    yield "### Devices"
    yield text(plan_text.freeing_summary(freeing))
    yield from (_folded(title, content) for title, content in plan_text.freeing_tables(freeing))


def table(content: Table) -> str:
    header, rows = content
    lines = [[*map(text, header)], ["---"] * len(header), *([*map(text, row)] for row in rows[:SHORT])]
    shown = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return shown if len(rows) <= SHORT else f"{shown}\n\n... and {len(rows) - SHORT} more"


def _folded(title: str, content: Table) -> str:
    """GitHub and GitLab fold it; others show it."""
    return f"<details><summary>{title}</summary>\n\n{table(content)}\n\n</details>"


def text(content: str) -> str:
    """As it is, whatever it holds: no markup, no links, nobody is mentioned."""
    return "".join(_OBEYED.get(character, character) for character in printable(content))
