"""Groups of commands that are imported when they are run, so that help and completion answer at once."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

# name -> (module, attribute, what it does)
Table = Mapping[str, tuple[str, str, str]]


class OutputClosed(Exception):
    """Whoever read our output has seen enough."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and purposes before it has loaded them."""

    def __init__(self, *args: Any, table: Table, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # which click itself would end with 1
            raise OutputClosed from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, attribute, _ = self._table[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Whoever mistypes a command is told of those that are like it, else of all."""
        name = args[0]
        if name in self._table or name.startswith("-"):
            return super().resolve_command(ctx, args)
        commands = self.list_commands(ctx)
        like = get_close_matches(name, commands, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(like)}?" if like else f"there are {', '.join(commands)}"
        raise click.UsageError(f"{name!r} is not a command; {hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        offered = [CompletionItem(name, help=self._table[name][2]) for name in names]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._table[name][2]) for name in self.list_commands(ctx)])
