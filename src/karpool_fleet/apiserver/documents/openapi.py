"""OpenAPI documents of all served resources, as far as kubectl needs them.

Version 2 is one document (also as protobuf, see `openapi_protobuf`); version 3 is an index and one document
per group and version. Paths name the kind of each resource and the query parameters that kubectl looks for
before it uses them (`dryRun`, `fieldValidation`, `fieldManager`); responses are not described.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from karpool_fleet.apiserver.documents.discovery import verbs
from karpool_fleet.apiserver.kinds import builtin
from karpool_fleet.apiserver.objects.types import Object, ResourceType

Operation = Callable[[ResourceType, str, str], Object]

_V3 = "#/components/schemas/"
_V2 = "#/definitions/"
_QUERY = ("dryRun", "fieldManager", "fieldValidation", "force")
_PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")
_STRATEGIC = "application/strategic-merge-patch+json"


def schema_name(resource: ResourceType) -> str:
    """`io.k8s.api.core.v1.Pod`, `sh.karpenter.v1.NodePool`."""
    if not resource.custom:
        return builtin.definition_name(resource.group, resource.version, resource.kind)
    reverse = ".".join(reversed(resource.group.split(".")))
    return f"{reverse}.{resource.version}.{resource.kind}"


def custom_schema(resource: ResourceType) -> Object:
    """The definition of a custom resource, with the fields that every object has."""
    stated = dict(resource.schema.openapi()) if resource.schema is not None else {}
    own = dict(stated.get("properties") or {})
    implied = {
        "apiVersion": {"type": "string", "description": "The group and version this object is written in."},
        "kind": {"type": "string", "description": "The kind of this object."},
        "metadata": {
            "allOf": [{"$ref": _V3 + builtin.OBJECT_META}],
            "description": "Name, labels, owners and versions of this object.",
        },
    }
    return {
        **stated,
        "type": "object",
        "properties": {**own, **implied},
        "x-kubernetes-group-version-kind": [_gvk(resource)],
    }


def _gvk(resource: ResourceType) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


# Version 3 ---------------------------------------------------------------------------------------


def v3_index(types: Sequence[ResourceType], digests: Mapping[str, str]) -> Object:
    """/openapi/v3; `digests` holds one hash per group-version path, for client caches."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digests[path]}"}
            for path in group_version_paths(types)
        }
    }


def group_version_paths(types: Iterable[ResourceType]) -> list[str]:
    """`api/v1`, `apis/apps/v1`, ... in order of registration."""
    return list(dict.fromkeys(_root_path(resource) for resource in types))


def _root_path(resource: ResourceType) -> str:
    return f"apis/{resource.group}/{resource.version}" if resource.group else f"api/{resource.version}"


def v3_document(types: Sequence[ResourceType], path: str) -> Object | None:
    """/openapi/v3/`path`; None when nothing is served there."""
    served = [resource for resource in types if _root_path(resource) == path]
    if not served:
        return None
    schemas: dict[str, Any] = {}
    for resource in served:
        _collect(resource, schemas)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "karpool"},
        "paths": {key: item for resource in served for key, item in _paths(resource, _v3_operation)},
        "components": {"schemas": schemas},
    }


def _collect(resource: ResourceType, schemas: dict[str, Any]) -> None:
    """Add the definition of the resource and all definitions that it refers to."""
    name = schema_name(resource)
    if resource.custom:
        schemas[name] = custom_schema(resource)
        pending = [builtin.OBJECT_META]
    else:
        pending = [name]
    definitions = builtin.definitions()
    while pending:
        name = pending.pop()
        if name not in schemas:
            schemas[name] = _public(definitions[name])
            pending.extend(_references(definitions[name]))


def _public(definition: Mapping[str, Any]) -> Object:
    return {key: value for key, value in definition.items() if not key.startswith("x-karpool-")}


def _references(schema: Any) -> list[str]:
    references: list[str] = []
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if isinstance(reference := item.get("$ref"), str):
                references.append(reference.removeprefix(_V3))
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return references


def _paths(resource: ResourceType, operation: Operation) -> list[tuple[str, Object]]:
    scope = "namespaces/{namespace}/" if resource.namespaced else ""
    collection = f"/{_root_path(resource)}/{scope}{resource.plural}"
    allowed = verbs(resource)
    many = {"get": "list", "post": "create", "delete": "deletecollection"}
    one = {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}
    items = []
    for path, methods in ((collection, many), (f"{collection}/{{name}}", one)):
        item: Object = {
            method: operation(resource, method, verb) for method, verb in methods.items() if verb in allowed
        }
        if item:
            items.append((path, item))
    return items


