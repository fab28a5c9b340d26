"""Flags read as Go reads them, for commands that take the place of Go binaries.

`--flag`, `--flag=false`, `--flag value`, `-v=4`, lists with commas or by repeating the
flag, underscores for dashes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from karpool.kube.flags import Flag

SPELLING: dict[str, Any] = {"token_normalize_func": lambda name: name.replace("_", "-")}


def parameters(flags: Sequence[Flag]) -> list[click.Parameter]:
    return [parameter(flag) for flag in flags]


def values(flags: Sequence[Flag], given: Mapping[str, Any]) -> dict[str, Any]:
    """What click hands over, by the names of the flags."""
    return {flag.name: _value(flag, given[flag.name.replace("-", "_")]) for flag in flags}


class _Switch(click.ParamType[bool]):
    name = "true|false"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        text = str(value).lower()
        if text not in ("1", "t", "true", "0", "f", "false"):
            self.fail(f"{value!r} is neither true nor false", param, ctx)
        return text in ("1", "t", "true")


class _Number(click.ParamType[int]):
    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return int(str(value).removeprefix("="))  # `-v=4`
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)


def parameter(flag: Flag) -> click.Option:
    names = [f"--{flag.name}", flag.name.replace("-", "_")]
    if flag.short:
        names.insert(0, f"-{flag.short}")
    given: dict[str, Any] = {
        "help": flag.full_help,
        "default": flag.default,
        "show_default": bool(flag.default),
    }
    match flag.kind:
        case "switch":
            given |= {"type": _Switch(), "is_flag": False, "flag_value": "true", "show_default": True}
        case "number":
            given |= {"type": _Number(), "show_default": True}
        case "real":
            given |= {"type": float}
        case "list":
            given |= {"multiple": True, "metavar": "NAME,..."}
        case _ if flag.choices:
            given |= {"type": click.Choice([choice for choice in flag.choices if choice])} | (
                {"default": flag.default or None}
            )
    return click.Option(names, **given)


def _value(flag: Flag, value: Any) -> Any:
    if flag.kind == "list":
        return _split(value)
    return flag.default if value is None else value


def _split(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for entry in entries for part in entry.split(",") if (name := part.strip()))
