"""Object metadata: identity of a new object, fields owned by the server, and validation.

Only the server writes uid, resourceVersion, generation, creationTimestamp and the deletion fields; what a
client sends there is a precondition or is restored.
"""

import re
from collections.abc import Mapping
from typing import Any

from karpool.model.errors import Invalid
from karpool.model.labels import check_key, check_labels
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType
from karpool_fleet.apiserver.serve.status import bad_request, conflict

_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_LABEL_1035 = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?\Z")
_SEGMENT = re.compile(r"(?!\.{1,2}\Z)[^/%]+\Z")

_SUBDOMAIN_RULE = (
    _SUBDOMAIN,
    253,
    "must be lower-case letters, digits, '-' and '.', and begin and end with a letter or digit",
)
_LABEL_RULE = (
    _LABEL,
    63,
    "must be lower-case letters, digits and '-', and begin and end with a letter or digit",
)
_SERVICE_RULE = (
    _LABEL_1035,
    63,
    "must be lower-case letters, digits and '-', begin with a letter and end with a letter or digit",
)
_SEGMENT_RULE = (_SEGMENT, 253, "must not be '.' or '..', nor contain '/' or '%'")
_NAME_RULES = {
    "namespaces": _LABEL_RULE,
    "services": _SERVICE_RULE,
    "roles.rbac.authorization.k8s.io": _SEGMENT_RULE,
    "rolebindings.rbac.authorization.k8s.io": _SEGMENT_RULE,
    "clusterroles.rbac.authorization.k8s.io": _SEGMENT_RULE,
    "clusterrolebindings.rbac.authorization.k8s.io": _SEGMENT_RULE,
}
_MAX_ANNOTATIONS = 256 * 1024
# Finalizers of the core that predate the rule that they be qualified names.
_PLAIN_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")

_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


def metadata_of(obj: Object) -> dict[str, Any]:
    """Return the metadata, created when absent; raises 400 when it or a member has the wrong type."""
    metadata = obj.get("metadata")
    if metadata is None:
        metadata = obj["metadata"] = {}
    if not isinstance(metadata, dict):
        raise bad_request("metadata: must be an object")
    for field, kind in _TYPES:
        value = metadata.get(field)
        if value is None:
            metadata.pop(field, None)
        elif not isinstance(value, kind):
            raise bad_request(f"metadata.{field}: {type(value).__name__} is not the right type")
    return metadata


_TYPES: tuple[tuple[str, type], ...] = (
    ("name", str),
    ("generateName", str),
    ("namespace", str),
    ("uid", str),
    ("resourceVersion", str),
    ("labels", dict),
    ("annotations", dict),
    ("finalizers", list),
    ("ownerReferences", list),
)


def identify(resource: ResourceType, obj: Object, namespace: str, name: str = "") -> dict[str, Any]:
    """Check that a body fits the resource and path; fill in what it leaves out."""
    kind, api_version = obj.get("kind"), obj.get("apiVersion")
    if kind and kind != resource.kind:
        raise bad_request(f"kind: {kind!r} was sent where {resource.kind!r} is expected")
    if api_version and api_version != resource.api_version:
        raise bad_request(
            f"apiVersion: {api_version!r} was sent to a path of {resource.api_version!r}; use its own path"
        )
    obj["kind"], obj["apiVersion"] = resource.kind, resource.api_version
    metadata = metadata_of(obj)
    if not resource.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", namespace) != namespace:
        raise bad_request(
            f"metadata.namespace: {metadata['namespace']!r} is not the request's namespace, {namespace!r}"
        )
    if name and metadata.setdefault("name", name) != name:
        raise bad_request(f"metadata.name: {metadata['name']!r} is not the name of the request, {name!r}")
    return metadata


def stamp_new(metadata: dict[str, Any], *, name: str, uid: str, now: str, generation: bool) -> dict[str, Any]:
    """Return the metadata of a new object, with the fields that the server owns."""
    stamped: dict[str, Any] = {"name": name}
    if generate := metadata.get("generateName"):
        stamped["generateName"] = generate
    if namespace := metadata.get("namespace"):
        stamped["namespace"] = namespace
    stamped |= {"uid": uid, "resourceVersion": "", "creationTimestamp": now}
    if generation:
        stamped["generation"] = 1
    for field in ("labels", "annotations", "ownerReferences", "finalizers", "managedFields"):
        if value := metadata.get(field):
            stamped[field] = value
    return stamped


