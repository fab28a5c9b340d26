"""Compiles an expression into closures over its variables.

Types are checked as far as they are known: a wrong type, or an unknown name, field or function, is refused
with a message when the expression is compiled; it is never partly evaluated. Evaluation is bounded: every
step costs what the API server charges for it, and above the limit it ends.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from karpool.model.cel import values as cel
from karpool.model.cel.fields import field_of, has_field, has_item, item_of, read_optional
from karpool.model.cel.functions import FUNCTIONS, METHODS, Overload, is_of
from karpool.model.cel.macros import LIST_COST, MACROS, MAP_COST, TWO_VARIABLES, Scope, Term
from karpool.model.cel.operators import CelConstant, Typed, binary, bound_types
from karpool.model.cel.patterns import BadPattern, compile_pattern
from karpool.model.cel.syntax import CelCompileError, Expr, parse
from karpool.model.cel.types import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    UINT,
    CelType,
    accepts,
    joined,
    list_of,
    map_of,
    optional_of,
    resolved,
)
from karpool.model.cel.values import CelError, CelOptional, truth
from karpool.model.quantity import INT64_MAX

COST_MAX = 1_000_000  # of one evaluation, as for device selectors and for each rule of a definition


@dataclass(frozen=True, slots=True)
class CelProgram:
    """A compiled expression. `used` are the variables that it reads."""

    text: str
    result: CelType
    used: frozenset[str]
    _term: Term

    def evaluate(self, variables: Mapping[str, Any], limit: int = COST_MAX) -> Any:
        """Return the value. Raises CelError or CelCostError."""
        return self.measure(variables, limit)[0]

    def measure(self, variables: Mapping[str, Any], limit: int = COST_MAX) -> tuple[Any, int]:
        """Return the value, and its cost."""
        scope = Scope(dict(variables), limit)
        try:
            return self._term(scope), math.ceil(scope.cost)
        except (TypeError, ValueError, OverflowError, RecursionError, AttributeError):
            raise CelError("mixes types that do not go together") from None


@dataclass(frozen=True)
class CelEnvironment:
    """What expressions of one purpose may use besides the language itself."""

    variables: Mapping[str, CelType]
    methods: Mapping[str, tuple[Overload, ...]] = field(default_factory=dict)
    field_name: Callable[[str], str] = str  # name in an expression to the name of the field
    untyped: bool = False  # field types are unknown, and JSON does not distinguish 1 from 1.0


def compile_program(text: str, environment: CelEnvironment) -> CelProgram:
    """Compile an expression. Raises CelCompileError."""
    compiler = _Compiler(environment)
    try:
        term, kind = compiler.compile(parse(text), dict(environment.variables))
    except RecursionError:
        raise CelCompileError("has too many operators in a row") from None
    return CelProgram(text, kind, frozenset(compiler.used), term)


Names = Mapping[str, CelType]

_LITERALS = {"int": INT, "uint": UINT, "double": DOUBLE, "string": STRING, "bool": BOOL, "null": NULL}
_CONVERSIONS = ("int", "uint", "double", "string", "bool")
_NAMESPACES = ("cel", "optional", "sets", "lists")  # functions written as name.function()


class _Compiler:
    def __init__(self, environment: CelEnvironment) -> None:
        self._environment = environment
        self.used: set[str] = set()

    def compile(self, expr: Expr, names: Names) -> Typed:
        match expr.op:
            case "literal":
                if expr.kind == "int" and expr.value > INT64_MAX:
                    raise CelCompileError(f"has a number that is too large: {expr.value}")
                return CelConstant(expr.value), _LITERALS[expr.kind]
            case "name":
                return self._name(expr.value, names)
            case "select" | ".?select":
                return self._select(expr, names)
            case "index" | "[?index]":
                return self._index(expr, names)
            case "call":
                return self._call(expr, names)
            case "list":
                return self._list(expr, names)
            case "map":
                return self._map(expr, names)
            case "?:":
                return self._conditional(expr, names)
            case "not" | "negate":
                return self._unary(expr, names)
            case "&&" | "||":
                return self._logic(expr, names)
        return self._binary(expr, names)

    def _bool(self, expr: Expr, names: Names, where: str) -> Term:
        term, kind = self.compile(expr, names)
        if not accepts(BOOL, kind, {}):
            raise CelCompileError(f"needs true or false {where}, not {kind}")
        return term

    def _name(self, name: str, names: Names) -> Typed:
        kind = names.get(name)
        if kind is None:
            raise CelCompileError(f"uses {name}, which is not supported")
        self.used.add(name)

        def read(scope: Scope) -> Any:
            scope.spend()
            value = scope.names[name]
            return value.read(scope) if type(value) is _Lazy else value

        return read, kind

    # Fields and items

    def _select(self, expr: Expr, names: Names) -> Typed:
        target, kind = self.compile(expr.args[0], names)
        key = self._environment.field_name(expr.value)
        wrapped = kind.name == "optional"
        inner = self._field(kind.arguments[0] if wrapped else kind, key)
        if expr.op == "select" and not wrapped:

            def read(scope: Scope) -> Any:
                record = target(scope)
                scope.spend()
                return field_of(record, key)

            return read, inner

        def look(scope: Scope) -> CelOptional:
            record = target(scope)
            option = read_optional(
                record, lambda inner: field_of(inner, key), lambda inner: has_field(inner, key)
            )
            scope.spend(option.is_set)
            return option

        return look, optional_of(inner)

    def _field(self, kind: CelType, key: str) -> CelType:
        if kind.is_open:
            return DYN if kind == DYN else kind
        if kind.name == "map":
            return kind.arguments[1]
        if key in kind.fields:
            return kind.fields[key]
        raise CelCompileError(
            f"reads {key}, which {kind} does not have" if kind.fields else f"reads {key} of {kind}"
        )

    def _index(self, expr: Expr, names: Names) -> Typed:
        (target, kind), (index, index_kind) = (self.compile(argument, names) for argument in expr.args)
        wrapped = kind.name == "optional"
        container = kind.arguments[0] if wrapped else kind
        expected = {"list": INT, "map": container.arguments[0] if container.arguments else DYN}
        if not container.is_open and container.name not in expected:
            raise CelCompileError(f"reads [] of {container}")
        if not container.is_open and not accepts(expected[container.name], index_kind, {}):
            raise CelCompileError(f"reads [{index_kind}] of {container}")
        item = container if container.is_open else container.arguments[-1]
        if expr.op == "index" and not wrapped:

            def read(scope: Scope) -> Any:
                values, key = target(scope), index(scope)
                scope.spend()
                return item_of(values, key)

            return read, item

        def look(scope: Scope) -> CelOptional:
            values, key = target(scope), index(scope)
            option = read_optional(
                values, lambda inner: item_of(inner, key), lambda inner: has_item(inner, key)
            )
            scope.spend(option.is_set)
            return option

        return look, optional_of(item)

    def _list(self, expr: Expr, names: Names) -> Typed:
        items = [self.compile(argument, names) for argument in expr.args]
        kind = joined([kind for _, kind in items], strict=not self._environment.untyped)
        if kind is None:
            raise CelCompileError(f"has a list of different types: {', '.join(str(k) for _, k in items[:5])}")
        terms = [term for term, _ in items]
        if all(isinstance(term, CelConstant) for term in terms):
            return CelConstant([term.value for term in terms if isinstance(term, CelConstant)]), list_of(kind)

        def build(scope: Scope) -> list[Any]:
            built = [term(scope) for term in terms]
            scope.spend(LIST_COST)
            return built

        return build, list_of(kind)

    def _map(self, expr: Expr, names: Names) -> Typed:
        parts = [self.compile(argument, names) for argument in expr.args]
        keys, items = parts[::2], parts[1::2]
        strict = not self._environment.untyped
        key_kind = joined([kind for _, kind in keys], strict=strict)
        kind = joined([kind for _, kind in items], strict=strict)
        if key_kind is None or kind is None:
            raise CelCompileError("has a map of different types")
        constants = [term.value for term, _ in parts if isinstance(term, CelConstant)]
        if len(constants) == len(parts):
            built = dict(zip(constants[::2], constants[1::2], strict=True))
            return CelConstant(built), map_of(key_kind, kind)

        def build(scope: Scope) -> dict[Any, Any]:
            built = {key(scope): item(scope) for (key, _), (item, _) in zip(keys, items, strict=True)}
            scope.spend(MAP_COST)
            return built

        return build, map_of(key_kind, kind)

    # Operators

    def _conditional(self, expr: Expr, names: Names) -> Typed:
        condition = self._bool(expr.args[0], names, "before ?")
        (chosen, kind), (other, other_kind) = (self.compile(argument, names) for argument in expr.args[1:])
        common = joined([kind, other_kind])
        if common is None:
            raise CelCompileError(f"chooses between {kind} and {other_kind}")
        return lambda scope: chosen(scope) if truth(condition(scope)) else other(scope), common

    def _unary(self, expr: Expr, names: Names) -> Typed:
        if expr.op == "not":
            inner = self._bool(expr.args[0], names, "after !")

            def negation(scope: Scope) -> bool:
                value = not truth(inner(scope))
                scope.spend()
                return value

            return negation, BOOL
        if expr.args[0].op == "literal" and expr.args[0].kind in ("int", "double"):
            return CelConstant(-expr.args[0].value), _LITERALS[expr.args[0].kind]
        term, kind = self.compile(expr.args[0], names)
        if not (kind.is_open or kind in (INT, DOUBLE)):
            raise CelCompileError(f"negates {kind}")

        def negative(scope: Scope) -> Any:
            value = cel.within_int64(-cel.number(term(scope)))
            scope.spend()
            return value

        return negative, kind

    def _logic(self, expr: Expr, names: Names) -> Typed:
        left, right = (self._bool(argument, names, f"beside {expr.op}") for argument in expr.args)
        decisive = expr.op == "||"

        def evaluate(scope: Scope) -> bool:
            """The deciding value on either side wins, even over an error on the other side."""
            try:
                if truth(left(scope)) is decisive:
                    return decisive
            except (CelError, TypeError, ValueError, OverflowError, AttributeError):
                if truth(right(scope)) is decisive:
                    return decisive
                raise
            return truth(right(scope))

        return evaluate, BOOL

    def _binary(self, expr: Expr, names: Names) -> Typed:
        left, right = (self.compile(argument, names) for argument in expr.args)
        return binary(expr.op, left, right, mixed=self._environment.untyped)

    # Calls

    def _call(self, expr: Expr, names: Names) -> Typed:
        name, target = expr.value, expr.target
        if target is None and name == "has":
            return self._has(expr, names)
        if target is not None and target.op == "name" and target.value in _NAMESPACES:
            if target.value not in names:
                return self._qualified(f"{target.value}.{name}", expr, names)
        elif target is not None and name in MACROS and len(expr.args) in MACROS[name].arguments:
            return self._macro(expr, names)
        elif target is not None and name in ("optMap", "optFlatMap") and len(expr.args) == 2:
            return self._opt_map(expr, names)
        if target is None:
            overloads = FUNCTIONS.get(name, ())
        else:
            overloads = (*METHODS.get(name, ()), *self._environment.methods.get(name, ()))
        return self._overloaded(name, overloads, (*(() if target is None else (target,)), *expr.args), names)

    def _qualified(self, name: str, expr: Expr, names: Names) -> Typed:
        if name == "cel.bind" and len(expr.args) == 3 and expr.args[0].op == "name":
            return self._bind(expr, names)
        return self._overloaded(name, FUNCTIONS.get(name, ()), expr.args, names)

    def _overloaded(
        self, name: str, overloads: Sequence[Overload], arguments: Sequence[Expr], names: Names
    ) -> Typed:
        compiled = [self.compile(argument, names) for argument in arguments]
        kinds = tuple(kind for _, kind in compiled)
        fitting = [
            (overload, bound)
            for overload in overloads
            if len(overload.parameters) == len(kinds)
            and (bound := bound_types(overload.parameters, kinds)) is not None
        ]
        if not fitting:
            shown = ", ".join(map(str, kinds))
            raise CelCompileError(f"calls {name}({shown}), which is not supported")
        if name in ("matches", "find", "findAll"):
            _check_pattern(arguments[1])
        results = joined([resolved(overload.result, bound) for overload, bound in fitting])
        terms, candidates = [term for term, _ in compiled], [overload for overload, _ in fitting]
        if name in _CONVERSIONS and isinstance(terms[0], CelConstant):
            try:
                return CelConstant(candidates[0].call(terms[0].value)), candidates[0].result
            except CelError as error:
                raise CelCompileError(str(error)) from None

        def evaluate(scope: Scope) -> Any:
            passed = [term(scope) for term in terms]
            for overload in candidates:
                if all(map(is_of, overload.parameters, passed)):
                    scope.spend(overload.cost(*passed))
                    return overload.call(*passed)
            raise CelError(f"cannot call {name}() on {passed[0]!r:.60}")

        return evaluate, results or DYN

    def _has(self, expr: Expr, names: Names) -> Typed:
        if len(expr.args) != 1 or expr.args[0].op != "select":
            raise CelCompileError("calls has() on something that is not a field")
        selected = expr.args[0]
        target, kind = self.compile(selected.args[0], names)
        key = self._environment.field_name(selected.value)
        self._field(kind, key)

        def evaluate(scope: Scope) -> bool:
            record = target(scope)
            if not isinstance(record, dict):
                raise CelError(f"asks has({key}) of something that is not an object")
            return has_field(record, key)

        return evaluate, BOOL

    def _bind(self, expr: Expr, names: Names) -> Typed:
        variable = expr.args[0].value
        bound, kind = self.compile(expr.args[1], names)
        term, result = self.compile(expr.args[2], {**names, variable: kind})

        def evaluate(scope: Scope) -> Any:
            with _shadowed(scope, variable, _Lazy(bound)):
                return term(scope)

        return evaluate, result

    def _opt_map(self, expr: Expr, names: Names) -> Typed:
        assert expr.target is not None
        option, kind = self.compile(expr.target, names)
        if expr.args[0].op != "name" or not (kind.is_open or kind.name == "optional"):
            raise CelCompileError(f"calls {expr.value}() on {kind}")
        variable = expr.args[0].value
        inner = kind.arguments[0] if kind.arguments else DYN
        term, result = self.compile(expr.args[1], {**names, variable: inner})
        flat = expr.value == "optFlatMap"

        def evaluate(scope: Scope) -> Any:
            value = option(scope)
            if not isinstance(value, CelOptional) or not value.is_set:
                return cel.NONE
            with _shadowed(scope, variable, value.inner):
                mapped = term(scope)
            return mapped if flat else CelOptional(True, mapped)

        return evaluate, result if flat else optional_of(result)

    def _macro(self, expr: Expr, names: Names) -> Typed:
        assert expr.target is not None
        source, kind = self.compile(expr.target, names)
        if not (kind == DYN or kind.name in ("list", "map")):
            raise CelCompileError(f"calls {expr.value}() on {kind}; it needs a list or a map")
        macro = MACROS[expr.value]
        two = expr.value in TWO_VARIABLES and len(expr.args) > 2
        variables = expr.args[: 2 if two else 1]
        if any(variable.op != "name" for variable in variables):
            raise CelCompileError(f"calls {expr.value}() without a variable")
        first, last = kind.arguments[:1] or (DYN,), kind.arguments[-1:] or (DYN,)
        kinds = (first[0] if kind.name == "map" else INT, last[0]) if two else first
        inside = dict(names)
        inside.update((variable.value, kind) for variable, kind in zip(variables, kinds, strict=True))
        inner = [self.compile(argument, inside) for argument in expr.args[len(variables) :]]
        conditions = inner if macro.result is not None else inner[:-1]
        for _, condition in conditions[:1]:
            if macro.needs_bool or len(inner) == 2:
                _expect_bool(condition, expr.value)
        loop = tuple(variable.value for variable in variables)
        terms = [term for term, _ in inner]

        def evaluate(scope: Scope) -> Any:
            items = source(scope)
            if not isinstance(items, list | dict):
                raise CelError(f"needs a list or a map to call {expr.value}() on, not {items!r:.60}")
            kept = {name: scope.names.get(name) for name in loop}
            try:
                return macro.run(scope, loop, items, terms)
            finally:
                scope.names.update(kept)

        result = macro.result if macro.result is not None else list_of(inner[-1][1])
        if expr.value == "filter":
            result = list_of(first[0])
        return evaluate, result


def _expect_bool(kind: CelType, name: str) -> None:
    if not accepts(BOOL, kind, {}):
        raise CelCompileError(f"needs true or false inside {name}(), not {kind}")


class _Lazy:
    """A variable of `cel.bind`: evaluated on its first use, or never."""

    __slots__ = ("_term", "_value", "is_known")

    def __init__(self, term: Term) -> None:
        self._term, self._value, self.is_known = term, None, False

    def read(self, scope: Scope) -> Any:
        if not self.is_known:
            self._value, self.is_known = self._term(scope), True
        return self._value


def _check_pattern(argument: Expr) -> None:
    if argument.op == "literal" and isinstance(argument.value, str):
        try:
            compile_pattern(argument.value)
        except BadPattern as error:
            raise CelCompileError(f"has a pattern that {error}") from None


class _shadowed:  # noqa: N801 - used like a function
    """Bind a variable while an inner expression is evaluated."""

    def __init__(self, scope: Scope, name: str, value: Any) -> None:
        self._names, self._name = scope.names, name
        self._kept = scope.names.get(name)
        scope.names[name] = value

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._names[self._name] = self._kept
