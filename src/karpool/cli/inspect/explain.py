"""`karpool explain`: how a decision came about, from the same value that was acted on."""

import click

from karpool.cli.command_groups import LazyGroup, Table

_COMMANDS: Table = {
    "binding": (
        "karpool.cli.inspect.explain_binding",
        "binding",
        "Where a workload goes in Karmada, and why.",
    ),
    "node": ("karpool.cli.inspect.explain_node", "node", "What holds a node, or where its pods would go."),
    "pod": (
        "karpool.cli.inspect.explain_pod",
        "pod",
        "Why a pod waits: what blocks it, what could come, what is on its way.",
    ),
    "scale-up": (
        "karpool.cli.inspect.explain_scale_up",
        "scale_up",
        "How far nodes asked for are, and what failed.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def explain() -> None:
    """Explain a decision step by step."""
