"""Evaluate the validation rules of CustomResourceDefinitions (`x-kubernetes-validations`).

A rule is compiled once into closures over `self` and `oldSelf`. Supported: all operators, field
and index access, the macros has, all, exists, exists_one, filter and map, conversions, and the
string and list functions listed in `_METHODS`. A rule that needs more raises UnsupportedRule when
it is compiled, so that it can be listed; it is never half evaluated. Evaluation is bounded in
steps, and an error inside a rule refuses the object, as upstream.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from karpool.fleet.apiserver.cel_syntax import Expr, UnsupportedRule, parse
from karpool.fleet.apiserver.patterns import compile_pattern

__all__ = ["CelError", "Rule", "UnsupportedRule", "compile_rule"]

STEPS_MAX = 200_000
TEXT_MAX = 4_000_000  # characters replace() may produce


class CelError(Exception):
    """The rule could not be evaluated for this object."""


class _Scope:
    __slots__ = ("names", "steps")

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.steps = STEPS_MAX

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise CelError(f"needs more than {STEPS_MAX} steps for this object")


Term = Callable[[_Scope], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule; `transition` rules only run where an old value exists."""

    text: str
    transition: bool
    reason: str
    field_path: str
    _message: str
    _term: Term
    _message_term: Term | None

    def broken(self, value: Any, old: Any = None) -> str | None:
        """Why `value` breaks the rule, or None."""
        scope = _Scope({"self": value, "oldSelf": old})
        try:
            if self._term(scope) is True:
                return None
        except CelError as error:
            return f"rule {self.text!r} {error}"
        except (TypeError, ValueError, OverflowError, RecursionError):
            return f"rule {self.text!r} mixes types that do not go together"
        return self._explain(scope)

    def _explain(self, scope: _Scope) -> str:
        if self._message_term is not None:
            try:
                message = self._message_term(scope)
            except (CelError, TypeError, ValueError, OverflowError, RecursionError):
                message = ""
            if isinstance(message, str) and message:
                return message
        return self._message or f"failed rule: {self.text}"


_REASONS = {
    "FieldValueInvalid",
    "FieldValueForbidden",
    "FieldValueRequired",
    "FieldValueDuplicate",
}


def compile_rule(entry: Mapping[str, Any]) -> Rule:
    """The rule of one `x-kubernetes-validations` entry; raises UnsupportedRule."""
    if entry.get("optionalOldSelf"):
        raise UnsupportedRule("uses optionalOldSelf")
    names: set[str] = set()
    term = _compile_text(entry["rule"], names)
    message = entry.get("messageExpression")
    message_term = _compile_text(str(message), set()) if message else None
    reason = entry.get("reason") or "FieldValueInvalid"
    return Rule(
        text=entry["rule"].strip(),
        transition="oldSelf" in names,
        reason=reason if reason in _REASONS else "FieldValueInvalid",
        field_path=str(entry.get("fieldPath") or ""),
        _message=str(entry.get("message") or ""),
        _term=term,
        _message_term=message_term,
    )


def _compile_text(text: str, used: set[str]) -> Term:
    try:
        return _compile(parse(text), frozenset(("self", "oldSelf")), used)
    except RecursionError:
        raise UnsupportedRule("has too many operators in a row") from None


def _compile(expr: Expr, known: frozenset[str], used: set[str]) -> Term:
    match expr.op:
        case "literal":
            constant = expr.value
            return lambda _scope: constant
        case "name":
            return _name(expr.value, known, used)
        case "select":
            target, key = _compile(expr.args[0], known, used), unescape_field(expr.value)
            return lambda scope: _select(target(scope), key)
        case "index":
            target, index = (_compile(argument, known, used) for argument in expr.args)
            return lambda scope: _index(target(scope), index(scope))
        case "call":
            return _call(expr, known, used)
        case "list":
            items = [_compile(argument, known, used) for argument in expr.args]
            return lambda scope: [item(scope) for item in items]
        case "map":
            parts = [_compile(argument, known, used) for argument in expr.args]
            return lambda scope: dict(
                zip((p(scope) for p in parts[::2]), (p(scope) for p in parts[1::2]), strict=True)
            )
    return _operator(expr.op, [_compile(argument, known, used) for argument in expr.args])


