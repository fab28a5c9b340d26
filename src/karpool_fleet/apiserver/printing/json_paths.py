"""The JSONPath subset of printer columns and scale paths.

Fields (`.spec.nodeName`, `['a.b']`), indices (`[0]`, `[-1]`), slices and wildcards (`[*]`, `.*`),
and filters that compare a field with a literal (`[?(@.type=="Ready")]`). A path gives a list of
values; nothing found is an empty list, never an error.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import Any

PATH_MAX = 1024

Step = Callable[[Any], Iterator[Any]]


class BadPath(ValueError):
    """The path is not of the subset; the message says where."""


_ESCAPED = re.compile(r"\.((?:[^.\[\]\\]|\\.)+)")
_BRACKET = re.compile(r"\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
_INDEX = re.compile(r"\[(-?\d{1,9})\]")
_SLICE = re.compile(r"\[(-?\d{0,9}):(-?\d{0,9})\]")
_FILTER = re.compile(
    r"\[\?\(\s*@((?:\['[^']*'\]|\.(?:[^.\[\]\s\\=!<>()]|\\.)+)+)\s*"
    r"(?:(==|!=|>=|<=|>|<)\s*(\"[^\"]*\"|'[^']*'|-?\d+(?:\.\d+)?|true|false|null)\s*)?\)\]"
)


@lru_cache(maxsize=1024)
def compile_path(text: str) -> Callable[[Any], list[Any]]:
    """A function from an object to the values at the path; raises BadPath."""
    if len(text) > PATH_MAX:
        raise BadPath(f"is longer than {PATH_MAX} characters")
    steps = tuple(_steps(text.strip().removeprefix("{").removesuffix("}").removeprefix("$")))

    def find(obj: Any) -> list[Any]:
        values = [obj]
        for step in steps:
            values = [value for item in values for value in step(item)]
            if not values:
                break
        return values

    return find


def _steps(text: str) -> Iterator[Step]:
    at = 0
    while at < len(text):
        for pattern, make in _SYNTAX:
            match = pattern.match(text, at)
            if match is not None:
                yield make(match)
                at = match.end()
                break
        else:
            raise BadPath(f"cannot be read from {text[at : at + 20]!r} on")


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, dict) and name in value:
            yield value[name]

    return step


def _index(position: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= position < len(value):
            yield value[position]

    return step


def _slice(match: re.Match[str]) -> Step:
    low, high = (int(part) if part else None for part in match.groups())

    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list):
            yield from value[low:high]

    return step


def _each(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _filter(match: re.Match[str]) -> Step:
    left = compile_path(match[1])
    operator, literal = match[2], _literal(match[3])

    def keep(item: Any) -> bool:
        values = left(item)
        if operator is None:
            return bool(values)
        return bool(values) and _compare(operator, values[0], literal)

    def step(value: Any) -> Iterator[Any]:
        yield from (item for item in _each(value) if keep(item))

    return step


def _literal(text: str | None) -> Any:
    if text is None or text == "null":
        return None
    if text[0] in "\"'":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return float(text) if "." in text else int(text)


_ORDER: dict[str, Callable[[Any, Any], bool]] = {">": gt, "<": lt, ">=": ge, "<=": le}


def _compare(operator: str, left: Any, right: Any) -> bool:
    if operator == "==":
        return bool(left == right)
    if operator == "!=":
        return bool(left != right)
    if type(left) is not type(right) or not isinstance(left, str | int | float):
        return False
    return _ORDER[operator](left, right)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


_SYNTAX: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]], ...] = (
    (re.compile(r"\.?\[\*\]|\.\*"), lambda _match: _each),
    (_FILTER, _filter),
    (_INDEX, lambda match: _index(int(match[1]))),
    (_SLICE, _slice),
    (_BRACKET, lambda match: _field(_unescaped(match[1] if match[1] is not None else match[2]))),
    (_ESCAPED, lambda match: _field(_unescaped(match[1]))),
    (re.compile(r"\.\Z"), lambda _match: _whole),
)


def _whole(value: Any) -> Iterator[Any]:
    yield value
