"""Finds and drops unknown fields.

`compile_clean` answers quickly for the usual object, which has none; `prune_in_place` removes them and
returns their paths. Below `x-kubernetes-preserve-unknown-fields` unknown fields stay, and known ones are
still pruned inside.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.schema.structure import SchemaNode

Clean = Callable[[Any], bool]

_EMBEDDED = frozenset(("apiVersion", "kind", "metadata"))


def compile_clean(node: SchemaNode) -> Clean | None:
    """Return a check for unknown fields; None if the value cannot have one."""
    if node.items is not None:
        return _clean_list(node.items)
    if node.additional is not None and not node.properties:
        return _clean_map(node.additional)
    if not _closed(node) and not node.properties:
        return None
    return _clean_object(node)


def _closed(node: SchemaNode) -> bool:
    """Whether unknown names are dropped at this level."""
    return node.type == "object" and not node.preserve_unknown and node.additional is None


def _known(node: SchemaNode) -> frozenset[str]:
    return frozenset(node.properties) | (_EMBEDDED if node.embedded else frozenset())


def _clean_list(items: SchemaNode) -> Clean | None:
    clean = compile_clean(items)
    if clean is None:
        return None

    def check(value: Any) -> bool:
        return all(map(clean, value)) if type(value) is list else True

    return check


def _clean_map(values: SchemaNode) -> Clean | None:
    clean = compile_clean(values)
    if clean is None:
        return None

    def check(value: Any) -> bool:
        return all(map(clean, value.values())) if type(value) is dict else True

    return check


def _clean_object(node: SchemaNode) -> Clean | None:
    nested = {name: clean for name, child in node.properties.items() if (clean := compile_clean(child))}
    other = compile_clean(node.additional) if node.additional is not None else None
    names = _known(node) if _closed(node) else None
    if names is None and not nested and other is None:
        return None
    step = nested.get

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return True
        if names is not None and not value.keys() <= names:
            return False
        for name, item in value.items():
            clean = step(name)
            if clean is not None and not clean(item):
                return False
        return True

    def check_mixed(value: Any) -> bool:
        if type(value) is not dict:
            return True
        for name, item in value.items():
            clean = step(name) or (other if name not in node.properties else None)
            if clean is not None and not clean(item):
                return False
        return True

    if not nested and names is not None:
        only = names
        return lambda value: type(value) is not dict or value.keys() <= only
    return check if other is None else check_mixed


def prune_in_place(node: SchemaNode, value: Any, path: str = "") -> list[str]:
    """Drop unknown fields; return their paths in document order."""
    if isinstance(value, list) and node.items is not None:
        return [p for i, item in enumerate(value) for p in prune_in_place(node.items, item, f"{path}[{i}]")]
    if not isinstance(value, dict):
        return []
    dropped: list[str] = []
    closed, known = _closed(node), _known(node)
    for name in list(value):
        where = f"{path}.{name}" if path else name
        child = node.properties.get(name) or node.additional
        if child is not None:
            dropped += prune_in_place(child, value[name], where)
        elif closed and name not in known:
            del value[name]
            dropped.append(where)
    return dropped
