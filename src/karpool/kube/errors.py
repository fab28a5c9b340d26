"""Errors of the Kubernetes client, one class for each reaction of the caller.

KubeError
├── ConfigError          kubeconfig or credentials cannot be used: report it to the user
├── SnapshotError        a file cannot be read or written: report it to the user
├── LeadershipLost       stop acting now
├── MissingRights        several kinds may not be listed: report the missing permissions
├── Unreachable          no answer came: try later; `sent` says whether it may have been executed
└── StatusError          the server answered, and not with success
    ├── Denied           401, 403: stop and report
    ├── NotFound         404
    ├── AlreadyExists    409 on create: read it and decide
    ├── Conflict         409 otherwise: re-read and retry
    ├── Gone             410, or an expired version: list again
    ├── Rejected         400, 405, 422 and other 4xx: the request itself is wrong, see `causes`
    ├── Throttled        429: wait `retry_after`
    └── ServerFault      5xx, or an answer that cannot be read

Errors of the HTTP library are never raised to callers; they are chained as the cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import msgspec

from karpool.kube.transport_interface import HttpRequest, HttpResponse

MESSAGE_LIMIT = 1000  # a hostile or chatty server must not flood our logs


class KubeError(Exception):
    pass


class ConfigError(KubeError):
    pass


class SnapshotError(KubeError):
    pass


class LeadershipLost(KubeError):
    pass


class ApiUnreachable(KubeError):
    def __init__(self, message: str, *, sent: bool = True) -> None:
        self.sent = sent
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class StatusCause:
    """One entry of `details.causes` in a Status."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class StatusError(KubeError):
    """An answer that is not a success. `what` names the request: `PATCH /api/v1/.../pods/web`."""

    def __init__(
        self,
        what: str,
        code: int,
        *,
        reason: str = "",
        message: str = "",
        causes: tuple[StatusCause, ...] = (),
        retry_after: float | None = None,
    ) -> None:
        self.what = what
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        head = f"{code} {reason}".rstrip()
        super().__init__(": ".join(part for part in (what, head, message) if part))

    def has_cause(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)


class Denied(StatusError):
    pass


class MissingRights(KubeError):
    """Some kinds may not be listed. `denied` holds the server's message for each resource."""

    def __init__(self, cluster: str, denied: Mapping[str, Denied]) -> None:
        self.denied = denied
        first = next(iter(denied.values()))
        if first.code == 401:  # not authenticated; a role would not help
            hint = "log in again, or choose another --context"
        else:
            hint = (
                "the ClusterRole karpool-reader grants them: kubectl apply -k deploy/kustomize/reader, or the"
                " chart with reader.create and reader.subjects"
            )
        super().__init__(f"{cluster}: may not list {', '.join(sorted(denied))} ({first}); {hint}")


class NotFound(StatusError):
    pass


class AlreadyExists(StatusError):
    pass


class Conflict(StatusError):
    pass


class Gone(StatusError):
    pass


class Rejected(StatusError):
    pass


class Throttled(StatusError):
    pass


class ServerFault(StatusError):
    pass


class _WireCause(msgspec.Struct):
    reason: str | None = None
    field: str | None = None
    message: str | None = None


class _WireDetails(msgspec.Struct):
    causes: list[_WireCause] | None = None
    retry_after_seconds: float | None = msgspec.field(default=None, name="retryAfterSeconds")


class _WireStatus(msgspec.Struct):
    kind: str | None = None
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _WireDetails | None = None


_STATUS = msgspec.json.Decoder(_WireStatus)
_BY_CODE: dict[int, type[StatusError]] = {401: Denied, 403: Denied, 404: NotFound, 410: Gone, 429: Throttled}


def describe(request: HttpRequest) -> str:
    return f"{request.method} {request.path}"


def from_response(request: HttpRequest, response: HttpResponse, *, now: float) -> StatusError:
    """Return the error for an answer that is not a success.

    `now` converts a dated Retry-After into seconds.
    """
    retry_after = _retry_after(response.headers.get("retry-after", ""), now)
    return from_status(describe(request), response.body, code=response.status, retry_after=retry_after)


def from_status(
    what: str, body: bytes, *, code: int | None = None, retry_after: float | None = None
) -> StatusError:
    """Return the error for a Status object; a body that is not a Status is quoted instead.

    `code` is the HTTP status if there was one; in a watch stream only the Status has a code.
    """
    status = _read_status(body)
    number = code if code is not None else status.code or 500
    details = status.details or _WireDetails()
    reason = _printable(status.reason or "", 80)
    kind = _kind_of_error(number, reason)
    causes = tuple(
        StatusCause(
            _printable(c.reason or "", 80),
            _printable(c.field or "", 200),
            _printable(c.message or "", MESSAGE_LIMIT),
        )
        for c in (details.causes or ())[:50]
    )
    if retry_after is None and details.retry_after_seconds:
        retry_after = max(0.0, details.retry_after_seconds)
    message = _printable(status.message or "", MESSAGE_LIMIT)
    return kind(what, number, reason=reason, message=message, causes=causes, retry_after=retry_after)


def _kind_of_error(code: int, reason: str) -> type[StatusError]:
    if code == 409:
        return AlreadyExists if reason == "AlreadyExists" else Conflict
    if reason in ("Expired", "Gone"):
        return Gone
    if code >= 500:
        return ServerFault
    return _BY_CODE.get(code, Rejected)


def _read_status(body: bytes) -> _WireStatus:
    try:
        status = _STATUS.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return _WireStatus(message=body[:200].decode("utf-8", "replace"))
    return status


def _printable(text: str, limit: int) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text[: limit + 1]).strip()
    return clean if len(clean) <= limit else clean[: limit - 3] + "..."


def _retry_after(header: str, now: float) -> float | None:
    if not header:
        return None
    if header.isascii() and header.isdigit():
        return float(header[:9])
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now)
    except (ValueError, OverflowError):
        return None
