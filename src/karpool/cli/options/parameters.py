"""Declared options as click parameters: names, help, defaults and ranges; values are read elsewhere.

Commands that take the place of Go binaries read flags as Go does: `--flag`, `--flag=false`, `--flag value`,
`-v=4`, lists with commas or by repeating the flag, underscores for dashes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from karpool.manager.options import InvalidOptions, OptionField, Options, option_fields, read_options

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T", bound=Options)
GO_SPELLING: dict[str, Any] = {"token_normalize_func": lambda name: name.replace("_", "-")}


def controller_command(
    options: type[T], callback: Callable[[T], None], *, help_text: str, epilog: str
) -> click.Command:
    """A command whose flags are the options of one controller."""
    return click.Command(
        options.command,
        callback=lambda **flags: callback(chosen_options(options, flags)),
        params=list(parameters(options)),
        context_settings=GO_SPELLING if options.go_flags else {},
        help=help_text,
        epilog=epilog,
    )


def with_options(options: type[Options], argument: str, *, without: Collection[str] = ()) -> Callable[[F], F]:
    """Adds flags to a command, handed over as one struct."""

    def decorate(command: F) -> F:
        params = parameters(options, without=without)

        @wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            flags = {str(param.name): kwargs.pop(str(param.name)) for param in params}
            return command(*args, **{argument: chosen_options(options, flags)}, **kwargs)

        memo = [*getattr(command, "__click_params__", ()), *reversed(params)]
        wrapped.__click_params__ = memo  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    return decorate


def chosen_options(options: type[T], flags: Mapping[str, Any]) -> T:
    """From what click hands over. Raises UsageError with everything that is wrong."""
    values = {
        field.name: flags[_identifier(field)]
        for field in option_fields(options)
        if flags.get(_identifier(field)) is not None
    }
    try:
        return read_options(options, values)
    except InvalidOptions as error:
        raise click.UsageError(str(error)) from None


def parameters(options: type[Options], *, without: Collection[str] = ()) -> list[click.Option]:
    return [_parameter(field) for field in option_fields(options) if field.name not in without]


def _identifier(field: OptionField) -> str:
    return field.name.replace("-", "_")


def _parameter(field: OptionField) -> click.Option:
    default = field.shown_default
    names = [f"--{field.name}", _identifier(field)]
    if short := field.about.get("short"):
        names.insert(0, f"-{short}")
    shown: dict[str, Any] = {
        "help": field.full_help,
        "default": None if default == "" and field.kind == "choice" else default,
        "show_default": bool(default) or (field.go and field.kind in ("switch", "integer")),
        "metavar": field.about.get("metavar") or ("NAME,..." if field.go and field.many else None),
        "multiple": field.many,
    }
    if field.kind != "switch":
        return click.Option(names, type=_shown_type(field), **shown)
    if field.go:
        return click.Option(names, type=_AsGiven("true|false"), is_flag=False, flag_value="true", **shown)
    if field.default and not field.negated:
        names[0] = f"--{field.name}/--no-{field.name}"
    return click.Option(names, is_flag=True, **shown)


def _shown_type(field: OptionField) -> click.ParamType[Any]:
    match field.kind:
        case "choice":
            return _Choice([choice for choice in field.choices if choice])
        case "integer" if field.most is not None or field.least:
            return _IntegerRange(_whole(field.least), _whole(field.most))
        case "number" if field.least is not None:
            return _NumberRange(field.least, field.most)
        case "number":
            return _AsGiven("float")
        case "file":
            exists = bool(field.about.get("exists"))
            return click.Path(path_type=Path, dir_okay=False, exists=exists)
        case kind:
            return _AsGiven(kind, field.about.get("suggestions", ()))


def _whole(end: float | None) -> int | None:
    return None if end is None else int(end)


class _AsGiven(click.ParamType[Any]):
    """Named in help. What is wrong with a value is said together with everything else that is."""

    def __init__(self, name: str, suggestions: Sequence[str] = ()) -> None:
        self.name = name
        self._suggestions = suggestions

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(text) for text in self._suggestions if text.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


class _Choice(click.Choice[str]):
    convert = _AsGiven.convert


class _IntegerRange(click.IntRange):
    convert = _AsGiven.convert


class _NumberRange(click.FloatRange):
    convert = _AsGiven.convert
