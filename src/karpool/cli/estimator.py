"""`karpool estimator`: takes the place of karmada-scheduler-estimator, flags and all.

Flags are read as Go reads them: `--flag`, `--flag=false`, `--flag value`, `-v=4`, lists
with commas or by repeating the flag, underscores for dashes.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import click

from karpool.cli import logs
from karpool.cli.output import note
from karpool.cli.serving import run_until_stopped
from karpool.estimator.options import FLAGS, Flag, validate
from karpool.estimator.process import Running, run


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


def _option(flag: Flag) -> click.Option:
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
            given |= {"type": click.Choice([each for each in flag.choices if each])} | (
                {"default": flag.default or None}
            )
    return click.Option(names, **given)


def _estimator(**given: Any) -> None:
    chosen = {flag.name: _value(flag, given[flag.name.replace("-", "_")]) for flag in FLAGS}
    logs.configure(chosen["v"], as_json=chosen["logging-format"] == "json")
    if errors := validate(chosen):
        raise click.UsageError("\n".join(errors))

    def ready(running: Running) -> None:
        note(f"listening on port {running.grpc_port} for {', '.join(running.clusters)}")

    async def serve(stop: asyncio.Event) -> None:
        await run(chosen, stop, ready=ready)

    run_until_stopped(serve)


def _value(flag: Flag, value: Any) -> Any:
    if flag.kind == "list":
        return _split(value)
    return flag.default if value is None else value


def _split(entries: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for entry in entries for each in entry.split(",") if (name := each.strip()))


estimator = click.Command(
    "estimator",
    callback=_estimator,
    params=[_option(flag) for flag in FLAGS],
    context_settings={"token_normalize_func": lambda name: name.replace("_", "-")},
    help="""Answer Karmada's schedulers how many replicas fit into a member cluster.

    Speaks karmada-scheduler-estimator's protocol and takes its flags, so that it can take its place.
    Until every pod of the cluster is counted it answers UNAVAILABLE.
    """,
    epilog="Example: karpool estimator --cluster-name member1 --kubeconfig member1.yaml",
)
