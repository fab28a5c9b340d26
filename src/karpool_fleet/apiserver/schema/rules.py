"""Run the validation rules of a schema over an object and the object it replaces.

Rules see the values of valid objects only. A value is compared with its predecessor where the
schema says which one that is: properties, map keys, and items of lists of type map; items of other
lists have no predecessor, so transition rules do not run there.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError
from karpool_fleet.apiserver.schema.cel_rules import Rule
from karpool_fleet.apiserver.schema.structure import SchemaNode
from karpool_fleet.apiserver.schema.violations import ERRORS_MAX, identity

Run = Callable[[Any, Any, str, list[FieldError]], None]


def compile_rules(node: SchemaNode) -> Run | None:
    """Return a function that runs the rules; None when there is no rule at or below the node."""
    own = node.rules
    nested = {name: below for name, child in node.properties.items() if (below := compile_rules(child))}
    others = compile_rules(node.additional) if node.additional is not None else None
    items = compile_rules(node.items) if node.items is not None else None
    if not own and not nested and others is None and items is None:
        return None
    key_of = identity(node) if node.list_type == "map" else None

    def run(value: Any, old: Any, path: str, errors: list[FieldError]) -> None:
        if value is None or len(errors) >= ERRORS_MAX:
            return
        for rule in own:
            _apply(rule, value, old, path, errors)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, item in value.items():
                if (inner := nested.get(name)) is not None:
                    inner(item, before.get(name), f"{path}.{name}" if path else name, errors)
                elif others is not None and name not in node.properties:
                    others(item, before.get(name), f"{path}[{name}]", errors)
        elif items is not None and isinstance(value, list):
            previous = {key_of(item): item for item in old} if key_of and isinstance(old, list) else {}
            for index, item in enumerate(value):
                items(item, previous.get(key_of(item)) if key_of else None, f"{path}[{index}]", errors)

    return run


def _apply(rule: Rule, value: Any, old: Any, path: str, errors: list[FieldError]) -> None:
    if rule.transition and old is None:
        return
    broken = rule.broken(value, old)
    if broken is not None:
        where = (path + rule.field_path).lstrip(".") or "<root>"
        errors.append(FieldError(where, value, rule.reason, broken))
