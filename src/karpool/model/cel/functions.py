"""The functions that expressions may call, each with its signatures and its cost.

A call is checked against the signatures when it is compiled, as far as types are known, and again when it is
made. Costs follow the API server: one for most calls, a tenth per character or item that is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from karpool.model.cel.patterns import BadPattern, compile_pattern
from karpool.model.cel.types import (
    ANY,
    BOOL,
    DOUBLE,
    DYN,
    INT,
    ITEM,
    NULL,
    OTHER,
    QUANTITY,
    SEMVER,
    STRING,
    UINT,
    CelType,
    list_of,
    map_of,
    optional_of,
)
from karpool.model.cel.values import (
    NONE,
    CelError,
    CelOptional,
    CelQuantity,
    CelSemver,
    equal,
    less,
    normalized_semver,
    number,
    quantity_of,
    semver_of,
    truth,
    within_int64,
)
from karpool.model.errors import Invalid

TEXT_MAX = 4_000_000  # limits the characters that a function may produce
INCLUDES_MAX = 48  # limits the values of one list attribute

Cost = Callable[..., float]


def one(*_values: Any) -> float:
    return 1


def _nothing(*_values: Any) -> float:
    return 0


def size_of(value: Any) -> int:
    if isinstance(value, CelOptional) and value.is_set:
        return size_of(value.inner)
    return len(value) if isinstance(value, str | list | dict) else 1


def traversal(*values: Any) -> float:
    """Return the cost of one pass over the first argument."""
    return math.ceil(0.1 * size_of(values[0]))


def _twice(*values: Any) -> float:
    return math.ceil(0.2 * size_of(values[0]))


def _per_item(*values: Any) -> float:
    items = values[0]
    texts = isinstance(items, list) and any(isinstance(item, str) for item in items)
    return size_of(items) + (math.ceil(0.1 * sum(map(size_of, items))) if texts else 0)


def _pattern_cost(text: str, pattern: str, *_limit: int) -> float:
    return math.ceil(0.1 * (1 + len(text))) * math.ceil(0.25 * len(pattern))


def _contains_cost(text: str, part: str) -> float:
    return math.ceil(0.1 * len(text)) * math.ceil(0.1 * len(part))


@dataclass(frozen=True, slots=True)
class Overload:
    parameters: tuple[CelType, ...]  # the receiver first
    result: CelType
    call: Callable[..., Any]
    cost: Cost = one


def _int(value: Any) -> int:
    if isinstance(value, str):
        if not (value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) < 21):
            raise CelError(f"cannot make an integer of {value!r:.60}")
        return int(within_int64(int(value)))
    if isinstance(value, float) and not math.isfinite(value):
        raise CelError(f"cannot make an integer of {value!r}")
    return int(within_int64(int(number(value))))


def _uint(value: Any) -> int:
    amount = _int(value)
    if amount < 0:
        raise CelError(f"cannot make an unsigned integer of {amount}")
    return amount


def _double(value: Any) -> float:
    try:
        return float(value) if isinstance(value, str) else float(number(value))
    except ValueError:
        raise CelError(f"cannot make a number of {value!r:.60}") from None


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(number(value))


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "t", "f", "1", "0"):
        return value.lower() in ("true", "t", "1")
    return truth(value)


def _pattern(text: str) -> Any:
    try:
        return compile_pattern(text)
    except BadPattern as error:
        raise CelError(f"has a pattern that {error}") from None


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    occurrences: list[str] = _pattern(pattern).find_all(text)
    return occurrences if limit < 0 else occurrences[:limit]


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    return list(text) if separator == "" else text.split(separator, limit - 1 if limit > 0 else -1)


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    if (len(text) + 1) * len(new) > TEXT_MAX:
        raise CelError(f"would build a text longer than {TEXT_MAX} characters")
    return text.replace(old, new, limit)


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise CelError(f"reads [{start}, {last}] of a text of {len(text)} characters")
    return text[start:last]


def _char_at(text: str, position: int) -> str:
    if not 0 <= position <= len(text):
        raise CelError(f"reads position {position} of a text of {len(text)} characters")
    return text[position : position + 1]


def _join(values: list[Any], separator: str = "") -> str:
    if not all(isinstance(value, str) for value in values):
        raise CelError("joins values that are no texts")
    return separator.join(values)


def _index_of(values: Any, item: Any, start: int = 0) -> int:
    if isinstance(values, str):
        return values.find(item, start)
    return next((position for position, value in enumerate(values) if equal(value, item)), -1)


def _last_index_of(values: Any, item: Any) -> int:
    if isinstance(values, str):
        return values.rfind(item)
    return max((position for position, value in enumerate(values) if equal(value, item)), default=-1)


def _least(values: list[Any]) -> Any:
    if not values:
        raise CelError("asks for the smallest value of an empty list")
    smallest = values[0]
    for value in values[1:]:
        smallest = value if less(value, smallest) else smallest
    return smallest


def _greatest(values: list[Any]) -> Any:
    if not values:
        raise CelError("asks for the largest value of an empty list")
    largest = values[0]
    for value in values[1:]:
        largest = value if less(largest, value) else largest
    return largest


def _distinct(values: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if not any(equal(value, other) for other in kept):
            kept.append(value)
    return kept


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(values):
        raise CelError(f"reads [{start}, {end}] of a list of {len(values)}")
    return values[start:end]


def _flatten(values: list[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list):
            flat.extend(value)
        else:
            flat.append(value)
    return flat


def _read(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except Invalid as error:
        raise CelError(str(error)) from None


def _is(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except Invalid:
        return False
    return True


def _versions(normal: bool) -> Callable[[str], CelSemver]:
    return normalized_semver if normal else semver_of


def _sign(amount: CelQuantity) -> int:
    return (amount.nanos > 0) - (amount.nanos < 0)


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _includes(values: Any, item: Any) -> bool:
    """Whether a list contains the item, or a single value equals it."""
    if isinstance(values, list):
        if len(values) > INCLUDES_MAX:
            raise CelError(f"asks includes() of a list of more than {INCLUDES_MAX} values")
        return any(_equal_or_not(value, item) for value in values)
    return _equal_or_not(values, item)


def _equal_or_not(left: Any, right: Any) -> bool:
    try:
        return equal(left, right)
    except CelError:
        return False


def _is_zero(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float | str | list | dict) and not value)


def _all_in(values: list[Any], others: list[Any]) -> bool:
    return all(any(_equal_or_not(value, other) for other in others) for value in values)


_TEXTS, _ITEMS = list_of(STRING), list_of(ITEM)
_SCALARS = (INT, UINT, DOUBLE, STRING, BOOL)
_OPTION = optional_of(ITEM)


def _order(kind: CelType) -> list[tuple[str, Overload]]:
    return [
        ("isGreaterThan", Overload((kind, kind), BOOL, lambda left, right: left > right)),
        ("isLessThan", Overload((kind, kind), BOOL, lambda left, right: left < right)),
        ("compareTo", Overload((kind, kind), INT, _compare)),
    ]


def _table(entries: Sequence[tuple[str, Overload]]) -> dict[str, tuple[Overload, ...]]:
    table: dict[str, tuple[Overload, ...]] = {}
    for name, overload in entries:
        table[name] = (*table.get(name, ()), overload)
    return table


_SIZES = [Overload((kind,), INT, len) for kind in (STRING, _ITEMS, map_of(ITEM, OTHER))]

FUNCTIONS = _table(
    [
        *(("size", overload) for overload in _SIZES),
        *(("int", Overload((kind,), INT, _int)) for kind in (INT, UINT, DOUBLE, STRING)),
        *(("uint", Overload((kind,), UINT, _uint)) for kind in (UINT, INT, DOUBLE, STRING)),
        *(("double", Overload((kind,), DOUBLE, _double)) for kind in (DOUBLE, INT, UINT, STRING)),
        *(("string", Overload((kind,), STRING, _string)) for kind in _SCALARS),
        *(("bool", Overload((kind,), BOOL, _bool)) for kind in (BOOL, STRING)),
        ("dyn", Overload((ITEM,), DYN, lambda value: value)),
        (
            "matches",
            Overload((STRING, STRING), BOOL, lambda text, p: _pattern(p).matches(text), _pattern_cost),
        ),
        ("quantity", Overload((STRING,), QUANTITY, lambda text: _read(quantity_of, text), traversal)),
        ("isQuantity", Overload((STRING,), BOOL, lambda text: _is(quantity_of, text), traversal)),
        ("sign", Overload((QUANTITY,), INT, _sign)),
        ("semver", Overload((STRING,), SEMVER, lambda text: _read(semver_of, text), traversal)),
        (
            "semver",
            Overload((STRING, BOOL), SEMVER, lambda text, normal: _read(_versions(normal), text), traversal),
        ),
        ("isSemver", Overload((STRING,), BOOL, lambda text: _is(semver_of, text), traversal)),
        (
            "isSemver",
            Overload((STRING, BOOL), BOOL, lambda text, normal: _is(_versions(normal), text), traversal),
        ),
        ("optional.of", Overload((ITEM,), _OPTION, lambda value: CelOptional(True, value))),
        ("optional.none", Overload((), _OPTION, lambda: NONE)),
        (
            "optional.ofNonZeroValue",
            Overload((ITEM,), _OPTION, lambda value: NONE if _is_zero(value) else CelOptional(True, value)),
        ),
        ("lists.range", Overload((INT,), list_of(INT), lambda n: list(range(min(n, TEXT_MAX))), lambda n: n)),
        (
            "sets.contains",
            Overload((_ITEMS, _ITEMS), BOOL, lambda a, b: _all_in(b, a), lambda a, b: len(a) * len(b)),
        ),
        (
            "sets.equivalent",
            Overload(
                (_ITEMS, _ITEMS),
                BOOL,
                lambda a, b: _all_in(a, b) and _all_in(b, a),
                lambda a, b: 2 * len(a) * len(b),
            ),
        ),
        (
            "sets.intersects",
            Overload(
                (_ITEMS, _ITEMS),
                BOOL,
                lambda a, b: any(_equal_or_not(x, y) for x in a for y in b),
                lambda a, b: len(a) * len(b),
            ),
        ),
    ]
)

METHODS = _table(
    [
        *(("size", overload) for overload in _SIZES),
        ("contains", Overload((STRING, STRING), BOOL, str.__contains__, _contains_cost)),
        ("startsWith", Overload((STRING, STRING), BOOL, str.startswith, traversal)),
        ("endsWith", Overload((STRING, STRING), BOOL, str.endswith, traversal)),
        (
            "matches",
            Overload((STRING, STRING), BOOL, lambda text, p: _pattern(p).matches(text), _pattern_cost),
        ),
        (
            "find",
            Overload((STRING, STRING), STRING, lambda text, p: _pattern(p).find(text) or "", _pattern_cost),
        ),
        ("findAll", Overload((STRING, STRING), _TEXTS, _find_all, _pattern_cost)),
        ("findAll", Overload((STRING, STRING, INT), _TEXTS, _find_all, _pattern_cost)),
        ("lowerAscii", Overload((STRING,), STRING, str.lower, traversal)),
        ("upperAscii", Overload((STRING,), STRING, str.upper, traversal)),
        ("trim", Overload((STRING,), STRING, str.strip, traversal)),
        ("replace", Overload((STRING, STRING, STRING), STRING, _replace, _twice)),
        ("replace", Overload((STRING, STRING, STRING, INT), STRING, _replace, _twice)),
        ("split", Overload((STRING, STRING), _TEXTS, _split, _twice)),
        ("split", Overload((STRING, STRING, INT), _TEXTS, _split, _twice)),
        ("join", Overload((_TEXTS,), STRING, _join, _per_item)),
        ("join", Overload((_TEXTS, STRING), STRING, _join, _per_item)),
        ("substring", Overload((STRING, INT), STRING, _substring, traversal)),
        ("substring", Overload((STRING, INT, INT), STRING, _substring, traversal)),
        ("charAt", Overload((STRING, INT), STRING, _char_at)),
        ("indexOf", Overload((STRING, STRING), INT, _index_of, traversal)),
        ("indexOf", Overload((STRING, STRING, INT), INT, _index_of, traversal)),
        ("indexOf", Overload((_ITEMS, ITEM), INT, _index_of, _per_item)),
        ("lastIndexOf", Overload((STRING, STRING), INT, _last_index_of, traversal)),
        ("lastIndexOf", Overload((_ITEMS, ITEM), INT, _last_index_of, _per_item)),
        (
            "isSorted",
            Overload(
                (_ITEMS,), BOOL, lambda values: all(not less(b, a) for a, b in pairwise(values)), _per_item
            ),
        ),
        ("sum", Overload((_ITEMS,), ITEM, lambda values: within_int64(sum(map(number, values))), _per_item)),
        ("min", Overload((_ITEMS,), ITEM, _least, _per_item)),
        ("max", Overload((_ITEMS,), ITEM, _greatest, _per_item)),
        ("distinct", Overload((_ITEMS,), _ITEMS, _distinct, lambda values: len(values) ** 2)),
        ("reverse", Overload((_ITEMS,), _ITEMS, lambda values: values[::-1], _per_item)),
        ("slice", Overload((_ITEMS, INT, INT), _ITEMS, _slice, _per_item)),
        ("flatten", Overload((list_of(list_of(ITEM)),), _ITEMS, _flatten, _per_item)),
        *_order(QUANTITY),
        *_order(SEMVER),
        ("asInteger", Overload((QUANTITY,), INT, CelQuantity.integer)),
        ("asApproximateFloat", Overload((QUANTITY,), DOUBLE, lambda amount: amount.nanos / 10**9)),
        ("isInteger", Overload((QUANTITY,), BOOL, lambda amount: amount.nanos % 10**9 == 0)),
        (
            "add",
            Overload(
                (QUANTITY, QUANTITY), QUANTITY, lambda a, b: CelQuantity(a.nanos + b.nanos, computed=True)
            ),
        ),
        (
            "add",
            Overload((QUANTITY, INT), QUANTITY, lambda a, n: CelQuantity(a.nanos + n * 10**9, computed=True)),
        ),
        (
            "sub",
            Overload(
                (QUANTITY, QUANTITY), QUANTITY, lambda a, b: CelQuantity(a.nanos - b.nanos, computed=True)
            ),
        ),
        (
            "sub",
            Overload((QUANTITY, INT), QUANTITY, lambda a, n: CelQuantity(a.nanos - n * 10**9, computed=True)),
        ),
        ("major", Overload((SEMVER,), INT, lambda version: version.major)),
        ("minor", Overload((SEMVER,), INT, lambda version: version.minor)),
        ("patch", Overload((SEMVER,), INT, lambda version: version.patch)),
        ("hasValue", Overload((_OPTION,), BOOL, lambda option: option.is_set)),
        ("value", Overload((_OPTION,), ITEM, CelOptional.value)),
        (
            "or",
            Overload(
                (_OPTION, _OPTION),
                _OPTION,
                lambda option, other: option if option.is_set else other,
                _nothing,
            ),
        ),
        (
            "orValue",
            Overload(
                (_OPTION, ITEM),
                ITEM,
                lambda option, other: option.inner if option.is_set else other,
                _nothing,
            ),
        ),
    ]
)
# Only for device selectors.
INCLUDES = Overload((DYN, DYN), BOOL, _includes, lambda values, _item: max(size_of(values), 1))

_KINDS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "uint": lambda value: type(value) is int and value >= 0,
    "double": lambda value: type(value) is float,
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "list": lambda value: isinstance(value, list),
    "map": lambda value: isinstance(value, dict),
    "quantity": lambda value: isinstance(value, CelQuantity),
    "semver": lambda value: isinstance(value, CelSemver),
    "optional": lambda value: isinstance(value, CelOptional),
}
assert {kind.name for kind in (*_SCALARS, NULL, QUANTITY, SEMVER)} <= _KINDS.keys()
assert not {ANY.name, DYN.name, ITEM.name} & _KINDS.keys()


def is_of(kind: CelType, value: Any) -> bool:
    """Whether a value may be passed for a parameter of a type."""
    test = _KINDS.get(kind.name)
    return test is None or test(value)
