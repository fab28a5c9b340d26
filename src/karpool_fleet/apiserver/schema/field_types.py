"""Merge behaviour of fields: member by member, as a whole, as a set or by keys.

`field_types(schema)` returns the root of a lazily built tree; one `FieldType` stands for a field and, if that
field is a list, for its items as well. Without a schema, maps merge member by member and lists are replaced
as a whole, except the lists of `metadata`, which are the same for every kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import Schema
from karpool_fleet.apiserver.schema.structure import SchemaNode

MAX_SCHEMAS = 1024


class FieldType:
    """Merge behaviour of one field.

    `keys`: these members identify its items, in the schema's order; None for
    any other list. `is_set`: its items are scalars that occur once. `atomic`: its map
    (or, for a keyed list, each item) changes owner and value only as a whole.
    """

    __slots__ = ("atomic", "children", "is_set", "key_defaults", "keys", "sorted_keys")

    def __init__(
        self,
        keys: Sequence[str] | None = None,
        *,
        is_set: bool = False,
        atomic: bool = False,
        key_defaults: Mapping[str, Any] | None = None,
        children: "dict[str, FieldType] | None" = None,
    ) -> None:
        self.keys = tuple(keys) if keys else None
        self.sorted_keys = tuple(sorted(keys)) if keys else ()
        self.is_set = is_set
        self.atomic = atomic
        self.key_defaults = key_defaults or {}
        self.children: dict[str, FieldType] = children or {}

    def child(self, name: str) -> "FieldType":
        """The type of a member of this map, or of this list's items."""
        return self.children.get(name) or UNTYPED

    @property
    def is_plain_list(self) -> bool:
        return self.keys is None and not self.is_set


UNTYPED = FieldType()
METADATA = FieldType(
    children={
        "finalizers": FieldType(is_set=True),
        "ownerReferences": FieldType(("uid",), atomic=True),
    }
)


class _NodeType(FieldType):
    """The type of a schema node; its members are built on first use."""

    __slots__ = ("_node", "_values")

    def __init__(self, node: SchemaNode) -> None:
        items = node.items
        keys = _list_keys(node) if items is not None else ()
        merges = node.list_type == "set" or "merge" in node.patch_strategy.split(",")
        self._node = node if items is None else items
        members = ((key, self._node.properties.get(key)) for key in keys)
        super().__init__(
            keys,
            is_set=not keys and merges and items is not None and items.type not in ("object", "array"),
            atomic=self._node.map_type == "atomic",
            key_defaults={key: member.default for key, member in members if member and member.has_default},
        )
        self._values: FieldType | None = None

    def child(self, name: str) -> FieldType:
        child = self.children.get(name)
        return child if child is not None else self._named(name)

    def _named(self, name: str) -> FieldType:
        node = self._node.properties.get(name)
        if node is not None:
            return self.children.setdefault(name, _NodeType(node))
        if self._values is None:
            additional = self._node.additional
            self._values = UNTYPED if additional is None else _NodeType(additional)
        return self._values


def _list_keys(node: SchemaNode) -> tuple[str, ...]:
    if node.list_type == "map":
        return node.list_map_keys
    return (node.merge_key,) if node.merge_key and not node.list_type else ()


_SCHEMALESS = FieldType(children={"metadata": METADATA})
_roots: dict[int, tuple[SchemaNode, FieldType]] = {}


def field_types(schema: Schema | None) -> FieldType:
    """The merge behaviour of a kind's root object; built once per schema."""
    if schema is None:
        return _SCHEMALESS
    node = schema.root
    remembered = _roots.get(id(node))
    if remembered is not None:
        return remembered[1]
    root = _NodeType(node)
    root.children["metadata"] = METADATA
    if len(_roots) >= MAX_SCHEMAS:  # CRDs come and go; schemas in use are cached again soon
        _roots.clear()
    _roots[id(node)] = (node, root)  # holding the node keeps its id from being reused
    return root
