"""Settings of plans: what callers set for all pools, and the annotations of single pools.

A pool whose annotations cannot be read is closed and reported; the others are not affected.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from zoneinfo import ZoneInfo

import msgspec

from karpool.consolidation.policy.policy import NO_OVERRIDE, PolicyOverride
from karpool.consolidation.policy.scoring import TOLERANCE
from karpool.model import durations
from karpool.model.cron import CronSchedule, parse_schedule
from karpool.model.errors import Invalid
from karpool.model.karpenter.objects import Budget, NodePool
from karpool.model.kubernetes.meta import decode

STOP = "karpool.dev/consolidation-stop"
CONSOLIDATE_AFTER = "karpool.dev/consolidate-after"
CONSOLIDATE_AFTER_EMPTY = "karpool.dev/consolidate-after-empty"
BUDGETS = "karpool.dev/disruption-budgets"
MAINTENANCE_WINDOWS = "karpool.dev/maintenance-windows"
DISRUPTION_RATE = "karpool.dev/disruption-rate"
MOVES = "karpool.dev/consolidation-moves"
PROTECT_YOUNG_TARGETS = "karpool.dev/protect-young-targets"
T = TypeVar("T")
D = TypeVar("D")
_RATE = re.compile(r"\s*([0-9]{1,9})(%?)\s*/\s*([0-9a-zµ.]+)\s*\Z")
_WINDOWS_MAX = 50
_PERCENT_MAX = 100
_CRON_FIELDS = 5
_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")  # other texts would be looked up as a file


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Moves start only inside: from each time of the schedule, for the duration, in the time zone."""

    text: str
    schedule: CronSchedule
    seconds: float
    zone: str = "UTC"

    def is_open(self, now: float) -> bool:
        offset = datetime.fromtimestamp(now, ZoneInfo(self.zone)).utcoffset()
        local = now + (offset.total_seconds() if offset is not None else 0.0)
        hit = self.schedule.next_after(local - self.seconds)
        return hit is not None and hit <= local


