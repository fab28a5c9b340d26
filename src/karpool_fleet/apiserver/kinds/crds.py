"""CustomResourceDefinitions: which are acceptable, and the resource types they define.

`validate_crd` checks names, versions, columns and subresources here and the schemas in
`crd_schemas`; `resource_types` gives one type per served version; `accept` writes the status a
client waits for. Objects are stored as written and converted between versions by name only
(strategy None).
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from karpool.model.kubernetes.times import rfc3339
from karpool_fleet.apiserver.documents.discovery import version_order
from karpool_fleet.apiserver.kinds import builtin
from karpool_fleet.apiserver.kinds.crd_schemas import schema_errors
from karpool_fleet.apiserver.objects.types import FieldError, Object, PrinterColumn, ResourceType, ScalePaths
from karpool_fleet.apiserver.printing.json_paths import BadPath, compile_path
from karpool_fleet.apiserver.schema.compiled import CompiledLater, StructuralSchema, unsupported_rules
from karpool_fleet.apiserver.schema.structure import SchemaNode, read_schema

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+\Z")
_COLUMN_TYPES = ("integer", "number", "string", "boolean", "date")
_DOMAIN_MAX = 253
VERSIONS_MAX = 64
RULES = "RulesEvaluated"  # our own condition, present and False if some rules are not evaluated
_MESSAGE_MAX = 4096


class CustomSchema(CompiledLater):
    """The schema of one version of a custom resource; compiled on first use."""

    def __init__(self, openapi: Mapping[str, Any]) -> None:
        self._schema = openapi

    @cached_property
    def _compiled(self) -> StructuralSchema:
        return StructuralSchema(resource_node(self._schema))

    def openapi(self) -> Mapping[str, Any]:
        return self._schema

    def unsupported_rules(self) -> list[tuple[str, str, str]]:
        """Validation rules that are not evaluated: (field path, rule, what is not supported)."""
        return unsupported_rules(self._compiled.root)


def resource_node(schema: Mapping[str, Any]) -> SchemaNode:
    """The tree of a resource: its schema and the fields that every object has. Raises BadSchema."""
    root = read_schema(schema)
    root.properties = {
        **root.properties,
        "apiVersion": SchemaNode(type="string"),
        "kind": SchemaNode(type="string"),
        "metadata": builtin.node(builtin.OBJECT_META),
    }
    return root


# Validation --------------------------------------------------------------------------------------


def validate_crd(crd: Object, old: Object | None = None) -> list[FieldError]:
    """Return the problems of a definition; `old` is the stored one of an update.

    The object must have passed the built-in schema of its kind, so types are as stated there.
    """
    spec = crd.get("spec") or {}
    names = spec.get("names") or {}
    errors = [*_identity_errors(crd, spec, names), *_name_errors(names), *_version_errors(spec)]
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        detail = "only None is supported: versions of a kind may differ in name only"
        errors.append(FieldError("spec.conversion.strategy", "Webhook", "FieldValueNotSupported", detail))
    for index, version in enumerate(spec.get("versions") or ()):
        errors += _one_version_errors(version, f"spec.versions[{index}]")
    if old is not None:
        errors += _change_errors(crd, old)
    return errors


def _invalid(field: str, value: Any, detail: str) -> FieldError:
    return FieldError(field, value, "FieldValueInvalid", detail)


def _required(field: str, detail: str) -> FieldError:
    return FieldError(field, None, "FieldValueRequired", detail)


def _identity_errors(crd: Object, spec: Object, names: Object) -> list[FieldError]:
    errors = []
    group, plural = spec.get("group", ""), names.get("plural", "")
    if not _DOMAIN.match(group) or len(group) > _DOMAIN_MAX:
        errors.append(_invalid("spec.group", group, "must be a lower-case domain with at least one dot"))
    name = crd.get("metadata", {}).get("name", "")
    if name != f"{plural}.{group}":
        detail = f"must be spec.names.plural + '.' + spec.group, that is {plural}.{group}"
        errors.append(_invalid("metadata.name", name, detail))
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        detail = 'supported values: "Cluster", "Namespaced"'
        errors.append(FieldError("spec.scope", spec.get("scope"), "FieldValueNotSupported", detail))
    return errors


def _name_errors(names: Object) -> list[FieldError]:
    errors = []
    for field in ("plural", "singular", "kind", "listKind"):
        value = names.get(field, "")
        if not value and field in ("plural", "kind"):
            errors.append(_required(f"spec.names.{field}", "is required"))
        elif value and not _LABEL.match(value.lower() if field in ("kind", "listKind") else value):
            detail = "must begin with a letter and hold at most 63 letters, digits and '-'"
            errors.append(_invalid(f"spec.names.{field}", value, detail))
    for field in ("shortNames", "categories"):
        for index, value in enumerate(names.get(field) or ()):
            if not _LABEL.match(value):
                detail = "must be lower-case letters, digits and '-', at most 63"
                errors.append(_invalid(f"spec.names.{field}[{index}]", value, detail))
    if names.get("listKind") and names["listKind"] == names.get("kind"):
        errors.append(_invalid("spec.names.listKind", names["listKind"], "must differ from kind"))
    return errors


def _version_errors(spec: Object) -> list[FieldError]:
    versions = spec.get("versions") or []
    if not versions:
        return [_required("spec.versions", "at least one version is needed")]
    if len(versions) > VERSIONS_MAX:
        return [_invalid("spec.versions", len(versions), f"at most {VERSIONS_MAX} versions are supported")]
    errors = []
    seen: set[str] = set()
    for index, version in enumerate(versions):
        name = version.get("name", "")
        if not _LABEL.match(name):
            errors.append(_invalid(f"spec.versions[{index}].name", name, "must be a name like v1 or v1beta1"))
        if name in seen:
            detail = "occurs more than once"
            errors.append(FieldError(f"spec.versions[{index}].name", name, "FieldValueDuplicate", detail))
        seen.add(name)
    storing = [version.get("name") for version in versions if version.get("storage")]
    if len(storing) != 1:
        detail = f"exactly one version must have storage: true, not {len(storing)}"
        errors.append(_invalid("spec.versions", storing, detail))
    return errors


def _one_version_errors(version: Object, path: str) -> list[FieldError]:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    errors = []
    if not isinstance(schema, dict):
        errors.append(_required(f"{path}.schema.openAPIV3Schema", "every version needs a schema"))
    else:
        errors += schema_errors(schema, f"{path}.schema.openAPIV3Schema")
    for index, column in enumerate(version.get("additionalPrinterColumns") or ()):
        errors += _column_errors(column, f"{path}.additionalPrinterColumns[{index}]")
    scale = (version.get("subresources") or {}).get("scale")
    if scale is not None:
        errors += _scale_errors(scale, f"{path}.subresources.scale")
    return errors


def _column_errors(column: Object, path: str) -> list[FieldError]:
    errors = [
        _required(f"{path}.{field}", "is required")
        for field in ("name", "type", "jsonPath")
        if not column.get(field)
    ]
    if column.get("type") and column["type"] not in _COLUMN_TYPES:
        allowed = ", ".join(_COLUMN_TYPES)
        detail = f"supported values: {allowed}"
        errors.append(FieldError(f"{path}.type", column["type"], "FieldValueNotSupported", detail))
    if column.get("jsonPath"):
        errors += _path_errors(column["jsonPath"], f"{path}.jsonPath", "")
    return errors


def _scale_errors(scale: Object, path: str) -> list[FieldError]:
    errors = []
    for field, prefix, needed in (
        ("specReplicasPath", ".spec.", True),
        ("statusReplicasPath", ".status.", True),
        ("labelSelectorPath", "", False),
    ):
        value = scale.get(field)
        if value:
            errors += _path_errors(value, f"{path}.{field}", prefix)
        elif needed:
            errors.append(_required(f"{path}.{field}", "is required"))
    return errors


def _path_errors(text: str, field: str, prefix: str) -> list[FieldError]:
    if not text.startswith(prefix or "."):
        return [_invalid(field, text, f"must begin with {prefix or '.'}")]
    try:
        compile_path(text)
    except BadPath as error:
        return [_invalid(field, text, str(error))]
    return []


def _change_errors(crd: Object, old: Object) -> list[FieldError]:
    new_spec, old_spec = crd["spec"], old.get("spec") or {}
    errors = []
    for path in (("group",), ("scope",), ("names", "plural"), ("names", "kind")):
        before, after = _get(old_spec, path), _get(new_spec, path)
        if before != after:
            detail = f"cannot be changed (it is {before!r}); delete the definition and create another"
            errors.append(_invalid(f"spec.{'.'.join(path)}", after, detail))
    names = {version.get("name") for version in new_spec.get("versions") or ()}
    for stored in (old.get("status") or {}).get("storedVersions") or ():
        if stored not in names:
            detail = f"{stored} still holds stored objects; keep it as a version that is not served"
            errors.append(_invalid("spec.versions", sorted(filter(None, names)), detail))
    return errors


def _get(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


# From definitions to types -----------------------------------------------------------------------


def accept(crd: Object, now: float) -> None:
    """Write the status that upstream's controllers write once a definition is usable."""
    spec, names = crd["spec"], dict(crd["spec"]["names"])
    names.setdefault("singular", names["kind"].lower())
    names.setdefault("listKind", names["kind"] + "List")
    spec["names"] = names
    spec.setdefault("conversion", {"strategy": "None"})
    status = crd.setdefault("status", {})
    status["acceptedNames"] = dict(names)
    stored = list(status.get("storedVersions") or ())
    storage = storage_version(crd)
    status["storedVersions"] = stored if storage in stored else [*stored, storage]
    for kind, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    ):
        _set_condition(status.setdefault("conditions", []), _condition(kind, "True", reason, message), now)
    _say_unsupported(crd, status["conditions"], now)


