"""Parses the Common Expression Language into a tree.

The grammar is complete except for message literals and byte strings. The semantics are in `program`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from karpool.model.quantity import INT64_MAX

TEXT_MAX = 10 * 1024  # as for device selectors; rules of definitions are shorter
DEPTH_MAX = 64
UINT64_MAX = 2**64 - 1


class CelCompileError(ValueError):
    """The expression cannot be parsed, mixes types, or uses an unsupported feature; the message says why."""


@dataclass(frozen=True, slots=True)
class Expr:
    """`op` is literal, name, select, index, call, list, map, ?: or an operator symbol.

    `.?select` and `[?index]` read an optional field or item.
    """

    op: str
    args: "tuple[Expr, ...]" = ()
    value: Any = None  # a literal, or the name of the selected field or called function
    target: "Expr | None" = None  # receiver of a member call
    kind: str = ""  # type of a literal: int, uint, double, string, bool or null


_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*(?:\n|\Z))*+(?:
    (?P<end>\Z)|
    (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<int>0[xX][0-9a-fA-F]+[uU]?|\d+[uU]?)
    |(?P<string>[rR]?(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<symbol>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_BINARY = {
    "||": 1,
    "&&": 2,
    "<": 3,
    "<=": 3,
    ">": 3,
    ">=": 3,
    "==": 3,
    "!=": 3,
    "in": 3,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "%": 5,
}
_LITERALS = {"true": True, "false": False, "null": None}


def parse(text: str) -> Expr:
    """Parse an expression. Raises CelCompileError."""
    if len(text) > TEXT_MAX:
        raise CelCompileError(f"is longer than {TEXT_MAX} characters")
    parser = _Parser(_tokens(text))
    expression = parser.expression()
    if parser.kind != "end":
        raise CelCompileError(f"cannot be read from {parser.text!r} on")
    return expression


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while not tokens or tokens[-1][0] != "end":
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise CelCompileError(f"cannot be read from {text[at : at + 20]!r} on")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    @property
    def kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self, symbol: str) -> bool:
        if self.text == symbol and self.kind in ("symbol", "name"):
            self._at += 1
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._take(symbol):
            raise CelCompileError(f"needs {symbol!r} before {self.text!r}")

    def _name(self) -> str:
        if self.kind != "name":
            raise CelCompileError(f"needs a name before {self.text!r}")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def expression(self) -> Expr:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise CelCompileError(f"is nested deeper than {DEPTH_MAX} levels")
        condition = self._binary(1)
        if self._take("?"):
            chosen = self._binary(1)
            self._expect(":")
            condition = Expr("?:", (condition, chosen, self.expression()))
        self._depth -= 1
        return condition

    def _binary(self, level: int) -> Expr:
        if level > 5:
            return self._unary()
        left = self._binary(level + 1)
        while self.kind in ("symbol", "name") and _BINARY.get(self.text) == level:
            operator = self.text
            self._at += 1
            left = Expr(operator, (left, self._binary(level + 1)))
        return left

    def _unary(self) -> Expr:
        for symbol, operator in (("!", "not"), ("-", "negate")):
            count = 0
            while self._take(symbol):
                count += 1
            if count:
                inner = self._member()
                return Expr(operator, (inner,)) if count % 2 else inner
        return self._member()

    def _member(self) -> Expr:
        target = self._primary()
        while True:
            if self._take("."):
                optional = self._take("?")
                name = self._name()
                if optional:
                    target = Expr(".?select", (target,), name)
                elif self._take("("):
                    target = Expr("call", self._arguments(")"), name, target)
                else:
                    target = Expr("select", (target,), name)
            elif self._take("["):
                optional = self._take("?")
                target = Expr("[?index]" if optional else "index", (target, self.expression()))
                self._expect("]")
            else:
                return target

    def _arguments(self, end: str) -> tuple[Expr, ...]:
        arguments: list[Expr] = []
        while not self._take(end):
            arguments.append(self.expression())
            if not self._take(","):
                self._expect(end)
                break
        return tuple(arguments)

    def _primary(self) -> Expr:
        kind, text = self.kind, self.text
        if kind in ("int", "float", "string"):
            self._at += 1
            return _literal(kind, text)
        if self._take("("):
            inner = self.expression()
            self._expect(")")
            return inner
        if self._take("["):
            return Expr("list", self._arguments("]"))
        if self._take("{"):
            return Expr("map", self._entries())
        name = self._name()
        if name in _LITERALS:
            value = _LITERALS[name]
            return Expr("literal", value=value, kind="null" if value is None else "bool")
        if self._take("("):
            return Expr("call", self._arguments(")"), name)
        return Expr("name", value=name)

    def _entries(self) -> tuple[Expr, ...]:
        entries: list[Expr] = []
        while not self._take("}"):
            entries.append(self.expression())
            self._expect(":")
            entries.append(self.expression())
            if not self._take(","):
                self._expect("}")
                break
        return tuple(entries)


def _literal(kind: str, text: str) -> Expr:
    if kind == "float":
        return Expr("literal", value=float(text), kind="double")
    if kind == "int":
        unsigned = text[-1] in "uU"
        digits = text.rstrip("uU").lower()
        number = int(digits[:30], 16 if digits.startswith("0x") else 10)
        if len(digits) > 30 or number > (
            UINT64_MAX if unsigned else INT64_MAX + 1
        ):  # one more, for the smallest negative number
            raise CelCompileError(f"has a number that is too large: {text[:40]}")
        return Expr("literal", value=number, kind="uint" if unsigned else "int")
    raw = text[0] in "rR"
    body = text[1:] if raw else text
    quote = 3 if body[:3] in ('"""', "'''") else 1
    body = body[quote:-quote]
    return Expr("literal", value=body if raw else re.sub(_ESCAPE, _unescape, body), kind="string")


_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_SINGLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) == 3:
        return chr(int(code, 8))
    if code in _SINGLE or code in "\\?\"'`":
        return _SINGLE.get(code, code)
    raise CelCompileError(f"has an unknown escape \\{code}")


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and all its parts."""
    pending = [expr]
    while pending:
        inner = pending.pop()
        yield inner
        pending.extend(inner.args)
        if inner.target is not None:
            pending.append(inner.target)