def carry_over(resource: ResourceType, old: Object, new: Object) -> None:
    """Keep server-owned fields on an update; check the client's preconditions."""
    before, after = old["metadata"], new["metadata"]
    expected = after.get("resourceVersion")
    if expected and expected != before["resourceVersion"]:
        raise conflict(
            resource,
            before["name"],
            f"resourceVersion {expected} is not the stored {before['resourceVersion']}; "
            "the object has been modified; read it again and retry",
        )
    if (uid := after.get("uid")) and uid != before["uid"]:
        raise conflict(
            resource, before["name"], f"uid {uid} is not the stored {before['uid']}; it is another object now"
        )
    after["resourceVersion"] = before["resourceVersion"]
    for field in _KEPT:
        if field in before:
            after[field] = before[field]
        else:
            after.pop(field, None)
    for field in ("selfLink", "generateName"):
        after.pop(field, None)
    if "generateName" in before:
        after["generateName"] = before["generateName"]
    for field in ("labels", "annotations", "finalizers", "ownerReferences", "managedFields"):
        if field in after and not after[field]:
            del after[field]
    if "managedFields" in before:  # most clients leave it out
        after.setdefault("managedFields", before["managedFields"])


def name_errors(resource: ResourceType, name: str, field: str = "metadata.name") -> list[FieldError]:
    pattern, longest, rule = _NAME_RULES.get(resource.group_resource, _SUBDOMAIN_RULE)
    if len(name) > longest:
        return [FieldError(field, name, "FieldValueInvalid", f"must be at most {longest} characters")]
    if not pattern.match(name):
        return [FieldError(field, name, "FieldValueInvalid", rule)]
    return []


def metadata_errors(metadata: Mapping[str, Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    if labels := metadata.get("labels"):
        errors += _label_errors(labels)
    if annotations := metadata.get("annotations"):
        errors += _annotation_errors(annotations)
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        errors += _finalizer_errors(f"metadata.finalizers[{index}]", finalizer)
    if references := metadata.get("ownerReferences"):
        errors += _owner_errors(references)
    return errors


def _invalid(field: str, value: object, detail: str) -> FieldError:
    return FieldError(field, value, "FieldValueInvalid", detail)


def _label_errors(labels: Mapping[str, Any]) -> list[FieldError]:
    for key, value in labels.items():
        if not isinstance(value, str):
            return [_invalid(f"metadata.labels[{key}]", value, "must be a string")]
    try:
        check_labels(labels)
    except Invalid as error:
        return [_invalid("metadata.labels", error.value, error.reason)]
    return []


def _annotation_errors(annotations: Mapping[str, Any]) -> list[FieldError]:
    total = 0
    for key, value in annotations.items():
        if not isinstance(value, str):
            return [_invalid(f"metadata.annotations[{key}]", value, "must be a string")]
        total += len(key) + len(value)
        try:
            check_key(key.lower())
        except Invalid as error:
            return [_invalid("metadata.annotations", key, error.reason)]
    if total > _MAX_ANNOTATIONS:
        detail = f"may take {_MAX_ANNOTATIONS} bytes in all, not {total}"
        return [FieldError("metadata.annotations", "", "FieldValueTooLong", detail)]
    return []


def _finalizer_errors(field: str, finalizer: object) -> list[FieldError]:
    if not isinstance(finalizer, str):
        return [_invalid(field, finalizer, "must be a string")]
    if finalizer in _PLAIN_FINALIZERS:
        return []
    try:
        check_key(finalizer)
    except Invalid as error:
        return [_invalid(field, finalizer, error.reason)]
    if "/" not in finalizer and "." not in finalizer:
        return [_invalid(field, finalizer, "must be a qualified name such as example.com/cleanup")]
    return []


def _owner_errors(references: list[Any]) -> list[FieldError]:
    errors: list[FieldError] = []
    controllers = 0
    for index, reference in enumerate(references):
        field = f"metadata.ownerReferences[{index}]"
        if not isinstance(reference, dict):
            errors.append(_invalid(field, reference, "must be an object"))
            continue
        for part in ("apiVersion", "kind", "name", "uid"):
            value = reference.get(part)
            if not isinstance(value, str) or not value:
                errors.append(FieldError(f"{field}.{part}", value, "FieldValueRequired", "must not be empty"))
        controllers += reference.get("controller") is True
    if controllers > 1:
        errors.append(
            _invalid(
                "metadata.ownerReferences", controllers, "only one owner may have controller set to true"
            )
        )
    return errors
