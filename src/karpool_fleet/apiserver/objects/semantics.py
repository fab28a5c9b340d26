"""Validation of built-in objects beyond their schema: fields that must agree with each other."""

from collections.abc import Callable, Iterator
from typing import Any

from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import LabelSelector, decode
from karpool.model.kubernetes.pod_disruption import scaled
from karpool.model.quantity import milli_value
from karpool_fleet.apiserver.kinds.crds import validate_crd
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType


def errors(resource: ResourceType, obj: Object, old: Object | None) -> list[FieldError]:
    """Return the problems of an object that has passed its schema."""
    check = _CHECKS.get(resource.group_resource)
    return check(obj, old) if check is not None else []


def _at(obj: Any, *path: str) -> Any:
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def _workload(obj: Object, old: Object | None) -> list[FieldError]:
    selector = _at(obj, "spec", "selector")
    if not selector:
        detail = "a selector is needed, and it cannot be empty"
        return [FieldError("spec.selector", None, "FieldValueRequired", detail)]
    try:
        compiled = decode(selector, LabelSelector).compile()
    except Invalid as error:
        return [FieldError(f"spec.selector.{error.path}", error.value, "FieldValueInvalid", error.reason)]
    errors = []
    labels = _at(obj, "spec", "template", "metadata", "labels") or {}
    if not compiled.matches(labels):
        detail = "spec.selector does not select pods with these labels"
        errors.append(FieldError("spec.template.metadata.labels", labels, "FieldValueInvalid", detail))
    policy = _at(obj, "spec", "template", "spec", "restartPolicy")
    if policy not in (None, "Always"):
        path = "spec.template.spec.restartPolicy"
        errors.append(FieldError(path, policy, "FieldValueNotSupported", "only Always is possible here"))
    errors += _pod_spec(_at(obj, "spec", "template", "spec") or {}, "spec.template.spec")
    return errors


def _job(obj: Object, old: Object | None) -> list[FieldError]:
    policy = _at(obj, "spec", "template", "spec", "restartPolicy")
    if policy in ("OnFailure", "Never"):
        return []
    path = "spec.template.spec.restartPolicy"
    return [FieldError(path, policy, "FieldValueNotSupported", "must be OnFailure or Never")]


def _budget(obj: Object, old: Object | None) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors = []
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        detail = "minAvailable and maxUnavailable exclude each other"
        errors.append(FieldError("spec", None, "FieldValueInvalid", detail))
    for field in ("minAvailable", "maxUnavailable"):
        if spec.get(field) is not None:
            try:
                scaled(spec[field], 0, f"spec.{field}")
            except Invalid as error:
                errors.append(FieldError(error.path, error.value, "FieldValueInvalid", error.reason))
    try:
        if spec.get("selector") is not None:
            decode(spec["selector"], LabelSelector).compile()
    except Invalid as error:
        errors.append(
            FieldError(f"spec.selector.{error.path}", error.value, "FieldValueInvalid", error.reason)
        )
    return errors


def _pod(obj: Object, old: Object | None) -> list[FieldError]:
    return [] if old is not None else list(_pod_spec(obj.get("spec") or {}, "spec"))


def _pod_spec(spec: Object, path: str) -> Iterator[FieldError]:
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield from _amounts(container.get("resources") or {}, f"{path}.{kind}[{index}].resources")


def _amounts(resources: Object, path: str) -> Iterator[FieldError]:
    """Refuse negative amounts, and requests above their limit."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if str(amount).startswith("-"):
                detail = "must be greater than or equal to 0"
                yield FieldError(f"{path}.{field}[{name}]", amount, "FieldValueInvalid", detail)
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is not None and limit != amount and milli_value(amount) > milli_value(limit):
            detail = f"must be less than or equal to the {name} limit of {limit}"
            yield FieldError(f"{path}.requests", amount, "FieldValueInvalid", detail)


def _lease(obj: Object, old: Object | None) -> list[FieldError]:
    seconds = _at(obj, "spec", "leaseDurationSeconds")
    if seconds is None or seconds > 0:
        return []
    return [FieldError("spec.leaseDurationSeconds", seconds, "FieldValueInvalid", "must be greater than 0")]


_CHECKS: dict[str, Callable[[Object, Object | None], list[FieldError]]] = {
    "deployments.apps": _workload,
    "replicasets.apps": _workload,
    "statefulsets.apps": _workload,
    "daemonsets.apps": _workload,
    "jobs.batch": _job,
    "leases.coordination.k8s.io": _lease,
    "pods": _pod,
    "poddisruptionbudgets.policy": _budget,
    "customresourcedefinitions.apiextensions.k8s.io": validate_crd,
}
