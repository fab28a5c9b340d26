"""`karpool completion`."""

import click
from click.shell_completion import ShellComplete, get_completion_class


@click.command(epilog="Example: source <(karpool completion bash)")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script for SHELL.

    For `kubectl karpool`, kubectl's own completion script calls the executable kubectl_complete-karpool,
    which is installed with karpool.
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None
    click.echo(shell_class(context.find_root().command, {}, "karpool", "_KARPOOL_COMPLETE").source())


FILES_TOO, NO_FILES = ":0", ":4"  # the last line, in the protocol that kubectl asks plugins with


def for_kubectl(group: click.Command, words: list[str]) -> str:
    """What may follow in the place of the last word: a candidate and its help a line, then a directive."""
    *before, incomplete = words or [""]
    completions = ShellComplete(group, {}, "karpool", "").get_completions(before, incomplete)
    plain = [item for item in completions if item.type == "plain"]
    lines = [f"{item.value}\t{item.help}" if item.help else str(item.value) for item in plain]
    return "\n".join([*lines, NO_FILES if len(plain) == len(completions) else FILES_TOO])
