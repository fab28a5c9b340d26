"""Flags as Karmada's components take them: names, kinds, defaults, and what is wrong with a value.

Manifests written for the Go binaries start ours unchanged, so flags that have no
effect here are accepted and say so in their help. How a command line spells them is
left to `cli`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from karpool.model import durations
from karpool.model.errors import Invalid, ModelError

Kind = Literal["text", "number", "real", "switch", "duration", "list"]


class InvalidOptions(ModelError):
    """What is wrong with the flags, a line each."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    kind: Kind
    default: Any
    help: str
    short: str = ""
    choices: tuple[str, ...] = ()
    only_accepted: bool = False

    @property
    def full_help(self) -> str:
        return (
            f"{self.help} Accepted for compatibility; has no effect.".lstrip()
            if self.only_accepted
            else self.help
        )


def ignored(name: str, kind: Kind, default: Any, help_text: str = "") -> Flag:
    return Flag(name, kind, default, help_text, only_accepted=True)


# What every Go component takes for its logs and its profiler.
LOGGING_AND_PROFILING: tuple[Flag, ...] = (
    ignored("enable-pprof", "switch", False, "Profiling of the Go binary."),
    ignored("profiling-bind-address", "text", ":6060", "Profiling of the Go binary."),
    ignored("add-dir-header", "switch", False),
    ignored("alsologtostderr", "switch", False),
    ignored("alsologtostderrthreshold", "text", ""),
    ignored("legacy-stderr-threshold-behavior", "switch", True),
    ignored("log-backtrace-at", "text", ":0"),
    ignored("log-dir", "text", ""),
    ignored("log-file", "text", ""),
    ignored("log-file-max-size", "number", 1800),
    ignored("log-flush-frequency", "duration", "5s"),
    ignored("log-text-info-buffer-size", "text", "0"),
    ignored("log-text-split-stream", "switch", False),
    Flag("logging-format", "text", "text", "Form of log lines.", choices=("text", "json")),
    ignored("logtostderr", "switch", True),
    ignored("one-output", "switch", False),
    ignored("skip-headers", "switch", False),
    ignored("skip-log-headers", "switch", False),
    ignored("stderrthreshold", "text", "2"),
    Flag("v", "number", 0, "How much to log, 0 to 5.", short="v"),
    ignored("vmodule", "text", ""),
)


def check_value(flag: Flag, value: Any, *, signed: Collection[str] = ()) -> None:
    """Raises Invalid. Numbers must not be negative, except those of the flags `signed`."""
    name = f"--{flag.name}"
    if flag.choices and value not in flag.choices:
        raise Invalid(name, value, f"must be one of {', '.join(filter(None, flag.choices))}")
    if flag.kind == "duration" and not flag.only_accepted:
        try:
            seconds = durations.seconds(value)
        except Invalid as error:
            raise error.at(name) from None
        if seconds < 0:
            raise Invalid(name, value, "must not be negative")
    if flag.kind in ("number", "real") and value < 0 and flag.name not in signed:
        raise Invalid(name, value, "must not be negative")
