"""Fill defaults in place, and drop nulls where the schema has no null.

Numbers written where a built-in type has a quantity become strings, so that every reader sees one
form (`cpu: 1` is stored as `"1"`).
"""

import copy
from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.schema.structure import UNSET, SchemaNode

Fill = Callable[[Any], None]


def compile_defaults(node: SchemaNode) -> Fill | None:
    """A function that completes a value in place; None when there is nothing to complete."""
    if node.items is not None:
        return _fill_list(node.items)
    if node.properties or node.fill is not None:
        return _fill_object(node)
    if node.additional is not None:
        return _fill_map(node.additional)
    return None


def _fill_list(items: SchemaNode) -> Fill | None:
    fill = compile_defaults(items)
    if fill is None:
        return None

    def complete(value: Any) -> None:
        if type(value) is list:
            for item in value:
                fill(item)

    return complete


def _fill_map(values: SchemaNode) -> Fill | None:
    if values.type == "quantity":
        return _fill_quantities
    fill = compile_defaults(values)
    if fill is None:
        return None

    def complete(value: Any) -> None:
        if type(value) is dict:
            for item in value.values():
                fill(item)

    return complete


def _fill_quantities(value: Any) -> None:
    if type(value) is dict:
        for name, item in value.items():
            if type(item) is int or type(item) is float:
                value[name] = repr(item)


def _fill_object(node: SchemaNode) -> Fill:
    missing = tuple(
        (name, _maker(child.default)) for name, child in node.properties.items() if child.default is not UNSET
    )
    nested = {name: fill for name, child in node.properties.items() if (fill := compile_defaults(child))}
    never_null = frozenset(name for name, child in node.properties.items() if not child.nullable)
    quantities = tuple(name for name, child in node.properties.items() if child.type == "quantity")
    own, step = node.fill, nested.get
    others = compile_defaults(node.additional) if node.additional is not None else None

    def complete(value: Any) -> None:
        if type(value) is not dict:
            return
        if None in value.values():
            for name in [name for name, item in value.items() if item is None and name in never_null]:
                del value[name]
        for name, make in missing:
            if name not in value:
                value[name] = make()
        for name in quantities:
            if type(value.get(name, "")) in (int, float):
                value[name] = repr(value[name])
        if own is not None:
            own(value)
        for name, item in value.items():
            fill = step(name) or others
            if fill is not None:
                fill(item)

    return complete


def _maker(default: Any) -> Callable[[], Any]:
    if isinstance(default, dict | list):
        return lambda: copy.deepcopy(default)
    return lambda: default
