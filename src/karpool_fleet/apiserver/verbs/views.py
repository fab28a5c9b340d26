"""The part of an object that a path writes; everything else keeps its stored value."""

from typing import Any

from karpool_fleet.apiserver.objects.types import Object, ResourceType

# The status subresource of these may also change labels and annotations.
_STATUS_WITH_METADATA = frozenset({"pods", "nodes"})


def subresource_view(resource: ResourceType, subresource: str, old: Object, sent: Object) -> Object:
    """Return `old` with the part that `subresource` covers taken from `sent`."""
    match subresource:
        case "status":
            return _with_status(resource, old, sent)
        case "finalize" | "ephemeralcontainers":
            field = "finalizers" if subresource == "finalize" else "ephemeralContainers"
            return _with_spec(old, sent, {field: _spec(sent).get(field)})
        case "resize":
            return _with_spec(old, sent, {"containers": _resized(old, sent)})
    if "status" in resource.subresources:
        sent.pop("status", None)
        if "status" in old:
            sent["status"] = old["status"]
    return sent


def _spec(obj: Object) -> dict[str, Any]:
    spec = obj.get("spec")
    return spec if isinstance(spec, dict) else {}


def _base(old: Object, sent: Object) -> Object:
    view = {**old, "metadata": dict(old["metadata"]), "apiVersion": sent["apiVersion"]}
    if "managedFields" in sent["metadata"]:
        view["metadata"]["managedFields"] = sent["metadata"]["managedFields"]
    return view


def _with_status(resource: ResourceType, old: Object, sent: Object) -> Object:
    view = _base(old, sent)
    if resource.group_resource in _STATUS_WITH_METADATA:
        for field in ("labels", "annotations"):
            if field in sent["metadata"]:
                view["metadata"][field] = sent["metadata"][field]
    view.pop("status", None)
    if "status" in sent:
        view["status"] = sent["status"]
    return view


def _with_spec(old: Object, sent: Object, fields: Object) -> Object:
    view = _base(old, sent)
    spec = {**_spec(old), **fields}
    view["spec"] = {key: value for key, value in spec.items() if value is not None}
    return view


def _resized(old: Object, sent: Object) -> list[Any]:
    """Return the stored containers with the resources of the sent ones."""
    containers = {c.get("name"): c for c in _spec(sent).get("containers") or () if isinstance(c, dict)}
    resized = []
    for container in _spec(old).get("containers") or ():
        update = containers.get(container.get("name"), {})
        fields = {key: update[key] for key in ("resources", "resizePolicy") if key in update}
        resized.append({**container, **fields})
    return resized
