"""The scale subresource: reads and writes the replicas of any workload.

Custom resources say where their counts are (`ScalePaths`); built-in ones use the usual fields.
"""

from typing import Any

from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.metadata import metadata_of
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType, ScalePaths
from karpool_fleet.apiserver.printing.cell_text import selector_text
from karpool_fleet.apiserver.serve.status import bad_request, conflict, invalid
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs.create_and_update import Intent, update

SCALE = ResourceType("autoscaling", "v1", "Scale", "scales", "scale", True, generation=False)
_USUAL = ScalePaths(".spec.replicas", ".status.replicas")
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def read(resource: ResourceType, obj: Object) -> Object:
    paths = resource.scale or _USUAL
    status: Object = {"replicas": _count(_get(obj, paths.status_replicas))}
    if selector := _selector(resource, obj, paths):
        status["selector"] = selector
    return {
        "kind": SCALE.kind,
        "apiVersion": SCALE.api_version,
        "metadata": {key: obj["metadata"][key] for key in _KEPT if key in obj["metadata"]},
        "spec": {"replicas": _count(_get(obj, paths.spec_replicas))},
        "status": status,
    }


def write(cluster: ServedCluster, intent: Intent, record: StoredObject, wanted: Object) -> StoredObject:
    """Set the replicas of a Scale, through the same update as any other change."""
    resource = intent.resource
    if wanted.get("kind", SCALE.kind) != SCALE.kind:
        raise bad_request(f"kind: {wanted.get('kind')!r} was sent where 'Scale' is expected")
    metadata = metadata_of(wanted)
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if version and version != str(record.version):
        raise conflict(resource, record.name, f"resourceVersion {version} is not the stored {record.version}")
    if uid and uid != record.uid:
        raise conflict(resource, record.name, f"uid {uid} is not the stored {record.uid}")
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas < 2**31:
        detail = "must be a whole number, zero or more"
        raise invalid(
            SCALE, record.name, [FieldError("spec.replicas", replicas, "FieldValueInvalid", detail)]
        )
    obj = record.object()
    obj["apiVersion"] = resource.api_version
    _set(obj, (resource.scale or _USUAL).spec_replicas, replicas)
    return update(cluster, intent, record, obj)


def _steps(path: str) -> list[str]:
    return [step for step in path.split(".") if step]


def _get(obj: Object, path: str) -> Any:
    value: Any = obj
    for step in _steps(path):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _set(obj: Object, path: str, value: int) -> None:
    *parents, last = _steps(path)
    place: Any = obj
    for step in parents:
        if not isinstance(place.get(step), dict):
            place[step] = {}
        place = place[step]
    place[last] = value


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _selector(resource: ResourceType, obj: Object, paths: ScalePaths) -> str:
    if resource.custom:
        text = _get(obj, paths.selector) if paths.selector else ""
        return text if isinstance(text, str) else ""
    return selector_text(_get(obj, ".spec.selector"))
