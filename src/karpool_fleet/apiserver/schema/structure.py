"""An OpenAPI v3 structural schema, read once into nodes.

`read_schema` keeps what pruning, defaulting, validation and merging ask about and nothing else.
It is lenient about what a schema may contain (built-in types come from documents that are not
strictly structural); whether a CustomResourceDefinition may be accepted is decided in `crds`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from karpool.model.cel.patterns import Pattern, compile_pattern
from karpool.model.cel.syntax import CelCompileError
from karpool_fleet.apiserver.objects.types import Object
from karpool_fleet.apiserver.schema.cel_rules import Rule, compile_rule

DEPTH_MAX = 64  # levels of schema; the deepest real one (a pod inside a policy) has 23


class _Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()

Resolve = Callable[[str], "SchemaNode"]


@dataclass(slots=True, eq=False)
class SchemaNode:
    """One level of a schema. `type` is "" for any type, and "int-or-string" for that."""

    type: str = ""
    format: str = ""
    nullable: bool = False
    properties: "dict[str, SchemaNode]" = field(default_factory=dict)
    additional: "SchemaNode | None" = None
    items: "SchemaNode | None" = None
    required: tuple[str, ...] = ()
    preserve_unknown: bool = False
    embedded: bool = False
    enum: tuple[Any, ...] | None = None
    pattern: Pattern | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    unique_items: bool = False
    min_properties: int | None = None
    max_properties: int | None = None
    any_of: "tuple[SchemaNode, ...]" = ()
    one_of: "tuple[SchemaNode, ...]" = ()
    all_of: "tuple[SchemaNode, ...]" = ()
    negated: "SchemaNode | None" = None
    list_type: str = ""
    list_map_keys: tuple[str, ...] = ()
    duplicates: bool = False  # items with equal keys are allowed nevertheless
    map_type: str = ""
    patch_strategy: str = ""
    merge_key: str = ""
    default: Any = UNSET
    rules: tuple[Rule, ...] = ()
    unread_rules: tuple[tuple[str, str], ...] = ()  # (rule, why it is not evaluated)
    fill: Callable[[Object], None] | None = None  # defaults of a built-in type that need code

    @property
    def has_default(self) -> bool:
        return self.default is not UNSET

    def children(self) -> "Iterator[tuple[str, SchemaNode]]":
        """Nodes of the values below, with the path step that leads there."""
        yield from ((f".{name}", child) for name, child in self.properties.items())
        if self.additional is not None:
            yield "[*]", self.additional
        if self.items is not None:
            yield "[]", self.items


class BadSchema(ValueError):
    """The schema cannot be read; `path` says where."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path or 'schema'}: {reason}")


_NUMBERS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "multipleOf": "multiple_of",
}
_COUNTS = {
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
}
_FLAGS = {
    "nullable": "nullable",
    "uniqueItems": "unique_items",
    "exclusiveMinimum": "exclusive_minimum",
    "exclusiveMaximum": "exclusive_maximum",
    "x-kubernetes-preserve-unknown-fields": "preserve_unknown",
    "x-kubernetes-embedded-resource": "embedded",
}
_STRINGS = {
    "format": "format",
    "x-kubernetes-list-type": "list_type",
    "x-kubernetes-map-type": "map_type",
    "x-kubernetes-patch-strategy": "patch_strategy",
    "x-kubernetes-patch-merge-key": "merge_key",
}


def read_schema(
    schema: Mapping[str, Any], *, resolve: Resolve | None = None, path: str = "", depth: int = 0
) -> SchemaNode:
    """The node of `schema`; `resolve` answers `$ref`s. Raises BadSchema."""
    if not isinstance(schema, Mapping):
        raise BadSchema(path, f"must be an object, not {type(schema).__name__}")
    if depth > DEPTH_MAX:
        raise BadSchema(path, f"is nested deeper than {DEPTH_MAX} levels")
    if resolve is not None and (reference := _reference_in(schema)):
        return _referred(schema, reference, resolve, path)
    if "$ref" in schema:
        raise BadSchema(path, "$ref is not allowed here")
    node = SchemaNode(type=_type_of(schema, path))
    _read_plain(node, schema, path)
    _read_children(node, schema, resolve, path, depth + 1)
    _read_rules(node, schema, path)
    if node.type == "int-or-string" and [branch.type for branch in node.any_of] == ["integer", "string"]:
        node.any_of = ()  # redundant, as the generators of definitions write it
    return node


