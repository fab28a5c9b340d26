"""Immutable fields of built-in resources."""

from typing import Any

from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType

_FIXED: dict[str, tuple[str, ...]] = {
    "deployments.apps": ("spec.selector",),
    "replicasets.apps": ("spec.selector",),
    "daemonsets.apps": ("spec.selector",),
    "statefulsets.apps": ("spec.selector", "spec.serviceName", "spec.podManagementPolicy"),
    "jobs.batch": ("spec.selector", "spec.completionMode"),
    "secrets": ("type",),
    "persistentvolumeclaims": ("spec.storageClassName", "spec.accessModes", "spec.volumeMode"),
    "storageclasses.storage.k8s.io": ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    "priorityclasses.scheduling.k8s.io": ("value", "preemptionPolicy"),
    "rolebindings.rbac.authorization.k8s.io": ("roleRef",),
    "clusterrolebindings.rbac.authorization.k8s.io": ("roleRef",),
    "customresourcedefinitions.apiextensions.k8s.io": ("spec.group", "spec.scope", "spec.names.plural"),
}
_POD_MUTABLE = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_GATED_MUTABLE = ("nodeSelector", "affinity")
_SAME = "field is immutable"


def errors(resource: ResourceType, subresource: str, new: Object, old: Object) -> list[FieldError]:
    """Return forbidden changes of an update through `subresource` ("" for the object itself)."""
    if subresource not in ("", "scale"):
        return _finalizer_errors(new["metadata"], old["metadata"])
    changed = [
        FieldError(path, _at(new, path), "FieldValueInvalid", _SAME)
        for path in _FIXED.get(resource.group_resource, ())
        if _at(old, path) is not None and _at(new, path) != _at(old, path)
    ]
    match resource.group_resource:
        case "pods":
            changed += _pod_errors(new, old)
        case "secrets" | "configmaps" if old.get("immutable") is True:
            changed += [
                FieldError(field, None, "FieldValueForbidden", "the object is marked immutable")
                for field in ("data", "binaryData", "immutable")
                if new.get(field) != old.get(field)
            ]
        case "services":
            changed += _service_errors(new, old)
    changed += _finalizer_errors(new["metadata"], old["metadata"])
    return changed


def _at(obj: Object, path: str) -> Any:
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _pod_errors(new: Object, old: Object) -> list[FieldError]:
    gated = bool(_at(old, "spec.schedulingGates"))
    if _frozen_pod(new, gated) == _frozen_pod(old, gated):
        return _gate_errors(new, old)
    detail = "only image, activeDeadlineSeconds, tolerations and schedulingGates of a pod can be changed"
    return [FieldError("spec", None, "FieldValueForbidden", detail)]


def _gate_errors(new: Object, old: Object) -> list[FieldError]:
    before = {str(gate) for gate in _at(old, "spec.schedulingGates") or ()}
    if any(str(gate) not in before for gate in _at(new, "spec.schedulingGates") or ()):
        return [FieldError("spec.schedulingGates", None, "FieldValueForbidden", "gates can only be removed")]
    return []


def _frozen_pod(pod: Object, gated: bool) -> Object:
    """Return the immutable part of a pod spec."""
    spec = dict(pod.get("spec") or {})
    for field in _POD_MUTABLE + (_GATED_MUTABLE if gated else ()):
        spec.pop(field, None)
    for field in ("containers", "initContainers", "ephemeralContainers"):
        if field in spec:
            spec[field] = [
                {key: value for key, value in container.items() if key != "image"}
                for container in spec[field] or ()
                if isinstance(container, dict)
            ]
    return spec


def _service_errors(new: Object, old: Object) -> list[FieldError]:
    before, after = _at(old, "spec.clusterIP"), _at(new, "spec.clusterIP")
    if before and before != "None" and after and after != before and _at(new, "spec.type") != "ExternalName":
        return [FieldError("spec.clusterIP", after, "FieldValueInvalid", _SAME)]
    return []


def _finalizer_errors(new: Object, old: Object) -> list[FieldError]:
    if "deletionTimestamp" not in old:
        return []
    added = [f for f in new.get("finalizers") or () if f not in (old.get("finalizers") or ())]
    if not added:
        return []
    detail = f"finalizers cannot be added to an object that is being deleted: {', '.join(map(str, added))}"
    return [FieldError("metadata.finalizers", None, "FieldValueForbidden", detail)]
