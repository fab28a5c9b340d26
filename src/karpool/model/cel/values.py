"""Values of the Common Expression Language: equality, order, arithmetic, quantities, versions, optionals.

Numbers compare across types, true is not 1, and incompatible values raise CelError.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Any

from karpool.model import quantity
from karpool.model.errors import Invalid
from karpool.model.quantity import INT64_MAX, INT64_MIN

Spend = Callable[[float], None]
_COMPARING = 0.5  # per value of a list or a map; with the API server's 0.1 the limit would take seconds here


class CelError(Exception):
    """The expression could not be evaluated for this object."""


class CelCostError(Exception):
    """The expression exceeds its cost limit. No operator absorbs this error."""


class OpenMap(dict[str, Any]):
    """A map in which every missing key reads as an empty map."""

    def __missing__(self, key: str) -> Any:
        return {}


@total_ordering
@dataclass(frozen=True, slots=True)
class CelQuantity:
    """A quantity. `computed` by add() or sub(): the API server cannot compare such a one by ==."""

    nanos: int
    computed: bool = field(default=False, compare=False)

    def __lt__(self, other: "CelQuantity") -> bool:
        return self.nanos < other.nanos

    def integer(self) -> int:
        whole, rest = divmod(self.nanos, 10**9)
        if rest or not INT64_MIN <= whole <= INT64_MAX:
            raise CelError("cannot make an integer of a quantity that is none")
        return whole


def quantity_of(text: str | int | float) -> CelQuantity:
    """Parse a quantity. Raises Invalid."""
    return CelQuantity(quantity.nano_value(text))


_SEMVER = re.compile(
    r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,18})"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?\Z"
)


@total_ordering
@dataclass(frozen=True, slots=True)
class CelSemver:
    """A version, compared by precedence: build metadata is ignored, a pre-release precedes its release."""

    major: int
    minor: int
    patch: int
    pre_release: tuple[tuple[int, int | str], ...] = ()  # (0, number) before (1, text)

    def __lt__(self, other: "CelSemver") -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[int, int, int, bool, tuple[tuple[int, int | str], ...]]:
        return self.major, self.minor, self.patch, not self.pre_release, self.pre_release


def semver_of(text: str) -> CelSemver:
    """Parse a strict version with three numbers. Raises Invalid."""
    match = _SEMVER.match(text) if len(text) <= 256 else None
    if match is None:
        raise Invalid("", text, "is not a semantic version; write three numbers like 1.2.3")
    parts: list[tuple[int, int | str]] = []
    for part in match[4].split(".") if match[4] else ():
        if part.isdigit() and len(part) > 1 and part[0] == "0":
            raise Invalid("", text, "has a number with a leading zero in its pre-release")
        parts.append((0, int(part)) if part.isdigit() else (1, part))
    return CelSemver(int(match[1]), int(match[2]), int(match[3]), tuple(parts))


def normalized_semver(text: str) -> CelSemver:
    """Parse a version with an optional v, leading zeros, and missing parts as zeros. Raises Invalid."""
    parts = text.removeprefix("v").split(".", 2)
    if len(parts) < 3 and set(parts[-1]) & set("+-"):
        raise Invalid("", text, "is short and has a pre-release or build metadata")
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped[:1].isdigit() else f"0{stripped}"
    return semver_of(".".join((*parts, "0", "0")[:3]))


@dataclass(frozen=True, slots=True)
class CelOptional:
    is_set: bool = False
    inner: Any = None

    def value(self) -> Any:
        if not self.is_set:
            raise CelError("reads the value of an optional that has none")
        return self.inner


NONE = CelOptional()


def truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise CelError(f"needs true or false, not {value!r:.60}")


def number(value: Any) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise CelError(f"needs a number, not {value!r:.60}")


def within_int64(amount: Any) -> Any:
    if type(amount) is int and not INT64_MIN <= amount <= INT64_MAX:
        raise CelError("leaves the range of 64-bit integers")
    return amount


def _free(_steps: float) -> None:
    pass


def equal(left: Any, right: Any, spend: Spend = _free) -> bool:
    """Whether two values are equal; each comparison is charged. Numbers compare across types."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return False
        spend(_COMPARING * len(left))
        return all(equal(one, other, spend) for one, other in zip(left, right, strict=True))
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return False
        spend(_COMPARING * len(left))
        return all(equal(left[key], right[key], spend) for key in left)
    if isinstance(left, CelQuantity | CelSemver) and right is not None and not _same_object(left, right):
        raise CelError(f"cannot compare {left!r:.60} with {right!r:.60}")
    return bool(left == right)


def _same_object(left: CelQuantity | CelSemver, right: Any) -> bool:
    return type(left) is type(right) and not (isinstance(right, CelQuantity) and right.computed)


def less(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    if type(left) is bool and type(right) is bool:
        return left < right
    return bool(number(left) < number(right))


def contains(item: Any, container: Any, spend: Spend = _free) -> bool:
    if isinstance(container, list):
        return any(_same(item, member, spend) for member in container)
    if isinstance(container, dict):
        return isinstance(item, str | int) and not isinstance(item, bool) and item in container
    raise CelError(f"needs a list or a map after in, not {container!r:.60}")


def _same(left: Any, right: Any, spend: Spend) -> bool:
    try:
        return equal(left, right, spend)
    except CelError:
        return False


def add(left: Any, right: Any) -> Any:
    for kind in (str, list):
        if isinstance(left, kind) and isinstance(right, kind):
            return left + right  # type: ignore[operator]  # both are of `kind`
    left, right = _same_kind(left, right)
    return within_int64(left + right)


def subtract(left: Any, right: Any) -> Any:
    left, right = _same_kind(left, right)
    return within_int64(left - right)


def multiply(left: Any, right: Any) -> Any:
    left, right = _same_kind(left, right)
    return within_int64(left * right)


def divide(left: Any, right: Any) -> Any:
    left, right = _same_kind(left, right)
    if isinstance(left, float):
        return left / right if right else math.copysign(math.inf, left) if left else math.nan
    if right == 0:
        raise CelError("divides by zero")
    quotient = abs(left) // abs(right)
    return within_int64(quotient if (left < 0) == (right < 0) else -quotient)


def modulo(left: Any, right: Any) -> Any:
    left, right = _same_kind(left, right)
    if isinstance(left, float):
        raise CelError("takes % of numbers that are no integers")
    return left - divide(left, right) * right


def _same_kind(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both numbers with one type: JSON writes a float without a fraction like an integer."""
    left, right = number(left), number(right)
    return (left, right) if type(left) is type(right) else (float(left), float(right))
