"""Go durations: `720h`, `1h30m`, `0s`, and Karpenter's `Never`.

The syntax is that of Go's time.ParseDuration, which Kubernetes objects use for every duration in a string.
Results are in seconds.
"""

import re
from functools import lru_cache

from karpool.model.errors import Invalid

NEVER = "Never"

_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART = re.compile(r"(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<unit>ns|us|µs|μs|ms|s|m|h)")
_TEXT_MAX = 128
_NANOSECONDS_MAX = 2**63 - 1  # about 292 years; Go refuses more


@lru_cache(maxsize=1024)  # the same few durations of pools are parsed for every node
def seconds(text: str) -> float:
    """Parse a duration. Raises Invalid for anything that Go would not parse."""
    sign, rest = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    nanoseconds = 0 if rest == "0" else _total(text, rest)
    return -nanoseconds / 1e9 if sign == "-" else nanoseconds / 1e9


def seconds_or_never(text: str) -> float | None:
    """Parse a duration that is not negative; None for `Never`."""
    if text == NEVER:
        return None
    amount = seconds(text)
    if amount < 0:
        raise Invalid("", text, "must not be negative")
    return amount


def _total(text: str, rest: str) -> int:
    position = total = 0
    if not rest or len(text) > _TEXT_MAX:
        raise _not_a_duration(text)
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None or not (part["whole"] or part["fraction"]):
            raise _not_a_duration(text)
        unit, fraction = _NANOSECONDS[part["unit"]], part["fraction"] or ""
        total += int(part["whole"] or "0") * unit
        total += int(fraction or "0") * unit // 10 ** len(fraction)
        position = part.end()
    if total > _NANOSECONDS_MAX:
        raise Invalid("", text, "is longer than 292 years")
    return total


def _not_a_duration(text: str) -> Invalid:
    return Invalid("", text, "is not a duration; write it like 30s, 1h30m or 720h")


def show(amount: float | None) -> str:
    """Format for messages: `1h30m`, `45s`, `0s`; `Never` for None."""
    if amount is None:
        return NEVER
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    whole = int(amount)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, amount - whole // 60 * 60
    parts = [f"{hours}h"] if hours else []
    if minutes:
        parts.append(f"{minutes}m")
    if rest or not parts:
        parts.append(f"{rest:.9f}".rstrip("0").rstrip(".") + "s")
    return sign + "".join(parts)
