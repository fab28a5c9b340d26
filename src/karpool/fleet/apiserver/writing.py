"""create and update: from a decoded body to a stored record, or a refusal.

Each is one synchronous pass: identity, pruning, defaults, validation, admission,
commit. Nothing is stored before everything has passed, and a write that changes
nothing stores nothing.
"""

from dataclasses import dataclass, field

from karpool.fleet.apiserver import defaults, immutable
from karpool.fleet.apiserver.cluster import Cluster
from karpool.fleet.apiserver.metadata import (
    carry_over,
    identify,
    metadata_errors,
    name_errors,
    stamp_new,
)
from karpool.fleet.apiserver.namespaces import check_open
from karpool.fleet.apiserver.record import Record
from karpool.fleet.apiserver.status import already_exists, bad_request, invalid
from karpool.fleet.apiserver.types import FieldError, Object, ResourceType

_GENERATE_ATTEMPTS = 8
_GENERATED_PREFIX_MAX = 58  # leaves room for the suffix in 63 characters
# Kubelets register a node together with its status; every other resource starts without one.
_STATUS_ON_CREATE = frozenset({"nodes"})
# Writers of these may touch labels and annotations through the status subresource.
_STATUS_WITH_METADATA = frozenset({"pods", "nodes"})


@dataclass(slots=True)
class Intent:
    """Who writes what where, and how strictly; `warnings` collects what to tell the client."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    warnings: list[str] = field(default_factory=list)


def create(cluster: Cluster, intent: Intent, obj: Object) -> Record:
    resource = intent.resource
    metadata = identify(resource, obj, intent.namespace, intent.name)
    if metadata.get("resourceVersion"):
        raise bad_request("metadata.resourceVersion: must not be set on an object to be created")
    if resource.namespaced:
        check_open(cluster, resource, intent.namespace, metadata.get("name", ""))
    name = _choose_name(cluster, resource, metadata, intent.namespace)
    if "status" in resource.subresources and resource.group_resource not in _STATUS_ON_CREATE:
        obj.pop("status", None)
    _shape(intent, obj)
    defaults.on_create(resource, obj)
    _refuse_invalid(resource, obj, name_errors(resource, name))
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": None} | obj
    obj["metadata"] = stamp_new(
        metadata, name=name, uid=cluster.ids(), now=cluster.now(), generation=resource.generation
    )
    collection = cluster.collection(resource)
    if collection.get(intent.namespace, name) is not None:
        raise already_exists(resource, name)
    cluster.admit("CREATE", resource, obj, None)
    track(cluster, intent, None, obj)
    if intent.dry_run:
        del obj["metadata"]["resourceVersion"]
        return cluster.store.preview(collection, obj)
    return cluster.store.put(collection, obj)


def update(cluster: Cluster, intent: Intent, record: Record, obj: Object) -> Record:
    """Replace what `intent.subresource` covers of a stored object by what `obj` says."""
    resource = intent.resource
    identify(resource, obj, intent.namespace, record.name)
    old = record.object()
    carry_over(resource, old, obj)
    new = _merge_status(old, obj, resource) if intent.subresource == "status" else obj
    if intent.subresource != "status" and "status" in resource.subresources:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    _shape(intent, new)
    if intent.subresource != "status":
        defaults.on_update(resource, new, old)
    _refuse_invalid(resource, new, immutable.errors(resource, new, old))
    return store_changed(cluster, intent, record, old, new)


def store_changed(cluster: Cluster, intent: Intent, record: Record, old: Object, new: Object) -> Record:
    """Commit a valid new state of a stored object; the last step of every kind of update."""
    resource = intent.resource
    old["apiVersion"] = new["apiVersion"]
    if resource.generation and _spec_changed(resource, old, new):
        new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1
    cluster.admit("UPDATE", resource, new, old)
    if new == old:
        return record
    track(cluster, intent, old, new)
    if finished(new):
        cluster.admit("DELETE", resource, None, new)
        return record if intent.dry_run else cluster.store.remove(record, new)
    if intent.dry_run:
        return cluster.store.preview(record.collection, new)
    return cluster.store.put(record.collection, new)


def finished(obj: Object) -> bool:
    """Whether an object is being deleted and nothing holds it any more."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    spec = obj.get("spec")
    return not (obj["kind"] == "Namespace" and isinstance(spec, dict) and spec.get("finalizers"))


def track(cluster: Cluster, intent: Intent, old: Object | None, new: Object) -> None:
    """Keep metadata.managedFields true to who wrote what."""


def _choose_name(cluster: Cluster, resource: ResourceType, metadata: Object, namespace: str) -> str:
    if name := metadata.get("name"):
        return str(name)
    prefix = metadata.get("generateName")
    if not prefix:
        detail = "name or generateName is needed"
        raise invalid(resource, "", [FieldError("metadata.name", "", "FieldValueRequired", detail)])
    collection = cluster.collection(resource)
    for _ in range(_GENERATE_ATTEMPTS):
        name = prefix[:_GENERATED_PREFIX_MAX] + cluster.suffix()
        if collection.get(namespace, name) is None:
            return str(name)
    raise already_exists(resource, str(name))


def _shape(intent: Intent, obj: Object) -> None:
    """Drop or refuse unknown fields, then fill in the defaults of the schema."""
    schema = intent.resource.schema
    if schema is None:
        return
    unknown = schema.prune(obj)
    if unknown and intent.validation != "Ignore":
        named = [f'unknown field "{path}"' for path in unknown]
        if intent.validation == "Strict":
            raise bad_request("strict decoding error: " + ", ".join(named[:20]))
        intent.warnings += named
    schema.default(obj)


def _refuse_invalid(resource: ResourceType, obj: Object, errors: list[FieldError]) -> None:
    errors = errors + metadata_errors(obj["metadata"])
    if resource.schema is not None:
        errors += resource.schema.validate(obj)
    if errors:
        raise invalid(resource, str(obj["metadata"].get("name", "")), errors)


def _merge_status(old: Object, sent: Object, resource: ResourceType) -> Object:
    merged = dict(old)
    merged["metadata"] = metadata = dict(old["metadata"])
    if resource.group_resource in _STATUS_WITH_METADATA:
        for name in ("labels", "annotations"):
            if name in sent["metadata"]:
                metadata[name] = sent["metadata"][name]
    if "managedFields" in sent["metadata"]:
        metadata["managedFields"] = sent["metadata"]["managedFields"]
    merged["apiVersion"] = sent["apiVersion"]
    if "status" in sent:
        merged["status"] = sent["status"]
    else:
        merged.pop("status", None)
    return merged


def _spec_changed(resource: ResourceType, old: Object, new: Object) -> bool:
    ignored = {"metadata", "apiVersion", "kind"}
    if not resource.custom or "status" in resource.subresources:
        ignored.add("status")
    return any(key not in ignored and old.get(key) != new.get(key) for key in old.keys() | new.keys())
