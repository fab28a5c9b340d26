"""PUT and PATCH, each ending in one update.

Everything happens in one synchronous step, so a patch never meets a concurrent write and needs no retry; it
fails on a version only when it names one.
"""

from typing import Any

from karpool.kube.transport_interface import HttpRequest
from karpool_fleet.apiserver.kinds.conversion import converted
from karpool_fleet.apiserver.objects.cluster import ServedCluster
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType
from karpool_fleet.apiserver.patches.apply import ApplyConflict, apply
from karpool_fleet.apiserver.patches.json_patch import PatchError, json_patch
from karpool_fleet.apiserver.patches.managed_fields import track_update
from karpool_fleet.apiserver.patches.patch import merge_patch
from karpool_fleet.apiserver.patches.strategic_merge import strategic_merge
from karpool_fleet.apiserver.serve.bodies import content_type, decode, decode_object
from karpool_fleet.apiserver.serve.call import Call
from karpool_fleet.apiserver.serve.status import (
    ApiStatusError,
    bad_request,
    conflict,
    invalid,
    not_found,
    unsupported_media_type,
)
from karpool_fleet.apiserver.storage.record import StoredObject
from karpool_fleet.apiserver.verbs import create_and_update
from karpool_fleet.apiserver.verbs.create_and_update import Intent

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_CODES = {"BadRequest": 400, "Invalid": 422, "RequestEntityTooLarge": 413}


def replace(cluster: ServedCluster, call: Call) -> StoredObject:
    return create_and_update.update(cluster, call.intent(), call.record(), decode_object(call.request))


def apply_patch(cluster: ServedCluster, call: Call) -> tuple[StoredObject, bool]:
    """The object after the patch, and whether it is new."""
    kind, patch = read_patch(call.request, call.resource)
    intent = call.intent()
    if kind == APPLY:
        return _apply(cluster, call, intent, patch)
    record = call.record()
    new = patched(kind, live_object(record, call.resource), patch, call.resource)
    return create_and_update.update(cluster, intent, record, new), False


def live_object(record: StoredObject, resource: ResourceType) -> Object:
    """A stored object in the version of the request."""
    return converted(record.object(), resource.api_version)


def read_patch(request: HttpRequest, resource: ResourceType) -> tuple[str, Any]:
    """The content type and the decoded patch."""
    kind = content_type(request)
    offered = [JSON_PATCH, MERGE_PATCH, APPLY]
    if not resource.custom:
        offered.append(STRATEGIC)
    if kind not in offered:
        raise unsupported_media_type(kind[:80], offered)
    return kind, decode(request.body, kind)


def patched(kind: str, doc: Object, patch: Any, resource: ResourceType) -> Object:
    """Return `doc` after a patch of one of the first three kinds; `doc` is not changed."""
    try:
        if kind == JSON_PATCH:
            result = json_patch(doc, patch)
        elif kind == MERGE_PATCH:
            result = merge_patch(doc, patch)
        else:
            result = strategic_merge(doc, patch, resource.schema)
    except PatchError as error:
        raise _refusal(error) from None
    if not isinstance(result, dict):
        raise bad_request("the patch leaves something that is not an object")
    return result


def _apply(cluster: ServedCluster, call: Call, intent: Intent, applied: Any) -> tuple[StoredObject, bool]:
    if not isinstance(applied, dict):
        raise bad_request("the applied configuration must be one object")
    resource = call.resource
    if not call.query.text("fieldManager"):
        missing = FieldError("fieldManager", "", "FieldValueRequired", "is required for apply")
        raise invalid(resource, call.route.name, [missing])
    record = cluster.collection(resource).get(call.namespace, call.route.name)
    if record is None and intent.subresource:
        raise not_found(resource, call.route.name)
    create_and_update.check_applied(intent, applied)
    live = _tracked(cluster, live_object(record, resource), resource) if record is not None else None
    intent.applying = True
    try:
        new = apply(
            live,
            applied,
            manager=intent.manager,
            force=call.query.flag("force"),
            schema=resource.schema,
            api_version=resource.api_version,
            now=cluster.now(),
            subresource=intent.subresource,
        )
    except ApplyConflict as error:
        raise conflict(resource, call.route.name, str(error), error.causes()) from None
    except PatchError as error:
        raise _refusal(error) from None
    if record is None:
        return create_and_update.create(cluster, intent, new), True
    if new is live:
        return record, False
    return create_and_update.update(cluster, intent, record, new), False


def _tracked(cluster: ServedCluster, live: Object, resource: ResourceType) -> Object:
    """Return the object with an entry that owns all fields written before the first apply."""
    if not live["metadata"].get("managedFields"):
        track_update(
            None,
            live,
            manager="before-first-apply",
            api_version=resource.api_version,
            now=cluster.now(),
            schema=resource.schema,
        )
    return live


def _refusal(error: PatchError) -> ApiStatusError:
    return ApiStatusError(_CODES.get(error.status_reason, 400), error.status_reason, error.message)
