"""Texts of ages, selectors and lists in tables."""

from typing import Any

from karpool.model.kubernetes.times import parse_rfc3339
from karpool_fleet.apiserver.objects.types import Object

NONE = "<none>"
UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """Format a duration with two units at most: 45s, 3m20s, 5h12m, 2d3h, 40d, 1y20d.

    A slightly negative duration is 0s.
    """
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(total, 0)
    minutes, hours, days, years = total // 60, total // 3600, total // 86400, total // (365 * 86400)
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _pair(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _pair(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if years < 8:
        return _pair(years, "y", days % 365, "d")
    return f"{years}y"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def age(timestamp: str | None, now: float) -> str:
    """Time since an RFC 3339 timestamp."""
    if not timestamp:
        return UNKNOWN
    try:
        return duration(now - parse_rfc3339(timestamp))
    except ValueError:
        return UNKNOWN


def age_of(obj: Object, now: float) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def selector(value: Any) -> str:
    """A label selector, or a plain map of labels, on one line."""
    return selector_text(value) or NONE


def selector_text(selector: Any) -> str:
    """The query form of a label selector, or of the plain map a ReplicationController has."""
    if not isinstance(selector, dict):
        return ""
    structured = "matchLabels" in selector or "matchExpressions" in selector
    labels = (selector.get("matchLabels") or {}) if structured else selector
    terms = [f"{key}={value}" for key, value in sorted(labels.items())]
    for expression in selector.get("matchExpressions") or () if structured else ():
        key, values = expression.get("key"), ",".join(expression.get("values") or ())
        match expression.get("operator"):
            case "In":
                terms.append(f"{key} in ({values})")
            case "NotIn":
                terms.append(f"{key} notin ({values})")
            case "Exists":
                terms.append(f"{key}")
            case "DoesNotExist":
                terms.append(f"!{key}")
    return ",".join(terms)


def labels(value: Any) -> str:
    if not isinstance(value, dict) or not value:
        return NONE
    return ",".join(f"{key}={item}" for key, item in sorted(value.items()))


def joined(values: Any) -> str:
    return ",".join(str(value) for value in values or ()) or NONE


def shown(value: Any) -> str:
    """Format a field that may be missing."""
    return NONE if value is None or value == "" else str(value)
