"""`karpool completion`."""

import click
from click.shell_completion import get_completion_class


@click.command(epilog="Example: source <(karpool completion bash)")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script for SHELL.

    kubectl finds completion for `kubectl karpool` in an executable named
    kubectl_complete-karpool.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "karpool", "_KARPOOL_COMPLETE").source())
