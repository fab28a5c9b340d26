"""Defaults that depend on the cluster, which a schema cannot state.

Constants are in `builtin_defaults`, with the schemas. Here: a pod's QoS class, priority and first status,
addresses and ports of services, selectors of jobs, and the first state of a namespace.
"""

from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import Object, ResourceType
from karpool_fleet.apiserver.serve.status import forbidden

_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_EVICTION_SECONDS = 300
_COUNTED = ("cpu", "memory")
_NODE_PORTS = range(30000, 32768)
PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"


def on_create(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    fill = _ON_CREATE.get(resource.group_resource)
    if fill is not None:
        fill(cluster, resource, obj, uid)


def on_update(resource: ResourceType, new: Object, old: Object) -> None:
    """Restore what the server chose and the client left out."""
    match resource.group_resource:
        case "services":
            fields: tuple[str, ...] = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
        case "jobs.batch":
            fields = ("selector",)
        case "namespaces":
            fields = ("finalizers",)
            new["metadata"].setdefault("labels", {})[_NAME_LABEL] = new["metadata"]["name"]
        case _:
            return
    before, after = old.get("spec"), new.setdefault("spec", {})
    if isinstance(before, dict) and isinstance(after, dict):
        for field in fields:
            if field in before and (not after.get(field) or field == "finalizers"):
                after[field] = before[field]


_NAME_LABEL = "kubernetes.io/metadata.name"


def _namespace(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    name = obj["metadata"].get("name")
    if isinstance(name, str):
        obj["metadata"].setdefault("labels", {})[_NAME_LABEL] = name
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def _pod(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("enableServiceLinks", True)
    _priority(cluster, resource, obj, spec)
    _tolerations(spec)
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from the cpu and memory of the containers."""
    containers = [
        c for field in ("containers", "initContainers") for c in spec.get(field) or () if isinstance(c, dict)
    ]
    anything, everything = False, True
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in _COUNTED:
            anything = anything or name in requests or name in limits
            everything = everything and name in limits and requests.get(name, limits[name]) == limits[name]
    if not anything:
        return "BestEffort"
    return "Guaranteed" if everything else "Burstable"


def _priority(cluster: ServedCluster, resource: ResourceType, obj: Object, spec: Object) -> None:
    classes = cluster.store.collection(PRIORITY_CLASSES)
    name = spec.get("priorityClassName")
    chosen: Object | None = None
    if name:
        record = classes.get("", str(name))
        if record is None:
            raise forbidden(
                resource,
                str(obj["metadata"].get("name", "")),
                f"no PriorityClass with name {name} was found; create it first",
            )
        chosen = record.object()
    else:
        for record in classes.in_namespace("").values():
            candidate = record.object()
            if candidate.get("globalDefault") is True:
                chosen = candidate
                spec["priorityClassName"] = record.name
    spec["priority"] = chosen.get("value", 0) if chosen else 0
    spec.setdefault("preemptionPolicy", (chosen or {}).get("preemptionPolicy", "PreemptLowerPriority"))


def _tolerations(spec: Object) -> None:
    """Add the default tolerations: pods leave a not-ready or unreachable node after five minutes."""
    tolerations = spec.get("tolerations") or []
    if not isinstance(tolerations, list):
        return
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _EVICTION_SECONDS}
        for key in (_NOT_READY, _UNREACHABLE)
        if not any(_tolerates(toleration, key) for toleration in tolerations)
    ]
    if added:
        spec["tolerations"] = tolerations + added


def _tolerates(toleration: Any, key: str) -> bool:
    if not isinstance(toleration, dict) or toleration.get("effect") not in (None, "", "NoExecute"):
        return False
    return toleration.get("key") == key or (
        not toleration.get("key") and toleration.get("operator") == "Exists"
    )


def _service(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    obj["status"] = {"loadBalancer": {}}
    if spec.get("type") == "ExternalName":
        return
    number = cluster.store.version
    if not spec.get("clusterIP"):
        # 10.96.0.0/12 has a million addresses; resource versions are unique.
        spec["clusterIP"] = f"10.{96 + (number >> 16) % 16}.{(number >> 8) % 256}.{number % 256}"
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if spec.get("type") in ("NodePort", "LoadBalancer"):
        for index, port in enumerate(spec.get("ports") or ()):
            if isinstance(port, dict) and not port.get("nodePort"):
                port["nodePort"] = _NODE_PORTS[(number + index) % len(_NODE_PORTS)]


def _job(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict) or spec.get("manualSelector"):
        return
    label = "batch.kubernetes.io/controller-uid"
    template = spec.setdefault("template", {})
    if not isinstance(template, dict):
        return
    metadata = template.setdefault("metadata", {})
    if isinstance(metadata, dict):
        labels = metadata.get("labels") or {}
        metadata["labels"] = labels | {
            label: uid,
            "batch.kubernetes.io/job-name": obj["metadata"].get("name"),
        }
    spec["selector"] = {"matchLabels": {label: uid}}


def _pending(cluster: ServedCluster, resource: ResourceType, obj: Object, uid: str) -> None:
    obj["status"] = {"phase": "Pending"}


_ON_CREATE: dict[str, Callable[[ServedCluster, ResourceType, Object, str], None]] = {
    "namespaces": _namespace,
    "pods": _pod,
    "services": _service,
    "jobs.batch": _job,
    "persistentvolumes": _pending,
    "persistentvolumeclaims": _pending,
}