def _operation_id(resource: ResourceType, verb: str) -> str:
    group = "".join(part.capitalize() for part in (resource.group or "core").split("."))
    return f"{verb}{group}{resource.version.capitalize()}{resource.kind}"


def _parameters(method: str) -> list[str]:
    if method == "get":
        return []
    return [name for name in _QUERY if name != "force" or method == "patch"]


def _patches(resource: ResourceType) -> tuple[str, ...]:
    """Return the patch types.

    kubectl sends strategic merge patches if they are listed; custom resources have none.
    """
    return _PATCHES if resource.custom else (*_PATCHES, _STRATEGIC)


def _v3_operation(resource: ResourceType, method: str, verb: str) -> Object:
    reference = {"$ref": _V3 + schema_name(resource)}
    result = _v2_operation(resource, method, verb)
    for parameter in result["parameters"]:
        parameter["schema"] = {"type": parameter.pop("type")}
    if verb in ("create", "update"):
        result["requestBody"] = {"content": {"application/json": {"schema": reference}}}
    elif verb == "patch":
        result["requestBody"] = {
            "content": {form: {"schema": {"type": "object"}} for form in _patches(resource)}
        }
    if verb in ("get", "create", "update", "patch"):
        result["responses"]["200"]["content"] = {"application/json": {"schema": reference}}
    return result


# Version 2 ---------------------------------------------------------------------------------------


def v2_document(types: Sequence[ResourceType]) -> Object:
    """/openapi/v2"""
    schemas: dict[str, Any] = {}
    for resource in types:
        _collect(resource, schemas)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "karpool"},
        "paths": {key: item for resource in types for key, item in _paths(resource, _v2_operation)},
        "definitions": {name: to_v2(schema) for name, schema in sorted(schemas.items())},
    }


def _v2_operation(resource: ResourceType, method: str, verb: str) -> Object:
    return {
        "operationId": _operation_id(resource, verb),
        "parameters": [
            {"name": name, "in": "query", "type": "boolean" if name == "force" else "string"}
            for name in _parameters(method)
        ],
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": _gvk(resource),
    }


_V3_ONLY = frozenset(("nullable", "anyOf", "oneOf", "not", "components"))


def to_v2(schema: Mapping[str, Any]) -> Object:
    """Convert an OpenAPI v3 schema to v2; what v2 cannot express is left out, as upstream."""
    if schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields"):
        # v2 would reject null, or unknown fields, so the schema is less specific
        kept = ("description", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-group-version-kind")
        loose: Object = {key: schema[key] for key in kept if key in schema}
        if schema.get("x-kubernetes-group-version-kind"):
            loose["type"] = "object"
        return loose
    if schema.get("x-kubernetes-int-or-string"):
        return {"x-kubernetes-int-or-string": True, **_description(schema)}
    if "oneOf" in schema and schema.get("type") is None and "properties" not in schema:
        text: Object = {"type": "string"}  # quantities and numbers-or-names
        if "format" in schema:
            text["format"] = schema["format"]
        return text | _description(schema)
    result: Object = {}
    for key, value in schema.items():
        if key in _V3_ONLY:
            continue
        result[key] = _v2_value(key, value)
    return _unwrap(result)


def _unwrap(schema: Object) -> Object:
    """Return the reference itself: v3 wraps it in `allOf: [{$ref}]`, and v2 tools expect it bare."""
    branches = schema.get("allOf")
    if isinstance(branches, list) and len(branches) == 1 and "$ref" in branches[0]:
        rest = {key: value for key, value in schema.items() if key.startswith(("x-", "description"))}
        return {**branches[0], **rest}
    return schema


def _v2_value(key: str, value: Any) -> Any:
    if key == "$ref":
        return value.replace(_V3, _V2)
    if key == "properties":
        return {name: to_v2(child) for name, child in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, Mapping):
        return to_v2(value)
    if key == "allOf":
        return [to_v2(branch) for branch in value]
    return value


def _description(schema: Mapping[str, Any]) -> Object:
    return {"description": schema["description"]} if "description" in schema else {}


def digest(document: bytes) -> str:
    """A hash for entity tags and cache-busting URLs."""
    return hashlib.sha256(document).hexdigest().upper()
