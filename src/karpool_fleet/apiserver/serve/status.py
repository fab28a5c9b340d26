"""Kubernetes Status objects, and the exception that becomes one.

Every refusal the server makes is a `ApiStatusError`; clients decide by `code` and
`reason`, people read `message`. The constructors here are the only places that
pair a code with a reason.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from karpool.kube.transport_interface import HttpResponse
from karpool_fleet.apiserver.objects.types import FieldError, Object, ResourceType

JSON = {"content-type": "application/json"}

_VALUE_LIMIT = 120  # hostile input must not flood a message


class ApiStatusError(Exception):
    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        continue_token: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details) if details else {}
        self.continue_token = continue_token

    def status(self) -> Object:
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body

    def response(self) -> HttpResponse:
        headers = dict(JSON)
        if wait := self.details.get("retryAfterSeconds"):
            headers["retry-after"] = str(wait)
        return HttpResponse(self.code, headers, msgspec.json.encode(self.status()))


def success(details: Mapping[str, Any] | None = None, *, code: int = 200) -> HttpResponse:
    body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if code != 200:
        body["code"] = code
    if details:
        body["details"] = dict(details)
    return HttpResponse(code, JSON, msgspec.json.encode(body))


def details_of(resource: ResourceType, name: str = "", *, uid: str = "") -> dict[str, Any]:
    """`details` names the resource in the plural, as clients expect in its `kind` field."""
    details = {"name": name, "group": resource.group, "kind": resource.plural, "uid": uid}
    return {key: value for key, value in details.items() if value}


def bad_request(message: str) -> ApiStatusError:
    return ApiStatusError(400, "BadRequest", message)


def unauthorized(message: str = "the request carries no valid bearer token") -> ApiStatusError:
    return ApiStatusError(401, "Unauthorized", message)


def forbidden(
    resource: ResourceType, name: str, message: str, causes: Iterable[Object] = ()
) -> ApiStatusError:
    text = f'{resource.group_resource} "{name}" is forbidden: {message}'
    return ApiStatusError(403, "Forbidden", text, details=_with_causes(resource, name, causes))


def not_found(resource: ResourceType, name: str) -> ApiStatusError:
    return ApiStatusError(
        404,
        "NotFound",
        f'{resource.group_resource} "{name}" not found',
        details=details_of(resource, name),
    )


def no_such_path(path: str) -> ApiStatusError:
    shown = path if len(path) <= _VALUE_LIMIT else path[:_VALUE_LIMIT] + "..."
    return ApiStatusError(404, "NotFound", f"no resource is served at {shown}; see /apis for what is")


def method_not_allowed(method: str, what: str) -> ApiStatusError:
    return ApiStatusError(405, "MethodNotAllowed", f"{method} is not supported on {what}")


def not_acceptable(accept: str) -> ApiStatusError:
    return ApiStatusError(406, "NotAcceptable", f"cannot answer as {accept!r}; application/json is offered")


def already_exists(resource: ResourceType, name: str) -> ApiStatusError:
    return ApiStatusError(
        409,
        "AlreadyExists",
        f'{resource.group_resource} "{name}" already exists',
        details=details_of(resource, name),
    )


def conflict(
    resource: ResourceType, name: str, message: str, causes: Iterable[Object] = ()
) -> ApiStatusError:
    text = f'conflict on {resource.group_resource} "{name}": {message}'
    return ApiStatusError(409, "Conflict", text, details=_with_causes(resource, name, causes))


def _with_causes(resource: ResourceType, name: str, causes: Iterable[Object]) -> Object:
    details = details_of(resource, name)
    if causes := list(causes):
        details["causes"] = causes
    return details


def expired(message: str, *, continue_token: str = "") -> ApiStatusError:
    return ApiStatusError(410, "Expired", message, continue_token=continue_token)


def too_large(message: str) -> ApiStatusError:
    return ApiStatusError(413, "RequestEntityTooLarge", message)


def unsupported_media_type(content_type: str, offered: Iterable[str]) -> ApiStatusError:
    return ApiStatusError(
        415,
        "UnsupportedMediaType",
        f"content type {content_type!r} is not supported here; send one of: {', '.join(offered)}",
    )


def too_many_requests(message: str, *, retry_seconds: int, causes: Iterable[Object] = ()) -> ApiStatusError:
    details: Object = {}
    if retry_seconds:
        details["retryAfterSeconds"] = retry_seconds
    if causes := list(causes):
        details["causes"] = causes
    return ApiStatusError(429, "TooManyRequests", message, details=details)


def internal(message: str) -> ApiStatusError:
    return ApiStatusError(500, "InternalError", message, details={"causes": [{"message": message}]})


def not_implemented(message: str) -> ApiStatusError:
    return ApiStatusError(501, "NotImplemented", message)


def version_too_large(asked: int, current: int) -> ApiStatusError:
    return ApiStatusError(
        504,
        "Timeout",
        f"Too large resource version: {asked}, current: {current}",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


# How each cause is spelled in front of its value.
_CAUSES = {
    "FieldValueRequired": "Required value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueTypeInvalid": "Invalid value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueNotFound": "Not found",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
}
_VALUELESS = ("FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong", "FieldValueTooMany")


def invalid(resource: ResourceType, name: str, errors: Iterable[FieldError]) -> ApiStatusError:
    """422, with one cause per field."""
    causes = [{"reason": error.reason, "message": _describe(error), "field": error.field} for error in errors]
    listed = ", ".join(f"{cause['field']}: {cause['message']}" for cause in causes[:10])
    if len(causes) > 10:
        listed += f", and {len(causes) - 10} more"
    details = {"name": name, "group": resource.group, "kind": resource.kind, "causes": causes}
    return ApiStatusError(
        422,
        "Invalid",
        f'{resource.kind} "{name}" is invalid: {listed}',
        details={key: value for key, value in details.items() if value},
    )


def _describe(error: FieldError) -> str:
    prefix = _CAUSES.get(error.reason, error.reason)
    if error.reason in _VALUELESS:
        return f"{prefix}: {error.detail}" if error.detail else prefix
    shown = f'"{error.value}"' if isinstance(error.value, str) else repr(error.value)
    if len(shown) > _VALUE_LIMIT:
        shown = shown[: _VALUE_LIMIT - 3] + "..."
    return f"{prefix}: {shown}: {error.detail}" if error.detail else f"{prefix}: {shown}"