def _reference_in(schema: Mapping[str, Any]) -> str | None:
    """The target of `$ref`, also in the form `allOf: [{$ref}]` that may carry other keys."""
    branches = schema.get("allOf")
    if branches and len(branches) == 1 and "type" not in schema:
        schema = branches[0]
    reference = schema.get("$ref")
    return None if reference is None else str(reference)


def _referred(schema: Mapping[str, Any], reference: str, resolve: Resolve, path: str) -> SchemaNode:
    node = resolve(reference)
    overlay = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "description")}
    if not overlay:
        return node
    copy = replace(node)
    _read_plain(copy, overlay, path)
    return copy


def _type_of(schema: Mapping[str, Any], path: str) -> str:
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        return "int-or-string"
    kind = schema.get("type", "")
    if kind not in ("", "object", "array", "string", "integer", "number", "boolean"):
        raise BadSchema(f"{path}.type", f"{kind!r} is not a type of OpenAPI v3")
    return str(kind)


def _read_plain(node: SchemaNode, schema: Mapping[str, Any], path: str) -> None:
    for key, attribute in _NUMBERS.items():
        if (number := schema.get(key)) is not None:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise BadSchema(f"{path}.{key}", f"{number!r} is not a number")
            setattr(node, attribute, number)
    for key, attribute in _COUNTS.items():
        if (count := schema.get(key)) is not None:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise BadSchema(f"{path}.{key}", f"{count!r} is not a count")
            setattr(node, attribute, count)
    for key, attribute in _FLAGS.items():
        if schema.get(key):
            setattr(node, attribute, True)
    for key, attribute in _STRINGS.items():
        if value := schema.get(key):
            setattr(node, attribute, str(value))
    node.required = tuple(map(str, schema.get("required") or node.required))
    node.list_map_keys = tuple(map(str, schema.get("x-kubernetes-list-map-keys") or node.list_map_keys))
    if schema.get("enum"):
        node.enum = tuple(schema["enum"])
    if "default" in schema:
        node.default = schema["default"]
    if (pattern := schema.get("pattern")) is not None:
        node.pattern = _read_pattern(pattern, path)


def _read_pattern(pattern: object, path: str) -> Pattern:
    if not isinstance(pattern, str):
        raise BadSchema(f"{path}.pattern", f"{pattern!r} is not a string")
    try:
        return compile_pattern(pattern)
    except ValueError as error:
        raise BadSchema(f"{path}.pattern", f"{pattern!r} {error}") from None


def _read_children(
    node: SchemaNode, schema: Mapping[str, Any], resolve: Resolve | None, path: str, depth: int
) -> None:
    def read(child: Mapping[str, Any], step: str) -> SchemaNode:
        return read_schema(child, resolve=resolve, path=f"{path}.{step}", depth=depth)

    properties = schema.get("properties") or {}
    if not isinstance(properties, Mapping):
        raise BadSchema(f"{path}.properties", "must be an object")
    node.properties = {str(name): read(child, f"properties[{name}]") for name, child in properties.items()}
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        node.additional = read(additional, "additionalProperties")
    elif additional is True:
        node.preserve_unknown = True
    if (items := schema.get("items")) is not None:
        node.items = read(items, "items")
    if (negated := schema.get("not")) is not None:
        node.negated = read(negated, "not")
    for key, attribute in (("anyOf", "any_of"), ("oneOf", "one_of"), ("allOf", "all_of")):
        if branches := schema.get(key):
            setattr(node, attribute, tuple(read(b, f"{key}[{i}]") for i, b in enumerate(branches)))


def _read_rules(node: SchemaNode, schema: Mapping[str, Any], path: str) -> None:
    rules, unread = [], []
    for index, entry in enumerate(schema.get("x-kubernetes-validations") or ()):
        where = f"{path}.x-kubernetes-validations[{index}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("rule"), str):
            raise BadSchema(where, "needs a rule")
        try:
            rules.append(compile_rule(entry))
        except CelCompileError as error:
            unread.append((entry["rule"], str(error)))
    node.rules, node.unread_rules = tuple(rules), tuple(unread)
