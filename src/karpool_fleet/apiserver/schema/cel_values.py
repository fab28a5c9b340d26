"""Values of the Common Expression Language: equality, order, arithmetic, and the function library.

Numbers compare across types, true is not 1, and what does not fit together raises CelError. The
tables name every operator and function that rules may use.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from karpool_fleet.apiserver.schema.patterns import compile_pattern

TEXT_MAX = 4_000_000  # characters replace() may produce


class CelError(Exception):
    """The rule could not be evaluated for this object."""


def count_values(value: Any) -> int:
    """How many values there are in a value, itself included."""
    count, pending = 0, [value]
    while pending:
        item = pending.pop()
        count += 1
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
    return count


def truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise CelError(f"needs true or false, not {value!r:.60}")


def number(value: Any) -> Any:
    if type(value) is int or type(value) is float:
        return value
    raise CelError(f"needs a number, not {value!r:.60}")


def equal(left: Any, right: Any) -> bool:
    """Equality of CEL: numbers compare across types, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _less(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left < right
    return bool(number(left) < number(right))


def _contains(item: Any, container: Any) -> bool:
    if isinstance(container, list):
        return any(equal(item, member) for member in container)
    if isinstance(container, dict):
        return isinstance(item, str | int) and item in container
    raise CelError(f"needs a list or a map after in, not {container!r:.60}")


def _add(left: Any, right: Any) -> Any:
    for kind in (str, list):
        if isinstance(left, kind) and isinstance(right, kind):
            return left + right  # type: ignore[operator]  # both are of `kind`
    return number(left) + number(right)


def _divide(left: Any, right: Any) -> Any:
    left, right = number(left), number(right)
    if right == 0:
        raise CelError("divides by zero")
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _modulo(left: Any, right: Any) -> Any:
    return number(left) - _divide(left, right) * number(right)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: not _less(right, left),
    ">=": lambda left, right: not _less(left, right),
    "in": _contains,
    "+": _add,
    "-": lambda left, right: number(left) - number(right),
    "*": lambda left, right: number(left) * number(right),
    "/": _divide,
    "%": _modulo,
}


def _int(value: Any) -> int:
    if isinstance(value, str):
        if not (value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) < 21):
            raise ValueError
        return int(value)
    return int(number(value))


def _double(value: Any) -> float:
    return float(value) if isinstance(value, str) else float(number(value))


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(number(value))


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "t", "f", "1", "0"):
        return value.lower() in ("true", "t", "1")
    return truth(value)


def _matches(text: str, pattern: str) -> bool:
    return compile_pattern(pattern).matches(text)


def _find(text: str, pattern: str) -> str:
    return compile_pattern(pattern).find(text) or ""


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    return list(text) if separator == "" else text.split(separator, limit - 1 if limit > 0 else -1)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    if (len(text) + 1) * len(new) > TEXT_MAX:
        raise CelError(f"would build a text longer than {TEXT_MAX} characters")
    return text.replace(old, new, limit)


def _index_of(values: Any, item: Any) -> int:
    if isinstance(values, str):
        return values.find(item)
    return next((position for position, value in enumerate(values) if equal(value, item)), -1)


_Entry = tuple[tuple[int, ...], Callable[..., Any]]
FUNCTIONS: dict[str, _Entry] = {
    "size": ((1,), len),
    "int": ((1,), _int),
    "uint": ((1,), _int),
    "double": ((1,), _double),
    "string": ((1,), _string),
    "bool": ((1,), _bool),
    "dyn": ((1,), lambda value: value),
    "matches": ((2,), _matches),
}
METHODS: dict[str, _Entry] = {  # the count includes the receiver
    "size": ((1,), len),
    "contains": ((2,), str.__contains__),
    "startsWith": ((2,), str.startswith),
    "endsWith": ((2,), str.endswith),
    "matches": ((2,), _matches),
    "find": ((2,), _find),
    "lowerAscii": ((1,), str.lower),
    "upperAscii": ((1,), str.upper),
    "trim": ((1,), str.strip),
    "replace": ((3, 4), _replace),
    "split": ((2, 3), _split),
    "join": ((1, 2), lambda values, separator="": separator.join(values)),
    "substring": ((2, 3), lambda text, start, end=None: text[start:end]),
    "charAt": ((2,), lambda text, at: text[at : at + 1]),
    "indexOf": ((2,), _index_of),
    "lastIndexOf": ((2,), str.rfind),
    "isSorted": ((1,), lambda values: all(not _less(b, a) for a, b in pairwise(values))),
    "sum": ((1,), lambda values: sum(number(value) for value in values)),
    "min": ((1,), min),
    "max": ((1,), max),
}
