"""Apply a structural schema to objects: prune, default, validate.

A schema is compiled once into closures that answer "is this object clean?" without building a
path or an error; only objects that are not take the explaining walk (`violations`). Call the
three in the order prune, default, validate: defaulting also removes nulls that the schema
does not allow, as upstream.

Deciding which CustomResourceDefinitions are acceptable is left to `crds`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError, Object
from karpool_fleet.apiserver.schema.check import compile_check
from karpool_fleet.apiserver.schema.defaulting import compile_defaults
from karpool_fleet.apiserver.schema.pruning import compile_clean, prune_in_place
from karpool_fleet.apiserver.schema.rules import compile_rules
from karpool_fleet.apiserver.schema.structure import SchemaNode, read_schema
from karpool_fleet.apiserver.schema.violations import violations


class StructuralSchema:
    """The `Schema` of one resource type; compiled on first use."""

    def __init__(self, root: SchemaNode, openapi: Callable[[], Mapping[str, Any]]) -> None:
        self.root = root
        self._openapi = openapi
        self._clean = compile_clean(root)
        self._valid = compile_check(root)
        self._fill = compile_defaults(root)
        self._rules = compile_rules(root)
        self._nodes: dict[tuple[str, ...], SchemaNode | None] = {}

    def prune(self, obj: Object) -> list[str]:
        if self._clean is None or self._clean(obj):
            return []
        return prune_in_place(self.root, obj)

    def default(self, obj: Object) -> None:
        if self._fill is not None:
            self._fill(obj)

    def validate(self, obj: Object, old: Object | None = None) -> list[FieldError]:
        """`old` is the stored object of an update; transition rules compare with it."""
        if self._valid is not None and not self._valid(obj):
            return violations(self.root, obj)
        if self._rules is None:
            return []
        errors: list[FieldError] = []
        self._rules(obj, old, "", errors)
        return errors

    def node_at(self, path: Sequence[str]) -> SchemaNode | None:
        """The schema of a field; list items contribute no path element."""
        key = tuple(path)
        if key not in self._nodes:
            if len(self._nodes) > 4096:
                self._nodes.clear()
            self._nodes[key] = _descend(self.root, key)
        return self._nodes[key]

    def list_map_keys(self, path: Sequence[str]) -> Sequence[str] | None:
        node = self.node_at(path)
        if node is None:
            return None
        if node.list_type == "map" and node.list_map_keys:
            return node.list_map_keys
        if not node.list_type and node.merge_key:
            return (node.merge_key,)
        return None

    def openapi(self) -> Mapping[str, Any]:
        return self._openapi()


class CompiledLater:
    """A schema that is compiled when it is first asked something."""

    @property
    def _compiled(self) -> StructuralSchema:
        raise NotImplementedError

    def prune(self, obj: Object) -> list[str]:
        return self._compiled.prune(obj)

    def default(self, obj: Object) -> None:
        self._compiled.default(obj)

    def validate(self, obj: Object, old: Object | None = None) -> list[FieldError]:
        return self._compiled.validate(obj, old)

    def list_map_keys(self, path: Sequence[str]) -> Sequence[str] | None:
        return self._compiled.list_map_keys(path)


def compile_schema(schema: Mapping[str, Any]) -> StructuralSchema:
    """A schema of plain values, without the implied fields of a resource; raises BadSchema."""
    return StructuralSchema(read_schema(schema), lambda: schema)


def unsupported_rules(root: SchemaNode) -> list[tuple[str, str, str]]:
    """Validation rules that are not evaluated: (field path, rule, what is not supported)."""
    rules: list[tuple[str, str, str]] = []
    pending = [("", root)]
    while pending:
        path, node = pending.pop()
        rules.extend((path.lstrip(".") or "<root>", rule, why) for rule, why in node.unread_rules)
        pending.extend((path + step, child) for step, child in node.children())
    return sorted(rules)


def _descend(node: SchemaNode | None, path: tuple[str, ...]) -> SchemaNode | None:
    for name in path:
        while node is not None and node.items is not None:
            node = node.items
        if node is None:
            return None
        node = node.properties.get(name) or node.additional
    return node
