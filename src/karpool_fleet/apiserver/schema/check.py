"""Compiles a schema into a fast yes-or-no check.

Leaves without further conditions are compared by exact type inside the loop of their parent, so that a usual
field costs one look-up and one comparison. The check agrees with `violations.fits` on every value.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.schema.formats import INT64, INTEGER_BOUNDS, STRING_FORMATS
from karpool_fleet.apiserver.schema.structure import SchemaNode
from karpool_fleet.apiserver.schema.violations import fits, identity

Check = Callable[[Any], bool]

_EXACT = {"string": str, "boolean": bool, "object": dict, "array": list}


def compile_check(node: SchemaNode) -> Check | None:
    """Return a check, or None if every value is acceptable."""
    check = _compile(node)
    if check is None or not node.nullable:
        return check
    inner = check
    return lambda value: value is None or inner(value)


def _compile(node: SchemaNode) -> Check | None:
    if not node.type and not node.properties and not _has_conditions(node):
        return None
    if node.any_of or node.one_of or node.all_of or node.negated is not None or node.embedded:
        return lambda value: fits(node, value)  # rare; the slow check is exact
    match node.type:
        case "object":
            return _check_map(node) if node.additional is not None else _check_object(node)
        case "array":
            return _check_array(node)
        case "string":
            return _check_string(node)
        case "boolean":
            return (
                (lambda value: type(value) is bool) if node.enum is None else lambda value: fits(node, value)
            )
        case "integer":
            return _check_integer(node)
        case "quantity":
            return STRING_FORMATS["quantity"]
        case "int-or-string" if node.enum is None and node.minimum is None and node.maximum is None:
            return _check_int_or_string(node)
    return lambda value: fits(node, value)


def _has_conditions(node: SchemaNode) -> bool:
    return any(
        (
            node.enum is not None,
            node.pattern is not None,
            node.any_of,
            node.one_of,
            node.all_of,
            node.negated is not None,
            node.required,
            node.minimum is not None,
            node.maximum is not None,
            node.multiple_of is not None,
            node.items is not None,
            node.additional is not None,
            node.embedded,
            any(getattr(node, bound) is not None for bound in _BOUNDS),
        )
    )


_BOUNDS = ("min_length", "max_length", "min_items", "max_items", "min_properties", "max_properties")


def _check_string(node: SchemaNode) -> Check:
    form = STRING_FORMATS.get(node.format)
    plain = node.pattern is None and node.min_length is None and node.max_length is None
    if node.enum is not None:
        if not plain or form is not None:
            return lambda value: fits(node, value)
        allowed = frozenset(item for item in node.enum if isinstance(item, str))
        return lambda value: type(value) is str and value in allowed
    if plain and form is None:
        return lambda value: type(value) is str
    if plain:
        formed = form
        return lambda value: type(value) is str and formed(value)  # type: ignore[misc]  # not None here
    low, high = node.min_length or 0, node.max_length if node.max_length is not None else 1 << 62
    matches = node.pattern.matches if node.pattern is not None else None

    def check(value: Any) -> bool:
        return (
            type(value) is str
            and low <= len(value) <= high
            and (matches is None or matches(value))
            and (form is None or form(value))
        )

    return check


def _check_int_or_string(node: SchemaNode) -> Check:
    if node.multiple_of or node.min_length is not None or node.max_length is not None:
        return lambda value: fits(node, value)
    matches = node.pattern.matches if node.pattern is not None else None

    def check(value: Any) -> bool:
        return type(value) is int or (type(value) is str and (matches is None or matches(value)))

    return check


def _check_integer(node: SchemaNode) -> Check:
    if node.enum is not None or node.multiple_of:
        return lambda value: fits(node, value)
    low, high = INTEGER_BOUNDS.get(node.format, INT64)
    lowest: float = low if node.minimum is None else max(low, node.minimum)
    highest: float = high if node.maximum is None else min(high, node.maximum)
    if node.exclusive_minimum or node.exclusive_maximum:
        return lambda value: fits(node, value)

    def check(value: Any) -> bool:
        if type(value) is int:
            return lowest <= value <= highest
        return fits(node, value)  # 2.0 counts as an integer

    return check


def _sized(check: Check, low: int | None, high: int | None) -> Check:
    if low is None and high is None:
        return check
    least, most = low or 0, high if high is not None else 1 << 62
    return lambda value: check(value) and least <= len(value) <= most


def _check_array(node: SchemaNode) -> Check:
    item = compile_check(node.items) if node.items is not None else None
    unique = identity(node)
    exact = _exact_type(node.items) if node.items is not None else None
    only = {exact}

    def check(value: Any) -> bool:
        if type(value) is not list:
            return False
        if exact is not None:
            if not set(map(type, value)) <= only:
                return False
        elif item is not None:
            for element in value:
                if not item(element):
                    return False
        if unique is not None and len(value) > 1:
            return len(set(map(unique, value))) == len(value)
        return True

    if node.enum is not None:
        return lambda value: fits(node, value)
    return _sized(check, node.min_items, node.max_items)


def _exact_type(node: SchemaNode) -> type | None:
    """The one Python type of acceptable values, where the type is the only condition."""
    if node.nullable or node.type not in ("string", "boolean"):
        return None
    if node.format in STRING_FORMATS or _has_conditions(node):
        return None
    return _EXACT[node.type]


def _check_map(node: SchemaNode) -> Check:
    if node.properties or node.required or node.enum is not None:
        return lambda value: fits(node, value)
    assert node.additional is not None
    item = compile_check(node.additional)
    only = {_exact_type(node.additional)}

    def check_each(value: Any) -> bool:
        if type(value) is not dict:
            return False
        if item is not None:
            for element in value.values():
                if not item(element):
                    return False
        return True

    def check_types(value: Any) -> bool:
        return type(value) is dict and set(map(type, value.values())) <= only

    return _sized(check_each if None in only else check_types, node.min_properties, node.max_properties)


def _check_object(node: SchemaNode) -> Check:
    if node.enum is not None:
        return lambda value: fits(node, value)
    leaves = {name: exact for name, child in node.properties.items() if (exact := _exact_type(child))}
    checks = {name: test for name, child in node.properties.items() if (test := compile_check(child))}
    required, leaf, step = node.required, leaves.get, checks.get

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for name in required:
            if name not in value:
                return False
        for name, item in value.items():
            if leaf(name) is type(item):
                continue
            nested = step(name)
            if nested is not None and not nested(item):
                return False
        return True

    return _sized(check, node.min_properties, node.max_properties)
