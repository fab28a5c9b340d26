"""create and update: from a decoded body to a stored record, or a refusal.

Each is one synchronous pass: identity, pruning, defaults, validation, admission,
commit. Nothing is stored before everything has passed, and a write that changes
nothing stores nothing.
"""

from dataclasses import dataclass, field

from karpool_fleet.apiserver.kinds.conversion import converted, to_storage
from karpool_fleet.apiserver.objects import defaults, immutable, semantics
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.metadata import (
    carry_over,
    identify,
    metadata_errors,
    name_errors,
    stamp_new,
)
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType
from karpool_fleet.apiserver.patches.managed_fields import track_update
from karpool_fleet.apiserver.serve.status import already_exists, bad_request, forbidden, invalid, not_found
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.views import subresource_view

_HEAD = ("kind", "apiVersion", "metadata")
_GENERATE_ATTEMPTS = 8
_GENERATED_PREFIX_MAX = 58  # leaves room for the suffix in 63 characters
# Kubelets register a node together with its status; every other resource starts without one.
_STATUS_ON_CREATE = frozenset({"nodes"})


@dataclass(slots=True)
class Intent:
    """The parameters of a write: who, what, where and how strictly; `warnings` are for the client."""

    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False
    manager: str = "unknown"
    validation: str = "Warn"
    applying: bool = False  # server-side apply has already written managedFields
    warnings: list[str] = field(default_factory=list)


def create(cluster: ServedCluster, intent: Intent, obj: Object) -> StoredObject:
    resource = intent.resource
    metadata = identify(resource, obj, intent.namespace, intent.name)
    if metadata.get("resourceVersion"):
        raise bad_request("metadata.resourceVersion: must not be set on an object to be created")
    if resource.namespaced:
        _check_open(cluster, resource, intent.namespace, metadata.get("name", ""))
    name = _choose_name(cluster, resource, metadata, intent.namespace)
    if "status" in resource.subresources and resource.group_resource not in _STATUS_ON_CREATE:
        obj.pop("status", None)
    _shape(intent, obj)
    uid = cluster.ids()
    defaults.on_create(cluster, resource, obj, uid)
    _refuse_invalid(resource, obj, None, name_errors(resource, name))
    stamped = stamp_new(metadata, name=name, uid=uid, now=cluster.now(), generation=resource.generation)
    # Kind, version and metadata first: people read these objects.
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": stamped} | {
        key: value for key, value in obj.items() if key not in _HEAD
    }
    collection = cluster.collection(resource)
    if collection.get(intent.namespace, name) is not None:
        raise already_exists(resource, name)
    cluster.admit("CREATE", resource, obj, None)
    track(cluster, intent, None, obj)
    if intent.dry_run:
        del stamped["resourceVersion"]
        return cluster.store.preview(collection, to_storage(obj))
    return cluster.store.put(collection, to_storage(obj))


def update(cluster: ServedCluster, intent: Intent, record: StoredObject, obj: Object) -> StoredObject:
    """Replace the part of a stored object that `intent.subresource` covers by that of `obj`."""
    resource = intent.resource
    identify(resource, obj, intent.namespace, record.name)
    old = converted(record.object(), resource.api_version)
    carry_over(resource, old, obj)
    new = subresource_view(resource, intent.subresource, old, obj)
    _shape(intent, new)
    if intent.subresource in ("", "scale"):
        defaults.on_update(resource, new, old)
    frozen = immutable.errors(resource, intent.subresource, new, old)
    _refuse_invalid(resource, new, old, frozen)
    return store_changed(cluster, intent, record, old, new)


def store_changed(
    cluster: ServedCluster, intent: Intent, record: StoredObject, old: Object, new: Object
) -> StoredObject:
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
        return record if intent.dry_run else cluster.store.remove(record, to_storage(new))
    if intent.dry_run:
        return cluster.store.preview(record.collection, to_storage(new))
    return cluster.store.put(record.collection, to_storage(new))


def finished(obj: Object) -> bool:
    """Whether an object is being deleted and has no finalizers or grace period left."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    if metadata.get("deletionGracePeriodSeconds"):
        return False
    spec = obj.get("spec")
    return not (obj["kind"] == "Namespace" and isinstance(spec, dict) and spec.get("finalizers"))


def check_applied(intent: Intent, applied: Object) -> None:
    """Check an applied body, which may be incomplete, as an update does."""
    identify(intent.resource, applied, intent.namespace, intent.name)
    _prune(intent, applied)


def _check_open(cluster: ServedCluster, resource: ResourceType, namespace: str, name: str) -> None:
    """Raise unless objects can be created in the namespace."""
    record = cluster.store.collection("namespaces").get("", namespace)
    if record is None:
        namespaces = cluster.types.preferred("namespaces")
        assert namespaces is not None
        raise not_found(namespaces, namespace)
    if record.deleting:
        message = f"namespace {namespace} is being terminated"
        cause = {"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}
        raise forbidden(resource, name, message, [cause])


def track(cluster: ServedCluster, intent: Intent, old: Object | None, new: Object) -> None:
    """Update metadata.managedFields.

    Tracking every write would cost more than the write. Until an object is applied for the first time there
    can be no conflict over it. So, unless `track_fields` is set, only objects that have entries are tracked.
    """
    if intent.applying:
        return
    managed_fields = (old or new)["metadata"].get("managedFields") or new["metadata"].get("managedFields")
    if not managed_fields and not cluster.track_fields:
        return
    track_update(
        old,
        new,
        manager=intent.manager,
        api_version=intent.resource.api_version,
        now=cluster.now(),
        schema=intent.resource.schema,
        subresource=intent.subresource,
    )


def _choose_name(cluster: ServedCluster, resource: ResourceType, metadata: Object, namespace: str) -> str:
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
    _prune(intent, obj)
    if intent.resource.schema is not None:
        intent.resource.schema.default(obj)


def _prune(intent: Intent, obj: Object) -> None:
    unknown = intent.resource.schema.prune(obj) if intent.resource.schema is not None else ()
    if not unknown or intent.validation == "Ignore":
        return
    named = [f'unknown field "{path}"' for path in unknown]
    if intent.validation == "Strict":
        raise bad_request("strict decoding error: " + ", ".join(named[:20]))
    intent.warnings += named


def _refuse_invalid(
    resource: ResourceType, obj: Object, old: Object | None, errors: list[FieldError]
) -> None:
    errors = errors + metadata_errors(obj["metadata"])
    if resource.schema is not None:
        errors += resource.schema.validate(obj, old)
        errors = errors or semantics.errors(resource, obj, old)
    if errors:
        raise invalid(resource, str(obj["metadata"].get("name", "")), errors)


def _spec_changed(resource: ResourceType, old: Object, new: Object) -> bool:
    ignored = {"metadata", "apiVersion", "kind"}
    if not resource.custom or "status" in resource.subresources:
        ignored.add("status")
    return any(key not in ignored and old.get(key) != new.get(key) for key in old.keys() | new.keys())
