"""JSONPath as kubectl has it: `{.items[*].name}`, text around it, `{range .items[*]}...{end}`, and filters.

Fields, `['name']`, `[2]`, `[-1]`, `[1:3]`, `[*]`, `..name` and `[?(@.zone=="a")]` with ==, !=, <, <=, >, >=.
What is not there gives nothing, as with kubectl's `--allow-missing-template-keys`.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from karpool.model.errors import Invalid

_LENGTH_MAX = 4096
_STEP = re.compile(
    r"""\.\.(?P<deep>[\w-]+) | \.(?P<name>[\w-]+|\*) | \['(?P<quoted>(?:[^'\\]|\\.)*)'\]
      | \[(?P<index>-?\d+)\] | \[(?P<slice>-?\d*:-?\d*)\] | \[(?P<all>\*)\] | \[\?\((?P<filter>[^)]*)\)\]""",
    re.VERBOSE,
)
_FILTER = re.compile(r"\s*@(?P<path>[^=!<>\s]*)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<value>.+?))?\s*$")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Step = Callable[[Any], Iterator[Any]]


def values_at(document: Any, path: str) -> list[Any]:
    """What a path leads to. Raises Invalid."""
    values = [document]
    for step in _steps(path):
        values = [inner for value in values for inner in step(value)]
    return values


def expand_template(template: str, document: Any) -> str:
    """A template with its expressions filled in. Raises Invalid."""
    if len(template) > _LENGTH_MAX:
        raise Invalid("jsonpath", f"{template[:40]}...", f"is longer than {_LENGTH_MAX} characters")
    parts = _parts(template)
    text, rest = _expanded(parts, document, document)
    if rest:
        raise Invalid("jsonpath", template, "has {end} without {range}")
    return text


def _expanded(parts: Sequence[str], root: Any, current: Any) -> tuple[str, Sequence[str]]:
    """Up to the end, or to the {end} of the range that is open; and what follows it."""
    shown: list[str] = []
    while parts:
        part, parts = parts[0], parts[1:]
        if not part.startswith("{"):
            shown.append(part)
            continue
        expression = part[1:-1].strip()
        if expression == "end":
            return "".join(shown), ["", *parts]
        if expression.startswith("range "):
            rest: Sequence[str] = ()
            values = values_at(_start(expression[6:], root, current), _relative(expression[6:]))
            for value in values:
                text, rest = _expanded(parts, root, value)
                shown.append(text)
            if not values:
                _, rest = _expanded(parts, root, None)
            if not rest:
                raise Invalid("jsonpath", part, "has no {end}")
            parts = rest[1:]
        elif expression[:1] in "\"'" and expression[:1]:
            shown.append(_literal(expression))
        else:
            values = values_at(_start(expression, root, current), _relative(expression))
            shown.append(" ".join(map(show_value, values)))
    return "".join(shown), ()


def _start(expression: str, root: Any, current: Any) -> Any:
    return root if expression.strip().startswith("$") else current


def _relative(expression: str) -> str:
    path = expression.strip().removeprefix("$").removeprefix("@")
    return path if path[:1] in (".", "[", "") else f".{path}"


def _parts(template: str) -> list[str]:
    """Text, and expressions in braces."""
    parts = re.findall(r"""\{(?:[^{}"']|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')*\}|[^{}]+|[{}]""", template)
    for part in parts:
        if part in ("{", "}"):
            raise Invalid("jsonpath", template, "has a brace that is not closed")
    return parts


def _steps(path: str) -> Iterator[Step]:
    position = 0
    if path == ".":
        return
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise Invalid("jsonpath", path, f"cannot be parsed from {path[position : position + 20]!r} on")
        position = match.end()
        yield _step(match)


def _step(match: re.Match[str]) -> Step:
    kind, text = match.lastgroup, match.group(match.lastgroup or 0)
    match kind:
        case "deep":
            return lambda value: _deep(value, text)
        case "quoted":
            return lambda value: _field(value, re.sub(r"\\(.)", r"\1", text))
        case "index":
            return lambda value: _sliced(value, slice(int(text), int(text) + 1 or None))
        case "slice":
            begin, _, end = text.partition(":")
            bounds = slice(int(begin) if begin else None, int(end) if end else None)
            return lambda value: _sliced(value, bounds)
        case "filter":
            return _filter(text)
        case _ if text == "*":
            return _every
    return lambda value: _field(value, text)


def _field(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _sliced(value: Any, bounds: slice) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value[bounds]


def _every(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _deep(value: Any, name: str) -> Iterator[Any]:
    yield from _field(value, name)
    for inner in _every(value):
        yield from _deep(inner, name)


def _filter(text: str) -> Step:
    match = _FILTER.match(text)
    if match is None:
        raise Invalid("jsonpath", text, 'is not a filter; write it like ?(@.zone=="a")')
    path, sign, expected = match["path"], match["operator"], _literal(match["value"] or "")
    steps = list(_steps(path))

    def chosen(value: Any) -> Iterator[Any]:
        for inner in _every(value):
            ends = [inner]
            for step in steps:
                ends = [below for end in ends for below in step(end)]
            if any(sign is None or _holds(sign, end, expected) for end in ends):
                yield inner

    return chosen


def _holds(sign: str, value: Any, expected: Any) -> bool:
    if value is None:  # neither more nor less than anything
        return (sign == "==") == (expected == "null") if sign in ("==", "!=") else False
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            expected = float(expected)
        except ValueError:
            return sign == "!="
    else:
        value = show_value(value)
    return bool(_OPERATORS[sign](value, expected))


def _literal(text: str) -> str:
    if text[:1] not in ("'", '"'):
        return text
    if len(text) < 2 or text[-1] != text[0]:
        raise Invalid("jsonpath", text, "has a string without a closing quote")
    inner = text[1:-1]
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), inner)


def show_value(value: Any) -> str:
    """A value in text, as kubectl prints it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
