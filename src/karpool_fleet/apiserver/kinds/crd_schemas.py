"""The rules for structural OpenAPI v3 schemas, which definitions must follow.

Every level has a type. The structure is separate from value restrictions: anyOf, oneOf, allOf and not may
only restrict values. Each error names the place in the definition.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError
from karpool_fleet.apiserver.schema.defaulting import compile_defaults
from karpool_fleet.apiserver.schema.pruning import prune_in_place
from karpool_fleet.apiserver.schema.structure import DEPTH_MAX, BadSchema, SchemaNode, read_schema
from karpool_fleet.apiserver.schema.violations import violations

FINDINGS_MAX = 50
_FORBIDDEN = (
    "$ref",
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
    "xml",
)
# Inside anyOf, oneOf, allOf and not only conditions are allowed, nothing that shapes the object.
_SHAPING = ("type", "additionalProperties", "default", "nullable", "description", "title")
_LIST_TYPES = ("atomic", "set", "map")
_MAP_TYPES = ("atomic", "granular")
_COMBINATIONS = ("anyOf", "oneOf", "allOf")
_SCALARS = ("string", "integer", "number", "boolean")


def schema_errors(schema: Mapping[str, Any], path: str) -> list[FieldError]:
    """Return at most FINDINGS_MAX errors."""
    try:
        root = read_schema(schema)
    except BadSchema as error:
        return [_error(path + error.path, None, error.reason)]
    if schema.get("type") != "object":
        return [_error(f"{path}.type", schema.get("type"), "must be object at the root")]
    try:
        return list(islice(_level(schema, root, path, 0), FINDINGS_MAX))
    except RecursionError:
        return [_error(path, None, "has a default that is nested too deep")]


def _error(path: str, value: Any, detail: str) -> FieldError:
    return FieldError(path, value, "FieldValueInvalid", detail)


def _level(schema: Mapping[str, Any], node: SchemaNode, path: str, depth: int) -> Iterator[FieldError]:
    yield from _own(schema, path, root=depth == 0)
    yield from _lists(schema, path)
    yield from _default(schema, node, path)
    for key, branches in _branches(schema):
        for where, branch in branches:
            yield from _conditions(branch, f"{path}.{key}{where}", _may_say_type(schema), depth + 1)
    for name, child in (schema.get("properties") or {}).items():
        if depth == 0 and name == "metadata":
            yield from _metadata(child, f"{path}.properties[metadata]")
            continue
        yield from _level(child, node.properties[name], f"{path}.properties[{name}]", depth + 1)
    if isinstance(items := schema.get("items"), Mapping) and node.items is not None:
        yield from _level(items, node.items, f"{path}.items", depth + 1)
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping) and node.additional is not None:
        yield from _level(extra, node.additional, f"{path}.additionalProperties", depth + 1)


def _own(schema: Mapping[str, Any], path: str, *, root: bool) -> Iterator[FieldError]:
    for key in _FORBIDDEN:
        if key in schema:
            yield FieldError(
                f"{path}.{key}", schema[key], "FieldValueForbidden", "is not allowed in a definition"
            )
    loose = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not schema.get("type") and not loose:
        yield FieldError(f"{path}.type", None, "FieldValueRequired", "every level needs a type")
    if schema.get("x-kubernetes-int-or-string") and schema.get("type"):
        yield _error(f"{path}.type", schema["type"], "must be empty together with x-kubernetes-int-or-string")
    if schema.get("uniqueItems"):
        detail = "would make validation quadratic; use x-kubernetes-list-type: set"
        yield FieldError(f"{path}.uniqueItems", True, "FieldValueForbidden", detail)
    if "additionalProperties" in schema:
        if schema.get("properties"):
            detail = "must not be used together with properties"
            yield FieldError(f"{path}.additionalProperties", None, "FieldValueForbidden", detail)
        if schema["additionalProperties"] is False:
            detail = "false is not needed: unknown fields are dropped"
            yield FieldError(f"{path}.additionalProperties", False, "FieldValueForbidden", detail)
        if root:
            detail = "is not allowed at the root"
            yield FieldError(f"{path}.additionalProperties", None, "FieldValueForbidden", detail)
    if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
        yield FieldError(
            f"{path}.items", None, "FieldValueRequired", "an array needs the schema of its items"
        )
    if schema.get("x-kubernetes-embedded-resource") and schema.get("type") != "object":
        yield _error(f"{path}.type", schema.get("type"), "an embedded resource must be an object")


def _lists(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys")
    where = f"{path}.x-kubernetes-list-type"
    if list_type is not None and list_type not in _LIST_TYPES:
        yield FieldError(where, list_type, "FieldValueNotSupported", "supported values: atomic, map, set")
    if list_type is not None and schema.get("type") != "array":
        yield _error(where, list_type, "only an array has a list type")
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is not None and map_type not in _MAP_TYPES:
        detail = "supported values: atomic, granular"
        yield FieldError(f"{path}.x-kubernetes-map-type", map_type, "FieldValueNotSupported", detail)
    if (list_type == "map") != bool(keys):
        yield _error(
            f"{path}.x-kubernetes-list-map-keys",
            keys,
            "belongs to x-kubernetes-list-type: map, and only there",
        )
    if list_type != "map":
        return
    items = schema.get("items") or {}
    properties = items.get("properties") or {}
    for key in keys or ():
        child = properties.get(key)
        if child is None or child.get("type") not in _SCALARS:
            yield _error(
                f"{path}.x-kubernetes-list-map-keys", key, "must name a scalar property of the items"
            )
        elif key not in (items.get("required") or ()) and "default" not in child:
            yield _error(
                f"{path}.items.properties[{key}]", key, "a list map key must be required or have a default"
            )


def _default(schema: Mapping[str, Any], node: SchemaNode, path: str) -> Iterator[FieldError]:
    """Check that a default has no unknown field and, once completed, is valid."""
    if "default" not in schema:
        return
    holder = {"default": schema["default"]}
    parent = SchemaNode(type="object", properties={"default": node})
    if unknown := prune_in_place(parent, _copied(holder)):
        yield _error(f"{path}.{unknown[0]}", schema["default"], "sets a field that the schema does not know")
    filled = _copied(holder)
    if (fill := compile_defaults(node)) is not None:
        fill(filled["default"])
    yield from violations(node, filled["default"], f"{path}.default")[:1]


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _metadata(schema: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Definitions may restrict name and generateName of metadata, and nothing else."""
    for name in schema.get("properties") or {}:
        if name not in ("name", "generateName"):
            detail = "only name and generateName may be restricted"
            yield FieldError(f"{path}.properties[{name}]", None, "FieldValueForbidden", detail)


