"""Finds the fields of an object that break a structural schema, and why.

This is the slow, complete check: it runs only for objects that the compiled check (`check`) refuses, and is
what that check is tested against.
"""

import json
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError
from karpool_fleet.apiserver.schema.formats import INT64, INTEGER_BOUNDS, STRING_FORMATS
from karpool_fleet.apiserver.schema.structure import SchemaNode

ERRORS_MAX = 100  # a client needs no more to know what to fix

_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def violations(node: SchemaNode, value: Any, path: str = "") -> list[FieldError]:
    """At most ERRORS_MAX problems, in document order."""
    errors: list[FieldError] = []
    for error in _walk(node, value, path):
        errors.append(error)
        if len(errors) >= ERRORS_MAX:
            break
    return errors


def _walk(node: SchemaNode, value: Any, path: str) -> Iterator[FieldError]:
    if value is None:
        if not node.nullable and (node.type or node.enum):
            yield _type_error(node.type or "value", value, path)
        return
    if not _has_type(node.type, value):
        yield _type_error(node.type, value, path)
        return
    yield from _values(node, value, path)
    yield from _combinations(node, value, path)
    if isinstance(value, dict):
        yield from _object(node, value, path)
    elif isinstance(value, list):
        yield from _array(node, value, path)


def _type_error(wanted: str, value: Any, path: str) -> FieldError:
    actual = "null" if value is None else _TYPE_NAMES.get(type(value), type(value).__name__)
    detail = f"must be of type {wanted}, not {actual}"
    return FieldError(path or "<root>", value, "FieldValueTypeInvalid", detail)


def _invalid(path: str, value: Any, detail: str) -> FieldError:
    return FieldError(path or "<root>", value, "FieldValueInvalid", detail)


def _has_type(wanted: str, value: Any) -> bool:
    actual = type(value)
    match wanted:
        case "":
            return True
        case "object":
            return actual is dict
        case "array":
            return actual is list
        case "string":
            return actual is str
        case "boolean":
            return actual is bool
        case "integer":
            return actual is int or (actual is float and value.is_integer())
        case "number":
            return actual is int or actual is float
        case "int-or-string":
            return actual is int or actual is str
        case "quantity":
            return actual is str or actual is int or actual is float
    raise AssertionError(wanted)


