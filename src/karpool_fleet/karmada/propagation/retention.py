"""Objects in a member: ownership, fields of the member to retain, and drift.

What a member's API server and controllers write into an object is kept when the manifest is applied again. An
object that existed before is not changed unless the policy allows to take it over.
"""

from typing import Any

from karpool_fleet.karmada.propagation.names import (
    CONFLICT_RESOLUTION,
    MANAGED_ANNOTATIONS,
    MANAGED_LABELS,
    RETAIN_REPLICAS,
    WORK_ID,
    Object,
)

# Fields of spec that a member fills in, by kind.
_FILLED: dict[tuple[str, str], tuple[str, ...]] = {
    ("v1", "Service"): ("clusterIP", "clusterIPs", "healthCheckNodePort"),
    ("v1", "PersistentVolumeClaim"): ("volumeName",),
    ("v1", "PersistentVolume"): ("claimRef",),
    ("v1", "Pod"): ("nodeName", "serviceAccountName", "volumes", "tolerations", "priority"),
    ("v1", "Namespace"): ("finalizers",),
    ("batch/v1", "Job"): ("selector",),
}


def may_write(manifest: Object, observed: Object) -> bool:
    """Whether we may write to an existing object."""
    held = (observed["metadata"].get("labels") or {}).get(WORK_ID)
    if held and held == manifest["metadata"]["labels"].get(WORK_ID):
        return True
    resolution = (manifest["metadata"].get("annotations") or {}).get(CONFLICT_RESOLUTION)
    return bool(resolution == "overwrite")


def retained(manifest: Object, observed: Object) -> Object:
    """Return the object to write over `observed`: the manifest with the member's own fields."""
    kind = (manifest["apiVersion"], manifest["kind"])
    meta, held = manifest["metadata"], observed["metadata"]
    result = {**manifest, "metadata": {**held, **meta, **_maps(meta, held)}}
    if "status" in observed:
        result["status"] = observed["status"]
    spec, there = manifest.get("spec"), observed.get("spec")
    if isinstance(there, dict):
        kept = {field: there[field] for field in _FILLED.get(kind, ()) if field in there}
        if isinstance(spec, dict) or kept:
            result["spec"] = {**(spec or {}), **kept}
        if (meta.get("labels") or {}).get(RETAIN_REPLICAS) == "true" and "replicas" in there:
            result["spec"] = {**result["spec"], "replicas": there["replicas"]}
        if kind == ("batch/v1", "Job"):
            result["spec"] = _with_labels_of(result["spec"], there)
    return result


def _maps(meta: Object, held: Object) -> Object:
    """Merge labels and annotations: ours from the manifest, others from the member."""
    result: Object = {}
    recorded = held.get("annotations") or {}
    for field, record in (("labels", MANAGED_LABELS), ("annotations", MANAGED_ANNOTATIONS)):
        ours = set(str(recorded.get(record, "")).split(","))
        foreign = {key: value for key, value in (held.get(field) or {}).items() if key not in ours}
        result[field] = {**foreign, **(meta.get(field) or {})}
    return result


def _with_labels_of(spec: Object, there: Object) -> Object:
    """Keep the pod labels of a Job that the member's API server generated."""
    template = dict(spec.get("template") or {})
    meta = dict(template.get("metadata") or {})
    held = (there.get("template") or {}).get("metadata") or {}
    meta["labels"] = {**(held.get("labels") or {}), **(meta.get("labels") or {})}
    return {**spec, "template": {**template, "metadata": meta}}


def has_drifted(wanted: Object, observed: Object) -> bool:
    """Whether writing `wanted` over `observed` would change anything but defaults."""
    for field, value in wanted.items():
        if field not in ("apiVersion", "kind", "status", "metadata") and not _covers(
            observed.get(field), value
        ):
            return True
    meta, held = wanted["metadata"], observed["metadata"]
    return any((meta.get(field) or {}) != (held.get(field) or {}) for field in ("labels", "annotations"))


def _covers(observed: Any, wanted: Any) -> bool:
    """Whether `observed` has all that `wanted` has; additional fields are defaults."""
    if isinstance(wanted, dict):
        if not isinstance(observed, dict):
            return not wanted and observed is None
        return all(_covers(observed.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(observed, list):
            return not wanted and observed is None
        return len(wanted) == len(observed) and all(map(_covers, observed, wanted))
    return bool(observed == wanted)
