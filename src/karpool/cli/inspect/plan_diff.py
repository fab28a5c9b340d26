"""`karpool plan diff OLD NEW`: what changed between two saved plans."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from karpool.cli.options.cluster import output_option
from karpool.cli.output import plan_markdown
from karpool.cli.output.plan_text import Table, money
from karpool.cli.output.text import columns, emit, machine, printable
from karpool.consolidation.planning.plan import Move
from karpool.consolidation.planning.plan_diff import MoveDifference, PlanDiff, plan_diff
from karpool.consolidation.planning.plan_file import SavedPlan, read_plan

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(epilog="Example: karpool plan diff monday.json today.json -o markdown")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@output_option("table", "json", "yaml", "markdown")
def diff(old: Path, new: Path, output: str) -> None:
    """Show the differences between two plans that were saved with -o json.

    The output lists moves that were added, removed or changed, why the other plan does not have them, and the
    totals of both plans.
    """
    before, after = read_plan(old), read_plan(new)
    compared = plan_diff(before.plan, after.plan)
    if output in ("json", "yaml"):
        emit(machine("ConsolidationPlanDiff", _document(compared, before, after), output))
    elif output == "markdown":
        lines = [f"## Plans compared\n\n{plan_markdown.text(_summary(compared))}"]
        lines += (plan_markdown.table(table) for table in _tables(compared))
        emit("\n\n".join(lines))
    else:
        tables = (columns(*table) for table in _tables(compared))
        emit("\n\n".join([*tables, printable(_summary(compared))]))


def _summary(compared: PlanDiff) -> str:
    more = compared.savings_per_hour
    verb = "saves as much as" if abs(more) < 5e-7 else "saves more than" if more > 0 else "saves less than"
    by = "" if abs(more) < 5e-7 else f", by ${money(abs(more))} per hour"
    number = len(compared.moves)
    counts = (
        "no move differs" if not number else "1 move differs" if number == 1 else f"{number} moves differ"
    )
    return f"the second plan {verb} the first{by}; {counts}"


def _tables(compared: PlanDiff) -> list[Table]:
    before, after = compared.before, compared.after
    sums: Table = (
        ("", "BEFORE", "AFTER"),
        [
            ("saves $/h", money(before.savings_per_hour), money(after.savings_per_hour)),
            ("nodes that go", str(_going(before.moves)), str(_going(after.moves))),
            ("pods disturbed", str(before.disturbed), str(after.disturbed)),
            ("moves", str(len(before.moves)), str(len(after.moves))),
            ("rejected", str(len(before.rejected)), str(len(after.rejected))),
        ],
    )
    if not compared.moves:
        return [sums]
    return [
        sums,
        (("CHANGE", "MOVE", "NODES", "$/H", "PODS", "WHY"), [_row(change) for change in compared.moves]),
    ]


def _going(moves: Iterable[Move]) -> int:
    return sum(len(move.names) for move in moves)


def _row(difference: MoveDifference) -> list[str]:
    move = difference.move
    saved = _both(difference, lambda move: money(move.savings_per_hour))
    pods = _both(difference, lambda move: str(move.disturbed))
    return [str(difference.change), str(move.kind), ", ".join(move.names), saved, pods, difference.why or "-"]


def _both(difference: MoveDifference, show: Callable[[Move], str]) -> str:
    texts = [show(move) for move in (difference.before, difference.after) if move is not None]
    return " -> ".join(dict.fromkeys(texts))


def _document(compared: PlanDiff, before: SavedPlan, after: SavedPlan) -> dict[str, Any]:
    def side(saved: SavedPlan) -> dict[str, Any]:
        plan = saved.plan
        return {
            "cluster": saved.cluster,
            "fingerprint": plan.fingerprint,
            "savingsPerHour": plan.savings_per_hour,
            "podsDisturbed": plan.disturbed,
            "moves": len(plan.moves),
            "rejected": len(plan.rejected),
        }

    return {
        "before": side(before),
        "after": side(after),
        "savingsPerHour": compared.savings_per_hour,
        "moves": [
            {
                "change": str(change.change),
                "kind": str(change.move.kind),
                "nodes": list(change.move.names),
                "before": _numbers(change.before),
                "after": _numbers(change.after),
                "why": change.why,
            }
            for change in compared.moves
        ],
    }


def _numbers(move: Move | None) -> dict[str, Any] | None:
    if move is None:
        return None
    return {"savingsPerHour": move.savings_per_hour, "podsDisturbed": move.disturbed}
