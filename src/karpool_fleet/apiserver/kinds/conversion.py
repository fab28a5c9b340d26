"""Converts stored objects between the versions of their API.

Versions of a custom resource differ in name only. Two built-in kinds differ in fields as well: events are one
collection behind `v1` and `events.k8s.io/v1` (stored as the former), and autoscalers are stored in the
version that was written. Fields that `autoscaling/v1` lacks are kept in annotations, as upstream, so that
reading and writing back loses nothing.
"""

import json
from collections.abc import Callable
from typing import Any

from karpool_fleet.apiserver.objects.types import Object, ResourceType

_NEW_EVENTS = "events.events.k8s.io"
_EVENT_FIELDS = {  # events.k8s.io/v1: v1
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_METRICS = "autoscaling.alpha.kubernetes.io/metrics"
_BEHAVIOR = "autoscaling.alpha.kubernetes.io/behavior"


def collection_name(resource: ResourceType) -> str:
    """The collection that holds a resource's objects."""
    return "events" if resource.group_resource == _NEW_EVENTS else resource.group_resource


def stored_fields(resource: ResourceType, selector: str) -> str:
    """A field selector in terms of the stored version."""
    if resource.group_resource != _NEW_EVENTS or not selector:
        return selector
    return ",".join(_stored_field(term) for term in selector.split(","))


def _stored_field(term: str) -> str:
    for new, old in _EVENT_FIELDS.items():
        if term.startswith((f"{new}.", f"{new}=", f"{new}!")):
            return old + term.removeprefix(new)
    return term


def converted(obj: Object, api_version: str) -> Object:
    """`obj` in another version of its API; changed in place where only the name differs."""
    if obj["apiVersion"] == api_version:
        return obj
    convert = _CONVERSIONS.get((obj["apiVersion"], api_version, obj["kind"]))
    if convert is not None:
        obj = convert(obj)
    obj["apiVersion"] = api_version
    return obj


def to_storage(obj: Object) -> Object:
    """`obj` in the version it is stored in."""
    return converted(obj, "v1") if obj["apiVersion"] == "events.k8s.io/v1" else obj


def _renamed(obj: Object, names: dict[str, str]) -> Object:
    return {names.get(key, key): value for key, value in obj.items()}


def _to_old_event(obj: Object) -> Object:
    return _renamed(obj, _EVENT_FIELDS)


def _to_new_event(obj: Object) -> Object:
    return _renamed(obj, {old: new for new, old in _EVENT_FIELDS.items()})


def _is_cpu(metric: Any) -> bool:
    source = metric.get("resource") if isinstance(metric, dict) else None
    return (
        isinstance(source, dict)
        and source.get("name") == "cpu"
        and "averageUtilization" in (source.get("target") or source.get("current") or {})
    )


def _take(values: Any, wanted: Callable[[Any], bool]) -> tuple[Any, list[Any]]:
    """Return the first value that is wanted, and the others."""
    items = list(values or ())
    for index, value in enumerate(items):
        if wanted(value):
            return value, items[:index] + items[index + 1 :]
    return None, items


def _to_old_autoscaler(obj: Object) -> Object:
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    annotations = dict(obj["metadata"].get("annotations") or {})
    cpu, others = _take(spec.pop("metrics", None), _is_cpu)
    if cpu is not None:
        spec["targetCPUUtilizationPercentage"] = cpu["resource"]["target"]["averageUtilization"]
    for annotation, value in ((_METRICS, others), (_BEHAVIOR, spec.pop("behavior", None))):
        if value:
            annotations[annotation] = json.dumps(value, separators=(",", ":"))
    current, _ = _take(status.pop("currentMetrics", None), _is_cpu)
    if current is not None:
        status["currentCPUUtilizationPercentage"] = current["resource"]["current"]["averageUtilization"]
    status.pop("conditions", None)
    return _autoscaler(obj, annotations, spec, status)


def _to_new_autoscaler(obj: Object) -> Object:
    spec, status = dict(obj.get("spec") or {}), dict(obj.get("status") or {})
    annotations = dict(obj["metadata"].get("annotations") or {})
    metrics = _parsed(annotations.pop(_METRICS, ""), list) or []
    behavior = _parsed(annotations.pop(_BEHAVIOR, ""), dict)
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None:
        metrics.insert(0, _cpu("target", {"type": "Utilization", "averageUtilization": percent}))
    if metrics:
        spec["metrics"] = metrics
    if behavior:
        spec["behavior"] = behavior
    current = status.pop("currentCPUUtilizationPercentage", None)
    if current is not None:
        status["currentMetrics"] = [_cpu("current", {"averageUtilization": current})]
    return _autoscaler(obj, annotations, spec, status)


def _cpu(what: str, value: Object) -> Object:
    return {"type": "Resource", "resource": {"name": "cpu", what: value}}


def _parsed(text: str, kind: type) -> Any:
    """Parse an annotation, which any client may have written."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, kind) else None


def _autoscaler(obj: Object, annotations: Object, spec: Object, status: Object) -> Object:
    metadata = {key: value for key, value in obj["metadata"].items() if key != "annotations"}
    if annotations:
        metadata["annotations"] = annotations
    parts = {"metadata": metadata, "spec": spec, "status": status}
    return obj | {key: value for key, value in parts.items() if value or key in obj}


_CONVERSIONS: dict[tuple[str, str, str], Callable[[Object], Object]] = {
    ("v1", "events.k8s.io/v1", "Event"): _to_new_event,
    ("events.k8s.io/v1", "v1", "Event"): _to_old_event,
    ("autoscaling/v2", "autoscaling/v1", "HorizontalPodAutoscaler"): _to_old_autoscaler,
    ("autoscaling/v1", "autoscaling/v2", "HorizontalPodAutoscaler"): _to_new_autoscaler,
}
