"""Evaluate the validation rules of CustomResourceDefinitions (`x-kubernetes-validations`).

A rule is compiled once into closures over `self` and `oldSelf`. Supported: all operators, field
and index access, the macros has, all, exists, exists_one, filter and map, conversions, and the
string and list functions listed in `cel_values`. A rule that needs more raises UnsupportedRule when
it is compiled, so that it can be listed; it is never half evaluated. Evaluation is bounded in
steps, and an error inside a rule refuses the object, as upstream.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from karpool_fleet.apiserver.schema.cel_syntax import Expr, UnsupportedRule, parse
from karpool_fleet.apiserver.schema.cel_values import (
    FUNCTIONS,
    METHODS,
    OPERATIONS,
    CelError,
    count_values,
    number,
    truth,
)

__all__ = ["CelError", "Rule", "UnsupportedRule", "compile_rule"]

STEPS_MAX = 500_000
_CHARACTERS_PER_STEP = 64
_LOOKS = 10


class _Scope:
    """The variables of one evaluation, and what it may still spend."""

    __slots__ = ("_weight", "names", "steps")

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.steps = STEPS_MAX
        self._weight = 0

    def cost(self, value: Any) -> int:
        """Steps to look through a value; for lists and maps, what the whole object would take."""
        if isinstance(value, str):
            return len(value) // _CHARACTERS_PER_STEP
        if isinstance(value, list | dict):
            if not self._weight:
                self._weight = count_values(self.names["self"]) + count_values(self.names["oldSelf"])
                self.steps += _LOOKS * self._weight  # a large object may be compared, only not often
            return max(self._weight, len(value))
        return 0

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise CelError("needs too many steps for this object")


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
        return lambda scope: chosen(scope) if truth(condition(scope)) else other(scope)
    if op == "not":
        (inner,) = args
        return lambda scope: not truth(inner(scope))
    if op == "negate":
        (inner,) = args
        return lambda scope: -number(inner(scope))
    left, right = args
    if op in ("&&", "||"):
        return _logic(left, right, decisive=op == "||")
    operation = OPERATIONS[op]

    def evaluate(scope: _Scope) -> Any:
        first, second = left(scope), right(scope)
        if op == "in" and isinstance(second, list | dict):
            scope.spend(1 + scope.cost(first) + (len(second) if isinstance(second, list) else 0))
        else:
            scope.spend(1 + scope.cost(first) + scope.cost(second))
        return operation(first, second)

    return evaluate


def _logic(left: Term, right: Term, decisive: bool) -> Term:
    """The decisive value on either side wins even over an error on the other."""

    def evaluate(scope: _Scope) -> bool:
        try:
            if truth(left(scope)) is decisive:
                return decisive
        except CelError:
            if truth(right(scope)) is decisive:
                return decisive
            raise
        return truth(right(scope))

    return evaluate


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
    table = METHODS if expr.target is not None else FUNCTIONS
    entry = table.get(name)
    if entry is None or len(arguments) not in entry[0]:
        raise UnsupportedRule(f"calls {name}() with {count} arguments, which is not supported")
    function = entry[1]

    def evaluate(scope: _Scope) -> Any:
        values = [argument(scope) for argument in arguments]
        scope.spend(1 if name == "size" else 1 + sum(map(scope.cost, values)))
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
            if truth(term(scope)) is decisive:
                return decisive
        except CelError as problem:
            error = problem
    if error is not None:
        raise error
    return not decisive


def _exists_one(scope: _Scope, variable: str, values: Iterable[Any], inner: list[Term]) -> bool:
    return sum(truth(kept) for _, kept in _each(scope, variable, values, inner[0])) == 1


def _filter(scope: _Scope, variable: str, values: Iterable[Any], inner: list[Term]) -> list[Any]:
    return [value for value, kept in _each(scope, variable, values, inner[0]) if truth(kept)]


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