def _condition(kind: str, status: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _set_condition(conditions: list[Object], condition: Object, now: float) -> None:
    """Replace the condition of that type; its transition time changes only with its status."""
    since = rfc3339(now)
    for before in conditions:
        if before.get("type") == condition["type"] and before.get("status") == condition["status"]:
            since = before.get("lastTransitionTime") or since
    conditions[:] = [before for before in conditions if before.get("type") != condition["type"]]
    conditions.append({**condition, "lastTransitionTime": since})


def _say_unsupported(crd: Object, conditions: list[Object], now: float) -> None:
    """Report rules that are not evaluated in a condition, so that `kubectl describe crd` shows them."""
    unread = [
        f"{version['name']} {path}: {rule!r} {why}"
        for version in crd["spec"]["versions"]
        for path, rule, why in unsupported_rules(read_schema(version["schema"]["openAPIV3Schema"]))
    ]
    if unread:
        message = f"not evaluated: {'; '.join(unread)}"[:_MESSAGE_MAX]
        _set_condition(conditions, _condition(RULES, "False", "UnsupportedRules", message), now)
    else:
        conditions[:] = [other for other in conditions if other.get("type") != RULES]


def storage_version(crd: Object) -> str:
    return next(str(version["name"]) for version in crd["spec"]["versions"] if version.get("storage"))


def resource_types(crd: Object) -> list[ResourceType]:
    """One type per served version, preferred first."""
    spec = crd["spec"]
    served = [version for version in spec["versions"] if version.get("served")]
    return [
        _resource_type(spec, version) for version in sorted(served, key=lambda v: version_order(v["name"]))
    ]


def _resource_type(spec: Object, version: Object) -> ResourceType:
    names = spec["names"]
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    return ResourceType(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=frozenset(name for name in ("status", "scale") if subresources.get(name) is not None),
        schema=CustomSchema(version["schema"]["openAPIV3Schema"]),
        columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or ()),
        scale=None if scale is None else _scale_paths(scale),
        custom=True,
    )


def _column(column: Object) -> PrinterColumn:
    return PrinterColumn(
        name=column["name"],
        type=column["type"],
        json_path=column["jsonPath"],
        priority=int(column.get("priority") or 0),
        format=column.get("format") or "",
        description=column.get("description") or "",
    )


def _scale_paths(scale: Object) -> ScalePaths:
    return ScalePaths(
        scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath") or ""
    )
