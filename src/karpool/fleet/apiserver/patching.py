"""PATCH: the four content types, each ending in the same update.

Everything happens in one synchronous step, so a patch never meets a concurrent
write and needs no retry; it fails on a version only when it names one.
"""

from typing import Any

from karpool.fleet.apiserver.bodies import content_type, decode
from karpool.fleet.apiserver.json_patch import PatchError
from karpool.fleet.apiserver.patch import json_patch, merge_patch, strategic_merge
from karpool.fleet.apiserver.status import StatusError, bad_request, unsupported_media_type
from karpool.fleet.apiserver.types import Object, ResourceType
from karpool.kube.transport import Request

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

_CODES = {"BadRequest": 400, "Invalid": 422, "RequestEntityTooLarge": 413}


def read_patch(request: Request, resource: ResourceType) -> tuple[str, Any]:
    """The content type and the decoded patch."""
    kind = content_type(request)
    offered = (
        (JSON_PATCH, MERGE_PATCH, APPLY) if resource.custom else (JSON_PATCH, MERGE_PATCH, STRATEGIC, APPLY)
    )
    if kind not in offered:
        raise unsupported_media_type(kind[:80], offered)
    return kind, decode(request.body, kind)


def patched(kind: str, doc: Object, patch: Any, resource: ResourceType) -> Object:
    """`doc` after a patch of one of the first three kinds; `doc` is left alone."""
    try:
        match kind:
            case "application/json-patch+json":
                result = json_patch(doc, patch)
            case "application/merge-patch+json":
                result = merge_patch(doc, patch)
            case _:
                result = strategic_merge(doc, patch, resource.schema)
    except PatchError as error:
        code = _CODES.get(error.status_reason, 400)
        raise StatusError(code, error.status_reason, error.message) from None
    if not isinstance(result, dict):
        raise bad_request("the patch leaves something that is not an object")
    return result