@dataclass(frozen=True, slots=True)
class DisruptionRate:
    """At most this number, or percentage, of nodes in any period of this length."""

    nodes: int
    seconds: float
    is_percent: bool = False

    def of(self, nodes: int) -> int:
        """The limit for this number of nodes; a percentage rounds up, as for budgets."""
        return -(-self.nodes * nodes // 100) if self.is_percent else self.nodes

    def __str__(self) -> str:
        return f"{self.nodes}{'%' if self.is_percent else ''} nodes in {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """`exhaustive_up_to`: up to this many candidates every combination is tried.

    `most_use`: nodes with a higher use (of CPU or memory, 0 to 1) stay.
    """

    override: PolicyOverride = NO_OVERRIDE
    tolerance: float = TOLERANCE
    spot_to_spot: bool = False
    delete: bool = True
    replace: bool = True
    most_new_nodes: int = 3  # maximum that one move may request
    most_sources: int = 12  # maximum that one move to new nodes may remove
    min_savings_per_hour: float = 0.0
    min_savings_fraction: float = 0.0  # of the price of the removed nodes
    min_age_seconds: float = 0.0
    most_use: float | None = None
    protect_young_sources: bool = True  # consolidateAfter of the node to remove
    protect_young_targets: bool = True  # consolidateAfter of nodes that would receive its pods
    protect_starting_pods: bool = True
    heed_budgets: bool = True
    windows: tuple[MaintenanceWindow, ...] = ()
    rates: tuple[DisruptionRate, ...] = ()
    deadline_seconds: float | None = None
    exhaustive_up_to: int = 7


DEFAULTS = PlanSettings()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of one pool that override those for all. None: as the NodePool says."""

    stopped: bool = False
    consolidate_after: str | None = None
    consolidate_after_empty: str | None = None
    budgets: Sequence[Budget] | None = None
    windows: tuple[MaintenanceWindow, ...] = ()
    rate: DisruptionRate | None = None
    delete: bool = True
    replace: bool = True
    protect_young_targets: bool | None = None  # of nodes of this pool; None: as for all pools


def pool_settings(pool: NodePool) -> PoolSettings:
    """Raises Invalid naming the annotation."""
    annotations = pool.annotations
    kinds = _read(annotations, MOVES, parse_kinds, frozenset(("delete", "replace")))
    return PoolSettings(
        stopped=_read(annotations, STOP, parse_bool, False),
        consolidate_after=_read(annotations, CONSOLIDATE_AFTER, _checked_wait, None),
        consolidate_after_empty=_read(annotations, CONSOLIDATE_AFTER_EMPTY, _checked_wait, None),
        budgets=_read(annotations, BUDGETS, parse_budgets, None),
        windows=_read(annotations, MAINTENANCE_WINDOWS, parse_windows, ()),
        rate=_read(annotations, DISRUPTION_RATE, parse_rate, None),
        delete="delete" in kinds,
        replace="replace" in kinds,
        protect_young_targets=_read(annotations, PROTECT_YOUNG_TARGETS, parse_bool, None),
    )


def _read(annotations: Mapping[str, str], key: str, parse: Callable[[str], T], default: D) -> T | D:
    if key not in annotations:
        return default
    try:
        return parse(annotations[key])
    except Invalid as error:
        raise error.at(f"metadata.annotations.{key}") from None


def parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise Invalid("", text, 'must be "true" or "false"')
    return text == "true"


def parse_rate(text: str) -> DisruptionRate:
    """`5/1h`: five nodes in any hour; `10%/1h`: a tenth of them."""
    match = _RATE.match(text)
    if match is None:
        raise Invalid("", text, "must be nodes per time, like 5/1h or 10%/1h")
    if match[2] and int(match[1]) > _PERCENT_MAX:
        raise Invalid("", text, "must be a percentage from 0 to 100, like 10%/1h")
    return DisruptionRate(int(match[1]), durations.seconds(match[3]), bool(match[2]))


def parse_windows(text: str) -> tuple[MaintenanceWindow, ...]:
    """Several windows are separated by semicolons; one open window is enough."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if len(parts) > _WINDOWS_MAX:
        raise Invalid("", len(parts), f"must not be more than {_WINDOWS_MAX} windows")
    return tuple(parse_window(part) for part in parts)


def parse_window(text: str) -> MaintenanceWindow:
    """`0 22 * * mon-fri 6h Europe/Paris`: a schedule, a duration, and a time zone (else UTC)."""
    words = text.split()
    fields = 1 if text.startswith("@") else _CRON_FIELDS
    rest = words[fields:]
    if not 1 <= len(rest) <= 2:
        raise Invalid("", text, "must be a cron schedule, a duration, and optionally a time zone")
    zone = rest[1] if len(rest) > 1 else "UTC"
    try:
        if not _ZONE.fullmatch(zone):
            raise ValueError(zone)
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        raise Invalid("", text, f"{zone[:40]} is not a time zone; write one like Europe/Paris") from None
    return MaintenanceWindow(text, parse_schedule(" ".join(words[:fields])), durations.seconds(rest[0]), zone)


def parse_budgets(text: str) -> list[Budget]:
    """JSON, as in `spec.disruption.budgets`."""
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid("", text, f"is not JSON: {error}") from None
    return decode(raw, list[Budget])


def _checked_wait(text: str) -> str:
    durations.seconds_or_never(text)
    return text


def parse_kinds(text: str) -> frozenset[str]:
    kinds = frozenset(part.strip() for part in text.split(","))
    if not kinds <= {"delete", "replace", "none"}:
        raise Invalid("", text, "must be delete, replace, both separated by a comma, or none")
    return kinds


def any_open(windows: Iterable[MaintenanceWindow], now: float) -> bool:
    """Whether moves may start; without windows they always may."""
    chosen = tuple(windows)
    return not chosen or any(window.is_open(now) for window in chosen)
