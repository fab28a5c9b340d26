"""The resource types that every Kubernetes cluster has, with their schemas.

The schemas come from a compact file of facts (see `tools/build_builtin_schemas.py`), completed by the tables
of `builtin_defaults`. The file is read on first use, and each kind is compiled when its first object arrives,
so that starting a server costs nothing.
"""

import gzip
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from karpool_fleet.apiserver.kinds.builtin_defaults import DEFAULTS, FILLS, VALUES
from karpool_fleet.apiserver.kinds.builtin_descriptions import DESCRIPTIONS
from karpool_fleet.apiserver.kinds.builtin_kinds import REVIEWS, ROWS, Row
from karpool_fleet.apiserver.objects.types import ResourceType, ScalePaths
from karpool_fleet.apiserver.schema.compiled import CompiledLater, StructuralSchema
from karpool_fleet.apiserver.schema.structure import SchemaNode, read_schema

OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_REFERENCE = "#/components/schemas/"
_NO_GENERATION = frozenset(
    ("Event", "ConfigMap", "Secret", "Lease", "Endpoints", "ServiceAccount", "Node", "Namespace")
)
# Lists that are merged by key although a key may repeat: the last variable of a name wins, and a port may
# be listed twice.
_DUPLICATES = {
    "core.v1.Container": ("env", "ports"),
    "core.v1.EphemeralContainer": ("env", "ports"),
    "core.v1.PodSpec": ("hostAliases", "topologySpreadConstraints"),
}
_SCALE = ScalePaths(".spec.replicas", ".status.replicas", ".status.selector")


class _Data(msgspec.Struct):
    kinds: dict[str, str]
    definitions: dict[str, dict[str, Any]]


class BuiltinSchema(CompiledLater):
    def __init__(self, group: str, version: str, kind: str) -> None:
        self.gvk = (group, version, kind)

    @property
    def _compiled(self) -> StructuralSchema:
        return _structural(*self.gvk)

    def openapi(self) -> Mapping[str, Any]:
        return definitions()[definition_name(*self.gvk)]


def builtin_types() -> list[ResourceType]:
    """Every stored built-in resource, preferred versions first."""
    return [_resource_type(row) for row in ROWS]


def review_types() -> list[ResourceType]:
    """Resources that only answer questions (create, no storage)."""
    return [_resource_type(row) for row in REVIEWS]


def _resource_type(row: Row) -> ResourceType:
    subresources = frozenset(filter(None, row.subresources.split(",")))
    return ResourceType(
        group=row.group,
        version=row.version,
        kind=row.kind,
        plural=row.plural,
        singular=row.kind.lower(),
        namespaced=row.namespaced,
        short_names=tuple(filter(None, row.short.split(","))),
        categories=tuple(filter(None, row.categories.split(","))),
        subresources=subresources,
        schema=BuiltinSchema(row.group, row.version, row.kind),
        scale=_SCALE if "scale" in subresources else None,
        generation=row.kind not in _NO_GENERATION,
    )


@cache
def _data() -> _Data:
    packed = (
        resources.files("karpool_fleet.apiserver").joinpath("data", "builtin_schemas.json.gz").read_bytes()
    )
    return msgspec.json.decode(gzip.decompress(packed), type=_Data)


def definition_name(group: str, version: str, kind: str) -> str:
    """The name of a kind's definition; raises KeyError when there is none."""
    return _data().kinds[f"{group}/{version}/{kind}"]


@cache
def definitions() -> dict[str, dict[str, Any]]:
    """All definitions in OpenAPI v3 form, by name. Not to be changed by callers."""
    kinds: dict[str, list[dict[str, str]]] = {}
    for key, name in _data().kinds.items():
        group, version, kind = key.split("/")
        kinds.setdefault(name, []).append({"group": group, "version": version, "kind": kind})
    built = {}
    for name, schema in _data().definitions.items():
        built[name] = definition = _complete(_short(name), schema)
        if name in kinds:
            definition["x-kubernetes-group-version-kind"] = kinds[name]
    return built


def _short(name: str) -> str:
    """`core.v1.PodSpec` for `io.k8s.api.core.v1.PodSpec`."""
    return ".".join(name.split(".")[-3:])


def _complete(short: str, schema: dict[str, Any]) -> dict[str, Any]:
    own = DESCRIPTIONS.get(short, {})
    result = _reference(schema)
    if schema.get("format") == "quantity":
        result = {"oneOf": [{"type": "string"}, {"type": "number"}], "x-karpool-type": "quantity"}
    elif schema.get("format") == "int-or-string":
        result = {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
    if "" in own:
        result["description"] = own[""]
    properties = result.get("properties")
    if properties is None:
        return result
    defaults, values = DEFAULTS.get(short, {}), VALUES.get(short, {})
    for field, child in properties.items():
        extra: dict[str, Any] = dict(values.get(field, {}))
        if field in defaults:
            extra["default"] = defaults[field]
        if field in own:
            extra["description"] = own[field]
        if "$ref" in child and extra:  # OpenAPI ignores keys next to a reference
            properties[field] = {"allOf": [{"$ref": child["$ref"]}], **child, **extra}
            del properties[field]["$ref"]
        elif extra:
            properties[field] = child | extra
    return result


def _reference(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A copy whose references point into `components`."""
    copy = dict(schema)
    if "$ref" in copy:
        copy["$ref"] = _REFERENCE + copy["$ref"]
    for key in ("items", "additionalProperties"):
        if isinstance(copy.get(key), dict):
            copy[key] = _reference(copy[key])
    if "properties" in copy:
        copy["properties"] = {name: _reference(child) for name, child in copy["properties"].items()}
    return copy


@cache
def node(name: str) -> SchemaNode:
    """The compiled tree of one definition, shared by everything that refers to it."""
    definition = definitions()[name]
    if definition.get("x-karpool-type") == "quantity":
        return SchemaNode(type="quantity", format="quantity")
    built = read_schema(definition, resolve=lambda reference: node(reference.removeprefix(_REFERENCE)))
    built.fill = FILLS.get(_short(name))
    for field in _DUPLICATES.get(_short(name), ()):
        built.properties[field].duplicates = True
    return built


@cache
def _structural(group: str, version: str, kind: str) -> StructuralSchema:
    name = definition_name(group, version, kind)
    root = node(name)
    if status := root.properties.get("status"):
        root = replace(root, properties={**root.properties, "status": _optional(status)})
    return StructuralSchema(root)


def _optional(below: SchemaNode) -> SchemaNode:
    """Make every field optional: upstream reads a missing string of a status as an empty one."""
    return replace(
        below,
        required=(),
        properties={name: _optional(child) for name, child in below.properties.items()},
        items=None if below.items is None else _optional(below.items),
        additional=None if below.additional is None else _optional(below.additional),
    )
