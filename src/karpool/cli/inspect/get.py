"""`karpool get`: what controllers hold, read back from the API server."""

import click

from karpool.cli.command_groups import LazyGroup, Table

_COMMANDS: Table = {
    "moves": (
        "karpool.cli.inspect.get_moves",
        "moves",
        "Nodes that consolidation took away, what that saved, and what is under way.",
    ),
    "promises": (
        "karpool.cli.inspect.get_promises",
        "promises",
        "Room that is given away and not taken yet.",
    ),
    "scale-ups": (
        "karpool.cli.inspect.get_scale_ups",
        "scale_ups",
        "Nodes that were asked for because workers found no GPU.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def get() -> None:
    """List the promises, moves or scale-ups of the controllers."""
