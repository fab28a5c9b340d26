"""`karpool explain`: how a decision came about, from the same value that was acted on."""

import click

from karpool.cli.lazy import LazyGroup, Table

_COMMANDS: Table = {
    "binding": ("karpool.cli.explain_binding", "binding", "Where a workload goes in Karmada, and why."),
    "node": ("karpool.cli.explain_node", "node", "What holds a node, or where its pods would go."),
    "scale-up": (
        "karpool.cli.explain_scale_up",
        "scale_up",
        "How far nodes asked for are, and what failed.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def explain() -> None:
    """Say how a decision came about, step by step."""