def _branches(
    schema: Mapping[str, Any],
) -> Iterator[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
    for key in _COMBINATIONS:
        if schema.get(key):
            yield key, [(f"[{index}]", branch) for index, branch in enumerate(schema[key])]
    if schema.get("not"):
        yield "not", [("", schema["not"])]


def _may_say_type(schema: Mapping[str, Any]) -> bool:
    """Whether anyOf may have types: an int-or-string lists its two types there."""
    return bool(schema.get("x-kubernetes-int-or-string"))


def _conditions(branch: Mapping[str, Any], path: str, typed: bool, depth: int) -> Iterator[FieldError]:
    if depth > DEPTH_MAX:
        return
    for key in _SHAPING:
        if key in branch and not (typed and key == "type"):
            detail = "must stand outside of anyOf, oneOf, allOf and not"
            yield FieldError(f"{path}.{key}", branch[key], "FieldValueForbidden", detail)
    for key in branch:
        if key.startswith("x-kubernetes-") and key != "x-kubernetes-validations":
            detail = "must stand outside of anyOf, oneOf, allOf and not"
            yield FieldError(f"{path}.{key}", branch[key], "FieldValueForbidden", detail)
    for name, child in (branch.get("properties") or {}).items():
        yield from _conditions(child, f"{path}.properties[{name}]", False, depth + 1)
    if isinstance(items := branch.get("items"), Mapping):
        yield from _conditions(items, f"{path}.items", False, depth + 1)
    for key, branches in _branches(branch):
        for where, inner in branches:
            yield from _conditions(inner, f"{path}.{key}{where}", typed, depth + 1)
