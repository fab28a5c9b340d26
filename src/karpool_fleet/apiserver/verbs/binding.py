"""Binds a pod to a node, exactly once."""

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.metadata import metadata_of
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType
from karpool_fleet.apiserver.serve.status import bad_request, conflict, invalid
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent, store_changed
from karpool_fleet.apiserver.verbs.get_and_list import find

_BINDING = ResourceType("", "v1", "Binding", "bindings", "binding", True, generation=False)


def bind_named(cluster: ServedCluster, intent: Intent, binding: Object) -> StoredObject:
    """Bind the pod that the binding itself names."""
    pods = cluster.types.preferred("pods")
    name = metadata_of(binding).get("name", "")
    if pods is None or not name:
        raise bad_request("metadata.name: must name the pod to bind")
    record = find(cluster, pods, intent.namespace, name)
    intent.resource, intent.name, intent.subresource = pods, name, "binding"
    return bind(cluster, intent, record, binding)


def bind(cluster: ServedCluster, intent: Intent, record: StoredObject, binding: Object) -> StoredObject:
    metadata = metadata_of(binding)
    node = _target(binding, record.name)
    if (name := metadata.get("name")) and name != record.name:
        raise bad_request(f"metadata.name: {name!r} is not the pod of the request, {record.name!r}")
    if (uid := metadata.get("uid")) and uid != record.uid:
        raise conflict(intent.resource, record.name, f"uid {uid} is not the stored {record.uid}")
    if (version := metadata.get("resourceVersion")) and version != str(record.version):
        raise conflict(
            intent.resource, record.name, f"resourceVersion {version} is not the stored {record.version}"
        )
    old = record.object()
    spec = old.get("spec") or {}
    if record.deleting:
        raise conflict(intent.resource, record.name, "the pod is being deleted and cannot be bound")
    if spec.get("nodeName"):
        raise conflict(intent.resource, record.name, f"the pod is already bound to node {spec['nodeName']!r}")
    if spec.get("schedulingGates"):
        raise conflict(intent.resource, record.name, "the pod still has scheduling gates")
    return store_changed(cluster, intent, record, old, _bound(cluster, old, node, metadata))


def _target(binding: Object, pod: str) -> str:
    target = binding.get("target")
    if not isinstance(target, dict) or not isinstance(target.get("name"), str) or not target["name"]:
        raise invalid(
            _BINDING, pod, [FieldError("target.name", "", "FieldValueRequired", "must name a node")]
        )
    if target.get("kind") not in (None, "", "Node"):
        detail = "only a Node can be the target"
        error = FieldError("target.kind", target["kind"], "FieldValueNotSupported", detail)
        raise invalid(_BINDING, pod, [error])
    return str(target["name"])


def _bound(cluster: ServedCluster, old: Object, node: str, binding: Object) -> Object:
    """The pod with its node and its PodScheduled condition; shares what did not change."""
    status = dict(old.get("status") or {})
    others = [c for c in status.get("conditions") or () if c.get("type") != "PodScheduled"]
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": cluster.now(),
    }
    status["conditions"] = [*others, scheduled]
    metadata = dict(old["metadata"])
    if annotations := binding.get("annotations"):
        metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return {
        **old,
        "metadata": metadata,
        "spec": {**(old.get("spec") or {}), "nodeName": node},
        "status": status,
    }
