"""Binary operators: the types that they accept, their cost, and their result type."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from karpool.model.cel import values as cel
from karpool.model.cel.functions import size_of
from karpool.model.cel.macros import Scope, Term
from karpool.model.cel.syntax import CelCompileError
from karpool.model.cel.types import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    ITEM,
    NULL,
    QUANTITY,
    SEMVER,
    STRING,
    UINT,
    Bindings,
    CelType,
    accepts,
    list_of,
    resolved,
)
from karpool.model.cel.values import CelError

Typed = tuple[Term, CelType]

_NUMBERS = (INT, UINT, DOUBLE)
_ARITHMETIC: dict[str, tuple[Callable[[Any, Any], Any], tuple[CelType, ...]]] = {
    "+": (cel.add, (*_NUMBERS, STRING, list_of(ITEM))),
    "-": (cel.subtract, _NUMBERS),
    "*": (cel.multiply, _NUMBERS),
    "/": (cel.divide, _NUMBERS),
    "%": (cel.modulo, (INT, UINT)),
}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": cel.less,
    ">": lambda left, right: cel.less(right, left),
    "<=": lambda left, right: not cel.less(right, left),
    ">=": lambda left, right: not cel.less(left, right),
}


@dataclass(frozen=True, slots=True)
class CelConstant:
    """A term whose value is known at compile time; it has no cost."""

    value: Any

    def __call__(self, _scope: Scope) -> Any:
        return self.value


def binary(symbol: str, left: Typed, right: Typed, *, mixed: bool) -> Typed:
    """Compile a binary operator. `mixed` allows numbers of different types.

    Raises CelCompileError for types that do not go together.
    """
    if symbol in ("==", "!="):
        return _equality(symbol, left, right, mixed=mixed)
    if symbol == "in":
        return _membership(left, right)
    if symbol in _ORDER:
        return _order(symbol, left, right)
    return _arithmetic(symbol, left, right, mixed=mixed)


def _equality(symbol: str, left: Typed, right: Typed, *, mixed: bool) -> Typed:
    numbers = left[1] in _NUMBERS and right[1] in _NUMBERS
    if not _comparable(left[1], right[1]) and not (numbers and mixed):
        raise CelCompileError(f"compares {left[1]} with {right[1]}")
    verdict, first_term, second_term = symbol == "==", left[0], right[0]

    def same(scope: Scope) -> bool:
        first, second = first_term(scope), second_term(scope)
        if not isinstance(first, list | dict):
            scope.spend(math.ceil(0.1 * min(size_of(first), size_of(second))))
        return cel.equal(first, second, scope.spend) is verdict

    return same, BOOL


def _membership(left: Typed, right: Typed) -> Typed:
    if not _searchable(left[1], right[1]):
        raise CelCompileError(f"looks for {left[1]} in {right[1]}")
    item_term, container_term = left[0], right[0]
    fixed = isinstance(container_term, CelConstant)  # such a list is searched like a set

    def within(scope: Scope) -> bool:
        item, container = item_term(scope), container_term(scope)
        scope.spend(len(container) if isinstance(container, list) and not fixed else 1)
        return cel.contains(item, container, scope.spend)

    return within, BOOL


def _order(symbol: str, left: Typed, right: Typed) -> Typed:
    kinds = left[1], right[1]
    numbers = all(kind.is_open or kind in _NUMBERS for kind in kinds)
    texts = any(all(kind.is_open or kind == one for kind in kinds) for one in (STRING, BOOL))
    if not numbers and not texts:
        raise CelCompileError(f"orders {kinds[0]} and {kinds[1]}")
    compare, first_term, second_term = _ORDER[symbol], left[0], right[0]

    def ordered(scope: Scope) -> bool:
        first, second = first_term(scope), second_term(scope)
        scope.spend(math.ceil(0.1 * min(size_of(first), size_of(second))))
        return compare(first, second)

    return ordered, BOOL


def _arithmetic(symbol: str, left: Typed, right: Typed, *, mixed: bool) -> Typed:
    operation, kinds = _ARITHMETIC[symbol]
    result = next(
        (
            resolved(kind, bound)
            for kind in kinds
            if (bound := bound_types((kind, kind), (left[1], right[1]))) is not None
        ),
        None,
    )
    if result is None:
        raise CelCompileError(f"calculates {left[1]} {symbol} {right[1]}")
    if left[1].is_open and right[1].is_open:
        result = DYN
    first_term, second_term = left[0], right[0]

    def calculate(scope: Scope) -> Any:
        first, second = first_term(scope), second_term(scope)
        # Concatenation copies both sides, so it is charged; the API server has another implementation.
        scope.spend(math.ceil(0.1 * (size_of(first) + size_of(second))))
        if not mixed and type(first) is not type(second):
            raise CelError(f"cannot calculate {first!r:.60} {symbol} {second!r:.60}")
        return operation(first, second)

    return calculate, result


def bound_types(parameters: Sequence[CelType], kinds: Sequence[CelType]) -> Bindings | None:
    bound: Bindings = {}
    return (
        bound
        if all(accepts(parameter, kind, bound) for parameter, kind in zip(parameters, kinds, strict=True))
        else None
    )


_NULLABLE = (QUANTITY, SEMVER)


def _comparable(left: CelType, right: CelType) -> bool:
    if accepts(left, right, {}) or accepts(right, left, {}):
        return True
    return NULL in (left, right) and (left in _NULLABLE or right in _NULLABLE)


def _searchable(item: CelType, container: CelType) -> bool:
    if container.is_open:
        return True
    return container.name in ("list", "map") and accepts(container.arguments[0], item, {})
