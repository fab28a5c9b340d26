"""`karpool version`."""

import platform

import click

from karpool import __version__
from karpool.cli.output.text import emit, machine


@click.command()
@click.option(
    "-o", "--output", type=click.Choice(["json", "yaml"]), help="Machine-readable format. Default: text."
)
def version(output: str | None) -> None:
    """Print the version."""
    facts = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    emit(machine("Version", facts, output) if output else f"karpool {__version__}")
