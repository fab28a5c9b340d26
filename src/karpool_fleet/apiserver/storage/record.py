"""One stored object: its JSON bytes, and the fields that lists and watches need.

A record never changes; a write creates a new one. Its bytes are what clients receive, so an unfiltered list
needs no decoding or encoding.
"""

from sys import intern
from typing import TYPE_CHECKING, Any

import msgspec

from karpool_fleet.apiserver.objects.types import Object

if TYPE_CHECKING:
    from karpool_fleet.apiserver.storage.store import Collection

READY = "status.conditions[Ready]"  # kept for disruption budgets; not selectable

# Fields a fieldSelector may name, beyond metadata.name and metadata.namespace.
INDEXED: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.schedulerName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
        READY,
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "replicationcontrollers": ("status.replicas",),
    "replicasets.apps": ("status.replicas",),
    "jobs.batch": ("status.successful",),
    "certificatesigningrequests.certificates.k8s.io": ("spec.signerName",),
}
_DEFAULTS = {"spec.unschedulable": "false", "spec.hostNetwork": "false", "status.replicas": "0"}
_ALIASES = {"source": ("source", "component"), "status.successful": ("status", "succeeded")}
_NONE: dict[str, str] = {}


class StoredObject:
    """A stored object, see the module; `version` is the resourceVersion as a number."""

    __slots__ = (
        "api_version",
        "collection",
        "data",
        "deleting",
        "fields",
        "labels",
        "name",
        "namespace",
        "owners",
        "uid",
        "version",
    )

    def __init__(self, collection: "Collection", obj: Object, version: int, data: bytes) -> None:
        metadata = obj["metadata"]
        self.collection = collection
        self.data = data
        self.version = version
        self.api_version: str = intern(obj["apiVersion"])
        self.name: str = metadata["name"]
        self.namespace: str = intern(metadata.get("namespace") or "")
        self.uid: str = metadata["uid"]
        self.labels = collection.shared_labels(metadata.get("labels") or _NONE)
        self.deleting = "deletionTimestamp" in metadata
        references = metadata.get("ownerReferences")
        self.owners: tuple[str, ...] = tuple(r["uid"] for r in references) if references else ()
        self.fields = collection.index_fields(obj)

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def object(self) -> Object:
        """A fresh decoded copy, free to change."""
        decoded: Object = _decode(self.data)
        return decoded

    def field(self, name: str) -> str:
        """The value of an indexed field; raises ValueError for one that is not indexed."""
        return self.fields[self.collection.field_names.index(name)]


_decode = msgspec.json.Decoder().decode


class FieldIndex:
    """Reads the indexed fields of one resource out of its objects."""

    def __init__(self, group_resource: str) -> None:
        self.names = INDEXED.get(group_resource, ())
        self._paths = [
            (_ALIASES.get(name) or tuple(name.split(".")), _DEFAULTS.get(name, ""))
            for name in self.names
            if name != READY
        ]
        self._ready = READY in self.names

    def __call__(self, obj: Object) -> tuple[str, ...]:
        if not self._paths:
            return ()
        values = [_read(obj, path, default) for path, default in self._paths]
        if self._ready:
            values.append("true" if is_ready(obj) else "false")
        return tuple(values)


def _read(obj: Object, path: tuple[str, ...], default: str) -> str:
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return default
    if isinstance(value, bool):
        return "true" if value else "false"
    return intern(str(value))


def is_ready(obj: Object) -> bool:
    """Whether the object's Ready condition is True."""
    status = obj.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    if not isinstance(conditions, list):
        return False
    return any(
        isinstance(c, dict) and c.get("type") == "Ready" and c.get("status") == "True" for c in conditions
    )
