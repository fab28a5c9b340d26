"""`karpool get`: what controllers hold, read back from the API server."""

import click

from karpool.cli.command_groups import LazyGroup, Table

_COMMANDS: Table = {
    "moves": (
        "karpool.cli.inspect.get_moves",
        "moves",
        "Moves of consolidation: active, finished, and what they saved.",
    ),
    "promises": (
        "karpool.cli.inspect.get_promises",
        "promises",
        "Replicas that are placed but do not run on a node yet.",
    ),
    "scale-ups": (
        "karpool.cli.inspect.get_scale_ups",
        "scale_ups",
        "Nodes that were requested because workers found no GPU.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def get() -> None:
    """List the promises, moves or scale-ups of the controllers."""