def _name(name: str, known: frozenset[str], used: set[str]) -> Term:
    if name not in known:
        raise UnsupportedRule(f"uses {name}, which is not supported")
    used.add(name)
    return lambda scope: scope.names[name]


def unescape_field(name: str) -> str:
    """Property names that are no CEL identifiers are written with escapes (`__dash__`)."""
    if "__" not in name:
        return name
    for escape, text in (("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__underscores__", "__")):
        name = name.replace(escape, text)
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        return name[2:-2]
    return name


def _select(target: Any, key: str) -> Any:
    if isinstance(target, dict) and key in target:
        return target[key]
    raise CelError(f"reads {key}, which is not set")


def _index(target: Any, index: Any) -> Any:
    if isinstance(target, dict) and isinstance(index, str | int) and index in target:
        return target[index]
    if isinstance(target, list) and type(index) is int and 0 <= index < len(target):
        return target[index]
    raise CelError(f"reads [{index!r}], which does not exist")


# Operators ---------------------------------------------------------------------------------------


def _operator(op: str, args: list[Term]) -> Term:
    if op == "?:":
        condition, chosen, other = args
        return lambda scope: chosen(scope) if _truth(condition(scope)) else other(scope)
    if op == "not":
        (inner,) = args
        return lambda scope: not _truth(inner(scope))
    if op == "negate":
        (inner,) = args
        return lambda scope: -_number(inner(scope))
    left, right = args
    if op in ("&&", "||"):
        return _logic(left, right, decisive=op == "||")
    operation = _OPERATIONS[op]
    return lambda scope: operation(left(scope), right(scope))


def _logic(left: Term, right: Term, decisive: bool) -> Term:
    """The decisive value on either side wins even over an error on the other."""

    def evaluate(scope: _Scope) -> bool:
        try:
            if _truth(left(scope)) is decisive:
                return decisive
        except CelError:
            if _truth(right(scope)) is decisive:
                return decisive
            raise
        return _truth(right(scope))

    return evaluate


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise CelError(f"needs true or false, not {value!r:.60}")


def _number(value: Any) -> Any:
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
    return bool(_number(left) < _number(right))


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
    return _number(left) + _number(right)


def _divide(left: Any, right: Any) -> Any:
    left, right = _number(left), _number(right)
    if right == 0:
        raise CelError("divides by zero")
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


def _modulo(left: Any, right: Any) -> Any:
    return _number(left) - _divide(left, right) * _number(right)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: not _less(right, left),
    ">=": lambda left, right: not _less(left, right),
    "in": _contains,
    "+": _add,
    "-": lambda left, right: _number(left) - _number(right),
    "*": lambda left, right: _number(left) * _number(right),
    "/": _divide,
    "%": _modulo,
}


# Calls -------------------------------------------------------------------------------------------


def _call(expr: Expr, known: frozenset[str], used: set[str]) -> Term:
    name, count = expr.value, len(expr.args)
    if name == "has" and expr.target is None:
        return _has(expr, known, used)
    if expr.target is not None and name in _MACROS and count in (2, 3):
        return _macro(expr, known, used)
    arguments = [_compile(argument, known, used) for argument in expr.args]
    if expr.target is not None:
        arguments.insert(0, _compile(expr.target, known, used))
    table = _METHODS if expr.target is not None else _FUNCTIONS
    entry = table.get(name)
    if entry is None or len(arguments) not in entry[0]:
        raise UnsupportedRule(f"calls {name}() with {count} arguments, which is not supported")
    function = entry[1]

    def evaluate(scope: _Scope) -> Any:
        scope.spend()
        values = [argument(scope) for argument in arguments]
        try:
            return function(*values)
        except (TypeError, ValueError, AttributeError, OverflowError):
            raise CelError(f"cannot call {name}() on {values[0]!r:.60}") from None

    return evaluate


