"""Cron schedules as Karpenter's budgets read them: five fields or a macro, in UTC.

Names of months and days are accepted; Sunday is 0 and 7 is an error; `?` is `*`, and `a/s` runs from a to the
end. If both day fields are restricted, either may match.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from karpool.model.errors import Invalid

_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: tuple[tuple[int, int, Mapping[str, int]], ...] = (
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_PART = re.compile(r"(?P<first>\*|\?|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[0-9]+))?\Z")
_TEXT_MAX = 256
# A leap day in a leap year that is also a given weekday: within 40 years or not at all.
_YEARS_MAX = 41


@dataclass(frozen=True, slots=True)
class CronSchedule:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    any_day: bool  # neither day field is restricted, or only one is

    def next_after(self, seconds: float) -> float | None:
        """Return the first time after this one, in seconds since the epoch; None if there is none."""
        time = datetime.fromtimestamp(seconds, UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        last = time.year + _YEARS_MAX
        while time.year <= last:
            if time.month not in self.months or not self._is_day(time):
                time = time.replace(hour=0, minute=0) + timedelta(days=1)
            elif time.hour not in self.hours:
                time = time.replace(minute=0) + timedelta(hours=1)
            elif time.minute not in self.minutes:
                time += timedelta(minutes=1)
            else:
                return time.timestamp()
        return None

    def _is_day(self, time: datetime) -> bool:
        day, weekday = time.day in self.days, (time.weekday() + 1) % 7 in self.weekdays
        return (day and weekday) if self.any_day else (day or weekday)


def parse_schedule(text: str) -> CronSchedule:
    """Parse a schedule. Raises Invalid."""
    whole = _MACROS.get(text.strip(), text)
    fields = whole.split()
    if len(text) > _TEXT_MAX or len(fields) != len(_FIELDS):
        raise Invalid("", text, "is not a schedule; write five fields like 0 9 * * mon-fri, or @daily")
    sets: list[frozenset[int]] = []
    for field, (low, high, names) in zip(fields, _FIELDS, strict=True):
        try:
            sets.append(_values(field, low, high, names))
        except ValueError as error:
            raise Invalid("", text, f"is not a schedule: {error}") from None
    open_day = any(field[:1] in ("*", "?") for field in (fields[2], fields[4]))
    return CronSchedule(sets[0], sets[1], sets[2], sets[3], sets[4], open_day)


def _values(field: str, low: int, high: int, names: Mapping[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for part in field.split(","):
        match = _PART.match(part)
        if match is None:
            raise ValueError(f"{part!r} cannot be read")
        step = int(match["step"]) if match["step"] is not None else 1
        if match["first"] in ("*", "?"):
            if match["last"] is not None:
                raise ValueError(f"{part!r} cannot be read")
            first, last = low, high
        else:
            first = _number(match["first"], names)
            last = first if match["last"] is None else _number(match["last"], names)
            if match["last"] is None and match["step"] is not None:
                last = high
        if not low <= first <= last <= high or step < 1:
            raise ValueError(f"{part!r} is not within {low} to {high}, in order")
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _number(text: str, names: Mapping[str, int]) -> int:
    if text.lower() in names:
        return names[text.lower()]
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text!r} is not a number or a name that belongs there")
    return int(text)