def _values(node: SchemaNode, value: Any, path: str) -> Iterator[FieldError]:
    if node.enum is not None and not any(_same(value, allowed) for allowed in node.enum):
        allowed_text = ", ".join(json.dumps(allowed) for allowed in node.enum)
        yield FieldError(
            path or "<root>", value, "FieldValueNotSupported", f"supported values: {allowed_text}"
        )
    if isinstance(value, str):
        yield from _string(node, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(node, value, path)
    if node.type == "quantity" and not STRING_FORMATS["quantity"](value):
        yield _invalid(path, value, 'is not a quantity; write it like "500m", "2" or "1.5Gi"')


def _string(node: SchemaNode, value: str, path: str) -> Iterator[FieldError]:
    length = len(value)
    if node.max_length is not None and length > node.max_length:
        yield FieldError(
            path or "<root>",
            value,
            "FieldValueTooLong",
            f"may not be longer than {node.max_length} characters",
        )
    elif node.pattern is not None and not node.pattern.matches(value):
        yield _invalid(path, value, f"must match {node.pattern.text!r}")
    if node.min_length is not None and length < node.min_length:
        yield _invalid(path, value, f"must be at least {node.min_length} characters long")
    check = STRING_FORMATS.get(node.format)
    if check is not None and node.type == "string" and not check(value):
        yield _invalid(path, value, f"must be of format {node.format}")


def _number(node: SchemaNode, value: float, path: str) -> Iterator[FieldError]:
    low, high = node.minimum, node.maximum
    if low is not None and (value < low or (node.exclusive_minimum and value == low)):
        yield _invalid(
            path, value, f"must be greater than {'' if node.exclusive_minimum else 'or equal to '}{low}"
        )
    if high is not None and (value > high or (node.exclusive_maximum and value == high)):
        yield _invalid(
            path, value, f"must be less than {'' if node.exclusive_maximum else 'or equal to '}{high}"
        )
    if node.multiple_of and value % node.multiple_of:
        yield _invalid(path, value, f"must be a multiple of {node.multiple_of}")
    if node.type == "integer":
        low, high = INTEGER_BOUNDS.get(node.format, INT64)
        if not low <= value <= high:
            yield _invalid(path, value, f"must be within {low} and {high}")


def _combinations(node: SchemaNode, value: Any, path: str) -> Iterator[FieldError]:
    for branch in node.all_of:
        yield from _walk(branch, value, path)
    if node.any_of and not any(fits(branch, value) for branch in node.any_of):
        yield _invalid(path, value, "must match at least one of the schemas in anyOf")
    if node.one_of and (count := sum(fits(branch, value) for branch in node.one_of)) != 1:
        yield _invalid(path, value, f"must match exactly one of the schemas in oneOf, not {count}")
    if node.negated is not None and fits(node.negated, value):
        yield _invalid(path, value, "must not match the schema in not")


def fits(node: SchemaNode, value: Any) -> bool:
    return next(_walk(node, value, ""), None) is None


def _object(node: SchemaNode, value: dict[str, Any], path: str) -> Iterator[FieldError]:
    if node.min_properties is not None and len(value) < node.min_properties:
        yield _invalid(path, value, f"must have at least {node.min_properties} properties")
    if node.max_properties is not None and len(value) > node.max_properties:
        yield FieldError(
            path or "<root>",
            len(value),
            "FieldValueTooMany",
            f"must have at most {node.max_properties} properties",
        )
    for name in node.required:
        if name not in value:
            yield FieldError(_join(path, name), None, "FieldValueRequired", "is required")
    if node.embedded:
        for name in ("apiVersion", "kind"):
            if not value.get(name) or not isinstance(value[name], str):
                yield FieldError(
                    _join(path, name), value.get(name), "FieldValueRequired", "must not be empty"
                )
    for name, item in value.items():
        child = node.properties.get(name)
        if child is not None:
            yield from _walk(child, item, _join(path, name))
        elif node.additional is not None:
            yield from _walk(node.additional, item, _key(path, name))


def _array(node: SchemaNode, value: list[Any], path: str) -> Iterator[FieldError]:
    if node.min_items is not None and len(value) < node.min_items:
        yield _invalid(path, value, f"must have at least {node.min_items} items")
    if node.max_items is not None and len(value) > node.max_items:
        yield FieldError(
            path or "<root>", len(value), "FieldValueTooMany", f"must have at most {node.max_items} items"
        )
    yield from _duplicates(node, value, path)
    if node.items is not None:
        for index, item in enumerate(value):
            yield from _walk(node.items, item, f"{path}[{index}]")


def _duplicates(node: SchemaNode, value: list[Any], path: str) -> Iterator[FieldError]:
    key_of = identity(node)
    if key_of is None:
        return
    seen: set[Hashable] = set()
    for index, item in enumerate(value):
        key = key_of(item)
        if key in seen:
            yield FieldError(f"{path}[{index}]", item, "FieldValueDuplicate", "occurs more than once")
        seen.add(key)


def identity(node: SchemaNode) -> Callable[[Any], Hashable] | None:
    """Return a function for the unique key of list items, or None."""
    if node.list_type == "set" or node.unique_items:
        return canonical
    if node.list_type == "map" and node.list_map_keys and not node.duplicates:
        return _by_keys(node.list_map_keys)
    return None


def _by_keys(keys: tuple[str, ...]) -> Callable[[Any], Hashable]:
    (first, *_), single = keys, len(keys) == 1

    def one(item: Any) -> Hashable:
        value = item.get(first) if type(item) is dict else item
        return value if type(value) is str else canonical([value])

    def several(item: Any) -> Hashable:
        return canonical([item.get(key) for key in keys] if type(item) is dict else item)

    return one if single else several


def canonical(value: Any) -> str:
    """Return a text that is equal for equal JSON values, whatever the order of keys."""
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:  # nested so deep that a duplicate is not searched for
        return f"value {id(value)}"


def _same(value: Any, allowed: Any) -> bool:
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key(path: str, name: str) -> str:
    return f"{path}[{name}]" if path else name