def _has(expr: Expr, known: frozenset[str], used: set[str]) -> Term:
    if len(expr.args) != 1 or expr.args[0].op != "select":
        raise UnsupportedRule("calls has() on something that is not a field")
    field = expr.args[0]
    target, key = _compile(field.args[0], known, used), unescape_field(field.value)

    def evaluate(scope: _Scope) -> bool:
        value = target(scope)
        if not isinstance(value, dict):
            raise CelError(f"asks has({key}) of something that is not an object")
        return value.get(key) is not None

    return evaluate


def _macro(expr: Expr, known: frozenset[str], used: set[str]) -> Term:
    assert expr.target is not None
    if expr.args[0].op != "name":
        raise UnsupportedRule(f"calls {expr.value}() without a variable")
    variable = expr.args[0].value
    source = _compile(expr.target, known, used)
    inner = [_compile(argument, known | {variable}, used) for argument in expr.args[1:]]
    combine = _MACROS[expr.value]

    def evaluate(scope: _Scope) -> Any:
        values = source(scope)
        if not isinstance(values, list | dict):
            raise CelError(f"needs a list or a map to call {expr.value}() on, not {values!r:.60}")
        shadowed = scope.names.get(variable)
        try:
            return combine(scope, variable, values, inner)
        finally:
            scope.names[variable] = shadowed

    return evaluate


def _each(scope: _Scope, variable: str, values: Iterable[Any], term: Term) -> Iterable[tuple[Any, Any]]:
    for value in values:
        scope.spend()
        scope.names[variable] = value
        yield value, term(scope)


def _quantified(scope: _Scope, variable: str, values: Iterable[Any], term: Term, decisive: bool) -> bool:
    error: CelError | None = None
    for value in values:
        scope.spend()
        scope.names[variable] = value
        try:
            if _truth(term(scope)) is decisive:
                return decisive
        except CelError as problem:
            error = problem
    if error is not None:
        raise error
    return not decisive


def _exists_one(scope: _Scope, variable: str, values: Iterable[Any], inner: list[Term]) -> bool:
    return sum(_truth(kept) for _, kept in _each(scope, variable, values, inner[0])) == 1


def _filter(scope: _Scope, variable: str, values: Iterable[Any], inner: list[Term]) -> list[Any]:
    return [value for value, kept in _each(scope, variable, values, inner[0]) if _truth(kept)]


def _map(scope: _Scope, variable: str, values: Iterable[Any], inner: list[Term]) -> list[Any]:
    if len(inner) == 2:
        values = _filter(scope, variable, values, inner)
    return [result for _, result in _each(scope, variable, values, inner[-1])]


_MACROS: dict[str, Callable[[_Scope, str, Iterable[Any], list[Term]], Any]] = {
    "all": lambda scope, name, values, inner: _quantified(scope, name, values, inner[0], decisive=False),
    "exists": lambda scope, name, values, inner: _quantified(scope, name, values, inner[0], decisive=True),
    "exists_one": _exists_one,
    "filter": _filter,
    "map": _map,
}


def _int(value: Any) -> int:
    if isinstance(value, str):
        if not (value.removeprefix("-").isascii() and value.removeprefix("-").isdigit() and len(value) < 21):
            raise ValueError
        return int(value)
    return int(_number(value))


def _double(value: Any) -> float:
    return float(value) if isinstance(value, str) else float(_number(value))


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(_number(value))


def _bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false", "t", "f", "1", "0"):
        return value.lower() in ("true", "t", "1")
    return _truth(value)


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
_FUNCTIONS: dict[str, _Entry] = {
    "size": ((1,), len),
    "int": ((1,), _int),
    "uint": ((1,), _int),
    "double": ((1,), _double),
    "string": ((1,), _string),
    "bool": ((1,), _bool),
    "dyn": ((1,), lambda value: value),
    "matches": ((2,), _matches),
}
_METHODS: dict[str, _Entry] = {  # the count includes the receiver
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
    "sum": ((1,), lambda values: sum(_number(value) for value in values)),
    "min": ((1,), min),
    "max": ((1,), max),
}
