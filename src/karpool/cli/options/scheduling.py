"""Flags of the scheduler that decide where something goes, for commands that explain its decisions."""

from collections.abc import Mapping
from typing import Any

import click

from karpool.cli.options.karmada import parameter, values
from karpool.scheduler.controller.options import SCHEDULER_FLAGS, defaults, validate

_NAMES = (
    "plugins",
    "feature-gates",
    "availability",
    "partial-placement",
    "cost",
    "spare-tainted",
    "assumption-ttl",
    "assumption-ttl-limit",
)
_DECIDING = tuple(flag for flag in SCHEDULER_FLAGS if "estimator" in flag.name or flag.name in _NAMES)


def parameters() -> list[click.Parameter]:
    return [parameter(flag) for flag in _DECIDING]


def chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """All flags of a scheduler that is told the same. Raises UsageError for what cannot be."""
    found = defaults(SCHEDULER_FLAGS) | values(_DECIDING, dict(given))
    if errors := validate(SCHEDULER_FLAGS, found):
        raise click.UsageError("\n".join(errors))
    return found
