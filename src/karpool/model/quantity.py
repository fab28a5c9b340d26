"""Kubernetes quantities, exactly, as integers.

`milli_value` and `value` round away from zero, as the Go accessors do, and
saturate at the int64 bounds, where Go wraps. Anything finer than a nano counts
as a nano.
"""

import re
from functools import lru_cache

from karpool.model.errors import Invalid

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>[KMGTPE]i|[eE][+-]?[0-9]+|[numkMGTPE]?)\Z"
)
# Beyond these the decimal exponent alone decides: a number with at most 256 digits
# becomes the saturated value, or one nano.
_TEXT_MAX = 256
_EXPONENT_MAX = 400


@lru_cache(maxsize=65536)
def _nano(text: str) -> int:
    """Return the quantity in nanos, rounded away from zero."""
    match = _QUANTITY.match(text) if len(text) <= _TEXT_MAX else None
    if match is None or not (match["whole"] or match["fraction"]):
        raise Invalid(
            "",
            text,
            'is not a quantity; write a number with an optional suffix, like "500m", "2", "1.5Gi", "1e3"',
        )
    fraction = match["fraction"] or ""
    digits = int((match["whole"] + fraction) or "0")
    suffix = match["suffix"]
    if suffix in _BINARY:
        numerator, exponent = digits << _BINARY[suffix], 9 - len(fraction)
    elif suffix in _DECIMAL:
        numerator, exponent = digits, _DECIMAL[suffix] + 9 - len(fraction)
    else:
        power = max(-_EXPONENT_MAX, min(_EXPONENT_MAX, int(suffix[1:])))
        numerator, exponent = digits, power + 9 - len(fraction)
    nano = numerator * 10**exponent if exponent >= 0 else _divide_up(numerator, 10**-exponent)
    return -nano if match["sign"] == "-" else nano


def _divide_up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _scaled(nano: int, unit: int) -> int:
    """Return nanos in units of `unit` nanos, rounded away from zero, within int64."""
    amount = _divide_up(abs(nano), unit)
    return max(INT64_MIN, -amount) if nano < 0 else min(INT64_MAX, amount)


def nano_value(text: str | int | float) -> int:
    """Return billionths, exactly; not bounded to 64 bits."""
    return _nano(_text(text))


def milli_value(text: str | int | float) -> int:
    """Return thousandths, the unit of CPU."""
    return _scaled(_nano(_text(text)), 10**6)


def value(text: str | int | float) -> int:
    """Return whole units: bytes, pods, devices."""
    return _scaled(_nano(_text(text)), 10**9)


def _text(raw: str | int | float) -> str:
    """Return the text; JSON and YAML also have bare numbers as quantities."""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise Invalid("", raw, "is not a quantity; write a number or a string like 500m")
    if isinstance(raw, int) and abs(raw) >= 10**_TEXT_MAX:
        raise Invalid("", raw, f"has more than {_TEXT_MAX} digits")
    return repr(raw)


def format_milli(milli: int) -> str:
    """Format CPU as people write it: `1500m`, `2`."""
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def format_nano(nanos: int) -> str:
    """Format any amount exactly."""
    whole, rest = divmod(nanos, 10**9)
    if not rest:
        return format_value(whole)
    return f"{nanos // 10**6}m" if nanos % 10**6 == 0 else f"{nanos}n"


def format_value(amount: int) -> str:
    """Format bytes and counts exactly, with the largest binary suffix: `1536Mi`, `2Gi`, `7`."""
    if amount:
        for suffix, shift in reversed(_BINARY.items()):
            if amount % (1 << shift) == 0:
                return f"{amount >> shift}{suffix}"
    return str(amount)


def rounded_milli(milli: int) -> str:
    """Format CPU for reading: `0.25`, `3.5`, `1720`; never an exponent."""
    return _three_digits(milli / 1000)


def rounded_bytes(amount: int) -> str:
    """Format bytes for reading, in the largest unit with a digit before the point: `1.68Ti`, `512Mi`."""
    for suffix, shift in reversed(_BINARY.items()):
        if abs(amount) >= 1 << shift:
            return f"{_three_digits(amount / (1 << shift))}{suffix}"
    return str(amount)


def _three_digits(number: float) -> str:
    decimals = next(digits for digits, least in enumerate((100, 10, 1, 0)) if abs(number) >= least)
    text = f"{number:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
