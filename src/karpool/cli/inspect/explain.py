"""`karpool explain`: how a decision came about, from the same value that was acted on."""

import click

from karpool.cli.command_groups import LazyGroup, Table

_COMMANDS: Table = {
    "binding": (
        "karpool.cli.inspect.explain_binding",
        "binding",
        "Where Karmada places a workload, and why.",
    ),
    "node": ("karpool.cli.inspect.explain_node", "node", "What keeps a node, or where its pods would run."),
    "pod": (
        "karpool.cli.inspect.explain_pod",
        "pod",
        "Why a pod is pending: what blocks it, and which nodes could help.",
    ),
    "scale-up": (
        "karpool.cli.inspect.explain_scale_up",
        "scale_up",
        "The state of a scale-up: requested nodes, and what failed.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def explain() -> None:
    """Explain a decision step by step."""
