"""How a schema wants each field merged: member by member, as a whole, as a set or by keys.

`field_types(schema)` gives the root of a lazily built tree; one `FieldType` stands
for a field and, when that field is a list, for its items as well. Without a schema
maps merge member by member and lists are replaced as a whole, except the lists of
`metadata`, which are the same for every kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.objects.types import Schema

# Fields that no schema names can be told apart without end (map keys of a hostile
# object); beyond this many the types are built anew each time instead of being kept.
MAX_CHILDREN = 512
MAX_SCHEMAS = 1024
MAX_REFERENCES = 32


class FieldType:
    """Merge behaviour of one field.

    `keys`: its items are told apart by these members, in the schema's order; None for
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


class _PathType(FieldType):
    """Asks the schema for list keys by path; for schemas that show no properties."""

    __slots__ = ("_path", "_schema")

    def __init__(self, schema: Schema, path: tuple[str, ...]) -> None:
        super().__init__(schema.list_map_keys(path) if path else None)
        self._schema = schema
        self._path = path

    def child(self, name: str) -> FieldType:
        child = self.children.get(name)
        if child is None:
            child = METADATA if (self._path, name) == ((), "metadata") else self._below(name)
            if len(self.children) < MAX_CHILDREN:
                self.children[name] = child
        return child

    def _below(self, name: str) -> FieldType:
        return _PathType(self._schema, (*self._path, name))


class _OpenAPIType(FieldType):
    """Reads the x-kubernetes-* extensions; the list keys still come from `list_map_keys`."""

    __slots__ = ("_node", "_path", "_root", "_schema", "_values")

    def __init__(
        self, schema: Schema, root: Mapping[str, Any], node: Mapping[str, Any], path: tuple[str, ...] | None
    ) -> None:
        extensions = node
        items = _resolved(root, node.get("items"))
        self._node = node if items is None else items
        keys = _list_keys(schema, node, path) if items is not None else None
        strategy = str(extensions.get("x-kubernetes-patch-strategy", ""))
        scalar_items = items is not None and items.get("type") not in ("object", "array")
        super().__init__(
            keys,
            is_set=not keys
            and scalar_items
            and (extensions.get("x-kubernetes-list-type") == "set" or "merge" in strategy.split(",")),
            atomic=self._node.get("x-kubernetes-map-type") == "atomic",
            key_defaults=_defaults(root, self._node, keys or ()),
        )
        self._schema = schema
        self._root = root
        self._path = path
        self._values: FieldType | None = None

    def child(self, name: str) -> FieldType:
        child = self.children.get(name)
        return child if child is not None else self._named(name)

    def _named(self, name: str) -> FieldType:
        if self._path == () and name == "metadata":
            return self.children.setdefault(name, METADATA)
        node = _resolved(self._root, (self._node.get("properties") or {}).get(name))
        if node is not None:
            path = None if self._path is None else (*self._path, name)
            return self.children.setdefault(name, _OpenAPIType(self._schema, self._root, node, path))
        if self._values is None:
            values = _resolved(self._root, self._node.get("additionalProperties"))
            self._values = UNTYPED if values is None else self._value_type(values)
        return self._values

    def _value_type(self, node: Mapping[str, Any]) -> FieldType:
        # Below a map's values there are no field paths; the extensions alone decide.
        return _OpenAPIType(self._schema, self._root, node, None)


def _list_keys(schema: Schema, node: Mapping[str, Any], path: tuple[str, ...] | None) -> Sequence[str] | None:
    keys = schema.list_map_keys(path) if path else None
    if keys is None and node.get("x-kubernetes-list-type") == "map":
        keys = node.get("x-kubernetes-list-map-keys")
    return keys


def _defaults(root: Mapping[str, Any], node: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    properties = node.get("properties") or {}
    members = {key: _resolved(root, properties.get(key)) or {} for key in keys}
    return {key: member["default"] for key, member in members.items() if "default" in member}


def _resolved(root: Mapping[str, Any], node: Any) -> Mapping[str, Any] | None:
    """The schema behind `$ref` and single `allOf` wrappers; None when there is none to follow."""
    outer: dict[str, Any] = {}
    for _ in range(MAX_REFERENCES):
        if not isinstance(node, Mapping):
            return None
        if "$ref" in node:
            outer = {**node, **outer}
            node = _referenced(root, str(node["$ref"]))
        elif isinstance(wrapped := node.get("allOf"), list) and len(wrapped) == 1 and "type" not in node:
            outer = {**node, **outer}
            node = wrapped[0]
        else:
            extensions = {key: value for key, value in outer.items() if key.startswith(("x-", "default"))}
            return {**node, **extensions} if extensions else node
    return None


def _referenced(root: Mapping[str, Any], reference: str) -> Any:
    node: Any = root
    for token in reference.removeprefix("#/").split("/"):
        node = node.get(token) if isinstance(node, Mapping) else None
    return node


_SCHEMALESS = FieldType(children={"metadata": METADATA})
_roots: dict[int, tuple[Schema, FieldType]] = {}


def field_types(schema: Schema | None) -> FieldType:
    """The merge behaviour of a kind's root object; built once per schema."""
    if schema is None:
        return _SCHEMALESS
    known = _roots.get(id(schema))
    if known is not None:
        return known[1]
    root = _root_type(schema)
    if len(_roots) >= MAX_SCHEMAS:  # CRDs come and go; the schemas in use are soon back
        _roots.clear()
    _roots[id(schema)] = (schema, root)  # holding the schema keeps its id from being reused
    return root


def _root_type(schema: Schema) -> FieldType:
    document = schema.openapi()
    node = _resolved(document, document)
    if node is None or not node.get("properties"):
        return _PathType(schema, ())
    return _OpenAPIType(schema, document, node, ())
