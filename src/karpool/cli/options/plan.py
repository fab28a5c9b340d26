"""Flags of the commands that plan consolidation, and the settings that follow from them.

A saved plan carries its flags, so that it is looked at again with the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from karpool.cli.options.cluster import DurationParam, RegionParam
from karpool.consolidation.planning.comparison import overrides
from karpool.consolidation.policy.policy import (
    NO_OVERRIDE,
    PolicyName,
    PolicyOverride,
    parse_policy,
    parse_threshold,
)
from karpool.consolidation.policy.settings import PlanSettings
from karpool.model.kubernetes.meta import decode

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """What can be set for every pool, whatever its policy."""

    spot_to_spot: bool = False
    delete: bool = True
    replace: bool = True
    min_savings_per_hour: float = 0.0
    min_age_seconds: float = 0.0
    heed_budgets: bool = True
    deadline_seconds: float | None = None
    region: str = ""
    policy: str = ""  # empty: as the pools say
    threshold: int = 0

    @property
    def override(self) -> PolicyOverride:
        if not self.policy and not self.threshold:
            return NO_OVERRIDE
        return PolicyOverride(PolicyName(self.policy) if self.policy else None, self.threshold or None)

    def settings(self, override: PolicyOverride) -> PlanSettings:
        return PlanSettings(
            override=override,
            spot_to_spot=self.spot_to_spot,
            delete=self.delete,
            replace=self.replace,
            min_savings_per_hour=self.min_savings_per_hour,
            min_age_seconds=self.min_age_seconds,
            heed_budgets=self.heed_budgets,
            deadline_seconds=self.deadline_seconds,
        )

    def saved(self, override: PolicyOverride) -> dict[str, Any]:
        chosen = {"policy": str(override.name or ""), "threshold": override.k or 0}
        return {**asdict(self), **chosen}


def chosen_policies(policies: Sequence[str], thresholds: Sequence[int]) -> list[PolicyOverride]:
    """What the flags ask to try: thresholds alone mean Balanced, and mean nothing to other policies."""
    if thresholds and policies and PolicyName.BALANCED not in policies:
        raise click.UsageError(f"--threshold is for --policy Balanced, not for {' and '.join(policies)}")
    return overrides([PolicyName(name) for name in policies], thresholds)


def read_flags(saved: Mapping[str, Any]) -> PlanFlags:
    """Of a saved plan. Raises Invalid."""
    flags = decode(dict(saved), PlanFlags)
    if flags.policy:
        parse_policy(flags.policy, "flags.policy")
    if flags.threshold:
        parse_threshold(str(flags.threshold), "flags.threshold")
    return flags


def plan_options(command: F) -> F:
    """Adds the flags, handed over as `flags`."""

    @click.option("--spot-to-spot", is_flag=True, help="Also replace spot nodes by cheaper spot nodes.")
    @click.option("--no-replace", is_flag=True, help="Only delete nodes; never replace them.")
    @click.option("--no-delete", is_flag=True, help="Only replace nodes.")
    @click.option("--min-savings", type=click.FloatRange(0), default=0.0, help="Least saving of a move, $/h.")
    @click.option("--min-age", type=DurationParam(), default="0s", help="Nodes younger than this stay.")
    @click.option("--ignore-budgets", is_flag=True, help="Ignore disruption budgets.")
    @click.option(
        "--deadline", type=DurationParam(), default=None, help="Return the best plan found by then."
    )
    @click.option(
        "--region", type=RegionParam(), default="", help="Whose prices count. Default: the cluster's own."
    )
    @wraps(command)
    def wrapped(
        *args: Any,
        spot_to_spot: bool,
        no_replace: bool,
        no_delete: bool,
        min_savings: float,
        min_age: float,
        ignore_budgets: bool,
        deadline: float | None,
        region: str,
        **kwargs: Any,
    ) -> Any:
        if no_replace and no_delete:
            raise click.UsageError("--no-replace and --no-delete together leave nothing to plan")
        flags = PlanFlags(
            spot_to_spot=spot_to_spot,
            delete=not no_delete,
            replace=not no_replace,
            min_savings_per_hour=min_savings,
            min_age_seconds=min_age,
            heed_budgets=not ignore_budgets,
            deadline_seconds=deadline or None,
            region=region,
        )
        return command(*args, flags=flags, **kwargs)

    return wrapped  # type: ignore[return-value]
