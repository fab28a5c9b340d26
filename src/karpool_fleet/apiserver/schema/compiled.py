"""Apply a structural schema to objects: prune, default, validate.

A schema is compiled once into closures that answer "is this object clean?" without building a
path or an error; only objects that are not take the explaining walk (`violations`). Call the
three in the order prune, default, validate: defaulting also removes nulls that the schema
does not allow, as upstream.

Deciding which CustomResourceDefinitions are acceptable is left to `crds`.
"""

from collections.abc import Mapping
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

    def __init__(self, root: SchemaNode) -> None:
        self.root = root
        self._clean = compile_clean(root)
        self._valid = compile_check(root)
        self._fill = compile_defaults(root)
        self._rules = compile_rules(root)

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


class CompiledLater:
    """A schema that is compiled on first use."""

    @property
    def _compiled(self) -> StructuralSchema:
        raise NotImplementedError

    @property
    def root(self) -> SchemaNode:
        return self._compiled.root

    def prune(self, obj: Object) -> list[str]:
        return self._compiled.prune(obj)

    def default(self, obj: Object) -> None:
        self._compiled.default(obj)

    def validate(self, obj: Object, old: Object | None = None) -> list[FieldError]:
        return self._compiled.validate(obj, old)


def compile_schema(schema: Mapping[str, Any]) -> StructuralSchema:
    """A schema of plain values, without the implied fields of a resource; raises BadSchema."""
    return StructuralSchema(read_schema(schema))


def unsupported_rules(root: SchemaNode) -> list[tuple[str, str, str]]:
    """Validation rules that are not evaluated: (field path, rule, what is not supported)."""
    rules: list[tuple[str, str, str]] = []
    pending = [("", root)]
    while pending:
        path, node = pending.pop()
        rules.extend((path.lstrip(".") or "<root>", rule, why) for rule, why in node.unread_rules)
        pending.extend((path + step, child) for step, child in node.children())
    return sorted(rules)
